//! The UDP sockets of a client: buffers are asked for, read back, and complained about once per process where the system
//! gives less.

use rustix::net::sockopt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Once};

/// A client endpoint at `local` with socket buffers of `buffer_bytes` both ways, as far as the system gives them; 0
/// leaves what it gives. Call within a runtime.
///
/// # Errors
/// When the socket cannot be opened.
pub(crate) fn endpoint(local: SocketAddr, buffer_bytes: usize) -> std::io::Result<quinn::Endpoint> {
    let socket = UdpSocket::bind(local)?;
    if buffer_bytes > 0 {
        grow(&socket, buffer_bytes);
    }
    quinn::Endpoint::new(quinn::EndpointConfig::default(), None, socket, Arc::new(quinn::TokioRuntime))
}

/// What the system gave: receive, send.
fn grow(socket: &UdpSocket, wanted: usize) -> [usize; 2] {
    static SAID: Once = Once::new();
    let asked = [
        sockopt::set_socket_recv_buffer_size(socket, wanted),
        sockopt::set_socket_send_buffer_size(socket, wanted),
    ];
    // The kernel doubles what was asked for, for its own bookkeeping, and says the double (socket(7)).
    let given = [
        sockopt::socket_recv_buffer_size(socket).unwrap_or(0) / 2,
        sockopt::socket_send_buffer_size(socket).unwrap_or(0) / 2,
    ];
    if given.iter().any(|bytes| *bytes < wanted) {
        SAID.call_once(|| {
            let [receive, send] = given;
            tracing::warn!(
                wanted,
                receive,
                send,
                ?asked,
                "UDP buffers are smaller than asked for: sysctl -w net.core.rmem_max={wanted} \
                 net.core.wmem_max={wanted}, or ask for less (udp_buffer)"
            );
        });
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_gives_is_read_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(grow(&socket, 32 * 1024), [32 * 1024; 2]);
    }
}

//! Buffers of UDP sockets: asked for, read back, and complained about once per process where the system gives less.

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::net::UdpSocket;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the system gave to the sockets of this process, the least of all: one limit holds for all of them.
static LEAST: [AtomicUsize; 2] = [AtomicUsize::new(usize::MAX), AtomicUsize::new(usize::MAX)];

/// Buffers of one socket, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpBuffers {
    /// For datagrams that were received and not yet read.
    pub receive: usize,
    /// For datagrams that wait to be sent.
    pub send: usize,
}

/// Asks for buffers of `wanted` bytes both ways; what the system gave. Says once per process which setting of the
/// system to raise if it was less.
pub fn grow(socket: &UdpSocket, wanted: usize) -> UdpBuffers {
    static SAID: Once = Once::new();
    let asked = [
        sockopt::set_socket_recv_buffer_size(socket, wanted),
        sockopt::set_socket_send_buffer_size(socket, wanted),
    ];
    // The kernel doubles what was asked for, for its own bookkeeping, and says the double (socket(7)).
    let given = UdpBuffers {
        receive: sockopt::socket_recv_buffer_size(socket).unwrap_or(0) / 2,
        send: sockopt::socket_send_buffer_size(socket).unwrap_or(0) / 2,
    };
    LEAST[0].fetch_min(given.receive, Relaxed);
    LEAST[1].fetch_min(given.send, Relaxed);
    if let Some(raise) = too_small(given, wanted) {
        SAID.call_once(|| {
            let (receive, send) = (given.receive, given.send);
            tracing::warn!(wanted, receive, send, ?asked, "UDP buffers are smaller than asked for: {raise}");
        });
    }
    given
}

/// The least that the system gave to any socket of this process; 0 before the first.
pub fn least() -> UdpBuffers {
    let read = |slot: &AtomicUsize| match slot.load(Relaxed) {
        usize::MAX => 0,
        bytes => bytes,
    };
    UdpBuffers { receive: read(&LEAST[0]), send: read(&LEAST[1]) }
}

/// What to raise, if less was given than wanted.
fn too_small(given: UdpBuffers, wanted: usize) -> Option<String> {
    let names = [("net.core.rmem_max", given.receive), ("net.core.wmem_max", given.send)];
    let short = names.iter().filter(|(_, bytes)| *bytes < wanted);
    let settings: Vec<String> = short.map(|(name, _)| format!("{name}={wanted}")).collect();
    (!settings.is_empty()).then(|| format!("sysctl -w {}", settings.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_gives_is_read_back() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let given = grow(&socket, 16 * 1024);
        assert_eq!(given, UdpBuffers { receive: 16 * 1024, send: 16 * 1024 });
        assert!(least().receive <= 16 * 1024 && least().receive > 0);
    }

    #[test]
    fn what_is_short_is_named() {
        assert_eq!(too_small(UdpBuffers { receive: 5, send: 5 }, 5), None);
        let both = too_small(UdpBuffers { receive: 4, send: 3 }, 5).unwrap();
        assert_eq!(both, "sysctl -w net.core.rmem_max=5 net.core.wmem_max=5");
        assert_eq!(too_small(UdpBuffers { receive: 5, send: 3 }, 5).unwrap(), "sysctl -w net.core.wmem_max=5");
    }
}

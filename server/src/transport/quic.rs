//! QUIC settings of the three ports, in one table, and the endpoint configurations made of them.
//!
//! Figures in the comments were measured on loopback; what is not set here is quinn's default because nothing
//! was gained by changing it.

use super::tls::{Credentials, Port};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, ClientConfig, ServerConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// First guess of the round trip: decides the first retransmissions of a handshake. QUIC's own 333 ms is
/// for the open internet.
const INITIAL_RTT: Duration = Duration::from_millis(3);
/// Keeps idle connections and their round-trip estimates alive.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// A connection that is silent for this long is lost.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Packets that the other end may receive before it acknowledges without having anything else to say. At a few
/// hundred small packets a second, acknowledging every other one (QUIC's default) made 37 % of all packets, each
/// of them a wake-up; answers and copies carry acknowledgements anyway.
const UNACKNOWLEDGED_MAX: u32 = 16;
/// Streams with large values that a client may have open at a time.
const CLIENT_LARGE_STREAMS_MAX: u32 = 8;
/// Bytes of one stream of a client that wait to be taken.
const CLIENT_STREAM_WINDOW_BYTES: u32 = 1_250_000;
/// Bytes of one connection of a client that wait to be taken: all of its streams' windows, so that large values that
/// wait for a place never keep the ordered stream waiting.
const CLIENT_WINDOW_BYTES: u32 = (CLIENT_LARGE_STREAMS_MAX + 1) * CLIENT_STREAM_WINDOW_BYTES;
/// Half-open handshakes that wait per endpoint; one more is refused.
pub const HANDSHAKES_MAX: usize = 256;
/// Bytes that not yet accepted connections may buffer, each and in total.
const INCOMING_BUFFER_BYTES: (u64, u64) = (64 * 1024, 4 * 1024 * 1024);

/// How long the acknowledgement of a cancel may wait for another. A lost cancel is not sent again, so that nobody waits
/// for it; with QUIC's 25 ms it cost a packet and two wake-ups for every few cancels.
const CANCEL_ACK_DELAY: Duration = Duration::from_millis(250);

/// Application code of a close without complaint.
pub const CLOSE_DONE: VarInt = VarInt::from_u32(0);
/// The node stops.
pub const CLOSE_SHUTDOWN: VarInt = VarInt::from_u32(1);
/// Wrong cluster, role or node.
pub const CLOSE_STRANGER: VarInt = VarInt::from_u32(2);
/// The stream of frames cannot be followed, or the first frame is no `Hello`.
pub const CLOSE_PROTOCOL: VarInt = VarInt::from_u32(3);
/// A bound was reached: too many connections, or answers that nobody reads.
pub const CLOSE_OVER_LIMIT: VarInt = VarInt::from_u32(4);
/// The other end did not say hello in time.
pub const CLOSE_TOO_SLOW: VarInt = VarInt::from_u32(5);

/// The transport settings of a port.
pub fn transport(port: Port) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.initial_rtt(INITIAL_RTT);
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    transport.max_idle_timeout(Some(VarInt::from_u32(IDLE_MAX.as_millis() as u32).into()));
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(VarInt::from_u32(UNACKNOWLEDGED_MAX));
    if port == Port::Cancel {
        acknowledgements.max_ack_delay(Some(CANCEL_ACK_DELAY));
    }
    transport.ack_frequency_config(Some(acknowledgements));
    match port {
        Port::Client => {
            transport.max_concurrent_bidi_streams(VarInt::from_u32(1));
            transport.max_concurrent_uni_streams(VarInt::from_u32(CLIENT_LARGE_STREAMS_MAX));
            transport.stream_receive_window(VarInt::from_u32(CLIENT_STREAM_WINDOW_BYTES));
            transport.receive_window(VarInt::from_u32(CLIENT_WINDOW_BYTES));
            transport.datagram_receive_buffer_size(None);
        }
        Port::Peer => {
            transport.max_concurrent_bidi_streams(VarInt::from_u32(256));
            transport.max_concurrent_uni_streams(VarInt::from_u32(64));
            transport.datagram_receive_buffer_size(None);
        }
        Port::Cancel => {
            transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
            transport.max_concurrent_uni_streams(VarInt::from_u32(0));
            transport.datagram_receive_buffer_size(Some(256 * 1024));
            // Old cancels are worth nothing: a full buffer drops the oldest.
            transport.datagram_send_buffer_size(64 * 1024);
        }
    }
    transport
}

/// The configuration of a listener on `port`.
///
/// # Errors
/// When the TLS library refuses the credentials.
pub fn server(credentials: &Credentials, port: Port) -> Result<ServerConfig, rustls::Error> {
    let tls = credentials.server_tls(port)?;
    let tls = QuicServerConfig::try_from(tls).map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(transport(port)));
    config.max_incoming(HANDSHAKES_MAX);
    config.incoming_buffer_size(INCOMING_BUFFER_BYTES.0);
    config.incoming_buffer_size_total(INCOMING_BUFFER_BYTES.1);
    config.migration(matches!(port, Port::Client));
    Ok(config)
}

/// The configuration of a dialler to `port` of a peer.
///
/// # Errors
/// When the TLS library refuses the credentials.
pub fn client(credentials: &Credentials, port: Port) -> Result<ClientConfig, rustls::Error> {
    let tls = credentials.client_tls(port)?;
    let tls = QuicClientConfig::try_from(tls).map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport(port)));
    Ok(config)
}

//! The wire of a node: certificates, QUIC settings, accepting connections, client sessions.
//!
//! | room | job |
//! |---|---|
//! | [`udp`] | UDP sockets with buffers as asked for |
//! | [`tls`] | loads certificates, makes TLS configurations, tells who is at the other end |
//! | [`expiry`] | when a certificate ends |
//! | [`quic`] | QUIC settings of each port |
//! | [`listen`] | the client port: sockets, accept loop, bounds of half-open connections |
//! | [`client_session`] | one client connection from hello to end |
//! | [`large`] | frames on streams of their own: large writes |
//! | [`dispatch`] | one frame of a client: decode it, call the room it is for |
//! | [`replies`] | answers from worker threads to a connection's writer |

pub mod client_session;
pub mod dispatch;
pub mod expiry;
pub mod large;
pub mod listen;
pub mod quic;
pub mod replies;
pub mod tls;
pub mod udp;

#[cfg(test)]
pub(crate) mod test_certificates;
#[cfg(test)]
pub(crate) mod test_probe;

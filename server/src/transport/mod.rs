//! The wire of a node: certificates, QUIC settings, accepting connections, client sessions.
//!
//! | room | job |
//! |---|---|
//! | [`tls`] | loads certificates, makes TLS configurations, tells who is at the other end |
//! | [`quic`] | QUIC settings of each port |

pub mod quic;
pub mod tls;

#[cfg(test)]
pub(crate) mod test_certificates;

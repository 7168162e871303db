//! Bytes and names of tiedkv.
//!
//! This crate says what travels between a client and a node and between two nodes: identifiers, frames,
//! messages, limits and error codes. It is the only place where a wire format is written down.
//!
//! What it does not do: it knows no clock, no socket, no async runtime and no policy. Who sends a message,
//! when, and what follows from it is decided in `tiedkv-client` and `tiedkv-server`.
//!
//! | room | job |
//! |---|---|
//! | [`atomic`] | conditional and atomic writes |
//! | [`ids`] | names of nodes, shards, reads, ties, callers; positions and versions |
//! | [`limits`] | every bound that both ends must agree on |
//! | [`codec`] | the one module that knows `bincode` |
//! | `frugal` | decoding that allocates what was received, never what was claimed |
//! | [`frame`] | length-prefixed frames on a stream: header + raw payload |
//! | [`identity`] | the identity that a certificate carries, as text |
//! | [`hello`] | the first messages of a connection; topology; ceiling |
//! | [`request`] | what a client asks: reads, withdraws, writes, administration |
//! | [`multi_get`] | keys of one call that travel in one copy |
//! | [`scan`] | pages of ordered scans |
//! | [`tie`] | what makes copies race |
//! | [`response`] | what a node answers |
//! | [`moment`] | a point on a monotonic clock that somebody else reads |
//! | [`peer`] | datagrams of the cancel channel |
//! | [`error`] | error codes and the caller's five moves |

pub mod atomic;
pub mod codec;
pub mod error;
pub mod frame;
mod frugal;
pub mod hello;
pub mod identity;
pub mod ids;
pub mod limits;
pub mod moment;
pub mod multi_get;
pub mod peer;
pub mod request;
pub mod response;
pub mod scan;
pub mod tie;

#[cfg(test)]
mod golden_test;
#[cfg(test)]
mod roundtrip_test;
#[cfg(test)]
mod samples_test;

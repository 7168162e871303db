//! The other nodes: who they are, how to reach them, and what travels between them.
//!
//! | room | job |
//! |---|---|
//! | [`directory`] | members, addresses, zones; the topology that clients are told |
//! | [`handshake`] | connections of the cancel channel: dialled or accepted, authenticated, with a deadline |
//! | [`address_rates`] | pure: how many handshakes an address may begin |
//! | [`cancel_channel`] | the cancel channel's door for workers, and its figures |
//! | [`cancel_link`] | the tasks of the cancel channel's thread |
//! | [`health`] | pure: is the channel to a peer usable, and how long does a cancel fly |
//! | [`priority`] | real-time priority for the cancel channel's thread |
//! | [`raft_link`] | connections and streams on the peer port |
//! | [`hello`] | what two nodes tell each other on the peer port before anything else |
//! | [`stream`] | messages on a stream of the peer port |

pub mod address_rates;
pub mod cancel_channel;
mod cancel_link;
pub mod directory;
pub mod handshake;
pub mod health;
pub mod hello;
pub mod priority;
pub mod raft_link;
pub mod stream;

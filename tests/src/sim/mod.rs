//! A seeded discrete-event simulation of clients, nodes and network on the shipped rooms.
//!
//! The rooms of a server (registry of ties, lanes, copies set aside, modelled device) and of a client (engine, race,
//! pace, budget) are the ones that ship; only the drivers around them, the network and the clock are made up here.
//! [`watch`] holds what happens against the invariants; [`table`] prints what the same rooms yield on the profile of
//! the benchmark.

pub mod client;
mod client_link;
pub mod config;
pub mod cost;
mod faults;
pub mod node;
mod node_work;
mod rest;
pub mod storm;
pub mod table;
pub mod watch;
pub mod wire;
pub mod world;

pub use config::{Planted, WorldConfig};
pub use rest::{Outturn, ReadSample};
pub use world::World;

/// Plays the world of one seed to its end.
pub fn play(seed: u64, planted: Option<Planted>) -> Outturn {
    World::new(WorldConfig::drawn(seed, planted)).run()
}

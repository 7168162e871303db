//! The simulation of replication: openraft and the shipped rooms that decide (`outcomes`, `command`, `atomic`, the rounds
//! of the read barrier, freshness) in a made-up world of one thread: clock, order of tasks, network, disks and faults all
//! follow one seed, bit for bit. openraft itself runs unchanged, on a runtime of ours.
//!
//! Not in it: QUIC, fjall, raft-log, the request path (that has a simulation of its own, `sim`) and changes of members.
//! [`run()`] plays one world.

pub mod channel;
pub mod load;
pub mod log;
pub mod machine;
pub mod network;
pub mod node;
mod run;
pub mod runtime;
pub mod types;
pub mod watch;
pub mod world;

pub use run::{Told, run};
pub use types::Planted;

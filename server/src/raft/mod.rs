//! Replication: one Raft group per shard. Nothing outside this room and `storage` names openraft, raft-log or
//! fjall types.

pub mod command;
pub mod first_start;
pub mod folder;
pub mod group;
pub mod log_codec;
pub mod log_store;
pub mod membership;
pub mod network;
pub mod outcomes;
pub mod read_barrier;
pub mod replica;
mod run;
pub mod serve;
pub mod snapshot;
pub mod state_machine;
pub mod types;
pub mod write;

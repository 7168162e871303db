//! Replication: one Raft group per shard. Nothing outside this room and `storage` names openraft, raft-log or
//! fjall types.

pub mod log_codec;
pub mod log_store;
pub mod outcomes;
pub mod snapshot;
pub mod state_machine;
pub mod types;

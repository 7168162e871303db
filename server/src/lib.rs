//! The tiedkv node: accept -> decode -> admit -> queue -> start + cancel peers -> execute -> reply.
//!
//! Pure rooms decide (`(event, now) -> what to do`), thin rooms act. `node` is the one room that knows all others.

pub mod clock;
pub mod config;
pub mod raft;
pub mod request;
pub mod storage;
pub mod transport;

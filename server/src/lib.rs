//! The tiedkv node: accept -> decode -> admit -> queue -> start + cancel peers -> execute -> reply.
//!
//! The tour, along one read:
//!
//! | stop | room |
//! |---|---|
//! | a connection is accepted, its certificate checked | [`transport::listen`], [`transport::tls`] |
//! | its frames are decoded, in order | [`transport::client_session`], [`transport::dispatch`] |
//! | the copy is admitted, queued, started, executed, answered | [`request`] |
//! | at the start, cancels leave to the peers | [`peer::cancel_channel`] |
//! | a view gives value and position | [`storage`] |
//! | the answer joins others in one write | [`transport::replies`] |
//!
//! Around it: [`config`] (settings), [`node`] (the one room that knows all others, and the in-process door),
//! [`replica`] (the seam to what stores and orders), [`admin`] (what operators see), [`tend`] (the slow loop),
//! [`shutdown`] (phases and threads), [`error`].
//!
//! Pure rooms decide (`(event, now) -> what to do`), thin rooms act.

pub mod admin;
mod assemble;
pub mod clock;
pub mod config;
pub mod error;
pub mod node;
pub mod peer;
pub mod raft;
pub mod replica;
pub mod request;
pub mod shutdown;
pub mod storage;
pub mod tend;
pub mod transport;

pub use config::{Config, ConfigBuilder};
pub use error::NodeError;
pub use node::{Node, StopReport};

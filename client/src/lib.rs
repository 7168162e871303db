//! Client of tiedkv: choose replicas -> pace copies -> first good answer -> withdraw the rest.
//!
//! The async half of the crate ([`client`], [`view`] and the rooms behind them) moves bytes and waits; it holds no
//! policy. What is sent when is decided by pure rooms that know no runtime and no clock.

pub mod client;
pub mod clock;
pub mod config;
pub mod copies;
pub mod error;
mod extra;
mod nearest;
pub mod options;
pub mod policy;
pub mod race;
pub mod report;
mod shared;
pub mod stats;
pub mod view;

pub use client::Client;
pub use config::Config;
pub use error::{Cause, CopyFate, CopyReport, Error};
pub use options::{Level, ReadOptions, WriteOptions};
pub use policy::ReadPolicy;
pub use report::{NodeView, Read, ReadReport, Value, WriteReport};
pub use stats::Stats;
pub use view::View;

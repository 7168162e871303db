//! Client of tiedkv: choose replicas -> pace copies -> first good answer -> withdraw the rest.
//!
//! The async half of the crate ([`client`], [`view`] and the rooms behind them) moves bytes and waits; it holds no
//! policy. What is sent when is decided by pure rooms that know no runtime and no clock.

mod alarms;
#[cfg(test)]
mod bare_test;
pub mod budget;
mod choose;
pub mod client;
pub mod clock;
pub mod completeness;
pub mod conditional;
mod conditional_calls;
pub mod config;
mod connections;
pub mod control;
pub mod copies;
mod cut_off;
mod delete_range;
mod dial;
mod effects;
pub mod engine;
pub mod engine_host;
pub mod error;
mod exchange;
mod extra;
#[cfg(test)]
mod fake_node;
pub mod fanout;
pub mod gate;
mod join;
mod keys_together;
pub mod latency;
mod lateness;
pub mod learn;
mod link_task;
mod mailbox;
#[cfg(feature = "metrics")]
pub mod metrics;
mod nearest;
pub mod observe;
pub mod operation;
pub mod options;
pub mod pace;
mod peer;
mod pending;
pub mod policy;
pub mod probation;
pub mod race;
mod read_end;
pub mod report;
pub mod retry;
pub mod scan;
pub mod select;
mod shadow;
mod shared;
#[cfg(test)]
mod silence_test;
pub mod slow;
pub mod spread;
pub mod stats;
pub mod strain;
pub mod switch_file;
pub mod switchboard;
mod tally;
#[cfg(test)]
mod test_support;
mod tied_read;
mod time_to_live;
mod timer;
mod tls;
mod topology;
mod udp;
pub mod view;
pub mod wins;
#[cfg(test)]
mod worked_test;
mod write;

pub use client::Client;
pub use conditional::{Batch, Conditional, Counted, Unmet};
pub use config::Config;
pub use control::Switch;
pub use error::{Cause, CopyFate, CopyReport, Error};
pub use fanout::{Entry, ManyRead, MultiGet, MultiGetError, PartialRead};
pub use operation::Operation;
pub use options::{Level, ReadOptions, WriteOptions};
pub use policy::ReadPolicy;
pub use report::{NodeView, Read, ReadReport, Value, WriteReport};
pub use scan::{Row, Scan, ScanOptions, ScanRange, ScanToken};
pub use slow::{SlowCopy, SlowRead};
pub use stats::Stats;
pub use switchboard::PolicyControl;
pub use tiedkv_protocol::atomic::{Current, Expect};
pub use view::View;

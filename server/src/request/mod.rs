//! The path of a request through a node, and the doors to its neighbours.

pub mod barrier;
pub mod config;
pub mod counters;
pub mod doors;
pub mod path;

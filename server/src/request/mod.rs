//! The path of a request through a node, and the doors to its neighbours.

pub mod admit;
pub mod barrier;
pub mod config;
pub mod copy_name;
pub mod copy_state;
pub mod counters;
pub mod doors;
pub mod health;
pub mod lane;
pub mod path;
pub mod recent_ties;
pub mod records;
pub mod set_aside;
pub mod tie;

//! The path of a request through a node, in reading order, and the doors to its neighbours.
//!
//! A copy: [`path`] (the public door) -> `arrive` (check, let in, register, queue) -> [`lane`] -> `start` (the worker:
//! start + cancel peers, serve) -> [`execute`] -> `end` (answer, or silent by rule). `called_off` is what ends copies
//! from outside; `keeper` looks after copies set aside and after brisk lanes. Pure rooms: [`admit`], [`brisk`],
//! [`copy_state`], [`health`], [`lane`], [`recent_ties`], [`set_aside`], [`tie`].

pub mod doors;
pub mod path;

mod arrive;
mod called_off;
mod end;
mod keeper;
mod start;
mod state;

pub mod admit;
pub mod barrier;
pub mod brisk;
pub mod config;
pub mod copy_name;
pub mod copy_state;
pub mod counters;
pub mod execute;
pub mod freshness;
pub mod health;
pub mod held;
pub mod lane;
pub mod lane_room;
pub mod recent_ties;
pub mod records;
pub mod set_aside;
pub mod slow_log;
pub mod tie;
pub mod wait;
pub mod write;

#[cfg(test)]
mod test_support;

//! The test binary of this package: rules of the repository, and what runs the shipped rooms without a network.
//!
//! Real processes are tested elsewhere: `tests/cluster`, declared in `cli/Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod check;
mod model;
mod powercut;
mod raftsim;
mod sim;
mod tidy;

//! Real processes, real QUIC: what a tie must survive, seen from outside.
//!
//! Declared in `cli/Cargo.toml`, so that cargo builds the binary for it. Every test has a cluster of its own
//! ([`bed`]). Where a race must go one exact way, the test itself plays the client byte by byte ([`wire`]) or a
//! member of the cluster ([`ghost`]). Nothing sleeps and hopes: every wait is for a condition, with a deadline.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests, measured by the machine's clock"
)]

mod bad_input;
mod bed;
mod bench;
mod bystander;
mod cancels;
mod clock;
mod conditional;
mod data;
mod data_intents;
mod data_live;
mod data_load;
mod data_many;
mod data_model;
mod data_model_draws;
mod data_model_map;
mod data_model_send;
mod data_printed;
mod data_tool;
mod data_ttl;
mod demo;
mod examples;
mod failing_disk;
mod faults;
mod folders;
mod ghost;
mod lag;
mod life;
mod load;
mod members;
mod million;
mod nemesis;
mod pages;
mod policy;
mod replicated;
mod tool;
mod trust;
mod wire;
mod writers;

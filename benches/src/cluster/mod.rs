//! A cluster of real server processes on this machine, and the certificates it trusts.

pub mod admin_page;
pub mod certs;
pub mod local;
mod node_file;
pub mod ports;
pub mod process;
pub mod relay;

pub use node_file::{Device, NodeSettings, Storage};

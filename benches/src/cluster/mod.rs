//! A cluster of real server processes on this machine, and the certificates it trusts.

pub mod certs;

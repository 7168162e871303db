//! Clusters of real processes, open-loop load, ideals and reports: what the demo, the benchmark and the cluster
//! tests share.
//!
//! | room | job |
//! |---|---|
//! | [`busy`] | the benchmark: scenes times policies |
//! | [`clock`] | the one room that reads clocks |
//! | [`cluster`] | certificates, and server processes that are always cleaned up |
//! | [`load`] | when reads are due, sending them on time, joining what the nodes recorded |
//! | [`ideal`] | the theoretical limits on a run's own trace (pure) |
//! | [`report`] | table and JSON |
//! | [`scenes`] | the scenes of the profile and how one is played |

pub mod busy;
pub mod clock;
pub mod cluster;
pub mod ideal;
pub mod load;
pub mod report;
pub mod scenes;

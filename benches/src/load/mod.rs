//! Load: when calls are due, which keys they take, sending them on time, and what came of them.

pub mod arrivals;
pub mod counted;
pub mod cpu;
pub mod disk;
pub mod hdr;
pub mod join;
pub mod keys;
pub mod machine;
pub mod mix;
pub mod mixed;
pub mod nodes;
pub mod ping;
pub mod preload;
pub mod realtime;
pub mod run;
pub mod send_timer;
pub mod tower_hedge;
pub mod turn_policy;
pub mod workload;

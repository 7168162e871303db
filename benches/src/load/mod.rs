//! Open-loop load: when reads are due, which keys they read, sending them on time, and what came of them.

pub mod arrivals;
pub mod closed;
pub mod cpu;
pub mod join;
pub mod machine;
pub mod nodes;
pub mod ping;
pub mod preload;
pub mod realtime;
pub mod run;
pub mod send_timer;
pub mod workload;

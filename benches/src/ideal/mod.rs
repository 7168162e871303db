//! The theoretical limits, computed on a run's own trace: pure recursions, no clock, no network.
//!
//! Given the arrivals, service draws and places of a run, they answer how long each read would have taken if a
//! scheduler without delay had known every queue: *join the shortest workload* of 2 or 3 places, and one central
//! queue before all workers. Jobs are part of the trace. The recursions are validated against M/M/1, M/G/1 and
//! M/M/k in the tests. Beside them stands a formula for what one lane does under reads alone.

mod recursions;
mod response;

pub use recursions::{Item, Trace, central_queue, join_shortest_workload};
pub use response::response_p95_us;

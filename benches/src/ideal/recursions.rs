//! Workload recursions (Lindley 1952; Kiefer and Wolfowitz 1955): per item, the earliest start in arrival order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One arrival of a trace. Times in microseconds as floats, from the start of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// When it arrives; items are in order of arrival.
    pub at_us: f64,
    /// Its service time, the same at every place.
    pub service_us: f64,
    /// Where it may be served, in the order in which copies would go out; a background job has one place.
    pub places: Vec<usize>,
    /// Counted in the result (a read), or only in the way (a job, a warm-up read).
    pub counted: bool,
}

/// What happened, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// All reads and jobs.
    pub items: Vec<Item>,
    /// Workers of each place (one lane of one node), at least 1 each.
    pub workers: Vec<usize>,
}

/// Busy until when: one entry per worker, the earliest on top.
struct Place(BinaryHeap<Reverse<u64>>);

const NANOS: f64 = 1_000.0;

impl Place {
    fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Reverse(0)).collect())
    }

    fn free_ns(&self) -> u64 {
        self.0.peek().map_or(0, |Reverse(at)| *at)
    }

    /// Serves from the earliest possible moment; returns the end.
    fn serve(&mut self, at_ns: u64, service_ns: u64) -> u64 {
        let end = at_ns.max(self.free_ns()).saturating_add(service_ns);
        if let Some(mut earliest) = self.0.peek_mut() {
            *earliest = Reverse(end);
        }
        end
    }
}

/// Response times (microseconds, counted items only, in order) if each item joins the place that could start
/// it first among its first `copies` places; equal ones: the first of them.
///
/// This is the limit of a tied read of `copies` copies: cancels take no time, no copy runs twice.
///
/// # Panics
/// When an item names a place that the trace does not have.
pub fn join_shortest_workload(trace: &Trace, copies: usize) -> Vec<f64> {
    let mut places: Vec<Place> = trace.workers.iter().map(|workers| Place::new(*workers)).collect();
    let mut responses = Vec::new();
    for item in &trace.items {
        let at = nanos(item.at_us);
        let best = item.places.iter().take(copies.max(1)).min_by_key(|place| places[**place].free_ns().max(at));
        if let Some(place) = best {
            let end = places[*place].serve(at, nanos(item.service_us));
            if item.counted {
                responses.push((end - at) as f64 / NANOS);
            }
        }
    }
    responses
}

/// Response times (microseconds, counted items only, in order) if all workers of all places serve one queue in
/// order of arrival.
pub fn central_queue(trace: &Trace) -> Vec<f64> {
    let mut all = Place::new(trace.workers.iter().map(|workers| (*workers).max(1)).sum());
    let mut responses = Vec::new();
    for item in &trace.items {
        let at = nanos(item.at_us);
        let end = all.serve(at, nanos(item.service_us));
        if item.counted {
            responses.push((end - at) as f64 / NANOS);
        }
    }
    responses
}

fn nanos(micros: f64) -> u64 {
    (micros.max(0.0) * NANOS) as u64
}

#[cfg(test)]
#[path = "recursions_test.rs"]
mod tests;

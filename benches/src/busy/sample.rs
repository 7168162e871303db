//! What one playing of one scene under one policy left behind: raw enough to be pooled with its repeats.

use crate::load::join::Joined;
use crate::load::machine::Machine;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One repeat of a cell. Times in microseconds.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Counted time.
    pub measured: Duration,
    /// Reads sent, warm-up included.
    pub sent: u64,
    /// Reads counted, errors included.
    pub reads: u64,
    /// Of these, reads without the right value.
    pub errors: u64,
    /// Sum over calls for many keys of the share that was answered; 0 for reads.
    pub answered_shares: f64,
    /// The first error, for people.
    pub first_error: Option<String>,
    /// (Second of the measured time, latency) of every good counted read.
    pub latencies: Vec<(u32, u64)>,
    /// Of the winners, as their nodes say.
    pub queue_wait: Histogram<u64>,
    /// From the planned send to the hand-over of the first copy.
    pub client_wait: Histogram<u64>,
    /// Latency less queue wait and service time of reads that the first copy won: two crossings; sorted.
    pub crossings: Vec<u64>,
    /// Of pairs of untied reads on two nodes at the same time, the first of them slow: both slow, and all.
    pub slow_pairs: [u64; 2],
    /// Tie delays in force.
    pub tie_delay: Histogram<u64>,
    /// Tie delays as they came out.
    pub tie_delay_realised: Histogram<u64>,
    /// The joined start records.
    pub joined: Joined,
    /// Copies, withdraws, cancels and answers.
    pub messages: u64,
    /// Copies sent.
    pub copies: u64,
    /// Hedges, rescues, retries and shadows sent.
    pub extra_copies: u64,
    /// Reads that went with fewer copies than their policy says.
    pub not_tied: u64,
    /// Processor time of this process.
    pub cpu_client: Duration,
    /// Processor time of the servers.
    pub cpu_servers: Duration,
    /// Flight of a cancel, p50 and p99: mean over the pairs; `None` while unknown.
    pub cancel_flight_us: Option<[f64; 2]>,
    /// One-way latency as measured before, where the tie delay is told in it.
    pub one_way_us: Option<u64>,
    /// The machine meanwhile.
    pub machine: Machine,
    /// Response times of the limits on this trace, crossings included.
    pub ideals: Option<Ideals>,
    /// How it went over time; for scenes in which something happens.
    pub series: Vec<Tick>,
}

/// Response times, microseconds, of the limits on one trace.
#[derive(Clone, Debug, Default)]
pub struct Ideals {
    /// One copy in the lane where the first one went: what an untied read should measure.
    pub jsw1: Vec<u64>,
    /// The shortest of two.
    pub jsw2: Vec<u64>,
    /// The shortest of three.
    pub jsw3: Vec<u64>,
    /// One queue before all workers.
    pub central: Vec<u64>,
}

/// A tenth of a second of a scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Its end, milliseconds of the measured time; negative in the warm-up.
    pub at_ms: i64,
    /// Reads planned in it.
    pub reads: u64,
    /// Their median latency; `None` with too few good ones.
    pub p50_us: Option<u64>,
    /// The 99th percentile of the half second around it; `None` with too few good reads.
    pub p99_us: Option<u64>,
    /// Copies sent in it.
    pub copies: u64,
    /// Of these, hedges, rescues, retries and shadows.
    pub extra_copies: u64,
    /// Times that an extra copy was due in it and not sent, the budget being empty; it is asked for again, so that one
    /// read may count several times. 0 in files of before this was counted.
    #[serde(default)]
    pub no_token: u64,
    /// Frames both ways in it.
    pub messages: u64,
}

//! What a simulated world is like: sizes, delays, loads, faults, and bugs planted on purpose.
//!
//! A world for invariants is drawn whole from its seed; a world for statistics is the profile of the benchmark.

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;
use tiedkv_client::engine::EngineSettings;
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::select::Choice;
use tiedkv_protocol::request::Disturbance;

/// A bug put back in on purpose, to see that an invariant finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Planted {
    /// A cancel that comes before its copy is forgotten.
    NoEarlyCancels,
    /// A start cancels nobody.
    StartWithoutCancel,
    /// A running copy yields to a higher number too.
    RunningYieldsToAny,
    /// A started copy that waits for its next chunk counts as queued.
    WaitingChunkCountsAsQueued,
    /// A copy that is set aside cancels its peers.
    SetAsideCancels,
    /// A withdraw travels apart from its copy, and one that overtakes it is forgotten.
    WithdrawOvertakes,
    /// A yield or withdraw ends the stall of a device.
    StallEndedByYield,
    /// The client tells refusals from failures by the code, not by `started`.
    DecidesByCode,
    /// The client never notices a silent link.
    NoSilenceRule,
    /// A server drops an expired copy without an answer.
    ExpiresSilently,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 10] = [
        Self::NoEarlyCancels,
        Self::StartWithoutCancel,
        Self::RunningYieldsToAny,
        Self::WaitingChunkCountsAsQueued,
        Self::SetAsideCancels,
        Self::WithdrawOvertakes,
        Self::StallEndedByYield,
        Self::DecidesByCode,
        Self::NoSilenceRule,
        Self::ExpiresSilently,
    ];
}

/// Something that goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A node loses all memory and comes back under its old identity.
    Crash {
        /// Which.
        node: usize,
    },
    /// A node stops without a word and goes on later where it stopped.
    Hang {
        /// Which.
        node: usize,
    },
    /// A client's link to a node breaks; what is on it may be lost.
    BreakLink {
        /// Whose.
        client: usize,
        /// To which node.
        node: usize,
    },
    /// A replica applies nothing.
    Lag {
        /// Which.
        node: usize,
    },
    /// Reads fail fast after their start.
    FailReads {
        /// Which.
        node: usize,
    },
    /// A node judges every deadline as over.
    WrongClock {
        /// Which.
        node: usize,
    },
    /// The devices of some nodes take so many times longer.
    SlowDevice {
        /// Which; `None`: all.
        node: Option<usize>,
        /// How many times.
        factor: f64,
    },
    /// All messages take so many times longer.
    SlowNetwork {
        /// How many times.
        factor: u32,
    },
}

impl Fault {
    /// The node that cannot be counted on while it lasts.
    pub fn node(&self) -> Option<usize> {
        match self {
            Self::Crash { node }
            | Self::Hang { node }
            | Self::BreakLink { node, .. }
            | Self::Lag { node }
            | Self::FailReads { node }
            | Self::WrongClock { node } => Some(*node),
            Self::SlowDevice { node, .. } => *node,
            Self::SlowNetwork { .. } => None,
        }
    }
}

/// A fault, when it begins and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedFault {
    /// From the start of the world.
    pub at: Duration,
    /// Until it is over.
    pub lasts: Duration,
    /// What.
    pub fault: Fault,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Shortest way.
    pub base: Duration,
    /// Mean of the exponential part on top.
    pub jitter: Duration,
    /// Share of cancels lost.
    pub cancel_loss: f64,
    /// Share of cancels that arrive twice.
    pub cancel_twice: f64,
    /// Share of cancels that take twenty times as long.
    pub cancel_late: f64,
}

/// Which policies the reads use and how often one comes.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadConfig {
    /// One of these per read, drawn.
    pub policies: Vec<ReadPolicy>,
    /// Reads per second of all views together, Poisson.
    pub reads_per_second: f64,
    /// Share of reads whose caller leaves early.
    pub dropped: f64,
    /// Share of reads at session level with the newest position.
    pub fresh: f64,
    /// Time of each read.
    pub deadline: Duration,
    /// Reads begin until then.
    pub until: Duration,
    /// Reads planned before this are not counted in statistics.
    pub warm_up: Duration,
}

/// One world.
#[derive(Clone, Debug, PartialEq)]
pub struct WorldConfig {
    /// Repeats the world.
    pub seed: u64,
    /// Nodes, all replicas of the one shard.
    pub nodes: usize,
    /// Lanes per node.
    pub lanes: u16,
    /// Workers per lane.
    pub workers: usize,
    /// Client processes.
    pub clients: usize,
    /// Views per client process.
    pub views: usize,
    /// Mean service time.
    pub service: Duration,
    /// Longest service in one go.
    pub chunk_max: Duration,
    /// Most copies and jobs that wait in one lane.
    pub queue_max: usize,
    /// Network.
    pub network: NetworkConfig,
    /// Disturbance of every lane.
    pub disturbance: Disturbance,
    /// What comes in.
    pub load: LoadConfig,
    /// What goes wrong.
    pub faults: Vec<PlannedFault>,
    /// Cancels of strangers per second.
    pub strangers_per_second: f64,
    /// Settings of each view.
    pub engine: EngineSettings,
    /// The replicas' positions move and lag.
    pub writes: bool,
    /// A bug to find.
    pub planted: Option<Planted>,
    /// Watch the invariants (costs time; off for statistics).
    pub watch: bool,
}

impl WorldConfig {
    /// A world drawn from its seed: sizes, load and 0 to 4 faults, healed before its end.
    pub fn drawn(seed: u64, planted: Option<Planted>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed_0ffa_u64);
        let nodes = *pick(&mut rng, &[2, 3, 3, 3, 5]);
        let lanes = *pick(&mut rng, &[1, 2, 2]);
        let workers = *pick(&mut rng, &[1, 1, 2]);
        let clients = *pick(&mut rng, &[1, 2, 3]);
        let service = Duration::from_millis(5);
        let places = f64::from(lanes) * nodes as f64 * workers as f64;
        let load = rng.random_range(0.05..0.22);
        let chunked = rng.random_bool(0.4);
        let mut policies = vec![
            ReadPolicy::TIED2,
            ReadPolicy::TIED3,
            ReadPolicy { rescue: true, ..ReadPolicy::TIED2 },
            ReadPolicy { rescue: true, ..ReadPolicy::TIED3 },
            ReadPolicy::UNTIED,
            ReadPolicy::HEDGED,
        ];
        policies.truncate(rng.random_range(1..=6));
        let until = Duration::from_millis(1_500);
        Self {
            seed,
            nodes,
            lanes,
            workers,
            clients,
            views: rng.random_range(1..=3),
            service,
            chunk_max: if chunked { Duration::from_millis(2) } else { Duration::from_millis(100) },
            queue_max: *pick(&mut rng, &[2, 6, 64, 64]),
            network: NetworkConfig {
                base: Duration::from_micros(rng.random_range(20..300)),
                jitter: Duration::from_micros(rng.random_range(5..200)),
                cancel_loss: *pick(&mut rng, &[0.0, 0.0, 0.1, 0.5, 1.0]),
                cancel_twice: *pick(&mut rng, &[0.0, 0.2]),
                cancel_late: *pick(&mut rng, &[0.0, 0.0, 0.1]),
            },
            disturbance: draw_disturbance(&mut rng),
            load: LoadConfig {
                policies,
                reads_per_second: load * places / service.as_secs_f64(),
                dropped: *pick(&mut rng, &[0.0, 0.1]),
                fresh: *pick(&mut rng, &[0.0, 0.5]),
                deadline: Duration::from_millis(*pick(&mut rng, &[1_200, 3_000])),
                until,
                warm_up: Duration::ZERO,
            },
            faults: draw_faults(&mut rng, nodes, clients, until),
            strangers_per_second: *pick(&mut rng, &[0.0, 100.0]),
            engine: EngineSettings {
                choice: *pick(&mut rng, &[Choice::Random, Choice::PowerOfTwo, Choice::C3]),
                gate: None,
                ..EngineSettings::default()
            },
            writes: true,
            planted,
            watch: true,
        }
    }

    /// The profile of the benchmark: 3 nodes, 8 lanes of one worker, S = 5 ms, L/S about 0.02, 64 views.
    pub fn profile(seed: u64, policy: ReadPolicy, read_load: f64, job_load: f64, seconds: u64) -> Self {
        let service = Duration::from_millis(5);
        Self {
            seed,
            nodes: 3,
            lanes: 8,
            workers: 1,
            clients: 1,
            views: 64,
            service,
            chunk_max: Duration::from_millis(100),
            queue_max: 4096,
            network: NetworkConfig {
                base: Duration::from_micros(80),
                jitter: Duration::from_micros(20),
                cancel_loss: 0.0,
                cancel_twice: 0.0,
                cancel_late: 0.0,
            },
            disturbance: Disturbance { jobs_load: job_load, seed, ..Disturbance::default() },
            load: LoadConfig {
                policies: vec![policy],
                reads_per_second: read_load * 24.0 / service.as_secs_f64(),
                dropped: 0.0,
                fresh: 0.0,
                deadline: Duration::from_secs(30),
                until: Duration::from_secs(seconds),
                warm_up: Duration::from_secs(4),
            },
            faults: Vec::new(),
            strangers_per_second: 0.0,
            engine: EngineSettings { gate: None, ..EngineSettings::default() },
            writes: false,
            planted: None,
            watch: false,
        }
    }
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

fn draw_disturbance(rng: &mut StdRng) -> Disturbance {
    let stalls = rng.random_bool(0.4);
    Disturbance {
        jobs_load: *pick(rng, &[0.0, 0.15]),
        stall_share: if stalls { rng.random_range(0.02..0.2) } else { 0.0 },
        stall_us: rng.random_range(5_000..80_000),
        stall_after_start: rng.random_bool(0.5),
        stall_correlated: *pick(rng, &[0.0, 0.0, 0.5]),
        seed: rng.random(),
        ..Disturbance::default()
    }
}

fn draw_faults(rng: &mut StdRng, nodes: usize, clients: usize, until: Duration) -> Vec<PlannedFault> {
    let count = rng.random_range(0..=4);
    (0..count)
        .map(|_| {
            let node = rng.random_range(0..nodes);
            let fault = match rng.random_range(0..8) {
                0 => Fault::Crash { node },
                1 | 2 => Fault::Hang { node },
                3 => Fault::BreakLink { client: rng.random_range(0..clients), node },
                4 => Fault::Lag { node },
                5 => Fault::FailReads { node },
                6 => Fault::WrongClock { node },
                _ => Fault::SlowNetwork { factor: rng.random_range(2..10) },
            };
            // A hang may outlast a deadline: nothing but the client's own rules must save the read.
            let lasts_max = if matches!(fault, Fault::Hang { .. }) { 2_500 } else { 900 };
            PlannedFault {
                at: until.mul_f64(rng.random_range(0.05..0.9)),
                lasts: Duration::from_millis(rng.random_range(20..lasts_max)),
                fault,
            }
        })
        .collect()
}

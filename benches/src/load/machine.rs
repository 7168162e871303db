//! How quiet the machine was while something was measured: shares of processor time as the system counts them, and
//! a thread per processor that sleeps a little, again and again, and looks how late it is woken.
//!
//! A guest whose host takes its processors away for tens of milliseconds measures its host: steal time says so
//! where the host reports it, late wake-ups say so everywhere. This room only measures; who reads the figures judges.

use super::realtime;
use crate::clock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks of a probe; a standstill of this length is seen for certain.
const STEP: Duration = Duration::from_millis(5);
/// Lateness that counts as a standstill, with real-time priority and without (then a probe waits its turn
/// behind other threads, which is no standstill).
const LATE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];

/// What was seen between start and end of a [`Watch`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Machine {
    /// Share of processor time in use by anybody on this machine, percent. Who counts a part of the time only
    /// replaces it by that of the part.
    pub busy_pct: f64,
    /// Share of processor time that the host gave to others, percent; 0 where it does not say.
    pub steal_pct: f64,
    /// Share of time that processors stood still (mean over them), percent.
    pub standstill_pct: f64,
    /// The longest standstill.
    pub standstill_max: Duration,
}

impl Machine {
    /// Was it disturbed so much that a percentile says more about the machine than about what was measured?
    pub fn is_disturbed(&self) -> bool {
        // A standstill of 1 % of the time delays more than 1 % of the reads: it owns the p99.
        self.steal_pct > 2.0 || self.standstill_pct > 0.5
    }
}

/// Watches the machine until asked what it saw.
#[derive(Debug)]
pub struct Watch {
    // A probe ends when its sender is gone; nothing is ever sent.
    probes: Vec<(SyncSender<()>, JoinHandle<Late>)>,
    since: Instant,
    ticks: Option<Ticks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Late {
    sum: Duration,
    longest: Duration,
}

impl Watch {
    /// Starts the probes. A thread that cannot be started is left out.
    pub fn start() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let probe = |processor: usize| {
            let (alive, ends) = sync_channel(1);
            let thread = std::thread::Builder::new().name(format!("probe-{processor}"));
            Some((alive, thread.spawn(move || probe(processor, &ends)).ok()?))
        };
        let probes = (0..processors).filter_map(probe).collect();
        Self { probes, since: clock::now(), ticks: Ticks::now() }
    }

    /// Ends the probes (within milliseconds of a machine that runs) and says what they saw.
    pub fn end(self) -> Machine {
        let end = |(alive, probe): (SyncSender<()>, JoinHandle<Late>)| {
            drop(alive);
            probe.join().ok()
        };
        let seen: Vec<Late> = self.probes.into_iter().filter_map(end).collect();
        let span = clock::now().saturating_duration_since(self.since).as_secs_f64().max(f64::EPSILON);
        let mut machine = self.ticks.zip(Ticks::now()).map_or_else(Machine::default, |(from, to)| to.since(from));
        let late = seen.iter().map(|late| late.sum.as_secs_f64()).sum::<f64>() / seen.len().max(1) as f64;
        machine.standstill_pct = 100.0 * late / span;
        machine.standstill_max = seen.iter().map(|late| late.longest).max().unwrap_or_default();
        machine
    }
}

fn probe(processor: usize, ends: &Receiver<()>) -> Late {
    realtime::stay_on(processor);
    let limit = if realtime::raise_this_thread().is_ok() { LATE[0] } else { LATE[1] };
    let mut late = Late::default();
    loop {
        let due = clock::now() + STEP;
        if ends.recv_timeout(STEP) != Err(RecvTimeoutError::Timeout) {
            return late;
        }
        let by = clock::now().saturating_duration_since(due);
        if by > limit {
            late.sum += by;
            late.longest = late.longest.max(by);
        }
    }
}

/// The first line of proc(5) `/proc/stat`, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    all: u64,
    idle: u64,
    steal: u64,
}

impl Ticks {
    pub(super) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    // user nice system idle iowait irq softirq steal; what follows is contained in user and nice.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> =
            line.split_ascii_whitespace().map_while(|field| field.parse().ok()).take(8).collect();
        (fields.len() == 8).then(|| Self {
            all: fields.iter().sum(),
            idle: fields[3] + fields[4],
            steal: fields[7],
        })
    }

    /// Shares of the time since `from`.
    pub(super) fn since(self, from: Self) -> Machine {
        let share = |to: u64, from: u64| 100.0 * to.saturating_sub(from) as f64;
        let all = self.all.saturating_sub(from.all).max(1) as f64;
        let steal_pct = share(self.steal, from.steal) / all;
        let busy_pct = 100.0 - share(self.idle, from.idle) / all - steal_pct;
        Machine { busy_pct: busy_pct.max(0.0), steal_pct, ..Machine::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_time_between() {
        let from = Ticks::parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        let to = Ticks::parse("cpu  35 5 15 120 10 0 5 10 0 0\n").unwrap();
        let machine = to.since(from);
        assert_eq!((machine.busy_pct, machine.steal_pct), (40.0, 10.0));
        assert!(machine.is_disturbed());
        assert_eq!(Ticks::parse("cpu 1 2 3\n"), None);
    }

    #[test]
    fn a_watch_sees_this_machine() {
        let watch = Watch::start();
        assert!(!watch.probes.is_empty());
        let machine = watch.end();
        assert!((0.0..=100.0).contains(&machine.busy_pct), "{machine:?}");
        assert!(machine.standstill_pct >= 0.0);
    }
}

//! The slow-read log of a client: reads that took long, newest last, in a bounded ring, each with all of its copies:
//! where they went and when, how long they waited and were served, how they ended and who cancelled whom. The same reads
//! stand in the nodes' own logs under the same `ReadId`.
//!
//! A read that is not slow costs one comparison.

use crate::clock;
use crate::error::CopyFate;
use crate::tied_read::Running;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, ReadId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

/// Reads kept.
pub const SLOW_READS_KEPT: usize = 256;
/// Reads per second that are also written to the log (target `tiedkv_client::slow`).
const LOGGED_PER_SECOND: u32 = 10;

/// One copy of a slow read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowCopy {
    /// Where it went.
    pub node: NodeId,
    /// Why it was sent.
    pub kind: CopyKind,
    /// Its number, if it was tied.
    pub number: Option<u8>,
    /// From the planned send of the read to the hand-over of this copy.
    pub sent_after: Duration,
    /// Whether it had started, if its node said so.
    pub started: Option<bool>,
    /// How long it waited in a queue, if its node said so.
    pub queue_wait: Option<Duration>,
    /// How long it was served, if its node said so.
    pub service_time: Option<Duration>,
    /// How it ended.
    pub fate: CopyFate,
    /// The node whose copy of the same tie started, if this one was not heard of again: that node cancelled it.
    pub cancelled_by: Option<NodeId>,
}

/// One read that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRead {
    /// When it ended, milliseconds since the Unix epoch.
    pub ended_unix_ms: u64,
    /// The logical read, as nodes record it.
    pub read: ReadId,
    /// From the planned send (or the call) to the result.
    pub latency: Duration,
    /// The tie delay in force; `None` if it was not tied.
    pub tie_delay: Option<Duration>,
    /// It ended with an answer.
    pub answered: bool,
    /// Every copy, in the order they were sent.
    pub copies: Vec<SlowCopy>,
}

impl fmt::Display for SlowCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number.map_or_else(String::new, |number| format!(" {number}"));
        write!(f, "{}{number} to {} after {:.1?}: ", self.kind.name(), self.node, self.sent_after)?;
        match self.cancelled_by {
            Some(by) => write!(f, "cancelled by {by}")?,
            None => write!(f, "{}", self.fate)?,
        }
        if let (Some(wait), Some(service)) = (self.queue_wait, self.service_time) {
            write!(f, ", waited {wait:.1?}, served {service:.1?}")?;
        }
        Ok(())
    }
}

impl fmt::Display for SlowRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {} took {:.1?}", self.read, self.latency)?;
        self.copies.iter().try_for_each(|copy| write!(f, "; {copy}"))
    }
}

/// See the head of this room.
#[derive(Debug, Default)]
pub(crate) struct SlowReads(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    reads: VecDeque<SlowRead>,
    /// The second that is counted, and the reads logged in it.
    logged: (u64, u32),
}

impl SlowReads {
    fn keep(&self, read: SlowRead, now: Moment) {
        let mut kept = self.0.lock();
        let second = now.0 / 1_000_000_000;
        if kept.logged.0 != second {
            kept.logged = (second, 0);
        }
        kept.logged.1 += 1;
        if kept.logged.1 <= LOGGED_PER_SECOND {
            tracing::info!("{read}");
        }
        if kept.reads.len() >= SLOW_READS_KEPT {
            kept.reads.pop_front();
        }
        kept.reads.push_back(read);
    }

    /// What is kept, newest last.
    pub(crate) fn all(&self) -> Vec<SlowRead> {
        self.0.lock().reads.iter().cloned().collect()
    }
}

impl Running<'_> {
    /// Keeps this read, which ended now, if it took as long as the settings call slow.
    pub(crate) fn note_if_slow(&self, answered: bool, now: Moment) {
        let connections = self.view.shared.connections();
        let (threshold, latency) = (connections.config().slow_read, now.since(self.planned));
        if threshold.is_zero() || latency < threshold {
            return;
        }
        let ended_unix_ms = clock::unix_ms();
        let (read, tie_delay) = (self.chosen.read, self.chosen.tie_delay);
        let read = SlowRead { ended_unix_ms, read, latency, tie_delay, answered, copies: self.slow_copies() };
        connections.slow.keep(read, now);
    }

    fn slow_copies(&self) -> Vec<SlowCopy> {
        let copies = self.race.copies().iter().zip(&self.copies);
        // Who started in each tie, as far as its node said so.
        let starters: Vec<(Option<u8>, NodeId)> = copies
            .clone()
            .filter(|(_, copy)| copy.service.is_some_and(|service| service.started))
            .map(|(sent, _)| (sent.tie, sent.replica))
            .collect();
        let span = |us: u32| Duration::from_micros(u64::from(us));
        let line = |(sent, copy): (&crate::copies::SentCopy, &crate::tied_read::Copy)| {
            let fate = copy.fate.clone().unwrap_or(CopyFate::Unanswered);
            let starter =
                starters.iter().find(|(tie, node)| tie.is_some() && *tie == sent.tie && *node != sent.replica);
            SlowCopy {
                node: sent.replica,
                kind: sent.kind,
                number: sent.number.map(|number| number.0),
                sent_after: copy.sent.since(self.planned),
                started: copy.service.map(|service| service.started),
                queue_wait: copy.service.map(|service| span(service.queue_wait_us)),
                service_time: copy.service.map(|service| span(service.service_time_us)),
                cancelled_by: starter.filter(|_| fate == CopyFate::Unanswered).map(|(_, node)| *node),
                fate,
            }
        };
        copies.map(line).collect()
    }
}

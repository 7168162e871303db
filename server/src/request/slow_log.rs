//! The slow-read log of a node: copies that were here for long, newest last, in a bounded ring. Each line says how long
//! its copy waited and was served, what ended it, and who cancelled whom; the lines of all nodes join by read.
//!
//! A copy that is not slow costs one comparison. Lines go to the log as well, some per second: see [`SlowLog::note`].

use crate::clock;
use crate::request::held::HeldCopy;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;

/// Lines kept.
pub const SLOW_READS_KEPT: usize = 512;
/// Lines per second that also go to the log.
const LOGGED_PER_SECOND: u32 = 10;

/// How a copy ended on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlowEnd {
    /// A good answer was sent.
    Answered,
    /// Answered without having started.
    Refused,
    /// Answered after its start, but not well.
    Failed,
    /// A peer's cancel came while it waited.
    Cancelled,
    /// It ran and yielded to a peer's lower number.
    Yielded,
    /// Its client withdrew it or is gone.
    Withdrawn,
}

/// One copy that was here for long. Ids are hex digits, times are microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowRead {
    /// When it ended, milliseconds since the Unix epoch by this node's clock.
    pub ended_unix_ms: u64,
    /// The logical read: the same on all nodes and in the client's own log.
    pub read: String,
    /// The race that it was part of, if it was tied.
    pub tie: Option<String>,
    /// Its number in the tie.
    pub number: Option<u8>,
    /// Who holds the copies of the tie, by number.
    pub members: Vec<NodeId>,
    /// Why it was sent.
    pub kind: String,
    /// The lane it was charged to.
    pub lane: u16,
    /// Admitted to started (or to the end, if it never started).
    pub queue_wait_us: u64,
    /// Started to ended; 0 if it never started.
    pub service_time_us: u64,
    /// How it ended.
    pub end: SlowEnd,
    /// Whose cancel ended it.
    pub ended_by: Option<NodeId>,
    /// Whom its start sent a cancel.
    pub cancelled: Vec<NodeId>,
}

/// See the head of this room.
#[derive(Debug)]
pub struct SlowLog {
    threshold: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<SlowRead>,
    /// The second that is counted, and the lines logged in it.
    logged: (u64, u32),
}

impl SlowLog {
    /// Keeps copies that were here for `threshold` or longer; zero keeps none.
    pub fn new(threshold: Duration) -> Self {
        Self { threshold, kept: Mutex::default() }
    }

    /// A copy ended now. Only ends that workers bring about are also logged: the cancel channel's thread waits for no
    /// log.
    pub(crate) fn note(&self, copy: &HeldCopy, now: Moment, end: SlowEnd) {
        if self.threshold.is_zero() || now.since(copy.admitted) < self.threshold {
            return;
        }
        let line = line(copy, now, end);
        let by_worker = matches!(end, SlowEnd::Answered | SlowEnd::Failed);
        let mut kept = self.kept.lock();
        if by_worker && kept.may_log(now) {
            let SlowRead { read, tie, number, queue_wait_us, service_time_us, cancelled, .. } = &line;
            tracing::info!(%read, ?tie, ?number, queue_wait_us, service_time_us, ?cancelled, "slow read");
        }
        if kept.lines.len() >= SLOW_READS_KEPT {
            kept.lines.pop_front();
        }
        kept.lines.push_back(line);
    }

    /// What is kept, newest last.
    pub fn lines(&self) -> Vec<SlowRead> {
        self.kept.lock().lines.iter().cloned().collect()
    }
}

impl Kept {
    fn may_log(&mut self, now: Moment) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.logged.0 != second {
            self.logged = (second, 0);
        }
        self.logged.1 += 1;
        self.logged.1 <= LOGGED_PER_SECOND
    }
}

fn line(copy: &HeldCopy, now: Moment, end: SlowEnd) -> SlowRead {
    let (request, tie, started) = (&copy.request, copy.request.tie.as_ref(), copy.started());
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let cancelled = |tie: &tiedkv_protocol::tie::Tie| tie.cancelled_by_start().collect();
    SlowRead {
        ended_unix_ms: clock::unix_ns() / 1_000_000,
        read: format!("{:032x}", request.read.0),
        tie: tie.map(|tie| format!("{:032x}", tie.id.0)),
        number: tie.map(|tie| tie.number.0),
        members: tie.map_or_else(Vec::new, |tie| tie.members.to_vec()),
        kind: request.kind.name().to_owned(),
        lane: copy.lane,
        queue_wait_us: micros(started.unwrap_or(now).since(copy.admitted)),
        service_time_us: started.map_or(0, |started| micros(now.since(started))),
        end,
        ended_by: copy.ended_by(),
        cancelled: started.and(tie).map_or_else(Vec::new, cancelled),
    }
}

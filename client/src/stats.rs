//! What a client counts, as snapshots. The balance, per kind of copy: sent = won + late + refused + expired + failed +
//! unanswered. Counters only grow (but `unanswered`, from which a late answer takes its copy back).

use crate::engine_host::Suppressed;
use crate::gate::NotTied;
use crate::observe::predicted;
use crate::operation::Operation;
use crate::policy::ReadPolicy;
use crate::spread::{Spans, Spread};
use crate::tally::Tallies;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::request::CopyKind;

/// Number of copy kinds.
pub const KINDS: usize = CopyKind::ALL.len();

/// One count per kind of copy, in the order of [`CopyKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByKind(pub [u64; KINDS]);

impl ByKind {
    /// The count of one kind.
    pub fn of(&self, kind: CopyKind) -> u64 {
        self.0[kind as usize]
    }

    /// Over all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, more)| *own += more);
    }
}

/// What became of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Copies handed to a connection.
    pub sent: ByKind,
    /// Copies whose answer was a read's.
    pub won: ByKind,
    /// Good answers after the read had ended.
    pub late: ByKind,
    /// Answers of a copy that had not started, but `Expired`.
    pub refused: ByKind,
    /// Answers `Expired`.
    pub expired: ByKind,
    /// Answers of a copy that had started, but not well.
    pub failed: ByKind,
    /// No answer: still out, withdrawn, or on a link that was lost.
    pub unanswered: ByKind,
    /// Of those: copies that are out and that a read waits for.
    pub outstanding: ByKind,
    /// Of those: copies on links that were lost.
    pub lost_links: ByKind,
    /// Copies that were withdrawn.
    pub withdrawn: ByKind,
}

impl CopyCounts {
    /// True if, for every kind, sent = won + late + refused + expired + failed + unanswered.
    pub fn balanced(&self) -> bool {
        (0..KINDS).all(|kind| {
            let ends = [&self.won, &self.late, &self.refused, &self.expired, &self.failed, &self.unanswered];
            self.sent.0[kind] == ends.iter().map(|end| end.0[kind]).sum::<u64>()
        })
    }

    fn merge(&mut self, other: &Self) {
        self.sent.merge(&other.sent);
        self.won.merge(&other.won);
        self.late.merge(&other.late);
        self.refused.merge(&other.refused);
        self.expired.merge(&other.expired);
        self.failed.merge(&other.failed);
        self.unanswered.merge(&other.unanswered);
        self.outstanding.merge(&other.outstanding);
        self.lost_links.merge(&other.lost_links);
        self.withdrawn.merge(&other.withdrawn);
    }
}

/// What one policy did for one operation, all views together. How to read it: docs/policies.md.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyStats {
    /// Which operation.
    pub operation: Operation,
    /// Which policy, as asked for.
    pub policy: ReadPolicy,
    /// Reads begun.
    pub reads: u64,
    /// Reads that ended with an answer.
    pub answered: u64,
    /// Reads that ended with an error.
    pub failed: u64,
    /// Reads whose caller dropped the future.
    pub dropped: u64,
    /// Ties begun with more than one copy planned.
    pub ties: u64,
    /// Ties begun anew after a failure, a lost link or a round of refusals.
    pub fresh_ties: u64,
    /// What became of the copies.
    pub copies: CopyCounts,
    /// Reads won by copy 0, 1 and 2 of a tie, or by the one copy of an untied read (0).
    pub won_by_number: [u64; 3],
    /// Reads that went with fewer copies than the policy says, by reason, in the order of [`NotTied::ALL`].
    pub not_tied: [u64; NotTied::ALL.len()],
    /// Extra copies that were not sent when their time came, in the order of [`Suppressed::ALL`].
    pub suppressed: [u64; Suppressed::ALL.len()],
    /// Copies that observed reads would have sent.
    pub unsent: ByKind,
    /// When the first of them would have gone out, after the first copy.
    pub unsent_after: Spans,
    /// Extra copies of observed reads that were sent for real, compared and thrown away.
    pub samples: u64,
    /// Of those: the two answers contradict each other (a stale or diverged replica).
    pub samples_stale: u64,
    /// Latency as the policy sent the reads: first copy on the wire to the answer that was used. Of a policy that ties
    /// or hedges only those that went tied or with a hedge, for the hold-out is drawn among them.
    pub with: Spans,
    /// Latency of reads that went untied to measure by: the hold-out, and observed ones.
    pub without: Spans,
    /// Latency of reads of a policy that ties or hedges which went with one copy and no hedge, for the reasons in
    /// `not_tied`: compared with neither.
    pub cut: Spans,
    /// The path of hedges and rescues: their own hand-over to their own good answer.
    pub extra_path: Spans,
    /// Planned send to the wire: the client's own wait, in no other figure here.
    pub client_wait: Spans,
    /// Hedges and rescues of a view that is alive nearly always win: their delay is too long.
    pub delay_too_long: bool,
}

impl PolicyStats {
    /// Hedges and rescues sent per read.
    pub fn extra_rate(&self) -> f64 {
        ratio(self.extra(&self.copies.sent), self.reads)
    }

    /// Hedges and rescues that won, of those sent.
    pub fn extra_win_rate(&self) -> f64 {
        ratio(self.extra(&self.copies.won), self.extra(&self.copies.sent))
    }

    /// Latency of all reads that were not sent to measure by: `with` and `cut` together.
    pub fn latency(&self) -> Spans {
        let mut all = self.with.clone();
        all.merge(&self.cut);
        all
    }

    /// Share of reads that took more than three times the median.
    pub fn slow_share(&self) -> f64 {
        let latency = self.latency();
        latency.quantile(0.5).map_or(0.0, |median| latency.share_over(median * 3))
    }

    /// What the reads in `with` were spared, by the means with and without; `None` while either is unknown. Negative
    /// when the policy costs time.
    pub fn time_saved_s(&self) -> Option<f64> {
        let saved = self.without.mean()?.as_secs_f64() - self.with.mean()?.as_secs_f64();
        Some(saved * self.with.count() as f64)
    }

    /// What observed reads would gain at quantile `q`, predicted from the hold-out: latency without less that of a
    /// second copy with luck of its own. `None` when nothing would have been sent.
    pub fn predicted_gain(&self, q: f64) -> Option<Duration> {
        let (delay, without) = (self.unsent_after.quantile(0.5)?, self.without.quantile(q)?);
        Some(without.saturating_sub(predicted(|at| self.without.share_over(at), delay, q)))
    }

    fn extra(&self, counts: &ByKind) -> u64 {
        counts.of(CopyKind::Hedge) + counts.of(CopyKind::Rescue)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A snapshot of a client's counters, all views together. Counted since the client was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// What became of copies, over all policies. Its fields can be named as if they stood here.
    pub copies: CopyCounts,
    /// By operation and policy; only those that were used.
    pub policies: Vec<PolicyStats>,
    /// Reads begun.
    pub reads: u64,
    /// Reads that ended with an answer.
    pub reads_answered: u64,
    /// Reads that ended with an error.
    pub reads_failed: u64,
    /// Reads whose caller dropped the future.
    pub reads_dropped: u64,
    /// Ties begun with more than one copy planned.
    pub ties: u64,
    /// Ties begun anew after a failure, a lost link or a round of refusals.
    pub fresh_ties: u64,
    /// Calls for many keys begun; those of no end below are under way or were dropped.
    pub multi_gets: u64,
    /// Of those: answered with all keys.
    pub multi_gets_whole: u64,
    /// Of those: answered with keys missing.
    pub multi_gets_partial: u64,
    /// Of those: ended as an error.
    pub multi_gets_failed: u64,
    /// Keys of calls for many that have ended.
    pub multi_get_keys: u64,
    /// Of those: answered.
    pub multi_get_keys_answered: u64,
    /// Frames that carried withdraws.
    pub withdraw_frames: u64,
    /// Frames of any kind sent.
    pub frames_sent: u64,
    /// Frames of any kind received.
    pub frames_received: u64,
    /// Writes to sockets' streams (frames sent / writes = how many shared one).
    pub stream_writes: u64,
    /// Writes begun.
    pub writes: u64,
    /// Tries of writes sent.
    pub writes_sent: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that were lost.
    pub links_lost: u64,
    /// Reads that went with fewer copies than their policy says, by reason, in the order of [`NotTied::ALL`].
    pub not_tied: [u64; NotTied::ALL.len()],
    /// Extra copies that were not sent when their time came, in the order of [`Suppressed::ALL`].
    pub suppressed: [u64; Suppressed::ALL.len()],
    /// Later copies sent by the timer.
    pub tie_delays: u64,
    /// How far the realised tie delay was from the asked one, either way: median, in microseconds (upper bound of its
    /// bucket).
    pub tie_overshoot_p50_us: u64,
    /// The same, 99th percentile.
    pub tie_overshoot_p99_us: u64,
}

impl Deref for Stats {
    type Target = CopyCounts;

    fn deref(&self) -> &CopyCounts {
        &self.copies
    }
}

impl Stats {
    /// True if the balance holds for every kind of copy and every policy.
    pub fn balanced(&self) -> bool {
        self.copies.balanced() && self.policies.iter().all(|policy| policy.copies.balanced())
    }

    /// Frames both ways per read begun; 0 without reads.
    pub fn messages_per_read(&self) -> f64 {
        ratio(self.frames_sent + self.frames_received, self.reads)
    }

    /// Mean share of keys answered, of calls for many that ended; 1 without any.
    pub fn completeness(&self) -> f64 {
        if self.multi_get_keys == 0 { 1.0 } else { ratio(self.multi_get_keys_answered, self.multi_get_keys) }
    }

    /// What one policy did for one operation, if it was used.
    pub fn of(&self, operation: Operation, policy: ReadPolicy) -> Option<&PolicyStats> {
        self.policies.iter().find(|stats| stats.operation == operation && stats.policy == policy)
    }
}

/// The living counters behind [`Stats`]; one set per client.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) tallies: Tallies,
    pub(crate) multi_gets: AtomicU64,
    pub(crate) multi_gets_whole: AtomicU64,
    pub(crate) multi_gets_partial: AtomicU64,
    pub(crate) multi_gets_failed: AtomicU64,
    pub(crate) multi_get_keys: AtomicU64,
    pub(crate) multi_get_keys_answered: AtomicU64,
    pub(crate) withdraw_frames: AtomicU64,
    pub(crate) frames_sent: AtomicU64,
    pub(crate) frames_received: AtomicU64,
    pub(crate) stream_writes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) writes_sent: AtomicU64,
    pub(crate) links_up: AtomicU64,
    pub(crate) links_lost: AtomicU64,
    pub(crate) tie_overshoot: Spread,
}

impl Counters {
    /// A snapshot. Counters are read one after another: exact at rest, near under load.
    pub(crate) fn snapshot(&self) -> Stats {
        let policies = self.tallies.snapshot();
        let overshoot = self.tie_overshoot.snapshot();
        let overshoot_us = |q| overshoot.quantile(q).map_or(0, |span| span.as_micros() as u64);
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let mut stats = Stats {
            multi_gets: load(&self.multi_gets),
            multi_gets_whole: load(&self.multi_gets_whole),
            multi_gets_partial: load(&self.multi_gets_partial),
            multi_gets_failed: load(&self.multi_gets_failed),
            multi_get_keys: load(&self.multi_get_keys),
            multi_get_keys_answered: load(&self.multi_get_keys_answered),
            withdraw_frames: load(&self.withdraw_frames),
            frames_sent: load(&self.frames_sent),
            frames_received: load(&self.frames_received),
            stream_writes: load(&self.stream_writes),
            writes: load(&self.writes),
            writes_sent: load(&self.writes_sent),
            links_up: load(&self.links_up),
            links_lost: load(&self.links_lost),
            tie_delays: overshoot.count(),
            tie_overshoot_p50_us: overshoot_us(0.5),
            tie_overshoot_p99_us: overshoot_us(0.99),
            ..Stats::default()
        };
        for policy in &policies {
            stats.copies.merge(&policy.copies);
            stats.reads += policy.reads;
            stats.reads_answered += policy.answered;
            stats.reads_failed += policy.failed;
            stats.reads_dropped += policy.dropped;
            stats.ties += policy.ties;
            stats.fresh_ties += policy.fresh_ties;
            stats.not_tied.iter_mut().zip(policy.not_tied).for_each(|(own, more)| *own += more);
            stats.suppressed.iter_mut().zip(policy.suppressed).for_each(|(own, more)| *own += more);
        }
        stats.policies = policies;
        stats
    }
}

//! What a client counts. The balance, per kind of copy: sent = won + late + refused + expired + failed +
//! unanswered. Counters only grow (but `unanswered`, from which a late answer takes its copy back).

use crate::gate::NotTied;
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
}

/// A snapshot of a client's counters, all views together. Counted since the client was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
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
    /// Later copies sent by the timer.
    pub tie_delays: u64,
    /// How far the realised tie delay was from the asked one, either way: median, in microseconds (upper bound of its
    /// bucket).
    pub tie_overshoot_p50_us: u64,
    /// The same, 99th percentile.
    pub tie_overshoot_p99_us: u64,
}

impl Stats {
    /// True if, for every kind, sent = won + late + refused + expired + failed + unanswered.
    pub fn balanced(&self) -> bool {
        (0..KINDS).all(|kind| {
            let ends = [&self.won, &self.late, &self.refused, &self.expired, &self.failed, &self.unanswered];
            self.sent.0[kind] == ends.iter().map(|end| end.0[kind]).sum::<u64>()
        })
    }

    /// Frames both ways per read begun; 0 without reads.
    pub fn messages_per_read(&self) -> f64 {
        if self.reads == 0 {
            return 0.0;
        }
        (self.frames_sent + self.frames_received) as f64 / self.reads as f64
    }
}

/// One counter per kind of copy.
#[derive(Debug, Default)]
pub(crate) struct KindCounter([AtomicU64; KINDS]);

impl KindCounter {
    /// Adds one.
    pub(crate) fn add(&self, kind: CopyKind) {
        self.0[kind as usize].fetch_add(1, Relaxed);
    }

    /// Takes one back; false, and stays at 0, if there is none.
    pub(crate) fn take_back(&self, kind: CopyKind) -> bool {
        self.0[kind as usize].fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok()
    }

    fn read(&self) -> ByKind {
        let mut counts = [0; KINDS];
        for (count, counter) in counts.iter_mut().zip(&self.0) {
            *count = counter.load(Relaxed);
        }
        ByKind(counts)
    }
}

/// The living counters behind [`Stats`]; one set per client.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) reads_answered: AtomicU64,
    pub(crate) reads_failed: AtomicU64,
    pub(crate) reads_dropped: AtomicU64,
    pub(crate) ties: AtomicU64,
    pub(crate) fresh_ties: AtomicU64,
    pub(crate) sent: KindCounter,
    pub(crate) won: KindCounter,
    pub(crate) late: KindCounter,
    pub(crate) refused: KindCounter,
    pub(crate) expired: KindCounter,
    pub(crate) failed: KindCounter,
    pub(crate) outstanding: KindCounter,
    pub(crate) unanswered: KindCounter,
    pub(crate) lost_links: KindCounter,
    pub(crate) withdrawn: KindCounter,
    pub(crate) withdraw_frames: AtomicU64,
    pub(crate) frames_sent: AtomicU64,
    pub(crate) frames_received: AtomicU64,
    pub(crate) stream_writes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) writes_sent: AtomicU64,
    pub(crate) links_up: AtomicU64,
    pub(crate) links_lost: AtomicU64,
    pub(crate) not_tied: [AtomicU64; NotTied::ALL.len()],
    pub(crate) tie_overshoot: Spread,
}

impl Counters {
    /// A snapshot. Counters are read one after another: exact at rest, near under load.
    pub(crate) fn snapshot(&self) -> Stats {
        // Read in the order opposite to that of counting: what is out may show twice for a moment, never not at all.
        let outstanding = self.outstanding.read();
        let mut unanswered = self.unanswered.read();
        for (count, out) in unanswered.0.iter_mut().zip(outstanding.0) {
            *count += out;
        }
        Stats {
            reads: self.reads.load(Relaxed),
            reads_answered: self.reads_answered.load(Relaxed),
            reads_failed: self.reads_failed.load(Relaxed),
            reads_dropped: self.reads_dropped.load(Relaxed),
            ties: self.ties.load(Relaxed),
            fresh_ties: self.fresh_ties.load(Relaxed),
            sent: self.sent.read(),
            won: self.won.read(),
            late: self.late.read(),
            refused: self.refused.read(),
            expired: self.expired.read(),
            failed: self.failed.read(),
            unanswered,
            outstanding,
            lost_links: self.lost_links.read(),
            withdrawn: self.withdrawn.read(),
            withdraw_frames: self.withdraw_frames.load(Relaxed),
            frames_sent: self.frames_sent.load(Relaxed),
            frames_received: self.frames_received.load(Relaxed),
            stream_writes: self.stream_writes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            writes_sent: self.writes_sent.load(Relaxed),
            links_up: self.links_up.load(Relaxed),
            links_lost: self.links_lost.load(Relaxed),
            not_tied: std::array::from_fn(|reason| self.not_tied[reason].load(Relaxed)),
            tie_delays: self.tie_overshoot.count(),
            tie_overshoot_p50_us: self.tie_overshoot.quantile_us(0.5),
            tie_overshoot_p99_us: self.tie_overshoot.quantile_us(0.99),
        }
    }
}

/// Buckets of [`Spread`]: 0..=15 us one each, then 8 per octave up to 2^20 us.
const BUCKETS: usize = 16 + 8 * 16 + 1;

/// A log-linear histogram of microseconds, relative error below 13 %, last bucket open.
#[derive(Debug)]
pub(crate) struct Spread([AtomicU64; BUCKETS]);

impl Default for Spread {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Spread {
    /// Counts one span.
    pub(crate) fn add(&self, span: Duration) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket(us)].fetch_add(1, Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Upper bound of the bucket that holds the quantile; 0 when nothing was counted.
    fn quantile_us(&self, quantile: f64) -> u64 {
        let rank = (self.count() as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (index, bucket) in self.0.iter().enumerate() {
            seen += bucket.load(Relaxed);
            if seen >= rank && seen > 0 {
                return upper(index);
            }
        }
        0
    }
}

fn bucket(us: u64) -> usize {
    if us < 16 {
        return us as usize;
    }
    let octave = 63 - us.leading_zeros() as usize;
    let within = ((us >> (octave - 3)) & 7) as usize;
    (16 + (octave - 4) * 8 + within).min(BUCKETS - 1)
}

fn upper(index: usize) -> u64 {
    if index < 16 {
        return index as u64;
    }
    let octave = 4 + (index - 16) / 8;
    let within = ((index - 16) % 8) as u64;
    ((8 + within + 1) << (octave - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for us in [0, 1, 15, 16, 17, 31, 32, 100, 999, 65_535, 1_000_000] {
            let index = bucket(us);
            assert!(upper(index) >= us, "{us} in {index} up to {}", upper(index));
            assert!(index == 0 || upper(index - 1) < us, "{us} also fits below {index}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_a_spread() {
        let spread = Spread::default();
        assert_eq!(spread.quantile_us(0.5), 0);
        (1..=100).for_each(|us| spread.add(Duration::from_micros(us)));
        assert!((50..57).contains(&spread.quantile_us(0.5)), "{}", spread.quantile_us(0.5));
        assert!((99..113).contains(&spread.quantile_us(0.99)));
    }

    #[test]
    fn taking_back_stops_at_zero() {
        let counter = KindCounter::default();
        assert!(!counter.take_back(CopyKind::First));
        counter.add(CopyKind::First);
        assert!(counter.take_back(CopyKind::First));
        assert_eq!(counter.read().total(), 0);
    }
}

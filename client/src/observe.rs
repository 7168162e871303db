//! What a read that only observes would have sent, when, and what that would gain.
//!
//! An observed read goes untied; how long its one copy took says at which firing points others would have gone out.
//! Tokens come from a bucket of its own, so that the count is what the budget would have let through. It sends
//! nothing; a sample that is sent for real is the driver's.

use crate::policy::ReadPolicy;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::ids::{Position, Version};
use tiedkv_protocol::request::CopyKind;

/// The firing points of one observed read, as decided before it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What would have been done.
    pub policy: ReadPolicy,
    /// Copies that the tie would have had, after ceiling and gate; 1: none.
    pub width: u8,
    /// After each copy of the tie, the next.
    pub tie_delay: Duration,
    /// After this a hedge; `None` where the policy has none, or nodes want none.
    pub hedge_delay: Option<Duration>,
    /// After this, and again after as long, a rescue.
    pub rescue_delay: Option<Duration>,
    /// Replicas there are.
    pub replicas: u8,
    /// The first of the extra copies is sent for real, compared and thrown away.
    pub sample: bool,
}

/// One copy that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Why it would have been sent.
    pub kind: CopyKind,
    /// When, after the first.
    pub after: Duration,
}

impl Observed {
    /// When the first of its extra copies would go out.
    pub fn first_after(&self) -> Option<Duration> {
        let tied = (self.width > 1).then_some(self.tie_delay);
        [tied, self.hedge_delay, self.rescue_delay].into_iter().flatten().min().filter(|_| self.replicas > 1)
    }

    /// The copies that would have gone out before an answer that came after `latency`, in order of time; hedges and
    /// rescues ask `token` first.
    pub fn unsent(&self, latency: Duration, mut token: impl FnMut(CopyKind) -> bool) -> SmallVec<[Unsent; 4]> {
        let mut unsent: SmallVec<[Unsent; 4]> = SmallVec::new();
        if self.replicas < 2 {
            return unsent;
        }
        for number in 1..u32::from(self.width.min(self.replicas)) {
            let after = self.tie_delay * number;
            if after < latency {
                unsent.push(Unsent { kind: CopyKind::Tied, after });
            }
        }
        if let Some(after) = self.hedge_delay.filter(|after| *after < latency)
            && token(CopyKind::Hedge)
        {
            unsent.push(Unsent { kind: CopyKind::Hedge, after });
        }
        if let Some(delay) = self.rescue_delay.filter(|delay| !delay.is_zero()) {
            for time in 1..=u32::from(self.replicas) {
                let after = delay.saturating_mul(time);
                if after >= latency || !token(CopyKind::Rescue) {
                    break;
                }
                unsent.push(Unsent { kind: CopyKind::Rescue, after });
            }
        }
        unsent.sort_by_key(|copy| copy.after);
        unsent
    }
}

/// The latency that a share `q` of reads would not exceed if after `delay` a second copy went out, with as much luck
/// of its own as the first: min(X, delay + Y), X and Y drawn from the hold-out. `longer` is the hold-out's share of
/// reads that take longer than a time. Replicas that are slow together gain less than this.
pub fn predicted(longer: impl Fn(Duration) -> f64, delay: Duration, q: f64) -> Duration {
    let survive = |at: Duration| if at < delay { longer(at) } else { longer(at) * longer(at - delay) };
    let (mut low, mut high) = (0_u64, 64_000_000_u64);
    while low + 1 < high {
        let middle = u64::midpoint(low, high);
        if survive(Duration::from_micros(middle)) > 1.0 - q { low = middle } else { high = middle }
    }
    Duration::from_micros(high)
}

/// What two answers to one read say of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// They agree, or differ only because a write lies between them.
    Agree,
    /// The later view has the older version: a write was lost on the way to a replica.
    Stale,
}

/// An answer, as far as it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The version found; `None` for an absent key.
    pub version: Option<Version>,
    /// The view that it comes from.
    pub position: Position,
}

/// Compares the answers of two replicas to one read: versions of a key only grow with positions. An absent key is
/// comparable only at the same position (it may have been removed in between).
pub fn compare(one: Answered, other: Answered) -> Compared {
    let (early, late) = if one.position <= other.position { (one, other) } else { (other, one) };
    let stale = match (early.version, late.version) {
        (Some(early), Some(late)) if late < early => true,
        (early, late) => one.position == other.position && early != late,
    };
    if stale { Compared::Stale } else { Compared::Agree }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn observed() -> Observed {
        Observed {
            policy: ReadPolicy::default(),
            width: 3,
            tie_delay: MS,
            hedge_delay: None,
            rescue_delay: Some(MS * 10),
            replicas: 3,
            sample: false,
        }
    }

    fn kinds(latency: Duration, tokens: usize) -> Vec<(CopyKind, Duration)> {
        let mut left = tokens;
        let token = |_| {
            let has = left > 0;
            left = left.saturating_sub(1);
            has
        };
        observed().unsent(latency, token).iter().map(|copy| (copy.kind, copy.after)).collect()
    }

    #[test]
    fn what_would_have_been_sent_follows_the_latency_and_the_budget() {
        let (tied, rescue) = (CopyKind::Tied, CopyKind::Rescue);
        assert_eq!(kinds(MS / 2, 9), []);
        assert_eq!(kinds(MS * 2, 9), [(tied, MS)]);
        assert_eq!(kinds(MS * 5, 9), [(tied, MS), (tied, MS * 2)]);
        assert_eq!(kinds(MS * 25, 9), [(tied, MS), (tied, MS * 2), (rescue, MS * 10), (rescue, MS * 20)]);
        assert_eq!(kinds(MS * 25, 1), [(tied, MS), (tied, MS * 2), (rescue, MS * 10)]);
        assert_eq!(observed().first_after(), Some(MS));
        assert_eq!(Observed { replicas: 1, ..observed() }.first_after(), None);
    }

    #[test]
    fn a_prediction_is_that_of_two_independent_draws() {
        // 10 ms with 99 %, 1 s with 1 %: a second copy at 30 ms leaves 0.01 %.
        let longer = |at: Duration| {
            if at < MS * 10 {
                1.0
            } else if at < MS * 1_000 {
                0.01
            } else {
                0.0
            }
        };
        assert_eq!(predicted(longer, MS * 30, 0.5), MS * 10);
        assert_eq!(predicted(longer, MS * 30, 0.995), MS * 40);
        assert_eq!(predicted(longer, MS * 30, 0.99995), MS * 1_000);
    }

    #[test]
    fn versions_grow_with_positions() {
        let at = |position, version: Option<u64>| Answered {
            version: version.map(Version),
            position: Position(position),
        };
        assert_eq!(compare(at(5, Some(3)), at(9, Some(3))), Compared::Agree);
        assert_eq!(compare(at(5, Some(3)), at(9, Some(7))), Compared::Agree);
        assert_eq!(compare(at(5, Some(3)), at(9, Some(2))), Compared::Stale);
        assert_eq!(compare(at(9, Some(2)), at(5, Some(3))), Compared::Stale);
        assert_eq!(compare(at(5, Some(3)), at(5, None)), Compared::Stale);
        assert_eq!(compare(at(5, Some(3)), at(9, None)), Compared::Agree, "it may have been removed");
    }
}

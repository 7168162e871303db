//! Log time: the stamps of entries, by which keys expire. Pure.
//!
//! A stamp is the leader's wall clock, never below an earlier stamp, and at most what has passed on the monotonic clock
//! since the last stamp of another leader (or the last agreement), plus [`STEP_MAX_MS`]. A wall clock that is further
//! ahead, as after a full outage or because it was set wrongly, is believed only as far as a majority of the members'
//! clocks are that far too. So a step of one clock neither kills keys, nor, since stamps do not fall, revives them.

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// How far stamps may run ahead of the monotonic clock without others agreeing, milliseconds.
pub const STEP_MAX_MS: u64 = 1_000;

/// The log time of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTime {
    anchor_ms: u64,
    anchor_at: Moment,
    last_ms: u64,
}

impl LogTime {
    /// After the last entry that is known, now.
    pub fn new(stamp_ms: u64, now: Moment) -> Self {
        Self { anchor_ms: stamp_ms, anchor_at: now, last_ms: stamp_ms }
    }

    /// Whether the stamp of an entry made now would be held back.
    pub fn holds(&self, wall_ms: u64, now: Moment) -> bool {
        self.last_ms != 0 && wall_ms > self.most(now)
    }

    /// How far stamps may go now without others agreeing.
    fn most(&self, now: Moment) -> u64 {
        let passed = u64::try_from(now.since(self.anchor_at).as_millis()).unwrap_or(u64::MAX);
        self.anchor_ms.saturating_add(passed).saturating_add(STEP_MAX_MS)
    }

    /// The stamp of an entry that is made now, milliseconds since the Unix epoch; `None` if it would be held back: then
    /// the others are to be asked first. Before the first stamp of all (0) any wall clock is believed.
    pub fn free_stamp(&mut self, wall_ms: u64, now: Moment) -> Option<u64> {
        (!self.holds(wall_ms, now)).then(|| self.stamp(wall_ms, now))
    }

    /// The same, held back where it must be.
    pub fn stamp(&mut self, wall_ms: u64, now: Moment) -> u64 {
        let believed = if self.holds(wall_ms, now) { self.most(now) } else { wall_ms };
        if self.last_ms == 0 {
            (self.anchor_ms, self.anchor_at) = (wall_ms, now);
        }
        self.last_ms = self.last_ms.max(believed);
        self.last_ms
    }

    /// An entry was applied; one of this member's own changes nothing.
    pub fn applied(&mut self, stamp_ms: u64, now: Moment) {
        if stamp_ms > self.last_ms {
            *self = Self::new(stamp_ms, now);
        }
    }

    /// The clocks of members that answered, this one's included, of `members` in all. Returns whether stamps may go on
    /// further than before.
    pub fn agree(&mut self, mut clocks_ms: Vec<u64>, members: usize, now: Moment) -> bool {
        clocks_ms.sort_unstable_by(|one, other| other.cmp(one));
        let Some(agreed) = clocks_ms.get(members / 2).copied() else { return false };
        let further = agreed > self.last_ms;
        if further {
            (self.anchor_ms, self.anchor_at) = (agreed, now);
        }
        further
    }

    /// How long ago the anchor was set; for tests and status.
    pub fn anchored_for(&self, now: Moment) -> Duration {
        now.since(self.anchor_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: u64 = 1_700_000_000_000;

    fn at(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    fn stamp(time: &mut LogTime, wall_ms: u64, now_ms: u64) -> (u64, bool) {
        match time.free_stamp(wall_ms, at(now_ms)) {
            Some(ms) => (ms, false),
            None => (time.stamp(wall_ms, at(now_ms)), true),
        }
    }

    #[test]
    fn stamps_follow_the_wall_clock_and_never_fall() {
        let mut time = LogTime::new(T, at(0));
        assert_eq!(stamp(&mut time, T + 5, 5), (T + 5, false));
        assert_eq!(stamp(&mut time, T - 3_600_000, 6), (T + 5, false), "a clock set back holds the stamp");
        assert_eq!(stamp(&mut time, T + 1_000, 1_000), (T + 1_000, false));
    }

    #[test]
    fn a_clock_set_forward_brings_one_second_in_all_however_many_entries_follow() {
        let mut time = LogTime::new(T, at(0));
        for n in 0..1_000 {
            let (ms, held) = stamp(&mut time, T + 3_600_000, n);
            assert_eq!((ms, held), (T + n + STEP_MAX_MS, true));
            // What it made is applied again and again.
            time.applied(ms, at(n));
        }
    }

    #[test]
    fn a_stamp_that_would_be_held_back_is_not_made_until_it_is_asked_for() {
        let mut time = LogTime::new(T, at(0));
        let before = time;
        assert_eq!(time.free_stamp(T + 3_600_000, at(1)), None);
        assert_eq!(time, before, "nothing was stamped");
        assert_eq!(time.free_stamp(T + 3, at(3)), Some(T + 3));
        assert_eq!(time.stamp(T + 3_600_000, at(4)), T + 4 + STEP_MAX_MS);
    }

    #[test]
    fn a_majority_of_clocks_lets_log_time_catch_up_and_one_alone_does_not() {
        let mut time = LogTime::new(T, at(0));
        let hour = 3_600_000;
        assert!(stamp(&mut time, T + hour, 1).1);
        assert!(!time.agree(vec![T + hour, T + 1, T + 2], 3, at(2)));
        assert!(!time.agree(vec![T + hour], 3, at(2)), "nobody else answered");
        assert!(time.agree(vec![T + hour, T + hour - 70, T], 3, at(2)));
        assert!(!time.holds(T + hour, at(3)));
        assert_eq!(stamp(&mut time, T + hour, 3), (T + hour, false));
        let mut alone = LogTime::new(T, at(0));
        assert!(stamp(&mut alone, T + hour, 1).1);
        assert!(alone.agree(vec![T + hour], 1, at(1)), "the only member is the majority");
    }

    #[test]
    fn a_new_leader_goes_on_from_the_stamps_of_the_old_one() {
        let mut time = LogTime::new(T, at(0));
        // An hour of entries of another leader, whose clock is right; this member's own is an hour ahead.
        for second in 1..=3_600 {
            time.applied(T + second * 1_000, at(second * 1_000));
        }
        let (ms, held) = stamp(&mut time, T + 2 * 3_600_000, 3_600_500);
        assert_eq!((ms, held), (T + 3_600_000 + 500 + STEP_MAX_MS, true));
    }

    #[test]
    fn the_first_stamp_of_all_believes_the_wall_clock() {
        let mut time = LogTime::new(0, at(0));
        assert_eq!(stamp(&mut time, T, 1), (T, false));
        assert!(stamp(&mut time, T + 3_600_000, 2).1);
    }

    proptest! {
        #[test]
        fn stamps_never_fall_and_never_outrun_the_monotonic_clock_by_more_than_a_second(
            steps in prop::collection::vec((0_u64..5_000, -10_000_000_i64..10_000_000), 1..100),
        ) {
            let mut time = LogTime::new(T, at(0));
            let (mut now, mut last) = (0, T);
            for (pause, wall) in steps {
                now += pause;
                let wall = T.saturating_add_signed(wall) + now;
                let (ms, _) = stamp(&mut time, wall, now);
                prop_assert!(ms >= last && ms <= T + now + STEP_MAX_MS);
                last = ms;
            }
        }
    }
}

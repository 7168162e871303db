//! A lane whose reads take less time than a wake-up: whether one more of its workers is woken, and the look that a
//! worker which is stuck keeps nobody waiting. Pure: told what waits and who is awake.
//!
//! Where a read takes a few microseconds, waking a worker for each costs several times the read, on both sides
//! (docs/performance.md). So a worker that is awake goes on while others sleep, unless what waits would take it
//! longer than another one takes to wake up. One that is stuck, at a disk or for want of a processor, is found by the
//! keeper, which looks as long as anything was left to such a worker. Lanes whose reads are slower, as those of a
//! modelled device, wake one worker for each copy and never come here.

use std::time::Duration;

/// What waking a thread takes, on both sides: reads at least this long are worth a worker each.
pub const WAKE_UP: Duration = Duration::from_micros(50);
/// The keeper looks this often whether a lane that was left to its awake workers goes on: the longest that a copy
/// waits for one that is stuck.
pub const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Looks that find nothing waiting after which the keeper looks no more.
const LOOKS_WITHOUT_WORK: u32 = 10;

/// What wakes for a copy that joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// One more worker.
    Worker,
    /// Nobody: who is awake takes it.
    Nobody,
    /// Nobody; but the keeper is to begin looking after the lane.
    Keeper,
}

/// The state of one brisk lane; kept under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brisk {
    watched: bool,
    pops: u64,
    pops_seen: u64,
    looks_without_work: u32,
}

impl Brisk {
    /// A copy joined: `waiting` copies wait, `awake` workers serve gets or are on their way, a get takes `service`.
    pub fn joined(&mut self, waiting: usize, awake: usize, service: Duration) -> Wake {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        let awake = u32::try_from(awake).unwrap_or(u32::MAX);
        if awake == 0 || service.saturating_mul(waiting) > WAKE_UP * awake {
            return Wake::Worker;
        }
        if self.watched {
            return Wake::Nobody;
        }
        (self.watched, self.looks_without_work, self.pops_seen) = (true, 0, self.pops);
        Wake::Keeper
    }

    /// A worker took something.
    pub fn popped(&mut self) {
        self.pops = self.pops.wrapping_add(1);
    }

    /// The keeper looks: true when something waits and nobody took anything since it last looked.
    pub fn look(&mut self, waiting: usize) -> bool {
        let stuck = self.watched && waiting > 0 && self.pops == self.pops_seen;
        self.pops_seen = self.pops;
        self.looks_without_work = if waiting > 0 { 0 } else { self.looks_without_work + 1 };
        self.watched &= self.looks_without_work < LOOKS_WITHOUT_WORK;
        stuck
    }

    /// Whether the keeper looks.
    pub fn watched(&self) -> bool {
        self.watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Duration = Duration::from_micros(5);

    #[test]
    fn brisk_one_worker_goes_on_until_another_is_awake_sooner() {
        let mut lane = Brisk::default();
        assert_eq!(lane.joined(1, 0, READ), Wake::Worker, "nobody is awake");
        assert_eq!(lane.joined(1, 1, READ), Wake::Keeper, "the first time that somebody is trusted");
        assert_eq!(lane.joined(10, 1, READ), Wake::Nobody, "50 us of work: a worker takes as long to wake");
        assert_eq!(lane.joined(11, 1, READ), Wake::Worker);
        assert_eq!(lane.joined(20, 2, READ), Wake::Nobody);
        assert_eq!(lane.joined(21, 2, READ), Wake::Worker);
        assert_eq!(lane.joined(usize::MAX, 1, Duration::MAX), Wake::Worker);
    }

    #[test]
    fn brisk_the_keeper_finds_a_lane_that_stands_still_and_only_that() {
        let mut lane = Brisk::default();
        assert!(!lane.look(5), "nobody was trusted");
        lane.joined(1, 1, READ);
        lane.popped();
        assert!(!lane.look(3), "it goes on");
        assert!(lane.look(3), "nothing was taken since");
        lane.popped();
        assert!(!lane.look(2));
        assert!(!lane.look(0), "nothing waits");
    }

    #[test]
    fn brisk_the_keeper_rests_when_nothing_waits_for_long_and_begins_anew() {
        let mut lane = Brisk::default();
        lane.joined(1, 1, READ);
        (1..LOOKS_WITHOUT_WORK).for_each(|_| assert!(!lane.look(0) && lane.watched()));
        lane.look(0);
        assert!(!lane.watched());
        assert_eq!(lane.joined(1, 1, READ), Wake::Keeper);
        assert!(lane.watched());
    }
}

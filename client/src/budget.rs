//! One bucket for all extra work of a client: hedges, rescues and retries.
//!
//! Refilled by good answers only, so that it dries out when the answers do (gRPC retry throttling, proposal A6,
//! has the same shape), with a burst and a small floor. It pays no tie copy and no free fail-over. It decides
//! nothing but yes or no. A call for many keys has its share for the whole call, and a purse for what its own answers
//! earn beyond the burst: [`CallShare`].

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// Size of the bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetSettings {
    /// Tokens per good answer, 0.0 to 1.0. Default 0.05.
    pub ratio: f64,
    /// Most tokens kept, and tokens at the start. Default 10.
    pub burst: f64,
    /// Tokens per second whatever happens. Default 0.1.
    pub floor_per_second: f64,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self { ratio: 0.05, burst: 10.0, floor_per_second: 0.1 }
    }
}

/// A millionth of a token: whole numbers, so that a run can be repeated exactly.
const TOKEN: u64 = 1_000_000;

/// The bucket. Over any window: tokens taken <= ratio x reads + burst + floor x window. Reads are those that got a
/// good answer within the window, and of a call for many keys that was open when it began all that did by its end.
///
/// ```
/// use tiedkv_client::budget::{Budget, BudgetSettings};
/// use tiedkv_protocol::moment::Moment;
///
/// let settings = BudgetSettings { ratio: 0.5, burst: 1.0, floor_per_second: 0.0 };
/// let mut budget = Budget::new(settings, Moment::ZERO);
/// assert!(budget.take(Moment::ZERO));
/// assert!(!budget.take(Moment::ZERO), "the burst is spent");
/// budget.good_answer();
/// budget.good_answer();
/// assert!(budget.take(Moment::ZERO), "two answers pay for one");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    per_answer: u64,
    burst: u64,
    floor_per_second: u64,
    tokens: u64,
    /// The floor is paid up to here.
    paid: Moment,
    replica_down: bool,
    ceiling_ppm: Option<u32>,
}

/// What the keys of one call may take together: width x ratio, at least one. What is left of it ends with the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallShare {
    /// Whole extra copies that the call may still send.
    left: u32,
    /// What its own answers earned while the bucket was full. Nobody else's: else calls that are open together could
    /// save up for each other, and spend what reads long ended have earned.
    purse: u64,
    /// Most that the purse holds: width x ratio.
    room: u64,
}

impl CallShare {
    /// Whole extra copies that the call may still send.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// One was sent.
    pub fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

impl Budget {
    /// A full bucket.
    pub fn new(settings: BudgetSettings, now: Moment) -> Self {
        let micro = |tokens: f64| (tokens.max(0.0) * TOKEN as f64) as u64;
        let burst = micro(settings.burst);
        Self {
            per_answer: micro(settings.ratio.min(1.0)),
            burst,
            floor_per_second: micro(settings.floor_per_second),
            tokens: burst,
            paid: now,
            replica_down: false,
            ceiling_ppm: None,
        }
    }

    /// A call for `width` keys begins: it may send width x ratio extra copies, still earned by good answers only. Its own
    /// may earn them before it needs them, so what they earn beyond the burst is kept for it while it lasts.
    pub fn open(&self, width: usize) -> CallShare {
        let room = self.per_answer.saturating_mul(width as u64);
        CallShare { left: u32::try_from(room.div_ceil(TOKEN)).unwrap_or(u32::MAX).max(1), purse: 0, room }
    }

    /// A read got a good answer. Refusals, failures and expiries do not count.
    pub fn good_answer(&mut self) {
        self.earn();
    }

    /// The same of a key of a call.
    pub fn good_answer_of(&mut self, call: &mut CallShare) {
        let over = self.earn();
        call.purse = (call.purse + over).min(self.room_of(call));
    }

    /// Adds what one answer earns; gives what the bucket has no room for.
    fn earn(&mut self) -> u64 {
        let ceiling = self.ceiling_ppm.map_or(u64::MAX, u64::from);
        let tokens = self.tokens + self.halved(self.per_answer.min(ceiling));
        self.tokens = tokens.min(self.limit());
        tokens - self.tokens
    }

    /// Takes one token for a key of a call: out of its purse, else out of the bucket.
    pub fn take_for(&mut self, call: &mut CallShare, now: Moment) -> bool {
        call.purse = call.purse.min(self.room_of(call));
        if call.purse < TOKEN {
            return self.take(now);
        }
        call.purse -= TOKEN;
        true
    }

    /// Takes one token if there is one.
    pub fn take(&mut self, now: Moment) -> bool {
        self.pay_floor(now);
        if self.tokens < TOKEN {
            return false;
        }
        self.tokens -= TOKEN;
        true
    }

    /// A replica of the shard is down (or none is any more): everything is halved while it lasts.
    pub fn replica_down(&mut self, down: bool, now: Moment) {
        self.pay_floor(now);
        self.replica_down = down;
        self.tokens = self.tokens.min(self.limit());
    }

    /// The operator's ceiling, millionths of good answers: refills by the lower ratio; 0 stops all extra work
    /// while it lasts.
    pub fn ceiling(&mut self, ceiling_ppm: Option<u32>, now: Moment) {
        self.pay_floor(now);
        self.ceiling_ppm = ceiling_ppm;
        self.tokens = self.tokens.min(self.limit());
    }

    /// Whole tokens left.
    pub fn tokens(&self) -> u64 {
        self.tokens / TOKEN
    }

    fn pay_floor(&mut self, now: Moment) {
        let nanos = u64::try_from(now.since(self.paid).as_nanos()).unwrap_or(u64::MAX);
        let rate = self.halved(self.floor_per_second);
        let due = (u128::from(nanos) * u128::from(rate) / u128::from(SECOND)).min(u128::from(u64::MAX)) as u64;
        if due == 0 {
            return;
        }
        self.tokens = self.tokens.saturating_add(due).min(self.limit());
        // What is less than a millionth stays owed.
        let used = u128::from(due) * u128::from(SECOND) / u128::from(rate.max(1));
        self.paid = self.paid + Duration::from_nanos(u64::try_from(used).unwrap_or(u64::MAX));
    }

    fn limit(&self) -> u64 {
        self.at_most(self.burst)
    }

    fn room_of(&self, call: &CallShare) -> u64 {
        self.at_most(call.room)
    }

    /// What may be kept where `room` is meant for it.
    fn at_most(&self, room: u64) -> u64 {
        if self.ceiling_ppm == Some(0) { 0 } else { self.halved(room) }
    }

    fn halved(&self, amount: u64) -> u64 {
        if self.replica_down { amount / 2 } else { amount }
    }
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hundred_answers_pay_five() {
        let mut budget = Budget::new(BudgetSettings { floor_per_second: 0.0, ..Default::default() }, Moment::ZERO);
        assert_eq!((0..100).filter(|_| budget.take(Moment::ZERO)).count(), 10, "the burst");
        (0..100).for_each(|_| budget.good_answer());
        assert_eq!((0..100).filter(|_| budget.take(Moment::ZERO)).count(), 5);
    }

    #[test]
    fn the_floor_lets_one_through_every_ten_seconds() {
        let mut budget = Budget::new(BudgetSettings { burst: 1.0, ..Default::default() }, Moment::ZERO);
        let taken = (0..1_000_u64).filter(|i| budget.take(Moment(i * 100_000_000))).count();
        assert!((9..=11).contains(&taken), "{taken} in 100 s");
    }

    #[test]
    fn a_dead_replica_halves_it() {
        let mut budget = Budget::new(BudgetSettings { floor_per_second: 0.0, ..Default::default() }, Moment::ZERO);
        budget.replica_down(true, Moment::ZERO);
        assert_eq!(budget.tokens(), 5);
        while budget.take(Moment::ZERO) {}
        (0..80).for_each(|_| budget.good_answer());
        assert_eq!(budget.tokens(), 2);
    }

    #[test]
    fn a_call_for_many_keys_has_its_share_for_the_whole_call() {
        let mut budget = Budget::new(BudgetSettings { floor_per_second: 0.0, ..Default::default() }, Moment::ZERO);
        while budget.take(Moment::ZERO) {}
        let mut share = budget.open(1_000);
        assert_eq!(share.left(), 50);
        assert!(!budget.take_for(&mut share, Moment::ZERO), "width x ratio may be sent, and must be earned");
        (0..950).for_each(|_| budget.good_answer_of(&mut share));
        assert_eq!(budget.tokens(), 10);
        let taken = (0..100).filter(|_| budget.take_for(&mut share, Moment::ZERO)).count();
        assert_eq!(taken, 47, "the burst alone would have kept 10");
        assert_eq!(budget.open(3).left(), 1, "at least one");
    }

    #[test]
    fn calls_that_are_open_together_save_nothing_up_for_each_other() {
        let mut budget = Budget::new(BudgetSettings { floor_per_second: 0.0, ..Default::default() }, Moment::ZERO);
        let mut calls: Vec<CallShare> = (0..100).map(|_| budget.open(1_000)).collect();
        (0..10_000).for_each(|_| budget.good_answer());
        (0..1_000).for_each(|_| budget.good_answer_of(&mut calls[0]));
        let mut taken = |call: &mut CallShare| (0..100).filter(|_| budget.take_for(call, Moment::ZERO)).count();
        assert_eq!(taken(&mut calls[1]), 10, "of what reads earned before only the burst is kept");
        assert_eq!(taken(&mut calls[0]), 50);
        assert_eq!(calls[2..].iter_mut().map(taken).sum::<usize>(), 0);
    }

    #[test]
    fn a_ceiling_and_a_dead_replica_hold_for_what_a_call_has_earned() {
        let mut budget = Budget::new(BudgetSettings { floor_per_second: 0.0, ..Default::default() }, Moment::ZERO);
        let mut call = budget.open(1_000);
        (0..1_000).for_each(|_| budget.good_answer_of(&mut call));
        budget.replica_down(true, Moment::ZERO);
        let mut halved = call.clone();
        let taken = (0..100).filter(|_| budget.take_for(&mut halved, Moment::ZERO)).count();
        assert_eq!(taken, 25 + 5, "half of the purse and half of the burst");
        budget.ceiling(Some(0), Moment::ZERO);
        assert!(!budget.take_for(&mut call, Moment::ZERO));
    }

    #[test]
    fn a_ceiling_of_nothing_is_nothing() {
        let mut budget = Budget::new(BudgetSettings::default(), Moment::ZERO);
        budget.ceiling(Some(0), Moment::ZERO);
        (0..1_000).for_each(|_| budget.good_answer());
        assert!(!budget.take(Moment(1 << 50)));
        budget.ceiling(Some(10_000), Moment(1 << 50));
        (0..100).for_each(|_| budget.good_answer());
        assert_eq!(budget.tokens(), 1, "the lower ratio counts");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Good,
        Take,
        Wait(u32),
        Down(bool),
        Open(usize),
        GoodOf(usize),
        TakeFor(usize),
        Close(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Good),
            6 => Just(Step::Take),
            2 => (0_u32..2_000_000_000).prop_map(Step::Wait),
            1 => any::<bool>().prop_map(Step::Down),
            1 => (0_usize..500).prop_map(Step::Open),
            6 => any::<usize>().prop_map(Step::GoodOf),
            6 => any::<usize>().prop_map(Step::TakeFor),
            1 => any::<usize>().prop_map(Step::Close),
        ]
    }

    proptest! {
        #[test]
        fn extra_work_is_bounded_over_any_window(
            steps in prop::collection::vec(step(), 1..400),
            ratio in 0.0_f64..0.3,
            burst in 0.0_f64..20.0,
            from in 0_usize..400,
        ) {
            let settings = BudgetSettings { ratio, burst, floor_per_second: 0.1 };
            let mut budget = Budget::new(settings, Moment::ZERO);
            let (mut now, mut good, mut taken, mut start) = (Moment::ZERO, 0_u32, 0_u32, Moment::ZERO);
            // Each call that is open, with its good answers so far.
            let mut calls: Vec<(CallShare, u32)> = Vec::new();
            for (index, step) in steps.iter().enumerate() {
                if index == from {
                    let of_open_calls: u32 = calls.iter().map(|(_, answers)| answers).sum();
                    (good, taken, start) = (of_open_calls, 0, now);
                }
                let count = calls.len();
                let open = |index: usize| (count > 0).then(|| index % count);
                match step {
                    Step::Good => { good += 1; budget.good_answer(); }
                    Step::Take => taken += u32::from(budget.take(now)),
                    Step::Wait(nanos) => now = now + Duration::from_nanos(u64::from(*nanos)),
                    Step::Down(down) => budget.replica_down(*down, now),
                    Step::Open(width) => calls.push((budget.open(*width), 0)),
                    Step::GoodOf(index) => if let Some((call, answers)) = open(*index).map(|at| &mut calls[at]) {
                        (good, *answers) = (good + 1, *answers + 1);
                        budget.good_answer_of(call);
                    },
                    Step::TakeFor(index) => if let Some((call, _)) = open(*index).map(|at| &mut calls[at]) {
                        taken += u32::from(budget.take_for(call, now));
                    },
                    Step::Close(index) => if let Some(at) = open(*index) {
                        calls.swap_remove(at);
                    },
                }
                let window = now.since(start).as_secs_f64();
                let bound = ratio * f64::from(good) + burst + 0.1 * window;
                prop_assert!(f64::from(taken) <= bound + 1e-3, "{taken} taken, bound {bound}");
            }
        }
    }
}

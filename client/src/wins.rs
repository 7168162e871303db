//! Whether later copies are worth sending: those that stop winning are only observed for a while; those that always
//! win say that their delay is too long.
//!
//! Counts reads, per operation. It sends nothing and changes no delay.

use crate::copies::{Outcome, SentCopy};
use crate::operation::Operation;
use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// When an operation is turned to observe, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinsSettings {
    /// Reads with later copies until anything is concluded. Default 400.
    pub reads_min: u32,
    /// Below this share of them won by a later copy the operation only observes. Default 0.005.
    pub won_min: f64,
    /// First for this long; doubled each time in a row, up to `rest_max`. Default 30 s.
    pub rest: Duration,
    /// Longest rest. Default 8 min.
    pub rest_max: Duration,
    /// Over this share of hedges and rescues won, their delay is said to be too long. Default 0.8.
    pub won_max: f64,
}

impl Default for WinsSettings {
    fn default() -> Self {
        Self {
            reads_min: 400,
            won_min: 0.005,
            rest: Duration::from_secs(30),
            rest_max: Duration::from_secs(480),
            won_max: 0.8,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    with_later: u32,
    won_by_later: u32,
    with_extra: f64,
    won_by_extra: f64,
    resting_until: Option<Moment>,
    rests: u32,
}

/// Reads with an extra copy until the delay is judged.
const EXTRA_MIN: f64 = 50.0;
/// Old reads fade by this with each new one that had an extra copy.
const FADE: f64 = 0.995;

/// What one view learned of each operation.
#[derive(Clone, Debug)]
pub struct Wins {
    settings: WinsSettings,
    records: [Record; Operation::ALL.len()],
}

impl Wins {
    /// Knows nothing yet.
    pub fn new(settings: WinsSettings) -> Self {
        Self { settings, records: [Record::default(); Operation::ALL.len()] }
    }

    /// A read ended with these copies.
    pub fn read_ended(&mut self, operation: Operation, copies: &[SentCopy], outcome: Outcome, now: Moment) {
        let Outcome::Won(winner) = outcome else { return };
        let Some(won) = copies.get(usize::from(winner.0)) else { return };
        let settings = self.settings;
        let record = &mut self.records[operation as usize];
        if copies.iter().any(|copy| copy.kind.is_extra()) {
            record.with_extra = record.with_extra * FADE + 1.0;
            record.won_by_extra = record.won_by_extra * FADE + f64::from(u8::from(won.kind.is_extra()));
        }
        // What followed a refusal or a failure was no bet on lateness.
        let bets = copies.iter().filter(|copy| later(copy)).count();
        if bets == 0 || copies.iter().any(|copy| copy.end.is_answer() && copy.end != won.end) {
            return;
        }
        record.with_later += 1;
        record.won_by_later += u32::from(later(won));
        if record.with_later < settings.reads_min {
            return;
        }
        let share = f64::from(record.won_by_later) / f64::from(record.with_later);
        if share < settings.won_min {
            let doubled = settings.rest.saturating_mul(1 << record.rests.min(16));
            record.resting_until = Some(now + doubled.min(settings.rest_max));
            record.rests += 1;
        } else {
            record.rests = 0;
        }
        (record.with_later, record.won_by_later) = (0, 0);
    }

    /// Later copies stopped winning: for now the operation only observes.
    pub fn rests(&mut self, operation: Operation, now: Moment) -> bool {
        let record = &mut self.records[operation as usize];
        if record.resting_until.is_some_and(|until| now >= until) {
            record.resting_until = None;
        }
        record.resting_until.is_some()
    }

    /// Hedges and rescues of the operation nearly always win: they could go out earlier.
    pub fn delay_too_long(&self, operation: Operation) -> bool {
        let record = &self.records[operation as usize];
        record.with_extra >= EXTRA_MIN && record.won_by_extra > self.settings.won_max * record.with_extra
    }
}

fn later(copy: &SentCopy) -> bool {
    copy.kind.is_extra() || copy.number.is_some_and(|number| number.0 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::{CopyIndex, End};
    use tiedkv_protocol::ids::NodeId;
    use tiedkv_protocol::request::CopyKind;
    use tiedkv_protocol::tie::CopyNumber;

    fn read(wins: &mut Wins, second: CopyKind, second_wins: bool, now: Moment) {
        let number = |n| (second == CopyKind::Tied).then_some(CopyNumber(n));
        let copy = |n: u8, kind| SentCopy {
            replica: NodeId(u64::from(n)),
            kind,
            number: number(n),
            tie: Some(0),
            end: if second_wins == (n == 1) { End::Won } else { End::Out },
        };
        let copies = [copy(0, CopyKind::First), copy(1, second)];
        wins.read_ended(Operation::Get, &copies, Outcome::Won(CopyIndex(u16::from(second_wins))), now);
    }

    #[test]
    fn copies_that_stop_winning_turn_the_operation_to_observe_for_a_while() {
        let mut wins = Wins::new(WinsSettings::default());
        let now = Moment(1);
        (0..400).for_each(|i| read(&mut wins, CopyKind::Tied, i % 100 == 0, now));
        assert!(!wins.rests(Operation::Get, now), "one in a hundred is enough");
        (0..400).for_each(|_| read(&mut wins, CopyKind::Tied, false, now));
        assert!(wins.rests(Operation::Get, now) && !wins.rests(Operation::Scan, now));
        let later = now + Duration::from_secs(30);
        assert!(!wins.rests(Operation::Get, later), "and tries again");
        (0..400).for_each(|_| read(&mut wins, CopyKind::Tied, false, later));
        assert!(wins.rests(Operation::Get, later + Duration::from_secs(59)), "twice as long");
        assert!(!wins.rests(Operation::Get, later + Duration::from_secs(60)));
    }

    #[test]
    fn hedges_that_always_win_say_that_the_delay_is_too_long() {
        let mut wins = Wins::new(WinsSettings::default());
        (0..40).for_each(|_| read(&mut wins, CopyKind::Hedge, true, Moment(1)));
        assert!(!wins.delay_too_long(Operation::Get), "forty say nothing");
        (0..30).for_each(|_| read(&mut wins, CopyKind::Hedge, true, Moment(1)));
        assert!(wins.delay_too_long(Operation::Get));
        (0..40).for_each(|_| read(&mut wins, CopyKind::Hedge, false, Moment(1)));
        assert!(!wins.delay_too_long(Operation::Get));
    }
}

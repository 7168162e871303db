//! How old a replica's state can be: which answered barriers its applied position covers, and when these were sent.
//!
//! A barrier that was *sent* at t and answered with a position covers every write acknowledged before t, so a view at
//! that position is never older than t (counted on this node's own clock; no clocks are compared). Pure.

use std::collections::VecDeque;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::moment::Moment;

/// Barriers remembered; those that a lagging replica has not applied yet are the ones that matter.
const ROUNDS_MAX: usize = 256;

/// Answered barriers, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Rounds(VecDeque<(Moment, Position)>);

impl Rounds {
    /// A barrier that was sent at `sent` was answered with `position`. Later ones come later.
    pub fn answered(&mut self, sent: Moment, position: Position) {
        // The same position covers the later moment too.
        if self.0.back().is_some_and(|(_, last)| *last >= position) {
            self.0.pop_back();
        }
        if self.0.len() >= ROUNDS_MAX {
            // Neither end: what is applied now, and what is newest, decide.
            self.0.remove(ROUNDS_MAX / 2);
        }
        self.0.push_back((sent, position));
    }

    /// When the newest barrier that `applied` covers was sent.
    pub fn covered(&mut self, applied: Position) -> Option<Moment> {
        while self.0.get(1).is_some_and(|(_, position)| *position <= applied) {
            self.0.pop_front();
        }
        self.0.front().filter(|(_, position)| *position <= applied).map(|(sent, _)| *sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_as_fresh_as_the_newest_barrier_that_it_covers() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.covered(Position(9)), None);
        rounds.answered(Moment(10), Position(5));
        rounds.answered(Moment(20), Position(7));
        assert_eq!(rounds.covered(Position(4)), None);
        assert_eq!(rounds.covered(Position(6)), Some(Moment(10)));
        assert_eq!(rounds.covered(Position(7)), Some(Moment(20)));
        // Nothing was written between two barriers: the later one counts.
        rounds.answered(Moment(30), Position(7));
        assert_eq!(rounds.covered(Position(7)), Some(Moment(30)));
    }

    #[test]
    fn a_replica_that_stands_still_keeps_its_oldest_and_newest_barriers() {
        let mut rounds = Rounds::default();
        (1..2_000).for_each(|round| rounds.answered(Moment(round), Position(round)));
        assert_eq!(rounds.covered(Position(1)), Some(Moment(1)));
        assert_eq!(rounds.covered(Position(1_999)), Some(Moment(1_999)));
    }
}

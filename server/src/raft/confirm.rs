//! Whether a leader and one other node are a quorum by themselves: then no heartbeats are needed to confirm that nobody else
//! leads, and a linearizable read on any of three replicas costs one round trip. Pure.
//!
//! A read index is safe when, at some moment after the read came, a quorum had promised no later ballot than that of the
//! leader (Raft dissertation, section 6.4). A follower that asks looks at its own vote after the read came and says it with
//! the question; the leader looks at its own when the question arrives. A leader that has reads itself asks a follower whom
//! it votes for, and looks at its own vote when the answer arrives. A later leader would need the vote of one of the two, and
//! votes are never taken back. No clock is involved, so this is no lease.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tiedkv_protocol::ids::Position;

/// A ballot: votes are ordered by term, then by candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// The term.
    pub term: u64,
    /// Who was voted for.
    pub candidate: u64,
}

/// What a leader knows of itself.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// The ballot that made it the leader, which is its own vote as well.
    pub leads: Ballot,
    /// The last committed entry, and the ballot of the leader that made it.
    pub committed: Option<(Ballot, Position)>,
    /// The voters of the newest membership in its log: one set, or two while it changes.
    pub voters: &'a [BTreeSet<u64>],
}

/// The read index, if the vote of `other` is for this leader's ballot and both are a quorum. An entry of its own must be
/// committed: before, it does not know what its predecessors committed.
pub fn confirmed(standing: &Standing<'_>, other: u64, follows: Ballot) -> Option<Position> {
    let Standing { leads, committed, voters } = *standing;
    let (by, position) = committed?;
    let known = follows == leads && by == leads;
    (known && are_quorum(voters, leads.candidate, other)).then_some(position)
}

/// A node that is a quorum together with `own`; where there are several, another one for another `turn`.
pub fn companion(voters: &[BTreeSet<u64>], own: u64, turn: usize) -> Option<u64> {
    let fit: Vec<u64> = voters.first()?.iter().copied().filter(|other| are_quorum(voters, own, *other)).collect();
    fit.get(turn.checked_rem(fit.len())?).copied()
}

fn are_quorum(voters: &[BTreeSet<u64>], one: u64, other: u64) -> bool {
    let both = [one, other];
    let quorum = |set: &BTreeSet<u64>| 2 * both.iter().filter(|node| set.contains(node)).count() > set.len();
    one != other && !voters.is_empty() && voters.iter().all(quorum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADS: Ballot = Ballot { term: 3, candidate: 1 };

    fn ask(sets: &[&[u64]], by: Ballot, asker: u64, follows: Ballot) -> Option<u64> {
        let voters: Vec<BTreeSet<u64>> = sets.iter().map(|set| set.iter().copied().collect()).collect();
        let standing = Standing { leads: LEADS, committed: Some((by, Position(7))), voters: &voters };
        confirmed(&standing, asker, follows).map(|position| position.0)
    }

    #[test]
    fn two_of_three_confirm_each_other_and_two_of_five_do_not() {
        assert_eq!(ask(&[&[1, 2, 3]], LEADS, 2, LEADS), Some(7));
        assert_eq!(ask(&[&[1, 2]], LEADS, 2, LEADS), Some(7));
        assert_eq!(ask(&[&[1, 2, 3, 4]], LEADS, 2, LEADS), None);
        assert_eq!(ask(&[&[1, 2, 3, 4, 5]], LEADS, 2, LEADS), None);
    }

    #[test]
    fn who_has_promised_another_ballot_confirms_nothing() {
        for other in [Ballot { term: 4, ..LEADS }, Ballot { candidate: 2, ..LEADS }, Ballot { term: 2, ..LEADS }] {
            assert_eq!(ask(&[&[1, 2, 3]], LEADS, 2, other), None);
        }
    }

    #[test]
    fn a_leader_that_has_committed_nothing_of_its_own_is_not_confirmed() {
        assert_eq!(ask(&[&[1, 2, 3]], Ballot { term: 2, ..LEADS }, 2, LEADS), None);
        let voters = [BTreeSet::from([1, 2, 3])];
        assert_eq!(confirmed(&Standing { leads: LEADS, committed: None, voters: &voters }, 2, LEADS), None);
    }

    #[test]
    fn strangers_learners_and_the_leader_itself_do_not_count() {
        assert_eq!(ask(&[&[1, 2, 3]], LEADS, 4, LEADS), None);
        assert_eq!(ask(&[&[1, 2, 3]], LEADS, 1, LEADS), None);
        assert_eq!(ask(&[], LEADS, 2, LEADS), None);
    }

    #[test]
    fn a_companion_is_another_voter_of_three_in_turn_and_nobody_of_five() {
        let sets = |sets: &[&[u64]]| -> Vec<BTreeSet<u64>> {
            sets.iter().map(|set| set.iter().copied().collect()).collect()
        };
        let three = sets(&[&[1, 2, 3]]);
        assert_eq!([0, 1, 2].map(|turn| companion(&three, 2, turn)), [Some(1), Some(3), Some(1)]);
        assert_eq!(companion(&sets(&[&[1, 2, 3, 4, 5]]), 2, 0), None);
        assert_eq!(companion(&sets(&[&[1]]), 1, 0), None, "alone");
        assert_eq!(companion(&[], 1, 0), None);
        let changing = sets(&[&[1, 2, 3], &[1, 3, 4]]);
        assert_eq!([0, 1].map(|turn| companion(&changing, 1, turn)), [Some(3), Some(3)], "both sets");
    }

    #[test]
    fn while_members_change_both_sets_must_agree() {
        assert_eq!(ask(&[&[1, 2, 3], &[1, 2, 4]], LEADS, 2, LEADS), Some(7));
        assert_eq!(ask(&[&[1, 2, 3], &[1, 3, 4]], LEADS, 2, LEADS), None);
    }
}

//! Joins the start records of all nodes: what a node alone cannot know. Pure.
//!
//! A duplicate is a copy that started although another copy of its tie had started; whichever node saw it, the
//! share is that of all started copies. Live counters of a node are a lower bound of it.

use std::collections::HashMap;
use tiedkv_protocol::ids::{CallerId, NodeId, ReadId, TieId};
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::{CopyEnd, StartRecord};

/// Who answered a read, as its client saw it: by node. A read that is absent had no answer that was used.
pub type Winners = HashMap<ReadId, NodeId>;

/// What the joined records of one scene say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Joined {
    /// Copies that a worker started.
    pub started: u64,
    /// Of these, copies that started although another copy of their tie had.
    pub duplicates: u64,
    /// Service time of all started copies, microseconds.
    pub service_us: u64,
    /// Of this, of copies whose answer was not used, rescues and hedges aside.
    pub wasted_us: u64,
    /// Of this, of rescues and hedges whose answer was not used.
    pub wasted_extra_us: u64,
}

impl Joined {
    /// Duplicates, percent of started copies.
    pub fn duplicates_pct(&self) -> f64 {
        percent(self.duplicates, self.started)
    }

    /// Ties' own wasted work, percent of all service time.
    pub fn wasted_pct(&self) -> f64 {
        percent(self.wasted_us, self.service_us)
    }
}

/// Joins the records of all nodes. Of the reads in `winners` all copies count; records of other reads (warm-up,
/// other clients) do not.
///
/// Without winners (calls for many keys) all records count, and what was not answered is wasted: an answer that came
/// second is not seen.
pub fn join(nodes: &[(NodeId, Vec<StartRecord>)], winners: Option<&Winners>) -> Joined {
    let mut joined = Joined::default();
    let mut ties: HashMap<(CallerId, TieId), u64> = HashMap::new();
    for (node, records) in nodes {
        for record in records {
            let winner = winners.map(|winners| winners.get(&record.read));
            if winner == Some(None) {
                continue;
            }
            let lost = winner.flatten().is_some_and(|winner| winner != node);
            joined.started += 1;
            let service_us = record.ended_us.saturating_sub(record.started_us);
            joined.service_us += service_us;
            if lost || record.end != CopyEnd::Answered {
                match record.kind {
                    CopyKind::Hedge | CopyKind::Rescue | CopyKind::Shadow => joined.wasted_extra_us += service_us,
                    CopyKind::First | CopyKind::Tied | CopyKind::Retry => joined.wasted_us += service_us,
                }
            }
            if let Some((tie, _)) = record.tie {
                *ties.entry((record.caller, tie)).or_default() += 1;
            }
        }
    }
    joined.duplicates = ties.values().map(|started| started - 1).sum();
    joined
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_protocol::tie::CopyNumber;

    fn record(read: u128, tie: Option<(u128, u8)>, service_us: u64, end: CopyEnd) -> StartRecord {
        StartRecord {
            caller: CallerId(1),
            read: ReadId(read),
            tie: tie.map(|(id, number)| (TieId(id), CopyNumber(number))),
            kind: CopyKind::First,
            lane: 0,
            admitted_us: 0,
            started_us: 1_000,
            ended_us: 1_000 + service_us,
            end,
        }
    }

    #[test]
    fn two_starts_of_one_tie_are_one_duplicate_and_the_loser_is_wasted() {
        let first =
            vec![record(1, Some((7, 0)), 5_000, CopyEnd::Answered), record(2, None, 4_000, CopyEnd::Answered)];
        let second = vec![record(1, Some((7, 1)), 100, CopyEnd::Yielded)];
        let winners = Winners::from([(ReadId(1), NodeId(1)), (ReadId(2), NodeId(1))]);
        let joined = join(&[(NodeId(1), first), (NodeId(2), second)], Some(&winners));
        assert_eq!((joined.started, joined.duplicates), (3, 1));
        assert_eq!((joined.service_us, joined.wasted_us), (9_100, 100));
        assert!((joined.duplicates_pct() - 33.33).abs() < 0.01);
    }

    #[test]
    fn an_answer_that_came_second_is_wasted_though_good() {
        let first = vec![record(1, Some((7, 0)), 5_000, CopyEnd::Answered)];
        let second = vec![record(1, Some((7, 1)), 6_000, CopyEnd::Answered)];
        let winners = Winners::from([(ReadId(1), NodeId(2))]);
        let joined = join(&[(NodeId(1), first), (NodeId(2), second)], Some(&winners));
        assert_eq!((joined.duplicates, joined.wasted_us), (1, 5_000));
    }

    #[test]
    fn records_of_uncounted_reads_are_left_out() {
        let joined = join(&[(NodeId(1), vec![record(9, None, 5_000, CopyEnd::Answered)])], Some(&Winners::new()));
        assert_eq!(joined, Joined::default());
    }
}

//! What the bytes of a tie alone can tell, and whom a start cancels.

use super::*;

fn tie(members: &[u64], number: u8, width: u8) -> Tie {
    Tie {
        id: TieId(9),
        number: CopyNumber(number),
        members: members.iter().map(|node| NodeId(*node)).collect(),
        width,
    }
}

fn cancelled(tie: &Tie) -> Vec<u64> {
    tie.cancelled_by_start().map(|node| node.0).collect()
}

#[test]
fn good_ties_pass() {
    for (members, number, width) in
        [(&[1][..], 0, 1), (&[1, 2], 1, 2), (&[3, 2, 1], 2, 2), (&[3, 2, 1], 0, 1), (&[3, 2, 1], 2, 3)]
    {
        assert_eq!(tie(members, number, width).check(), Ok(()));
    }
}

#[test]
fn each_broken_rule_is_named() {
    assert_eq!(tie(&[], 0, 1).check(), Err(BadTie::Members(0)));
    assert_eq!(tie(&[1, 2, 3, 4], 0, 1).check(), Err(BadTie::Members(4)));
    assert_eq!(tie(&[1, 2, 1], 0, 2).check(), Err(BadTie::Twice(NodeId(1))));
    assert_eq!(tie(&[1, 2], 2, 2).check(), Err(BadTie::Number(2)));
    assert_eq!(tie(&[1, 2], 255, 2).check(), Err(BadTie::Number(255)));
    assert_eq!(tie(&[1, 2], 0, 0).check(), Err(BadTie::Width(0)));
    assert_eq!(tie(&[1, 2], 0, 3).check(), Err(BadTie::Width(3)));
}

#[test]
fn holder_and_numbers_follow_the_order_of_the_members() {
    let tie = tie(&[7, 5, 6], 1, 2);
    assert_eq!(tie.holder(), Some(NodeId(5)));
    assert_eq!(tie.number_of(NodeId(6)), Some(CopyNumber(2)));
    assert_eq!(tie.number_of(NodeId(8)), None);
    let broken = Tie { number: CopyNumber(3), ..tie };
    assert_eq!(broken.holder(), None);
}

#[test]
fn a_start_cancels_the_planned_and_all_lower_numbers_but_not_itself() {
    // Planned width 2 of 3 members: copy 0 cancels copy 1 only; the replacement copy 2 cancels both (rule R11).
    assert_eq!(cancelled(&tie(&[7, 5, 6], 0, 2)), [5]);
    assert_eq!(cancelled(&tie(&[7, 5, 6], 1, 2)), [7]);
    assert_eq!(cancelled(&tie(&[7, 5, 6], 2, 2)), [7, 5]);
    assert_eq!(cancelled(&tie(&[7, 5, 6], 0, 3)), [5, 6]);
    assert_eq!(cancelled(&tie(&[7, 5, 6], 1, 3)), [7, 6]);
    assert_eq!(cancelled(&tie(&[7], 0, 1)), [0u64; 0]);
}

#[test]
fn a_tie_that_was_not_checked_still_harms_nobody() {
    assert_eq!(cancelled(&tie(&[], 9, 9)), [0u64; 0]);
    assert_eq!(cancelled(&tie(&[1, 2], 9, 9)), [1, 2]);
}

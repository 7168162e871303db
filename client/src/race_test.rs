//! Tests of the race: one per rule, and worked examples. Random walks are in `race_walk_test`.

use super::*;
use std::collections::BTreeMap;
use tiedkv_protocol::response::{Failure, Service};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const MS: Duration = Duration::from_millis(1);

/// A host with fixed delays and a purse of tokens.
#[derive(Clone, Debug)]
struct Fixed {
    ties: u128,
    tokens: u32,
    asked: u32,
    tie_delay: Duration,
    extra_delay: Duration,
}

impl Host for Fixed {
    fn tie_id(&mut self) -> TieId {
        self.ties += 1;
        TieId(self.ties)
    }
    fn tie_delay(&mut self, _: NodeId) -> Duration {
        self.tie_delay
    }
    fn hedge_delay(&mut self) -> Duration {
        self.extra_delay
    }
    fn rescue_delay(&mut self) -> Duration {
        self.extra_delay
    }
    fn token(&mut self, _: CopyKind, _: Moment) -> bool {
        self.asked += 1;
        let given = self.tokens > 0;
        self.tokens -= u32::from(given);
        given
    }
    fn backoff(&mut self, _: u8, hint: Duration) -> Duration {
        hint.max(MS * 4)
    }
}

struct Drive {
    race: Race,
    host: Fixed,
    now: Moment,
    actions: Actions,
}

impl Drive {
    fn new(order: &[NodeId], width: u8, extras: &str, tokens: u32) -> Self {
        let plan = Plan {
            order: order.iter().copied().collect(),
            width,
            hedge: extras.contains("hedge"),
            rescue: extras.contains("rescue"),
            deadline: Moment::ZERO + MS * 1_000,
            naive: false,
        };
        let host = Fixed { ties: 0, tokens, asked: 0, tie_delay: MS, extra_delay: MS * 30 };
        Self { race: Race::new(plan), host, now: Moment::ZERO, actions: Actions::new() }
    }

    fn event(&mut self, event: Event) -> Vec<(CopyIndex, NodeId, CopyKind)> {
        self.actions.clear();
        self.race.on_event(event, self.now, &mut self.host, &mut self.actions);
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Send(send) => Some((send.copy, send.replica, send.kind)),
                _ => None,
            })
            .collect()
    }

    fn fire(&mut self, timer: Timer) -> Vec<(CopyIndex, NodeId, CopyKind)> {
        self.now = self.race.armed(timer).unwrap_or_else(|| panic!("{timer:?} is not armed"));
        self.event(Event::Timer(timer))
    }

    fn answer(&mut self, copy: u16, answer: Answer) -> Vec<(CopyIndex, NodeId, CopyKind)> {
        self.event(Event::Answer { copy: CopyIndex(copy), answer })
    }

    fn refuse(&mut self, copy: u16) -> Vec<(CopyIndex, NodeId, CopyKind)> {
        self.answer(copy, Answer::Refused { code: Some(ErrorCode::Busy), hint: Duration::ZERO })
    }

    fn fail(&mut self, copy: u16) -> Vec<(CopyIndex, NodeId, CopyKind)> {
        self.answer(copy, Answer::Failed { code: ErrorCode::Storage })
    }

    fn withdrawn(&self) -> Vec<u16> {
        let lists = self.actions.iter().filter_map(|action| match action {
            Action::Withdraw(copies) => Some(copies.iter().map(|copy| copy.0)),
            _ => None,
        });
        lists.flatten().collect()
    }

    fn ties(&self) -> Vec<Tie> {
        let sends = self.actions.iter().filter_map(|action| match action {
            Action::Send(send) => send.tie.clone(),
            _ => None,
        });
        sends.collect()
    }
}

fn copy(index: u16, node: NodeId, kind: CopyKind) -> (CopyIndex, NodeId, CopyKind) {
    (CopyIndex(index), node, kind)
}

#[test]
fn copies_of_a_tie_go_out_one_tie_delay_apart_and_name_all() {
    let mut drive = Drive::new(&[A, B, C], 3, "", 0);
    assert_eq!(drive.event(Event::Begin), [copy(0, A, CopyKind::First)]);
    let first = drive.ties()[0].clone();
    assert_eq!((first.members.as_slice(), first.width, first.number), (&[A, B, C][..], 3, CopyNumber(0)));
    assert_eq!(drive.fire(Timer::NextCopy), [copy(1, B, CopyKind::Tied)]);
    assert_eq!(drive.now, Moment::ZERO + MS);
    assert_eq!(drive.fire(Timer::NextCopy), [copy(2, C, CopyKind::Tied)]);
    let last = drive.ties()[0].clone();
    assert_eq!((last.id, last.number, drive.now), (first.id, CopyNumber(2), Moment::ZERO + MS * 2));
    assert_eq!(drive.race.armed(Timer::NextCopy), None);
    drive.answer(1, Answer::Good);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(1))));
    assert_eq!(drive.withdrawn(), [0, 2]);
    assert!(matches!(drive.actions.last(), Some(Action::Finish(Outcome::Won(_)))));
}

#[test]
fn an_answer_in_time_means_no_second_copy() {
    let mut drive = Drive::new(&[A, B, C], 2, "", 0);
    drive.event(Event::Begin);
    drive.answer(0, Answer::Good);
    assert!(drive.withdrawn().is_empty());
    assert_eq!(drive.event(Event::Timer(Timer::NextCopy)), []);
    assert_eq!(drive.race.copies().len(), 1);
}

#[test]
fn a_tie_of_two_in_a_shard_of_five_names_three() {
    let order = [A, B, C, NodeId(4), NodeId(5)];
    let mut drive = Drive::new(&order, 2, "", 0);
    drive.event(Event::Begin);
    assert_eq!((drive.ties()[0].members.len(), drive.ties()[0].width), (3, 2));
    // All three members refuse: a fresh tie over the other two.
    assert_eq!(drive.refuse(0), [copy(1, B, CopyKind::Tied)]);
    assert_eq!(drive.refuse(1), [copy(2, C, CopyKind::Tied)]);
    assert_eq!(drive.refuse(2), [copy(3, NodeId(4), CopyKind::Retry)]);
    assert_eq!(drive.ties()[0].members.as_slice(), &order[3..]);
    assert_eq!(drive.host.asked, 0, "it is free");
}

#[test]
fn one_replica_left_is_silently_untied() {
    let mut drive = Drive::new(&[A], 2, "", 0);
    drive.event(Event::Begin);
    assert!(drive.ties().is_empty());
    assert_eq!(drive.race.armed(Timer::NextCopy), None);
}

#[test]
fn an_untied_read_goes_on_after_a_refusal_a_failure_and_a_lost_link() {
    let mut drive = Drive::new(&[A, B, C], 1, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.refuse(0), [copy(1, B, CopyKind::Retry)]);
    assert_eq!(drive.fail(1), [copy(2, C, CopyKind::Retry)]);
    assert_eq!(drive.event(Event::LinkLost { replica: C }), []);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)));
}

#[test]
fn a_failure_after_the_start_begins_a_fresh_tie_over_holders_too() {
    // V2: copy 1 is already at B, but A's cancel may have ended it; B must be asked again under a fresh id.
    let mut drive = Drive::new(&[A, B], 2, "", 0);
    drive.event(Event::Begin);
    let old = drive.ties()[0].id;
    drive.fire(Timer::NextCopy);
    assert_eq!(drive.fail(0), [copy(2, B, CopyKind::Retry)]);
    assert!(drive.ties().is_empty(), "one replica left: untied, so certainly not {old}");
    assert_eq!(drive.race.outcome(), None);
    drive.answer(1, Answer::Good);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(1))), "an old copy that answers wins");
    assert_eq!(drive.withdrawn(), [2]);
}

#[test]
fn a_fresh_tie_has_a_fresh_id_and_its_own_delay() {
    let mut drive = Drive::new(&[A, B, C], 2, "", 0);
    drive.event(Event::Begin);
    let old = drive.ties()[0].id;
    assert_eq!(drive.fail(0), [copy(1, B, CopyKind::Retry)]);
    let fresh = drive.ties()[0].clone();
    assert_ne!(fresh.id, old);
    assert_eq!((fresh.members.as_slice(), fresh.number), (&[B, C][..], CopyNumber(0)));
    assert_eq!(drive.fire(Timer::NextCopy), [copy(2, C, CopyKind::Tied)]);
}

#[test]
fn fail_over_is_free_and_ends_at_once_when_nothing_is_left() {
    let mut drive = Drive::new(&[A, B, C], 1, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.fail(0).len(), 1);
    assert_eq!(drive.fail(1).len(), 1);
    assert_eq!(drive.fail(2), []);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)));
    assert_eq!(drive.host.asked, 0, "replicas that failed are not asked again, so no token is asked for");
}

#[test]
fn a_read_never_waits_for_a_suspect_copy_alone() {
    let mut drive = Drive::new(&[A, B], 2, "", 0);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    drive.fail(0);
    // Copy 2 (fresh, at B) fails; copy 1 (old, at B) is still out but suspect.
    drive.fail(2);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)));
    assert_eq!(drive.withdrawn(), [1]);
}

#[test]
fn all_busy_is_a_second_round_after_a_backoff_from_the_budget() {
    let mut drive = Drive::new(&[A, B], 2, "", 1);
    drive.event(Event::Begin);
    drive.answer(0, Answer::Refused { code: Some(ErrorCode::Busy), hint: MS * 9 });
    assert_eq!(drive.answer(1, Answer::Refused { code: Some(ErrorCode::Busy), hint: MS * 7 }), []);
    assert_eq!(drive.race.armed(Timer::Backoff), Some(Moment::ZERO + MS * 7), "the smaller hint");
    assert_eq!(drive.fire(Timer::Backoff), [copy(2, A, CopyKind::Retry)]);
    assert_eq!(drive.race.round(), 1);
    drive.refuse(2);
    drive.refuse(3);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)), "no second token");
}

#[test]
fn a_backoff_beyond_the_deadline_ends_the_read_without_a_token() {
    let mut drive = Drive::new(&[A], 1, "", 5);
    drive.event(Event::Begin);
    drive.answer(0, Answer::Refused { code: Some(ErrorCode::Busy), hint: MS * 1_000 });
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)));
    assert_eq!(drive.host.tokens, 5);
}

#[test]
fn a_failed_replica_is_out_of_later_rounds_a_busy_one_is_not() {
    let mut drive = Drive::new(&[A, B], 1, "", 1);
    drive.event(Event::Begin);
    drive.fail(0);
    drive.refuse(1);
    assert_eq!(drive.fire(Timer::Backoff), [copy(2, B, CopyKind::Retry)]);
}

#[test]
fn a_refused_second_copy_is_replaced_while_the_first_runs() {
    let mut drive = Drive::new(&[A, B, C], 2, "", 0);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    assert_eq!(drive.refuse(1), [copy(2, C, CopyKind::Tied)]);
    assert_eq!(drive.refuse(2), []);
    assert_eq!(drive.race.outcome(), None, "copy 0 lives");
}

#[test]
fn a_copy_that_never_left_is_a_refusal() {
    let mut drive = Drive::new(&[A, B], 2, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.event(Event::NotSent { copy: CopyIndex(0) }), [copy(1, B, CopyKind::Tied)]);
    assert_eq!(drive.race.fresh_ties(), 0);
}

#[test]
fn a_lost_link_makes_its_ties_suspect_and_a_late_good_answer_wins() {
    let mut drive = Drive::new(&[A, B, C], 2, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.event(Event::LinkSilent { replica: A }), [copy(1, B, CopyKind::Retry)]);
    assert_eq!(drive.event(Event::LinkSilent { replica: A }), [], "told twice");
    drive.answer(0, Answer::Good);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(0))));
    assert_eq!(drive.withdrawn(), [1]);
}

#[test]
fn copies_on_a_silent_link_are_withdrawn_those_on_a_lost_one_are_not() {
    for (silent, withdrawn) in [(true, vec![0_u16, 1]), (false, vec![1])] {
        let mut drive = Drive::new(&[A, B], 2, "", 0);
        drive.event(Event::Begin);
        let event = if silent { Event::LinkSilent { replica: A } } else { Event::LinkLost { replica: A } };
        drive.event(event);
        drive.event(Event::Dropped);
        assert_eq!(drive.withdrawn(), withdrawn);
        assert_eq!(drive.race.outcome(), Some(Outcome::Dropped));
    }
}

#[test]
fn fix_the_call_ends_the_read() {
    let mut drive = Drive::new(&[A, B], 2, "", 0);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    drive.answer(0, Answer::FixTheCall { code: ErrorCode::OverLimit });
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::FixTheCall(CopyIndex(0)))));
    assert_eq!(drive.withdrawn(), [1]);
}

/// What a node answers to a tie with members that it does not know (yet, or any more).
fn unknown_members() -> Answer {
    let service = Service {
        node: A,
        started: false,
        queue_wait_us: 0,
        service_time_us: 0,
        queue_depth: 0,
        flags: 0,
        unhealthy_pairs: 0,
    };
    Answer::judge(&service, &Err(Failure::new(ErrorCode::BadTie, "names a stranger")))
}

#[test]
fn a_tie_whose_members_a_node_does_not_know_goes_on_untied() {
    let mut drive = Drive::new(&[A, B, C], 2, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.answer(0, unknown_members()), [copy(1, A, CopyKind::Retry)]);
    assert!(drive.ties().is_empty(), "it carries no tie");
    assert_eq!((drive.race.armed(Timer::NextCopy), drive.host.asked), (None, 0));
    drive.answer(1, Answer::Good);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(1))));
}

#[test]
fn a_hung_winner_is_rescued_first_by_a_replica_without_a_copy() {
    let mut drive = Drive::new(&[A, B, C], 2, "rescue", 9);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    assert_eq!(drive.fire(Timer::Rescue), [copy(2, C, CopyKind::Rescue)]);
    assert!(drive.ties().is_empty(), "a rescue has no tie");
    assert_eq!(drive.fire(Timer::Rescue), [copy(3, A, CopyKind::Rescue)]);
    assert_eq!(drive.refuse(3), [copy(4, B, CopyKind::Rescue)], "a refused one triggers the next at once");
    assert_eq!(drive.race.armed(Timer::Rescue), Some(Moment::ZERO + MS * 90));
    assert_eq!(drive.fire(Timer::Rescue), [], "each replica once");
    assert_eq!(drive.race.armed(Timer::Rescue), None);
    drive.answer(2, Answer::Good);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(2))));
}

#[test]
fn an_empty_bucket_suppresses_the_new_copy_only_and_is_asked_again() {
    let mut drive = Drive::new(&[A, B], 2, "rescue", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.fire(Timer::Rescue), []);
    assert_eq!(drive.race.outcome(), None);
    drive.host.tokens = 1;
    assert_eq!(drive.fire(Timer::Rescue).len(), 1);
    assert_eq!(drive.now, Moment::ZERO + MS * 60);
}

#[test]
fn a_fail_over_goes_to_a_holder_of_a_rescue_last_but_goes() {
    let mut drive = Drive::new(&[A, B, C], 1, "rescue", 1);
    drive.event(Event::Begin);
    assert_eq!(drive.fire(Timer::Rescue), [copy(1, B, CopyKind::Rescue)]);
    assert_eq!(drive.fail(0), [copy(2, C, CopyKind::Retry)]);
    assert_eq!(drive.fail(2), [copy(3, B, CopyKind::Retry)], "a rescue ranks below first copies and may wait");
    drive.refuse(3);
    assert_eq!(drive.race.outcome(), None, "the rescue lives and can be counted on");
    drive.fail(1);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::NothingLeft)));
}

#[test]
fn at_most_five_are_out_and_a_free_fail_over_is_never_refused() {
    let five = [A, B, C, NodeId(4), NodeId(5)];
    let mut drive = Drive::new(&five, 3, "rescue", 99);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    drive.fire(Timer::NextCopy);
    assert_eq!(drive.fire(Timer::Rescue).len(), 1);
    assert_eq!(drive.fire(Timer::Rescue).len(), 1);
    assert_eq!(drive.fire(Timer::Rescue), [], "five are out");
    // A fails: its fresh tie goes out at once, later copies of it wait for a place.
    assert_eq!(drive.fail(0).len(), 1);
    assert_eq!(drive.fire(Timer::NextCopy), [], "five are out again");
    assert_eq!(drive.refuse(1).len(), 1, "a place came free");
}

#[test]
fn the_deadline_ends_a_read_whose_replicas_are_black_holes() {
    let mut drive = Drive::new(&[A, B, C], 3, "rescue", 9);
    drive.event(Event::Begin);
    drive.fire(Timer::NextCopy);
    drive.fire(Timer::NextCopy);
    drive.fire(Timer::Deadline);
    assert_eq!(drive.race.outcome(), Some(Outcome::GaveUp(GiveUp::Deadline)));
    assert_eq!(drive.withdrawn(), [0, 1, 2]);
    assert_eq!(drive.race.next_due(), None);
}

#[test]
fn a_stale_or_early_timer_does_nothing() {
    let mut drive = Drive::new(&[A, B], 2, "", 0);
    drive.event(Event::Begin);
    assert_eq!(drive.event(Event::Timer(Timer::NextCopy)), [], "not due yet");
    drive.event(Event::Begin);
    assert_eq!(drive.race.copies().len(), 1, "begun once");
}

#[test]
fn the_only_replica_gets_no_extra_copy() {
    for extras in ["hedge", "rescue"] {
        let mut drive = Drive::new(&[A], 1, extras, 9);
        drive.event(Event::Begin);
        let timer = if extras == "hedge" { Timer::Hedge } else { Timer::Rescue };
        assert_eq!(drive.fire(timer), [], "it would stand behind the first");
        assert_eq!((drive.race.armed(timer), drive.host.asked), (None, 0));
    }
}

#[test]
fn a_hedge_does_not_go_to_the_holder_of_a_live_copy() {
    let mut drive = Drive::new(&[A, B], 1, "hedge", 9);
    drive.event(Event::Begin);
    assert_eq!(drive.fire(Timer::Hedge), [copy(1, B, CopyKind::Hedge)]);
    assert_eq!(drive.refuse(1), [], "A has the first copy");
    assert_eq!(drive.host.asked, 1);
}

#[test]
fn a_refused_hedge_without_a_token_is_asked_again() {
    let mut drive = Drive::new(&[A, B, C], 1, "hedge", 1);
    drive.event(Event::Begin);
    assert_eq!(drive.fire(Timer::Hedge), [copy(1, B, CopyKind::Hedge)]);
    assert_eq!(drive.refuse(1), [], "no token");
    drive.host.tokens = 1;
    assert_eq!(drive.fire(Timer::Hedge), [copy(2, C, CopyKind::Hedge)]);
    assert_eq!((drive.now, drive.race.armed(Timer::Hedge)), (Moment::ZERO + MS * 60, None));
}

/// Plays one read against replicas that answer good after a fixed time each; returns when it ended.
fn play(drive: &mut Drive, times_ms: &[(NodeId, u64)]) -> u64 {
    let times: BTreeMap<NodeId, Duration> = times_ms.iter().map(|(node, ms)| (*node, MS * *ms as u32)).collect();
    let mut due: BTreeMap<(Moment, u16), ()> = BTreeMap::new();
    let mut sent = drive.event(Event::Begin);
    loop {
        for (copy, node, _) in &sent {
            due.insert((drive.now + times[node], copy.0), ());
        }
        if drive.race.outcome().is_some() {
            return drive.now.as_micros() / 1_000;
        }
        let timer = drive.race.next_due();
        let answer = due.keys().next().copied();
        sent = match (timer, answer) {
            (Some((timer, at)), answer) if answer.is_none_or(|(when, _)| at < when) => {
                drive.now = at;
                drive.event(Event::Timer(timer))
            }
            (_, Some((when, copy))) => {
                due.remove(&(when, copy));
                drive.now = when;
                drive.answer(copy, Answer::Good)
            }
            _ => unreachable!("the deadline is always armed"),
        };
    }
}

#[test]
fn worked_examples_of_hedging() {
    // Primary 180 ms, backup 24 ms, hedge at 30 ms: 54 ms.
    let mut drive = Drive::new(&[A, B], 1, "hedge", 1);
    assert_eq!(play(&mut drive, &[(A, 180), (B, 24)]), 54);
    // Stalled primary, hedge at 50 ms + 12 ms: 62 ms.
    let mut drive = Drive::new(&[A, B], 1, "hedge", 1);
    drive.host.extra_delay = MS * 50;
    assert_eq!(play(&mut drive, &[(A, 900), (B, 12)]), 62);
    // 500/20 ms, hedge at 50 ms: winner 1, two sent, one withdrawn, 70 ms.
    let mut drive = Drive::new(&[A, B], 1, "hedge", 1);
    drive.host.extra_delay = MS * 50;
    assert_eq!(play(&mut drive, &[(A, 500), (B, 20)]), 70);
    assert_eq!(drive.race.outcome(), Some(Outcome::Won(CopyIndex(1))));
    assert_eq!((drive.race.copies().len(), drive.withdrawn()), (2, vec![0]));
    // A quick primary: no hedge. No token: the primary's own time.
    let mut drive = Drive::new(&[A, B], 1, "hedge", 1);
    assert_eq!((play(&mut drive, &[(A, 29), (B, 1)]), drive.race.copies().len()), (29, 1));
    let mut drive = Drive::new(&[A, B], 1, "hedge", 0);
    assert_eq!(play(&mut drive, &[(A, 180), (B, 24)]), 180);
}

#[path = "race_walk_test.rs"]
mod walk;

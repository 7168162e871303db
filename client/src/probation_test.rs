//! Who goes on probation, why, and how it comes back.

use super::*;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const MS: Duration = Duration::from_millis(1);

fn three() -> Probation {
    let mut probation = Probation::new(ProbationSettings::default());
    probation.members(&[A, B, C]);
    probation
}

#[test]
fn failures_in_a_row_and_back_after_good_shadows() {
    let mut probation = three();
    (0..4).for_each(|_| probation.observe(A, Sign::Failed, Moment::ZERO));
    probation.observe(A, Sign::Good(MS), Moment::ZERO);
    (0..4).for_each(|_| probation.observe(A, Sign::Failed, Moment::ZERO));
    assert!(!probation.avoid(A, Moment::ZERO), "not in a row");
    probation.observe(A, Sign::Failed, Moment::ZERO);
    assert!(probation.avoid(A, Moment::ZERO));
    assert_eq!(probation.shadow_due(Moment::ZERO), None);
    let later = Moment::ZERO + MS * 500;
    assert_eq!(probation.shadow_due(later), Some(A));
    assert_eq!(probation.shadow_due(later), None, "booked");
    (0..9).for_each(|_| probation.observe(A, Sign::Good(MS), later));
    assert!(probation.avoid(A, later), "at least a second");
    probation.observe(A, Sign::Good(MS), Moment::ZERO + MS * 1_001);
    assert!(!probation.avoid(A, later));
}

#[test]
fn never_more_than_half() {
    let mut probation = three();
    for node in [A, B, C] {
        (0..20).for_each(|_| probation.observe(node, Sign::Failed, Moment::ZERO));
    }
    assert_eq!(probation.on_probation(), 1);
}

#[test]
fn slow_for_long_is_probation_slow_for_a_moment_is_not() {
    let mut probation = three();
    let mut now = Moment::ZERO;
    let mut first = None;
    for i in 0..400_u32 {
        now = now + MS * 10;
        probation.observe(A, Sign::Good(MS * 5), now);
        probation.observe(B, Sign::Good(MS * 6), now);
        probation.observe(C, Sign::Good(MS * 60), now);
        if first.is_none() && probation.avoid(C, now) {
            first = Some(i);
        }
    }
    assert!((200..=215).contains(&first.unwrap()), "{first:?} x 10 ms");
    assert!(!probation.avoid(A, now) && !probation.avoid(B, now));
}

#[test]
fn one_storage_error_stops_first_copies_for_a_while() {
    let mut probation = three();
    probation.observe(B, Sign::StorageFailed, Moment::ZERO);
    assert!(probation.avoid(B, Moment::ZERO + MS * 4_999));
    assert!(!probation.avoid(B, Moment::ZERO + MS * 5_000));
}

#[test]
fn one_shadow_is_out_at_a_time_and_a_lost_one_does_not_keep_the_replica_out() {
    let mut probation = three();
    (0..5).for_each(|_| probation.observe(A, Sign::Failed, Moment::ZERO));
    let later = Moment::ZERO + MS * 500;
    assert_eq!(probation.shadow_due(later), Some(A));
    probation.shadow_sent(A);
    assert_eq!(probation.shadow_due(later + MS * 5_000), None, "it is unanswered");
    assert_eq!(probation.shadow_due(later + MS * 10_200), Some(A), "its answer may be lost");
    probation.shadow_gone(A);
    assert_eq!(probation.shadow_due(later + MS * 10_400), Some(A));
}

#[test]
fn a_read_that_is_never_answered_speaks_of_its_replica_only_while_others_answer() {
    let second = MS * 1_000;
    let feed = |probation: &mut Probation, latency: Duration, other_answers: bool| {
        let mut now = Moment::ZERO;
        for node in [B, C] {
            (0..10).for_each(|_| probation.observe(node, Sign::Good(latency), now));
        }
        for _ in 0..5 {
            now = now + second;
            if other_answers {
                probation.observe(B, Sign::Good(latency), now);
            }
            probation.unanswered(A, second, now);
        }
        probation.avoid(A, now)
    };
    assert!(feed(&mut three(), MS * 5, true));
    assert!(!feed(&mut three(), MS * 5, false), "nobody answered meanwhile");
    assert!(!feed(&mut three(), MS * 400, true), "the others take as long: an overload");
}

/// A's first copies come to nothing every 10 ms for `until`, while B and C answer, as does A at each of `spoke`.
/// When A went on probation.
fn silence(until: Duration, others: Option<Duration>, spoke: &[Duration]) -> Option<Duration> {
    let mut probation = three();
    let mut spoke = spoke.iter().peekable();
    for step in 0..until.as_millis() as u32 / 10 {
        let now = Moment::ZERO + MS * 10 * step;
        for node in [B, C] {
            if let Some(latency) = others {
                probation.observe(node, Sign::Good(latency), now);
            }
        }
        if spoke.next_if(|at| Moment::ZERO + **at <= now).is_some() {
            probation.spoke(A, now);
        }
        probation.silent(A, MS * 5, now);
        if probation.avoid(A, now) {
            return Some(now.since(Moment::ZERO));
        }
    }
    None
}

#[test]
fn a_replica_that_hangs_behind_ties_is_found_by_its_silence_and_a_loser_is_not() {
    let found = silence(MS * 4_000, Some(MS * 5), &[]).unwrap();
    assert!((MS * 1_990..=MS * 2_010).contains(&found), "{found:?}");
    let now_and_then: Vec<Duration> = (0..20).map(|i| MS * 1_900 * i).collect();
    assert_eq!(silence(MS * 20_000, Some(MS * 5), &now_and_then), None, "it answers somebody now and then");
    let overload = silence(MS * 5_000, Some(MS * 1_000), &[]).unwrap();
    assert!((MS * 3_990..=MS * 4_010).contains(&overload), "others take a second: {overload:?}");
}

#[test]
fn silence_while_nobody_answers_or_from_before_the_last_answer_says_nothing() {
    let mut probation = three();
    for node in [B, C] {
        (0..10).for_each(|_| probation.observe(node, Sign::Good(MS), Moment::ZERO));
    }
    let after = |time: Duration| Moment::ZERO + time;
    (1..=50).for_each(|i| probation.silent(A, MS, after(MS * 100 * i)));
    assert!(!probation.avoid(A, after(MS * 5_000)), "nobody answers");
    probation.spoke(A, after(MS * 6_000));
    probation.observe(B, Sign::Good(MS), after(MS * 7_000));
    (0..50).for_each(|_| probation.silent(A, MS * 3_000, after(MS * 8_000)));
    assert!(!probation.avoid(A, after(MS * 8_000)), "sent before it spoke");
}

#[test]
fn few_silent_copies_say_nothing_and_shadows_bring_a_silent_replica_back() {
    let mut probation = three();
    for node in [B, C] {
        (0..10).for_each(|_| probation.observe(node, Sign::Good(MS), Moment::ZERO));
    }
    let second = |i: u32| Moment::ZERO + MS * 1_000 * i;
    for i in 1..20 {
        probation.observe(B, Sign::Good(MS), second(i));
        probation.silent(A, MS, second(i));
    }
    assert!(!probation.avoid(A, second(20)), "one short");
    probation.observe(B, Sign::Good(MS), second(20));
    probation.silent(A, MS, second(20));
    assert!(probation.avoid(A, second(20)));
    (0..5).for_each(|_| probation.observe(A, Sign::Good(MS), second(22)));
    assert!(!probation.avoid(A, second(22)));
    probation.silent(A, MS, second(23));
    assert!(!probation.avoid(A, second(23)), "it begins anew");
}

#[test]
fn an_operator_ejects_and_restores() {
    let mut probation = three();
    probation.eject(A, true);
    assert!(probation.avoid(A, Moment::ZERO) && probation.shadow_due(Moment(1 << 50)).is_none());
    probation.eject(A, false);
    assert!(!probation.avoid(A, Moment::ZERO));
}

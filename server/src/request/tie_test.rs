//! The table of the tie (docs/tie-protocol.md): one cell, one test; then the rules that span cells.

use super::*;
use tiedkv_protocol::ids::{CallerId, RequestId, TieId};
use tiedkv_protocol::tie::Members;

type Table = TieTable<Phase>;

const CALLER: CallerId = CallerId(7);
const TIE: TieId = TieId(100);
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const STRANGER: NodeId = NodeId(9);
const NOW: Moment = Moment(1_000_000_000);
const MS: Duration = Duration::from_millis(1);
const P50: Duration = Duration::from_millis(5);
const LINK: u64 = 4;

fn table() -> Table {
    TieTable::new(TieSettings::of_stripes(1))
}

fn tied(number: u8) -> CopyName {
    CopyName { caller: CALLER, which: Which::Tied { tie: TIE, number: CopyNumber(number) } }
}

fn untied(request: u64) -> CopyName {
    CopyName { caller: CALLER, which: Which::Untied { connection: LINK, request: RequestId(request) } }
}

fn arriving(name: CopyName) -> Arriving<Phase> {
    let tie = match name.which {
        Which::Tied { tie, number } => {
            Some(Tie { id: tie, number, members: Members::from_slice(&[A, B, C]), width: 2 })
        }
        Which::Untied { .. } => None,
    };
    Arriving { name, tie, deadline: NOW + 1000 * MS, copy: Phase::Queued }
}

/// A table on which the copy of this name is queued.
fn queued(name: CopyName) -> Table {
    let mut table = table();
    assert_eq!(table.arrive(arriving(name), NOW), Arrival::Queue);
    table
}

fn set_aside(name: CopyName) -> Table {
    let mut table = queued(name);
    assert!(matches!(table.start(&name, Servable::NotYet, P50, NOW), Start::SetAside { .. }));
    table
}

fn running(name: CopyName) -> Table {
    let mut table = queued(name);
    assert!(matches!(table.start(&name, Servable::Now, P50, NOW), Start::Run(_)));
    table
}

fn finished(name: CopyName) -> Table {
    let mut table = running(name);
    assert_eq!(table.finish(&name, NOW), Verdict::Answer);
    table
}

fn cancel_of(number: u8) -> Cancel {
    Cancel { caller: CALLER, tie: TIE, number: CopyNumber(number) }
}

fn phase(table: &Table, name: CopyName) -> Option<Phase> {
    table.copy(&name).copied()
}

// ---- copy arrives ----------------------------------------------------------------------------------------

#[test]
fn tie_arrives_absent_queues() {
    assert_eq!(phase(&queued(tied(1)), tied(1)), Some(Phase::Queued));
    assert_eq!(phase(&queued(untied(1)), untied(1)), Some(Phase::Queued));
}

#[test]
fn tie_arrives_after_an_early_cancel_of_a_named_peer_is_dropped() {
    let mut table = table();
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.arrive(arriving(tied(1)), NOW), Arrival::CancelledEarly { by: A });
    assert!(table.is_empty());
}

#[test]
fn tie_arrives_after_an_early_cancel_of_a_higher_number_is_dropped_too() {
    let mut table = table();
    assert_eq!(table.cancel(C, &cancel_of(2), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.arrive(arriving(tied(1)), NOW), Arrival::CancelledEarly { by: C });
}

#[test]
fn tie_arrives_after_its_client_withdrew_it_is_dropped() {
    for name in [tied(1), untied(5)] {
        let mut table = table();
        assert_eq!(table.withdraw(&name, NOW), WithdrawOutcome::Filed(Filed::New));
        assert_eq!(table.arrive(arriving(name), NOW), Arrival::WithdrawnEarly);
    }
}

#[test]
fn tie_arrives_again_while_queued_set_aside_running_or_finished_is_a_protocol_error() {
    for make in [queued, set_aside, running, finished] {
        let mut table = make(tied(1));
        let before = table.clone();
        assert_eq!(table.arrive(arriving(tied(1)), NOW), Arrival::Duplicate);
        assert_eq!(table.arrive(arriving(tied(0)), NOW), Arrival::Duplicate, "another number of the same tie");
        assert_eq!(table, before);
    }
    for make in [queued, set_aside, running] {
        assert_eq!(make(untied(1)).arrive(arriving(untied(1)), NOW), Arrival::Duplicate);
    }
}

// ---- cancel from a replica it names ----------------------------------------------------------------------

#[test]
fn tie_cancel_named_absent_is_filed_once() {
    let mut table = table();
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::Again));
    assert_eq!(table.cancel(C, &cancel_of(2), NOW), CancelOutcome::Filed(Filed::New));
}

#[test]
fn tie_cancel_named_queued_withdraws_whatever_the_numbers() {
    for (own, sender, number) in [(1, A, 0), (0, B, 1), (1, C, 2)] {
        let mut table = queued(tied(own));
        let outcome = table.cancel(sender, &cancel_of(number), NOW);
        assert_eq!(outcome, CancelOutcome::Withdrawn { copy: Phase::Withdrawn, waited: Waited::Queued });
        assert!(table.is_empty());
        assert_eq!(table.start(&tied(own), Servable::Now, P50, NOW), Start::Gone);
    }
}

#[test]
fn tie_cancel_named_set_aside_withdraws() {
    let mut table = set_aside(tied(0));
    let outcome = table.cancel(B, &cancel_of(1), NOW);
    assert_eq!(outcome, CancelOutcome::Withdrawn { copy: Phase::Withdrawn, waited: Waited::SetAside });
    assert!(!table.queue_again(&tied(0)));
}

#[test]
fn tie_cancel_named_running_with_the_higher_number_yields() {
    let mut table = running(tied(1));
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Yield { copy: Phase::RunningYieldAsked });
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Ignored, "asked once");
    assert_eq!(table.stop(&tied(1), NOW), Verdict::Yielded);
    assert!(table.is_empty());
}

#[test]
fn tie_cancel_named_running_with_the_lower_number_cancels_back_each_time() {
    let mut table = running(tied(0));
    for _ in 0..2 {
        let CancelOutcome::CancelBack(back) = table.cancel(B, &cancel_of(1), NOW) else { panic!("cancel back") };
        assert_eq!(back.to.as_slice(), [B]);
        assert_eq!(back.cancel, cancel_of(0));
    }
    assert_eq!(phase(&table, tied(0)), Some(Phase::Running));
}

#[test]
fn tie_cancel_named_running_that_yields_or_stops_says_nothing_back() {
    let mut table = running(tied(1));
    assert!(matches!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Yield { .. }));
    assert_eq!(table.cancel(C, &cancel_of(2), NOW), CancelOutcome::Ignored);
    let mut table = running(tied(1));
    assert!(matches!(table.withdraw(&tied(1), NOW), WithdrawOutcome::Stop { .. }));
    assert_eq!(table.cancel(C, &cancel_of(2), NOW), CancelOutcome::Ignored);
    assert_eq!(table.stop(&tied(1), NOW), Verdict::Withdrawn);
}

#[test]
fn tie_cancel_with_its_own_number_is_counted_only() {
    for make in [queued, set_aside, running] {
        let mut table = make(tied(1));
        let before = table.clone();
        assert_eq!(table.cancel(A, &cancel_of(1), NOW), CancelOutcome::Equal);
        assert_eq!(table, before);
    }
}

#[test]
fn tie_cancel_named_finished_is_ignored_and_not_filed() {
    let mut table = finished(tied(1));
    let filed = table.recent().len();
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Ignored);
    assert_eq!(table.recent().len(), filed);
}

// ---- cancel from anyone else -----------------------------------------------------------------------------

#[test]
fn tie_cancel_stranger_absent_is_filed_and_never_matches() {
    let mut table = table();
    assert_eq!(table.cancel(STRANGER, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.arrive(arriving(tied(1)), NOW), Arrival::Queue);
}

#[test]
fn tie_cancel_stranger_does_not_shadow_a_peers_early_cancel() {
    let mut table = table();
    assert_eq!(table.cancel(STRANGER, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    assert_eq!(table.arrive(arriving(tied(1)), NOW), Arrival::CancelledEarly { by: A });
}

#[test]
fn tie_cancel_stranger_present_is_ignored() {
    for make in [queued, set_aside, running] {
        let mut table = make(tied(1));
        let before = table.clone();
        assert_eq!(table.cancel(STRANGER, &cancel_of(0), NOW), CancelOutcome::Stranger);
        assert_eq!(table.cancel(A, &cancel_of(2), NOW), CancelOutcome::Stranger, "named under another number");
        let other = Cancel { caller: CallerId(8), ..cancel_of(0) };
        assert_eq!(table.clone().cancel(A, &other, NOW), CancelOutcome::Filed(Filed::New), "another caller's tie");
        assert_eq!(table, before);
    }
}

#[test]
fn tie_cancel_stranger_finished_is_ignored() {
    assert_eq!(finished(tied(1)).cancel(STRANGER, &cancel_of(0), NOW), CancelOutcome::Ignored);
}

// ---- client withdraws, link gone -------------------------------------------------------------------------

#[test]
fn tie_withdraw_queued_and_set_aside() {
    for (make, waited) in [(queued as fn(CopyName) -> Table, Waited::Queued), (set_aside, Waited::SetAside)] {
        for name in [tied(0), untied(3)] {
            let mut table = make(name);
            let outcome = table.withdraw(&name, NOW);
            assert_eq!(outcome, WithdrawOutcome::Withdrawn { copy: Phase::Withdrawn, waited });
            assert!(table.is_empty());
        }
    }
}

#[test]
fn tie_withdraw_running_stops_at_the_next_point_and_is_not_answered() {
    for name in [tied(0), untied(3)] {
        let mut table = running(name);
        assert!(matches!(table.withdraw(&name, NOW), WithdrawOutcome::Stop { .. }));
        assert_eq!(table.clone().stop(&name, NOW), Verdict::Withdrawn);
        assert_eq!(table.finish(&name, NOW), Verdict::Withdrawn);
        assert!(table.is_empty());
    }
}

#[test]
fn tie_withdraw_finished_is_ignored() {
    assert_eq!(finished(tied(0)).withdraw(&tied(0), NOW), WithdrawOutcome::Ignored);
}

#[test]
fn tie_withdraw_of_another_number_changes_nothing() {
    let mut table = running(tied(0));
    assert_eq!(table.withdraw(&tied(1), NOW), WithdrawOutcome::Ignored);
    assert_eq!(phase(&table, tied(0)), Some(Phase::Running));
}

// ---- deadline --------------------------------------------------------------------------------------------

#[test]
fn tie_deadline_queued_and_set_aside_is_expired_at_pop_and_cancels_nobody() {
    for make in [queued, set_aside] {
        let mut table = make(tied(0));
        let late = NOW + 996 * MS;
        assert_eq!(table.start(&tied(0), Servable::Now, P50, late), Start::Expired);
        assert!(table.is_empty());
    }
}

#[test]
fn tie_deadline_running_is_answered_as_started() {
    let mut table = running(tied(0));
    assert_eq!(table.start(&tied(0), Servable::Now, P50, NOW + 999 * MS), Start::RunsOn);
    assert_eq!(table.start(&tied(0), Servable::Now, P50, NOW + 1000 * MS), Start::Overdue);
    assert!(table.is_empty());
}

// ---- start -----------------------------------------------------------------------------------------------

#[test]
fn tie_start_cancels_the_planned_ones_and_all_lower_numbers() {
    for (number, want) in [(0, vec![B]), (1, vec![A]), (2, vec![A, B])] {
        let mut table = queued(tied(number));
        let Start::Run(Some(over)) = table.start(&tied(number), Servable::Now, P50, NOW) else { panic!("runs") };
        assert_eq!(over.to.as_slice(), want);
        assert_eq!(over.cancel, cancel_of(number));
    }
    assert_eq!(queued(untied(1)).start(&untied(1), Servable::Now, P50, NOW), Start::Run(None));
}

#[test]
fn tie_start_set_aside_cancels_nobody_and_goes_through_the_whole_step_again() {
    let mut table = queued(tied(0));
    let until = NOW + TIE_DELAY_CAP;
    assert_eq!(table.start(&tied(0), Servable::NotYet, P50, NOW), Start::SetAside { until });
    assert!(table.queue_again(&tied(0)));
    assert_eq!(phase(&table, tied(0)), Some(Phase::Queued));
    assert_eq!(table.start(&tied(0), Servable::NotYet, P50, NOW + 3 * MS), Start::SetAside { until }, "limit kept");
    assert!(table.queue_again(&tied(0)));
    assert!(matches!(table.start(&tied(0), Servable::Now, P50, NOW + 4 * MS), Start::Run(Some(_))));
}

#[test]
fn tie_start_set_aside_no_longer_than_half_of_the_time_left_then_behind() {
    let mut table = table();
    let deadline = NOW + 12 * MS;
    assert_eq!(table.arrive(Arriving { deadline, ..arriving(tied(0)) }, NOW), Arrival::Queue);
    let until = NOW + 6 * MS;
    assert_eq!(table.start(&tied(0), Servable::NotYet, MS, NOW), Start::SetAside { until });
    assert!(table.queue_again(&tied(0)));
    assert_eq!(table.start(&tied(0), Servable::NotYet, MS, until), Start::Behind);
    assert!(table.is_empty());
}

#[test]
fn tie_start_waits_for_a_barrier_by_a_limit_of_its_own_and_then_for_its_position() {
    let mut table = table();
    let deadline = NOW + 400 * MS;
    assert_eq!(table.arrive(Arriving { deadline, ..arriving(tied(0)) }, NOW), Arrival::Queue);
    let until = NOW + 200 * MS;
    assert_eq!(
        table.start(&tied(0), Servable::NotKnown, MS, NOW),
        Start::SetAside { until },
        "not the tie-delay cap"
    );
    assert!(table.queue_again(&tied(0)));
    let answered = NOW + 150 * MS;
    let until = answered + TIE_DELAY_CAP;
    assert_eq!(table.start(&tied(0), Servable::NotYet, MS, answered), Start::SetAside { until });
    assert!(table.queue_again(&tied(0)));
    assert_eq!(table.start(&tied(0), Servable::NotYet, MS, until), Start::Behind);
    assert!(table.is_empty());
}

#[test]
fn tie_start_behind_by_refuse_is_answered_once() {
    let mut table = set_aside(tied(0));
    assert_eq!(table.refuse(&tied(0), NOW), Verdict::Answer);
    assert_eq!(table.refuse(&tied(0), NOW), Verdict::Over);
}

#[test]
fn tie_start_of_a_waiting_chunk_is_running_for_every_rule() {
    // Rule R1: between chunks it is neither withdrawn by a higher number nor refused.
    let mut table = running(tied(0));
    assert_eq!(table.stop(&tied(0), NOW), Verdict::GoOn);
    assert!(matches!(table.cancel(B, &cancel_of(1), NOW), CancelOutcome::CancelBack(_)));
    assert_eq!(table.refuse(&tied(0), NOW), Verdict::Over);
    let mut table = running(tied(1));
    assert!(matches!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Yield { .. }));
    assert_eq!(table.start(&tied(1), Servable::Now, P50, NOW), Start::Stopped(Verdict::Yielded));
    let mut table = running(tied(1));
    assert!(matches!(table.withdraw(&tied(1), NOW), WithdrawOutcome::Stop { .. }));
    assert_eq!(table.start(&tied(1), Servable::Now, P50, NOW), Start::Stopped(Verdict::Withdrawn));
}

#[test]
fn tie_finish_after_a_yield_was_asked_is_answered_all_the_same() {
    let mut table = running(tied(1));
    assert!(matches!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Yield { .. }));
    assert_eq!(table.finish(&tied(1), NOW), Verdict::Answer);
    assert_eq!(table.finish(&tied(1), NOW), Verdict::Over);
}

#[test]
fn tie_early_cancel_is_forgotten_with_age_and_costs_a_duplicate_only() {
    let mut table = table();
    assert_eq!(table.cancel(A, &cancel_of(0), NOW), CancelOutcome::Filed(Filed::New));
    let later = NOW + TieSettings::of_stripes(1).recent.age_max + MS;
    assert_eq!(table.arrive(Arriving { deadline: later + 100 * MS, ..arriving(tied(1)) }, later), Arrival::Queue);
}

#[test]
fn tie_race_meets_in_one_stripe_and_ties_spread() {
    let mut seen = [0_u32; 16];
    for id in 0..16_000_u128 {
        let name = CopyName { caller: CALLER, which: Which::Tied { tie: TieId(id), number: CopyNumber(1) } };
        let cancel = Cancel { caller: CALLER, tie: TieId(id), number: CopyNumber(0) };
        let stripe = name.race().stripe(16);
        assert_eq!(stripe, Race::of_cancel(&cancel).stripe(16));
        seen[stripe] += 1;
    }
    assert!(seen.iter().all(|count| (700..1300).contains(count)), "{seen:?}");
    assert_eq!(tied(0).race().stripe(0), 0);
}

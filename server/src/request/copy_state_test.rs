//! Every step of the word, and all interleavings of those who race for it.

use super::*;
use loom::sync::Arc as LoomArc;
use loom::sync::atomic::AtomicU8 as LoomU8;

impl AtomicWord for LoomU8 {
    fn with(word: u8) -> Self {
        Self::new(word)
    }

    fn load(&self) -> u8 {
        self.load(Ordering::Acquire)
    }

    fn swap(&self, old: u8, new: u8) -> Result<(), u8> {
        self.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

const ALL: [Phase; 7] = [
    Phase::Queued,
    Phase::SetAside,
    Phase::Withdrawn,
    Phase::Running,
    Phase::RunningYieldAsked,
    Phase::RunningWithdrawAsked,
    Phase::Finished,
];

#[test]
fn copy_state_words_round_trip() {
    for phase in ALL {
        assert_eq!(Phase::from_word(phase as u8), phase);
    }
}

#[test]
fn copy_state_ended_copies_stay_ended_and_started_ones_never_wait_again() {
    for phase in [Phase::Withdrawn, Phase::Finished] {
        assert_eq!(phase.start().0, phase);
        assert_eq!(phase.set_aside(), (phase, false));
        assert_eq!(phase.queue_again(), (phase, false));
        assert_eq!(phase.withdraw(), (phase, EndStep::Nothing));
        assert_eq!(phase.give_way(), (phase, EndStep::Nothing));
        assert_eq!(phase.finish().0, phase);
        assert_ne!(phase.finish().1, Verdict::Answer);
        assert_ne!(phase.refuse().1, Verdict::Answer);
        assert_eq!(phase.stop().0, phase);
    }
    for phase in ALL.into_iter().filter(|phase| phase.is_running()) {
        assert!(phase.start().0.is_running());
        assert_eq!(phase.set_aside(), (phase, false));
        assert_eq!(phase.queue_again(), (phase, false));
        assert_eq!(phase.refuse(), (phase, Verdict::Over));
    }
}

#[test]
fn copy_state_done_beats_yield_but_not_withdraw() {
    assert_eq!(Phase::RunningYieldAsked.finish(), (Phase::Finished, Verdict::Answer));
    assert_eq!(Phase::RunningWithdrawAsked.finish(), (Phase::Finished, Verdict::Withdrawn));
    assert_eq!(Phase::RunningYieldAsked.withdraw(), (Phase::RunningWithdrawAsked, EndStep::Asked));
    assert_eq!(Phase::RunningWithdrawAsked.give_way(), (Phase::RunningWithdrawAsked, EndStep::Nothing));
    assert_eq!(Phase::Running.stop(), (Phase::Running, Verdict::GoOn));
}

/// What a worker does with a copy that it popped: the verdict it ends with.
fn worker(state: &CopyState<LoomU8>) -> (bool, Verdict) {
    match state.step(Phase::start) {
        StartStep::Started => {
            let verdict =
                if state.phase().must_stop() { state.step(Phase::stop) } else { state.step(Phase::finish) };
            (true, verdict)
        }
        StartStep::Withdrawn => (false, Verdict::Withdrawn),
        other => panic!("popped once, yet {other:?}"),
    }
}

#[test]
fn copy_state_start_races_withdraw_and_cancel() {
    // Three threads: all interleavings with at most 3 preemptions; the pairs below are explored without a bound.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let state = LoomArc::new(CopyState::<LoomU8>::default());
        let withdraw = loom::thread::spawn({
            let state = state.clone();
            move || state.step(Phase::withdraw)
        });
        let cancel = loom::thread::spawn({
            let state = state.clone();
            move || state.step(Phase::give_way)
        });
        let (started, verdict) = worker(&state);
        let withdraw = withdraw.join().unwrap();
        let cancel = cancel.join().unwrap();

        let ended_before_start =
            [withdraw, cancel].iter().filter(|end| matches!(end, EndStep::Withdrawn(_))).count();
        // Exactly one side owns the end: the worker that started it, or one of the two that withdrew it.
        assert_eq!(usize::from(started) + ended_before_start, 1);
        match verdict {
            Verdict::Answer => assert!(started && state.phase() == Phase::Finished),
            Verdict::Yielded => assert_eq!(cancel, EndStep::Asked),
            Verdict::Withdrawn => assert!(!started || withdraw == EndStep::Asked),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn copy_state_start_races_each_of_them_alone() {
    for step in [Phase::withdraw, Phase::give_way] {
        loom::model(move || {
            let state = LoomArc::new(CopyState::<LoomU8>::default());
            let other = loom::thread::spawn({
                let state = state.clone();
                move || state.step(step)
            });
            let (started, verdict) = worker(&state);
            match other.join().unwrap() {
                EndStep::Withdrawn(waited) => assert!(!started && waited == Waited::Queued),
                EndStep::Asked => assert!(started && verdict != Verdict::Over),
                EndStep::Nothing => assert!(started && verdict == Verdict::Answer),
            }
        });
    }
}

#[test]
fn copy_state_hands_over_what_was_written_before_the_step() {
    loom::model(|| {
        let state = LoomArc::new(CopyState::<LoomU8>::default());
        let note = LoomArc::new(loom::cell::UnsafeCell::new(0_u32));
        let canceller = loom::thread::spawn({
            let (state, note) = (state.clone(), note.clone());
            move || {
                // SAFETY: the reader looks only after it saw the step that follows.
                note.with_mut(|note| unsafe { *note = 7 });
                state.step(Phase::give_way);
            }
        });
        if let StartStep::Withdrawn = state.step(Phase::start) {
            // SAFETY: the withdrawing step released the write.
            assert_eq!(note.with(|note| unsafe { *note }), 7);
        }
        canceller.join().unwrap();
    });
}

#[test]
fn copy_state_refuse_races_cancel() {
    loom::model(|| {
        let state = LoomArc::new(CopyState::<LoomU8>::default());
        let cancel = loom::thread::spawn({
            let state = state.clone();
            move || state.step(Phase::give_way)
        });
        let verdict = state.step(Phase::refuse);
        let cancel = cancel.join().unwrap();
        // Answered or ended by the peer, never both, never neither.
        assert_eq!(verdict == Verdict::Answer, cancel == EndStep::Nothing);
    });
}

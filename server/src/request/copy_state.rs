//! The state word of one copy: what start, withdraw, cancel and finish race for.
//!
//! Every change is a pure step of [`Phase`]; [`CopyState`] runs it as one compare-and-swap, a plain [`Phase`]
//! runs it in place (model, simulation). The word knows no tie and no number: who may ask for a yield is decided
//! in [`tie`](super::tie). Steps that belong together with the registry are taken under its stripe lock;
//! [`CopyState::phase`] may be read at any time without a lock (cancellation points, lanes).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a copy is in its life. Goes only downwards in this list, except that a copy set aside queues again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Waits in its lane, not started.
    Queued = 0,
    /// Waits until its replica has applied what its level asks for; not started, cancelled nobody.
    SetAside = 1,
    /// Ended before its start by its client or by a named peer; never answered.
    Withdrawn = 2,
    /// Started and not ended, also between the chunks of a long operation (rule R1, docs/tie-protocol.md).
    Running = 3,
    /// Running; must stop at its next cancellation point because a lower number runs elsewhere.
    RunningYieldAsked = 4,
    /// Running; must stop at its next cancellation point because nobody waits for it.
    RunningWithdrawAsked = 5,
    /// Answered, refused, yielded or stopped.
    Finished = 6,
}

impl Phase {
    fn from_word(word: u8) -> Self {
        match word {
            0 => Self::Queued,
            1 => Self::SetAside,
            2 => Self::Withdrawn,
            3 => Self::Running,
            4 => Self::RunningYieldAsked,
            5 => Self::RunningWithdrawAsked,
            _ => Self::Finished,
        }
    }

    /// True from the start to the end.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Running | Self::RunningYieldAsked | Self::RunningWithdrawAsked)
    }

    /// True when it never started and never will: an entry of a lane or of the copies set aside may be dropped.
    pub fn is_withdrawn(self) -> bool {
        self == Self::Withdrawn
    }

    /// True when a running copy has to end at its next cancellation point.
    pub fn must_stop(self) -> bool {
        matches!(self, Self::RunningYieldAsked | Self::RunningWithdrawAsked)
    }
}

/// Where a copy waited when it was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waited {
    /// In its lane: tell the lane ([`Lane::withdrawn`](super::lane::Lane::withdrawn)).
    Queued,
    /// Among the copies set aside, which drop it lazily.
    SetAside,
}

/// What became of an attempt to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// It runs now.
    Started,
    /// It had started before and nobody asked it to stop: its next chunk may run.
    RunsOn,
    /// It had started before; it has to stop. Nothing changed: take [`Phase::stop`].
    MustStop,
    /// It had been withdrawn: drop it.
    Withdrawn,
    /// It had ended.
    Over,
}

/// What became of a withdraw or a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndStep {
    /// It had not started and never will.
    Withdrawn(Waited),
    /// It runs and will stop at its next cancellation point; asked for the first time.
    Asked,
    /// It runs and had been asked before, or it had ended.
    Nothing,
}

/// What a worker does with a copy whose work is done, refused, or at a cancellation point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It ended: send the answer.
    Answer,
    /// It ended because a lower number runs elsewhere: say nothing.
    Yielded,
    /// It ended because nobody waits, or was withdrawn before it started: say nothing.
    Withdrawn,
    /// It did not end (nobody asked it to stop).
    GoOn,
    /// It had ended before: somebody else answered or dropped it; say nothing.
    Over,
}

/// The pure steps.
impl Phase {
    /// Queued or set aside -> running.
    pub fn start(self) -> (Self, StartStep) {
        match self {
            Self::Queued | Self::SetAside => (Self::Running, StartStep::Started),
            Self::Running => (self, StartStep::RunsOn),
            Self::RunningYieldAsked | Self::RunningWithdrawAsked => (self, StartStep::MustStop),
            Self::Withdrawn => (self, StartStep::Withdrawn),
            Self::Finished => (self, StartStep::Over),
        }
    }

    /// Queued -> set aside. False when it is neither any more.
    pub fn set_aside(self) -> (Self, bool) {
        match self {
            Self::Queued | Self::SetAside => (Self::SetAside, true),
            other => (other, false),
        }
    }

    /// Set aside -> queued. False when it is not set aside any more.
    pub fn queue_again(self) -> (Self, bool) {
        match self {
            Self::SetAside => (Self::Queued, true),
            other => (other, false),
        }
    }

    /// The client withdraws, or its link is gone.
    pub fn withdraw(self) -> (Self, EndStep) {
        match self {
            Self::Queued => (Self::Withdrawn, EndStep::Withdrawn(Waited::Queued)),
            Self::SetAside => (Self::Withdrawn, EndStep::Withdrawn(Waited::SetAside)),
            Self::Running | Self::RunningYieldAsked => (Self::RunningWithdrawAsked, EndStep::Asked),
            other => (other, EndStep::Nothing),
        }
    }

    /// A peer that this copy must give way to has started.
    pub fn give_way(self) -> (Self, EndStep) {
        match self {
            Self::Running => (Self::RunningYieldAsked, EndStep::Asked),
            Self::RunningYieldAsked => (self, EndStep::Nothing),
            Self::RunningWithdrawAsked => (self, EndStep::Nothing),
            other => other.withdraw(),
        }
    }

    /// The work is done, well or badly. A copy that was asked to yield and is done first is answered all the same.
    pub fn finish(self) -> (Self, Verdict) {
        match self {
            Self::Running | Self::RunningYieldAsked => (Self::Finished, Verdict::Answer),
            Self::RunningWithdrawAsked => (Self::Finished, Verdict::Withdrawn),
            other => other.refuse(),
        }
    }

    /// It will not start (queue full, shed, expired, behind, shutting down).
    pub fn refuse(self) -> (Self, Verdict) {
        match self {
            Self::Queued | Self::SetAside => (Self::Finished, Verdict::Answer),
            Self::Withdrawn => (self, Verdict::Withdrawn),
            other => (other, Verdict::Over),
        }
    }

    /// A cancellation point: ends it if it was asked to stop.
    pub fn stop(self) -> (Self, Verdict) {
        match self {
            Self::RunningYieldAsked => (Self::Finished, Verdict::Yielded),
            Self::RunningWithdrawAsked => (Self::Finished, Verdict::Withdrawn),
            Self::Running => (self, Verdict::GoOn),
            Self::Queued | Self::SetAside => (self, Verdict::GoOn),
            Self::Withdrawn => (self, Verdict::Withdrawn),
            Self::Finished => (self, Verdict::Over),
        }
    }
}

/// A place that holds a [`Phase`] and takes steps.
pub trait StateCell {
    /// Takes one step as a whole and returns what it returned.
    fn step<R>(&mut self, step: impl Fn(Phase) -> (Phase, R)) -> R;
    /// The phase now.
    fn phase(&self) -> Phase;
}

impl StateCell for Phase {
    fn step<R>(&mut self, step: impl Fn(Phase) -> (Phase, R)) -> R {
        let (next, result) = step(*self);
        *self = next;
        result
    }

    fn phase(&self) -> Phase {
        *self
    }
}

/// A shared handle of a copy is a cell by the word inside.
impl<T: AsRef<CopyState>> StateCell for Arc<T> {
    fn step<R>(&mut self, step: impl Fn(Phase) -> (Phase, R)) -> R {
        T::as_ref(self).step(step)
    }

    fn phase(&self) -> Phase {
        T::as_ref(self).phase()
    }
}

/// The atomic that a word is kept in: the standard one, or the one of a checker of interleavings.
pub trait AtomicWord {
    /// A new one.
    fn with(word: u8) -> Self;
    /// Reads; acquires what the last change released.
    fn load(&self) -> u8;
    /// Changes `old` to `new`; the word as found when it was another.
    ///
    /// # Errors
    /// The word as found; may fail although it was `old`.
    fn swap(&self, old: u8, new: u8) -> Result<(), u8>;
}

impl AtomicWord for AtomicU8 {
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

/// The word, shared between registry, lane, worker and connection.
#[derive(Debug)]
pub struct CopyState<A: AtomicWord = AtomicU8> {
    word: A,
}

impl<A: AtomicWord> Default for CopyState<A> {
    fn default() -> Self {
        Self { word: A::with(Phase::Queued as u8) }
    }
}

impl<A: AtomicWord> CopyState<A> {
    /// The phase now; without any lock it may be old when it is looked at, except that an ended copy stays ended.
    pub fn phase(&self) -> Phase {
        Phase::from_word(self.word.load())
    }

    /// Takes one step atomically; it may be computed several times.
    pub fn step<R>(&self, step: impl Fn(Phase) -> (Phase, R)) -> R {
        let mut found = self.word.load();
        loop {
            let (next, result) = step(Phase::from_word(found));
            if next as u8 == found {
                return result;
            }
            match self.word.swap(found, next as u8) {
                Ok(()) => return result,
                Err(other) => found = other,
            }
        }
    }
}

#[cfg(test)]
#[path = "copy_state_test.rs"]
mod tests;

//! The door to whoever knows which position a linearizable read must wait for. Asked at admission, so that the
//! answer overlaps the queue; the copy is set aside until the answer is there and applied.

use std::sync::{Arc, OnceLock};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::Failure;

/// Asks for positions that cover every write acknowledged before the question.
pub trait ReadBarrier: Send + Sync {
    /// Asks once; never waits. `reply` is spent when the position is known or cannot be.
    ///
    /// # Errors
    /// A typed failure when the question cannot even be asked; the copy is answered with it.
    fn ask(&self, reply: BarrierReply) -> Result<(), Failure>;

    /// When the newest answered question that `applied` covers was sent: a view at `applied` is not older than that.
    fn fresh(&self, _applied: Position) -> Option<Moment> {
        None
    }

    /// This replica leads: nobody has more than it.
    fn leads(&self) -> bool {
        false
    }

    /// Why this replica cannot come to know more than it has now, if it knows that it cannot.
    fn cut_off(&self) -> Option<&'static str> {
        None
    }
}

/// What a question came to; shared between the copy and its [`BarrierReply`].
#[derive(Debug, Default)]
pub struct BarrierAnswer(OnceLock<Result<Position, Failure>>);

impl BarrierAnswer {
    /// The answer, once it is there.
    pub fn answer(&self) -> Option<&Result<Position, Failure>> {
        self.0.get()
    }
}

/// Spent once to answer a question. Dropping it unspent answers `TryElsewhere`.
#[must_use = "a copy waits for this answer"]
pub struct BarrierReply {
    answer: Arc<BarrierAnswer>,
    wake: Option<Box<dyn FnOnce() + Send>>,
}

impl BarrierReply {
    /// A question and where its answer will stand. `wake` runs once, right after the answer is set, on the thread
    /// that answers; it must not block.
    pub fn new(wake: impl FnOnce() + Send + 'static) -> (Self, Arc<BarrierAnswer>) {
        let answer = Arc::new(BarrierAnswer::default());
        (Self { answer: Arc::clone(&answer), wake: Some(Box::new(wake)) }, answer)
    }

    /// Answers.
    pub fn answer(mut self, answer: Result<Position, Failure>) {
        self.settle(answer);
    }

    fn settle(&mut self, answer: Result<Position, Failure>) {
        if let Some(wake) = self.wake.take() {
            let _ = self.answer.0.set(answer);
            wake();
        }
    }
}

impl Drop for BarrierReply {
    fn drop(&mut self) {
        self.settle(Err(Failure::new(
            ErrorCode::TryElsewhere,
            "the read barrier was given up; ask another replica",
        )));
    }
}

/// The barrier of a node that has none: linearizable reads are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBarrier;

impl ReadBarrier for NoBarrier {
    fn ask(&self, _reply: BarrierReply) -> Result<(), Failure> {
        Err(Failure::new(
            ErrorCode::Unsupported,
            "linearizable reads are not supported by this node; use level session or stale",
        ))
    }
}

//! Reads of many keys in one call: n reads that share frames, deadline and budget, each key a tie of its own.
//!
//! Copies that are begun within one turn go to each node in one write; where no tie pays, keys share copies
//! ([`crate::keys_together`]). Order and repeats of the keys are kept. When a call may end is
//! [`crate::completeness`]'s to say; how each key is read is [`crate::tied_read`]'s.

use crate::choose::{asked, keys_together};
use crate::clock;
use crate::completeness::{Completeness, KEYS_MAX, Partial, Verdict};
use crate::engine::CallId;
use crate::error::{Cause, Error};
use crate::join::Join;
use crate::keys_together::{Part, Together, read_part, size};
use crate::operation::Operation;
use crate::options::{ReadOptions, deadline_of};
use crate::report::Value;
use crate::tied_read::{check_key, check_options, level_of};
use crate::view::ViewInner;
use bytes::Bytes;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::moment::Moment;

/// Copies of one call that are read at the same time; the others follow as these end.
const COPIES_AT_ONCE: usize = 1_024;
/// Copies that are handed over before the connections have a turn: so nodes work at the first while the next are
/// made. Doubles with each turn, so that many share few writes.
const FIRST_TURN: usize = 16;

/// A call for many keys, to be sent. Made by [`Client::multi_get`](crate::Client::multi_get).
#[derive(Clone, Debug)]
#[must_use = "nothing is read until it is sent"]
pub struct MultiGet {
    view: Arc<ViewInner>,
    keys: Vec<Bytes>,
    options: ReadOptions,
}

/// A call for many keys that may be answered in part.
#[derive(Clone, Debug)]
#[must_use = "nothing is read until it is sent"]
pub struct PartialMultiGet {
    call: MultiGet,
    partial: Partial,
}

/// What one key of a call came to. A missing key is not an absent one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The key has this value.
    Found(Value),
    /// The key is absent: a replica said so.
    Absent,
    /// Nothing is known of the key: it was not answered in time, or failed.
    Missing,
}

impl Entry {
    /// True for a key that was answered, with a value or as absent.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Missing)
    }
}

/// Every key of a call, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManyRead {
    /// `None`: the key is absent.
    pub values: Vec<Option<Value>>,
    /// From the call to the result.
    pub latency: Duration,
}

/// The keys of a call that came in time, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialRead {
    /// One per key asked for.
    pub entries: Vec<Entry>,
    /// Share of keys answered, at least what was asked for; 1.0: whole.
    pub completeness: f64,
    /// From the call to the result.
    pub latency: Duration,
}

/// A call that ended without enough of its keys; carries what came.
#[derive(Clone, Debug)]
pub struct MultiGetError {
    /// Of the key that failed first, or that of the deadline.
    pub error: Error,
    /// What came until then, one per key asked for; empty if nothing was sent.
    pub entries: Vec<Entry>,
    /// Share of keys answered.
    pub completeness: f64,
}

impl fmt::Display for MultiGetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = self.entries.iter().filter(|entry| entry.is_answered()).count();
        write!(f, "{answered} of {} keys were answered: {}", self.entries.len(), self.error)
    }
}

impl std::error::Error for MultiGetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<Error> for MultiGetError {
    fn from(error: Error) -> Self {
        Self { error, entries: Vec::new(), completeness: 0.0 }
    }
}

impl MultiGet {
    pub(crate) fn new(view: Arc<ViewInner>, keys: Vec<Bytes>) -> Self {
        Self { view, keys, options: ReadOptions::default() }
    }

    /// Options of every key's read; the deadline is that of the whole call.
    pub fn with(mut self, options: ReadOptions) -> Self {
        self.options = options;
        self
    }

    /// Allows an answer without all keys: from `by` (after the call began) on a share of them is enough, such as
    /// 0.99. Only for callers that can tell a missing key from an absent one and need not have all.
    pub fn partial(self, share: f64, by: Duration) -> PartialMultiGet {
        PartialMultiGet { call: self, partial: Partial { share, by } }
    }

    /// Reads all keys. The first key that fails ends the call.
    ///
    /// # Errors
    /// Over 10,000 keys, a wrong key or option (nothing was sent); a key that failed; the deadline. Carries what came.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy of every key.
    pub async fn send(self) -> Result<ManyRead, MultiGetError> {
        let PartialRead { entries, latency, .. } = run(&self, None).await?;
        let value = |entry| match entry {
            Entry::Found(value) => Some(value),
            // A whole answer has no missing key.
            Entry::Absent | Entry::Missing => None,
        };
        Ok(ManyRead { values: entries.into_iter().map(value).collect(), latency })
    }
}

impl PartialMultiGet {
    /// Reads all keys; returns when all are there, or from the given moment on when the share is.
    ///
    /// # Errors
    /// A share or moment that can have no effect; otherwise as [`MultiGet::send`], but single keys that fail count as
    /// missing as long as the share can still be reached.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy of every key.
    pub async fn send(self) -> Result<PartialRead, MultiGetError> {
        run(&self.call, Some(self.partial)).await
    }
}

/// The call of a view's engine, closed when dropped.
struct OpenCall<'v> {
    view: &'v ViewInner,
    call: CallId,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.view.own.lock().engine.close_call(self.call);
    }
}

async fn run(call: &MultiGet, partial: Option<Partial>) -> Result<PartialRead, MultiGetError> {
    let MultiGet { view, keys, options } = call;
    let began = clock::now();
    let deadline = deadline_of(options.deadline, view.shared.config().deadline)?;
    check(view, keys, options)?;
    if let Some(partial) = partial {
        let wrong = |error: crate::completeness::BadPartial| Error::call(ErrorCode::OverLimit, error.to_string());
        partial.check(deadline).map_err(wrong)?;
    }
    let counters = &view.shared.connections().counters;
    counters.multi_gets.fetch_add(1, Relaxed);
    let mut entries = vec![Entry::Missing; keys.len()];
    let mut so_far = Completeness::new(keys.len(), partial, began);
    let ended = gather(call, &mut entries, &mut so_far, began).await;
    counters.multi_get_keys.fetch_add(keys.len() as u64, Relaxed);
    let answered = entries.iter().filter(|entry| entry.is_answered()).count();
    counters.multi_get_keys_answered.fetch_add(answered as u64, Relaxed);
    let completeness = so_far.share();
    match ended {
        Ok(()) => {
            let whole = answered == keys.len();
            let count = if whole { &counters.multi_gets_whole } else { &counters.multi_gets_partial };
            count.fetch_add(1, Relaxed);
            Ok(PartialRead { entries, completeness, latency: clock::now().since(began) })
        }
        Err(error) => {
            counters.multi_gets_failed.fetch_add(1, Relaxed);
            Err(MultiGetError { error, entries, completeness })
        }
    }
}

fn check(view: &ViewInner, keys: &[Bytes], options: &ReadOptions) -> Result<(), Error> {
    if keys.len() > KEYS_MAX {
        let message = format!("a call asks for at most {KEYS_MAX} keys, this one for {}", keys.len());
        return Err(Error::call(ErrorCode::OverLimit, message));
    }
    keys.iter().try_for_each(check_key)?;
    check_options(options)?;
    level_of(view, options).map(drop)
}

/// Reads until the call may end.
async fn gather(
    call: &MultiGet,
    entries: &mut [Entry],
    so_far: &mut Completeness,
    began: Moment,
) -> Result<(), Error> {
    let MultiGet { view, keys, options } = call;
    let open = OpenCall { view, call: view.own.lock().engine.open_call(keys.len()) };
    let (_, level) = level_of(view, options)?;
    let most = keys_together(view, asked(view, options, Operation::MultiGet, level, None));
    let mut parts = Together::new(keys, size(keys.len(), most));
    let read = |part| read_part(view, keys, part, options, open.call, began);
    let mut join = Join::new();
    let mut ended: Vec<Part> = Vec::new();
    let mut alarm = view.shared.connections().timer.alarm();
    let mut first_error: Option<Error> = None;
    let mut turn = FIRST_TURN;
    loop {
        match so_far.verdict(clock::now()) {
            Verdict::Whole | Verdict::Partial => return Ok(()),
            Verdict::Hopeless => return Err(first_error.unwrap_or_else(|| nothing(began))),
            Verdict::Wait => {}
        }
        let room = turn.min(COPIES_AT_ONCE - join.running());
        parts.by_ref().take(room).for_each(|part| join.push(read(part)));
        turn = (2 * turn).min(COPIES_AT_ONCE);
        let more = !parts.is_empty() && join.running() < COPIES_AT_ONCE;
        if more {
            // These go out now; the connections have their turn before the next are made.
            poll_fn(|context| {
                let _ = join.poll_ended(context, &mut ended);
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await;
        }
        poll_fn(|context| {
            let now = clock::now();
            if more {
                return Poll::Ready(());
            }
            if let Some(at) = so_far.look_at(now) {
                alarm.set(at, context.waker());
            } else if so_far.verdict(now) != Verdict::Wait {
                return Poll::Ready(());
            }
            join.poll_ended(context, &mut ended)
        })
        .await;
        // An error that ends the call does so after the answers that came with it.
        let mut fatal = None;
        for part in ended.drain(..) {
            let (answered, failed) = (part.entries.len(), part.keys.len() - part.entries.len());
            for (entry, came) in entries[part.keys].iter_mut().zip(part.entries) {
                *entry = came;
            }
            (0..answered).for_each(|_| so_far.answered());
            (0..failed).for_each(|_| so_far.failed());
            if let Some(error) = part.error {
                // The call itself is wrong, or its time is over: no other key can change that.
                let ends = matches!(error.caller_move(), Move::FixTheCall | Move::GiveUp);
                let kept = if ends { &mut fatal } else { &mut first_error };
                kept.get_or_insert(error);
            }
        }
        if let Some(error) = fatal {
            return Err(error);
        }
    }
}

fn nothing(began: Moment) -> Error {
    Error::new(Cause::NoReplica(String::new()), Vec::new(), clock::now().since(began))
}

#[cfg(test)]
#[path = "fanout_test.rs"]
mod tests;

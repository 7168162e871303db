//! Where the connections leave what happened to the copies of one read; the read takes it when it is woken.
//!
//! One per read. Holds at most one answer per copy and one loss per link, so its bound is that of the copies.

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::ReadReply;

/// What happened to a copy.
#[derive(Debug)]
pub(crate) enum Mail {
    /// It was answered.
    Answer {
        /// Its index in the race.
        copy: u16,
        /// As received.
        reply: ReadReply,
        /// The value, if one was found.
        value: Bytes,
        /// When it was received.
        received: Moment,
    },
    /// The link that carried it is gone.
    LinkLost {
        /// Whose link.
        node: NodeId,
        /// Why.
        reason: Arc<str>,
    },
}

/// See the head of this room.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    mail: SmallVec<[Mail; 1]>,
    waker: Option<Waker>,
    closed: bool,
}

impl Mailbox {
    /// Leaves a piece of mail and wakes the read; false when nobody reads any more.
    pub(crate) fn leave(&self, mail: Mail) -> bool {
        let waker = {
            let mut state = self.state.lock();
            if state.closed {
                return false;
            }
            state.mail.push(mail);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Takes the oldest piece of mail; else the task is woken by the next.
    pub(crate) fn poll_take(&self, context: &mut Context<'_>) -> Poll<Mail> {
        let mut state = self.state.lock();
        match state.mail.len() {
            0 => {}
            1 => return state.mail.pop().map_or(Poll::Pending, Poll::Ready),
            _ => return Poll::Ready(state.mail.remove(0)),
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => state.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Nobody reads any more: gives out what is left and refuses what comes.
    pub(crate) fn close(&self) -> Vec<Mail> {
        let mut state = self.state.lock();
        state.closed = true;
        state.waker = None;
        if state.mail.is_empty() { Vec::new() } else { state.mail.drain(..).collect() }
    }
}

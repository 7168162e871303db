//! The bounded queue between workers and the thread that owns a client connection.
//!
//! Handing over never waits. The consumer is woken once per batch: the first answer after it looked wakes it, later
//! ones find it awake. A queue that is full means that the peer does not read: the owner closes the connection.

use crate::request::doors::ReplySink;
use bytes::Bytes;
use crossbeam::queue::ArrayQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tiedkv_protocol::response::ReadReply;

/// The answers of one connection: workers push, its owner takes.
pub struct ReplyQueue {
    answers: ArrayQueue<(ReadReply, Bytes)>,
    wake: Box<dyn Fn() + Send + Sync>,
    awake: AtomicBool,
    overflowed: AtomicBool,
}

impl ReplyQueue {
    /// A queue for at most `answers_max` (at least 1): the copies a connection may have in flight, plus refusals that
    /// its owner has not written yet. `wake` must not block; it may be called from any thread.
    pub fn new(answers_max: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            answers: ArrayQueue::new(answers_max.max(1)),
            wake: Box::new(wake),
            awake: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
        })
    }

    /// The next answer. After a `None` the next push wakes again.
    pub fn take(&self) -> Option<(ReadReply, Bytes)> {
        if let Some(answer) = self.answers.pop() {
            return Some(answer);
        }
        self.awake.store(false, SeqCst);
        // One that came between the look and the store woke nobody.
        let answer = self.answers.pop();
        if answer.is_some() {
            self.awake.store(true, SeqCst);
        }
        answer
    }

    /// True once an answer found no place: close the connection.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(SeqCst)
    }

    /// Answers that wait.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// True when none waits.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

impl ReplySink for ReplyQueue {
    fn read_reply(&self, reply: ReadReply, value: Bytes) {
        if self.answers.push((reply, value)).is_err() {
            self.overflowed.store(true, SeqCst);
        }
        if !self.awake.swap(true, SeqCst) {
            (self.wake)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::test_support::reply;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn wakes_once_per_batch() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wakes);
        let queue = ReplyQueue::new(8, move || {
            count.fetch_add(1, SeqCst);
        });
        (0..3).for_each(|request| queue.read_reply(reply(request), Bytes::new()));
        assert_eq!((wakes.load(SeqCst), queue.len()), (1, 3));
        let taken: Vec<u64> = std::iter::from_fn(|| queue.take()).map(|(reply, _)| reply.request.0).collect();
        assert_eq!(taken, [0, 1, 2]);
        queue.read_reply(reply(3), Bytes::new());
        assert_eq!(wakes.load(SeqCst), 2);
    }

    #[test]
    fn a_full_queue_is_told_not_waited_for() {
        let queue = ReplyQueue::new(2, || {});
        (0..2).for_each(|request| queue.read_reply(reply(request), Bytes::new()));
        assert!(!queue.overflowed());
        queue.read_reply(reply(2), Bytes::new());
        assert!(queue.overflowed() && queue.len() == 2);
    }

    #[test]
    fn no_answer_is_left_asleep() {
        let (waker, woken) = crossbeam::channel::bounded::<()>(1);
        let queue = ReplyQueue::new(1024, move || {
            let _ = waker.try_send(());
        });
        let pusher = Arc::clone(&queue);
        let pushing = std::thread::spawn(move || {
            (0..100_000_u64).for_each(|request| {
                while pusher.len() > 1_000 {
                    std::thread::yield_now();
                }
                pusher.read_reply(reply(request), Bytes::new());
            });
        });
        let mut next = 0;
        while next < 100_000 {
            woken.recv_timeout(std::time::Duration::from_secs(10)).expect("woken while answers wait");
            while let Some((reply, _)) = queue.take() {
                assert_eq!(reply.request.0, next);
                next += 1;
            }
        }
        pushing.join().expect("all pushed");
        assert!(!queue.overflowed());
    }
}

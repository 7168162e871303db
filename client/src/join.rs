//! Runs many futures of one kind within one task: each is polled only when it was woken, so that ten thousand cost
//! what they do and not their square. Dropping it drops them all at once.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::task::{Context, Poll, Wake, Waker};

/// See the head of this room.
pub(crate) struct Join<F> {
    children: Vec<Option<Child<F>>>,
    free: Vec<usize>,
    shared: Arc<Woken>,
    running: usize,
}

struct Child<F> {
    future: Pin<Box<F>>,
    waker: Waker,
}

/// Who was woken, and who polls.
#[derive(Default)]
struct Woken {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ready: Vec<Arc<ChildWaker>>,
    parent: Option<Waker>,
}

struct ChildWaker {
    slot: usize,
    /// Stands in the list already.
    queued: AtomicBool,
    shared: Arc<Woken>,
}

impl Wake for ChildWaker {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, AcqRel) {
            return;
        }
        let shared = self.shared.clone();
        let parent = {
            let mut state = shared.state.lock();
            state.ready.push(self);
            state.parent.take()
        };
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

impl<F: Future> Join<F> {
    pub(crate) fn new() -> Self {
        Self { children: Vec::new(), free: Vec::new(), shared: Arc::default(), running: 0 }
    }

    /// Adds one; it is polled for the first time with the next poll.
    pub(crate) fn push(&mut self, future: F) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.children.push(None);
            self.children.len() - 1
        });
        let waker = Arc::new(ChildWaker { slot, queued: AtomicBool::new(true), shared: self.shared.clone() });
        self.shared.state.lock().ready.push(waker.clone());
        self.children[slot] = Some(Child { future: Box::pin(future), waker: waker.into() });
        self.running += 1;
    }

    /// Those that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Polls those that were woken; appends what ended. Ready once something ended; the task is woken by the next.
    pub(crate) fn poll_ended(&mut self, context: &mut Context<'_>, ended: &mut Vec<F::Output>) -> Poll<()> {
        let ready = {
            let mut state = self.shared.state.lock();
            state.parent = Some(context.waker().clone());
            std::mem::take(&mut state.ready)
        };
        for woken in ready {
            woken.queued.store(false, Release);
            let Some(child) = self.children[woken.slot].as_mut() else { continue };
            // A waker of a child that ended, whose slot another has now.
            if !child.waker.will_wake(&woken.clone().into()) {
                continue;
            }
            let waker = child.waker.clone();
            if let Poll::Ready(output) = child.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.children[woken.slot] = None;
                self.free.push(woken.slot);
                self.running -= 1;
                ended.push(output);
            }
        }
        if ended.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    #[test]
    fn only_those_that_were_woken_are_polled_and_all_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let polls = Rc::new(Cell::new(0_usize));
            let mut join = Join::new();
            let (sender, _) = tokio::sync::broadcast::channel::<u32>(64);
            for number in 0..1_000_u32 {
                let (polls, mut receiver) = (polls.clone(), sender.subscribe());
                let wait = async move { if number % 100 == 7 { receiver.recv().await.unwrap() } else { number } };
                let mut wait = Box::pin(wait);
                join.push(poll_fn(move |context| {
                    polls.set(polls.get() + 1);
                    wait.as_mut().poll(context)
                }));
            }
            let mut ended = Vec::new();
            poll_fn(|context| join.poll_ended(context, &mut ended)).await;
            assert_eq!((ended.len(), polls.get(), join.running()), (990, 1_000, 10));
            ended.clear();
            let nothing = poll_fn(|context| Poll::Ready(join.poll_ended(context, &mut ended))).await;
            assert!(nothing.is_pending() && polls.get() == 1_000, "nobody was woken");
            sender.send(5).unwrap();
            poll_fn(|context| join.poll_ended(context, &mut ended)).await;
            assert_eq!((ended, polls.get(), join.running()), (vec![5; 10], 1_010, 0));
        });
    }

    #[test]
    fn a_slot_that_is_used_again_hears_no_old_wakers() {
        let mut join: Join<Pin<Box<dyn Future<Output = u32>>>> = Join::new();
        let kept: Rc<Cell<Option<Waker>>> = Rc::default();
        let keep = kept.clone();
        join.push(Box::pin(poll_fn(move |context| {
            keep.set(Some(context.waker().clone()));
            Poll::Ready(1)
        })));
        let mut ended = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        assert!(join.poll_ended(&mut context, &mut ended).is_ready());
        let polls = Rc::new(Cell::new(0));
        let count = polls.clone();
        join.push(Box::pin(poll_fn(move |_| {
            count.set(count.get() + 1);
            Poll::Pending
        })));
        ended.clear();
        assert!(join.poll_ended(&mut context, &mut ended).is_pending());
        kept.take().unwrap().wake();
        assert!(join.poll_ended(&mut context, &mut ended).is_pending());
        assert_eq!(polls.get(), 1);
    }
}

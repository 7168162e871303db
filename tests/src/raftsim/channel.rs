//! The one channel of tokio's that wakes in an order drawn by itself: a watched value, here in the order of waiting.

use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::{OptionalSend, OptionalSync};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Poll, Waker};

/// See the head of this room.
#[derive(Debug)]
pub struct SimWatch;

struct Shared<T> {
    value: RwLock<T>,
    waiting: Mutex<Waiting>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    version: u64,
    wakers: Vec<Waker>,
}

impl<T> Shared<T> {
    fn wake(&self, changed: bool) {
        let wakers = {
            let mut waiting = self.waiting.lock();
            waiting.version += u64::from(changed);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the value.
pub struct Sender<T>(Arc<Shared<T>>);

/// Sees the value.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Relaxed);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Relaxed) == 1 {
            self.0.wake(false);
        }
    }
}

impl<T> Receiver<T> {
    fn new(shared: Arc<Shared<T>>, seen: u64) -> Self {
        shared.receivers.fetch_add(1, Relaxed);
        Self { shared, seen }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone(), self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Relaxed);
    }
}

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            waiting: Mutex::default(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
        });
        (Sender(shared.clone()), Receiver::new(shared, 0))
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<SimWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Relaxed) == 0 {
            return Err(SendError(value));
        }
        *self.0.value.write().unwrap_or_else(PoisonError::into_inner) = value;
        self.0.wake(true);
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let changed = modify(&mut self.0.value.write().unwrap_or_else(PoisonError::into_inner));
        if changed {
            self.0.wake(true);
        }
        changed
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> Receiver<T> {
        let seen = self.0.waiting.lock().version;
        Receiver::new(self.0.clone(), seen)
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<SimWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        poll_fn(|context| {
            let mut waiting = self.shared.waiting.lock();
            if waiting.version != self.seen {
                self.seen = waiting.version;
                return Poll::Ready(Ok(()));
            }
            if self.shared.senders.load(Relaxed) == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            waiting.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        self.seen = self.shared.waiting.lock().version;
        self.shared.read()
    }
}

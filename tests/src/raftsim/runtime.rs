//! A made-up runtime for openraft: one thread, a clock that jumps to the next timer when nothing is left to do, and a
//! seed that draws which of the tasks that can run runs next. Same seed, same steps.
//!
//! Every task belongs to a party; tasks that it spawns do too. [`crash`] drops all tasks of a party between two steps, as a
//! kill does: nothing is told to stop, nothing is flushed.

use super::channel::SimWatch;
use openraft::async_runtime::AsyncRuntime;
use openraft::{OptionalSend, TokioRuntime};
use openraft_rt::deterministic_rng::DeterministicRng;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// Who tasks belong to.
pub type Party = u64;
/// The runtime that openraft is given: its random numbers follow the seed as well.
pub type SeededRuntime = DeterministicRng<SimRuntime>;

/// Where the clock begins, so that going back from it is no underflow.
const BEGIN_NS: u64 = 1_000_000_000_000;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    party: Party,
    work: Option<Work>,
    bell: Arc<Bell>,
}

/// Puts a task among those that can run, once.
struct Bell {
    core: Weak<Core>,
    task: u64,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(core) = self.core.upgrade()
            && !self.rung.swap(true, Relaxed)
        {
            core.ready.lock().push(self.task);
        }
    }
}

struct Core {
    ready: Mutex<Vec<u64>>,
    tasks: Mutex<BTreeMap<u64, Task>>,
    timers: Mutex<BTreeMap<(u64, u64), Waker>>,
    now_ns: AtomicU64,
    serial: AtomicU64,
    random: Mutex<StdRng>,
}

thread_local! {
    static CORE: RefCell<Option<Arc<Core>>> = const { RefCell::new(None) };
    static PARTY: Cell<Party> = const { Cell::new(0) };
}

#[allow(clippy::expect_used, reason = "a programmer's error: there is no time outside of a world")]
fn core() -> Arc<Core> {
    CORE.with(|core| core.borrow().clone()).expect("called outside of a simulated world")
}

impl Core {
    fn spawn(self: &Arc<Self>, work: Work) {
        let task = self.serial.fetch_add(1, Relaxed);
        let bell = Arc::new(Bell { core: Arc::downgrade(self), task, rung: AtomicBool::new(false) });
        let party = PARTY.with(Cell::get);
        self.tasks.lock().insert(task, Task { party, work: Some(work), bell: bell.clone() });
        bell.wake();
    }

    /// One step of a task that can run; false when there is none.
    fn step(&self) -> bool {
        let task = {
            let mut ready = self.ready.lock();
            if ready.is_empty() {
                return false;
            }
            let index = self.random.lock().random_range(0..ready.len());
            ready.remove(index)
        };
        let taken = self.tasks.lock().get_mut(&task).map(|task| {
            task.bell.rung.store(false, Relaxed);
            (task.party, task.work.take(), task.bell.clone())
        });
        let Some((party, Some(mut work), bell)) = taken else { return true };
        PARTY.with(|current| current.set(party));
        let waker = Waker::from(bell);
        let done = work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        PARTY.with(|current| current.set(0));
        let mut tasks = self.tasks.lock();
        // A party may crash itself; then its task is gone here.
        match tasks.get_mut(&task) {
            Some(kept) if !done => kept.work = Some(work),
            _ => {
                let over = tasks.remove(&task);
                drop(tasks);
                drop((over, work));
            }
        }
        true
    }

    /// Jumps to the next timer; false when there is none.
    fn jump(&self) -> bool {
        let Some(((when, _), waker)) = self.timers.lock().pop_first() else { return false };
        self.now_ns.fetch_max(when, Relaxed);
        waker.wake();
        true
    }
}

/// Plays a world until `main` ends.
///
/// # Panics
/// When nothing can run and no timer is set: everybody waits for ever.
pub fn play<T: Send + 'static>(seed: u64, main: impl Future<Output = T> + Send + 'static) -> T {
    let core = Arc::new(Core {
        ready: Mutex::default(),
        tasks: Mutex::default(),
        timers: Mutex::default(),
        now_ns: AtomicU64::new(BEGIN_NS),
        serial: AtomicU64::new(0),
        random: Mutex::new(StdRng::seed_from_u64(seed)),
    });
    CORE.with(|current| *current.borrow_mut() = Some(core.clone()));
    let _ends = Ends(core.clone());
    let result = Arc::new(Mutex::new(None));
    let into = result.clone();
    core.spawn(Box::pin(SeededRuntime::scope(seed, async move {
        let value = main.await;
        *into.lock() = Some(value);
    })));
    loop {
        if let Some(value) = result.lock().take() {
            return value;
        }
        assert!(core.step() || core.jump(), "seed {seed}: everybody waits for ever");
    }
}

/// Drops what is left of a world while there is still time in it, also when a task panicked.
struct Ends(Arc<Core>);

impl Drop for Ends {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *self.0.tasks.lock());
        drop(left);
        CORE.with(|current| *current.borrow_mut() = None);
    }
}

/// Now, nanoseconds of the world's clock.
pub fn now_ns() -> u64 {
    core().now_ns.load(Relaxed)
}

/// A number below `end` that follows the seed.
pub fn draw(end: u64) -> u64 {
    core().random.lock().random_range(0..end)
}

/// True once in so many draws.
pub fn once_in(draws: u64) -> bool {
    draw(draws) == 0
}

/// A time below `most`.
pub fn draw_time(most: Duration) -> Duration {
    Duration::from_nanos(draw(most.as_nanos().max(1) as u64))
}

/// Begins a task of a party.
pub fn spawn_for<T: Send + 'static>(
    party: Party,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let before = PARTY.with(|current| current.replace(party));
    let handle = SeededRuntime::spawn(future);
    PARTY.with(|current| current.set(before));
    handle
}

/// Drops all tasks of a party.
pub fn crash(party: Party) {
    let core = core();
    let lost: Vec<Task> = {
        let mut tasks = core.tasks.lock();
        let ids: Vec<u64> = tasks.iter().filter(|(_, task)| task.party == party).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| tasks.remove(id)).collect()
    };
    drop(lost);
}

/// Ends after this time.
pub fn sleep(time: Duration) -> Sleep {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Sleep { when_ns: now_ns().saturating_add(time), timer: None }
}

/// `None` when the time is over first.
pub async fn within<T>(time: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    SeededRuntime::timeout(time, future).await.ok()
}

/// A moment of the world's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(u64);

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for At {
    type Output = Self;
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(ns(time)))
    }
}

impl AddAssign<Duration> for At {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for At {
    type Output = Self;
    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(ns(time)))
    }
}

impl SubAssign<Duration> for At {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl Sub for At {
    type Output = Duration;
    fn sub(self, other: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(other.0))
    }
}

impl openraft::Instant for At {
    fn now() -> Self {
        Self(now_ns())
    }
}

/// See [`sleep`].
pub struct Sleep {
    when_ns: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let core = core();
        if let Some(timer) = self.timer.take() {
            core.timers.lock().remove(&timer);
        }
        if core.now_ns.load(Relaxed) >= self.when_ns {
            return Poll::Ready(());
        }
        let timer = (self.when_ns, core.serial.fetch_add(1, Relaxed));
        core.timers.lock().insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // When the world ends, its timers are gone already.
        let core = CORE.with(|core| core.borrow().clone());
        if let (Some(timer), Some(core)) = (self.timer.take(), core) {
            core.timers.lock().remove(&timer);
        }
    }
}

/// A future with a limit.
pub struct Limited<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, Over>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(Over))
    }
}

/// The time is over, or a task is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over;

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("over")
    }
}

/// The end of a task; dropping it leaves the task alone.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Over>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|_| Over)
    }
}

/// The runtime; see the head of this room.
#[derive(Debug)]
pub struct SimRuntime;

impl AsyncRuntime for SimRuntime {
    type JoinError = Over;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = At;
    type TimeoutError = Over;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Limited<T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = SimWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        core().spawn(Box::pin(async move {
            // Nobody may wait for it.
            let _ = sender.send(future.await);
        }));
        JoinHandle(receiver)
    }

    fn sleep(time: Duration) -> Sleep {
        sleep(time)
    }

    fn sleep_until(at: At) -> Sleep {
        Sleep { when_ns: at.0, timer: None }
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(time: Duration, future: F) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: sleep(time) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(at: At, future: F) -> Limited<F> {
        Limited { future: Box::pin(future), sleep: Self::sleep_until(at) }
    }

    fn is_panic(_: &Over) -> bool {
        false
    }

    /// Not the seed's: [`SeededRuntime`] has its own.
    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            assert!(core().step() || core().jump(), "everybody waits for ever");
        }
    }
}

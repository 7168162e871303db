//! How a node ends: the phases everybody can watch, and threads of I/O that end within a deadline.

use crate::error::NodeError;
use crossbeam::channel::{Receiver, bounded};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// Where a node is on its way. Only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// Not ready: new work is refused, what is in flight is finished.
    Draining,
    /// Answers are flushed and connections closed.
    Closing,
}

/// Announces phases.
#[derive(Debug)]
pub struct Shutdown(watch::Sender<Phase>);

impl Shutdown {
    /// A running node.
    pub fn new() -> Self {
        Self(watch::Sender::new(Phase::Running))
    }

    /// Goes on to `phase`; going back does nothing.
    pub fn enter(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let forward = phase > *now;
            if forward {
                *now = phase;
            }
            forward
        });
    }

    /// Watches.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until `phase` is reached, or nobody can announce it any more.
///
/// # Cancel safety
/// Safe: nothing is taken from the watch.
pub async fn reached(watch: &mut watch::Receiver<Phase>, phase: Phase) {
    let _ = watch.wait_for(|now| *now >= phase).await;
}

/// An OS thread with a single-threaded runtime of its own. Work is spawned on its [`Handle`].
#[derive(Debug)]
pub struct IoThread {
    name: &'static str,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    ended: Receiver<()>,
}

impl IoThread {
    /// Starts the thread. `prepare` runs on it first (priorities); what it returns is handed back.
    ///
    /// # Errors
    /// When the system gives no thread or the runtime cannot be made.
    pub fn start<T: Send + 'static>(
        name: &'static str,
        prepare: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(Self, T), NodeError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (end, ended) = bounded(1);
        let (ready, made) = bounded(1);
        let body = move || {
            // Made on this thread, so that what the runtime starts later inherits nothing but from here.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok((runtime.handle().clone(), prepare())));
            runtime.block_on(async {
                let _ = stopped.await;
            });
            runtime.shutdown_background();
            let _ = end.send(());
        };
        let thread = |source| NodeError::Thread { name, source };
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(thread)?;
        let (handle, prepared) =
            made.recv().map_err(|_| thread(std::io::Error::other("ended before it was ready")))?.map_err(thread)?;
        Ok((Self { name, handle, stop: Some(stop), ended }, prepared))
    }

    /// Where its work is spawned.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the thread and drops its tasks; false if it did not end within `patience`.
    pub fn stop(&mut self, patience: Duration) -> bool {
        drop(self.stop.take());
        // A thread that is gone already has dropped its end of the channel: both mean that it ended.
        let ended =
            !matches!(self.ended.recv_timeout(patience), Err(crossbeam::channel::RecvTimeoutError::Timeout));
        if !ended {
            tracing::warn!(thread = self.name, ?patience, "the thread did not end in time");
        }
        ended
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

//! The public door of the request path: what connections, the cancel channel and the node call.
//!
//! Copies end exactly once: answered, or silent by rule R8 (docs/tie-protocol.md). No call here waits for a
//! queue, a peer or a device.

pub use crate::request::records::StartPage;

use crate::clock;
use crate::request::barrier::ReadBarrier;
use crate::request::config::{BadRequestConfig, RequestConfig};
use crate::request::counters::CountersSnapshot;
use crate::request::doors::{Caller, CancelSender};
use crate::request::keeper::{CallKeeper, run_keeper};
use crate::request::lane_room::Called;
use crate::request::slow_log::SlowRead;
use crate::request::start::Worker;
use crate::request::state::{PathState, sorted};
use crate::storage::disturbance::{LaneDisturbance, LaneName};
use crate::storage::state_store::StateStore;
use crossbeam::sync::Parker;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::{Disturbance, ReadRequest};
use tiedkv_protocol::response::Failure;

/// The neighbours of a request path.
pub struct Neighbours {
    /// Where views come from.
    pub store: Arc<dyn StateStore>,
    /// Where cancels go.
    pub cancels: Arc<dyn CancelSender>,
    /// Who knows what a linearizable read waits for.
    pub barrier: Arc<dyn ReadBarrier>,
    /// The nodes of the shard, at first; see [`RequestPath::set_members`].
    pub members: Vec<NodeId>,
}

/// Why a request path does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of its bounds.
    #[error(transparent)]
    Config(#[from] BadRequestConfig),
    /// A worker thread could not be made.
    #[error("cannot start worker `{name}`: {source}")]
    Thread {
        /// The thread.
        name: String,
        /// Why.
        source: std::io::Error,
    },
}

/// One lane at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// Which.
    pub lane: u16,
    /// Copies and jobs that wait.
    pub depth: u32,
    /// Copies set aside.
    pub set_aside: u32,
    /// Workers that are serving.
    pub busy_workers: u32,
}

/// Entries of the tables that copies pass through: all but connections and callers are 0 at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablesStatus {
    /// Copies in the registry of ties.
    pub registry: u64,
    /// Copies at the desks, by connection and request.
    pub desks: u64,
    /// Connections that sent copies and are open.
    pub connections: u64,
    /// Callers of those.
    pub callers: u64,
}

/// The request path at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// New copies are refused because the node is on its way out.
    pub draining: bool,
    /// A storage error happened lately.
    pub storage_suspect: bool,
    /// Copies are refused before their start because storage failed repeatedly.
    pub storage_latched: bool,
    /// Copies in flight.
    pub in_flight: u64,
    /// Estimated median service time, microseconds; 0 while unknown.
    pub service_p50_us: u64,
    /// Entries of tables.
    pub tables: TablesStatus,
    /// Per lane.
    pub lanes: Vec<LaneStatus>,
}

/// The request path of one node. Cheap to clone; all clones are one path. Dropping the last clone stops it at once.
#[derive(Clone)]
pub struct RequestPath {
    running: Arc<Running>,
}

struct Running {
    path: Arc<PathState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RequestPath {
    /// Starts the workers.
    ///
    /// # Errors
    /// When a setting is out of its bounds or a thread cannot be made.
    pub fn start(config: RequestConfig, neighbours: Neighbours) -> Result<Self, StartError> {
        config.check()?;
        let per_lane = usize::from(config.workers_per_lane);
        let parkers: Vec<Parker> = (0..usize::from(config.lanes) * per_lane).map(|_| Parker::new()).collect();
        let keeper = Parker::new();
        let unparkers = parkers.iter().map(|parker| parker.unparker().clone()).collect();
        let path = Arc::new(PathState::new(config, neighbours, unparkers, keeper.unparker().clone()));
        path.store.watch(Arc::new(CallKeeper(Arc::downgrade(&path))));
        // From here on a failure drops `running`, which ends the threads made so far.
        let running = Running { path: Arc::clone(&path), threads: Mutex::default() };
        let keeping = Arc::clone(&path);
        running.spawn("tiedkv-keeper".to_owned(), move || run_keeper(keeping, keeper))?;
        for (index, parker) in parkers.into_iter().enumerate() {
            let (lane, path) = (index / per_lane, Arc::clone(&path));
            let worker = Worker { path, index, lane, parker };
            running.spawn(format!("lane-{lane}.{}", index % per_lane), move || worker.run())?;
        }
        Ok(Self { running: Arc::new(running) })
    }

    /// Takes one copy that was received whole at `received`. Its answer, if it gets one, goes to the caller's sink,
    /// possibly before this returns.
    pub fn read(&self, caller: &Caller, request: ReadRequest, received: Moment) {
        self.path().arrive(caller, request, received);
    }

    /// The client waits for these copies no more. Unknown ones are remembered, in case the copy comes later.
    pub fn withdraw(&self, caller: &Caller, requests: &[RequestId]) {
        self.path().client_withdraws(caller, requests);
    }

    /// The connection is gone: withdraws all of its copies. Call once, after its last `read`.
    pub fn connection_lost(&self, caller: &Caller) {
        self.path().connection_lost(caller);
    }

    /// A cancel arrived on the channel that `from` was authenticated on. Call it from the channel's own thread.
    pub fn cancel(&self, from: NodeId, cancel: Cancel) {
        self.path().peer_cancels(from, &cancel);
    }

    /// The membership changed.
    pub fn set_members(&self, members: Vec<NodeId>) {
        self.path().members.store(Arc::new(sorted(members)));
    }

    /// Bits of [`tiedkv_protocol::response::flags`] that the operator or the node adds to every answer
    /// (`TIES_OFF`, `NO_EXTRA_COPIES`).
    pub fn set_flags(&self, flags: u8) {
        self.path().set_flags(flags);
    }

    /// All flags of this node now: for pongs.
    pub fn flags(&self) -> u8 {
        self.path().flags(clock::now())
    }

    /// Share of all workers that serve at this moment, 0.0 to 1.0.
    pub fn busy_share(&self) -> f64 {
        let path = self.path();
        let busy: u32 = path.lanes.iter().map(|room| room.busy()).sum();
        let workers = path.lanes.len() * usize::from(path.config.workers_per_lane);
        f64::from(busy) / workers.max(1) as f64
    }

    /// Disturbs a modelled device from now on; says from when, by this node's clock, so that who asked can draw the
    /// same jobs.
    ///
    /// # Errors
    /// `NotAllowed` on a real device or when the node was not started so; `OverLimit` for values out of bounds.
    pub fn disturb(&self, disturbance: Disturbance) -> Result<Moment, Failure> {
        let path = self.path();
        let model = path.config.device.check_disturbance(&disturbance)?;
        let (now, unix_ns) = (clock::now(), clock::unix_ns());
        for (lane, room) in (0..).zip(&path.lanes) {
            let name = LaneName { node: path.config.node, lane, workers: path.config.workers_per_lane };
            let idle = room.disturb(LaneDisturbance::new(&disturbance, &model, name, now, unix_ns));
            idle.into_iter().for_each(|worker| path.wake(Called::Worker(worker)));
        }
        Ok(now)
    }

    /// Makes every storage read fail, or work again: for tests.
    pub fn fail_reads(&self, on: bool) {
        self.path().fail_reads.store(on, Relaxed);
    }

    /// Makes copies start whether or not they can be served, or not any more: for tests of checkers.
    pub fn answer_early(&self, on: bool) {
        self.path().answer_early.store(on, Relaxed);
    }

    /// Starts (emptying what was kept) or stops the recording of start records.
    pub fn record_starts(&self, on: bool) {
        self.path().records.switch(on);
    }

    /// Records from sequence number `from`, at most `count_max`.
    pub fn take_starts(&self, from: u64, count_max: usize) -> StartPage {
        self.path().records.page(from, count_max)
    }

    /// The slow-read log, newest last.
    pub fn slow_reads(&self) -> Vec<SlowRead> {
        self.path().slow.lines()
    }

    /// The counters.
    pub fn counters(&self) -> CountersSnapshot {
        let path = self.path();
        // Kept where they happen, under a lock that is held then anyway.
        let jobs_dropped = path.lanes.iter().map(|lane| lane.jobs_dropped()).sum();
        CountersSnapshot { jobs_dropped, early_cancels_lost: path.early_cancels_lost(), ..path.counters.snapshot() }
    }

    /// The state of lanes and storage.
    pub fn status(&self) -> PathStatus {
        let (path, now) = (self.path(), clock::now());
        let lane_status = |(lane, room): (u16, &crate::request::lane_room::LaneRoom)| LaneStatus {
            lane,
            depth: room.depth(),
            set_aside: room.aside_count(),
            busy_workers: room.busy(),
        };
        PathStatus {
            modelled: path.config.device.is_modelled(),
            draining: path.is_draining(),
            storage_suspect: path.storage_suspect(now),
            storage_latched: path.storage_latched(now),
            in_flight: path.in_flight(),
            service_p50_us: path.service_p50().as_micros() as u64,
            tables: path.tables(),
            lanes: (0..).zip(&path.lanes).map(lane_status).collect(),
        }
    }

    /// From now on new copies are answered `TryElsewhere` and every answer carries `DRAINING`.
    pub fn drain(&self) {
        self.path().draining.store(true, SeqCst);
    }

    /// Drains, lets what is in flight finish for at most `patience`, answers the rest `TryElsewhere`, and ends the
    /// workers. Blocks; call it from a thread that may. A second call finds nothing to do.
    pub fn stop(&self, patience: Duration) {
        self.running.stop(patience);
    }

    fn path(&self) -> &Arc<PathState> {
        &self.running.path
    }
}

impl Running {
    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name.clone()).spawn(run);
        self.threads.lock().push(thread.map_err(|source| StartError::Thread { name, source })?);
        Ok(())
    }

    fn stop(&self, patience: Duration) {
        let path = &self.path;
        path.draining.store(true, SeqCst);
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        if !path.wait_for_none(clock::now() + patience) {
            tracing::info!(in_flight = path.in_flight(), "copies still in flight are answered `try-elsewhere`");
        }
        path.closing.store(true, SeqCst);
        path.empty_lanes();
        path.wake_all();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker of the request path had panicked");
            }
        }
        // What the last workers put back or set aside.
        path.empty_lanes();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

#[cfg(test)]
#[path = "path_test.rs"]
mod tests;

#[cfg(test)]
#[path = "path_ends_test.rs"]
mod ends_tests;

#[cfg(test)]
#[path = "path_scan_test.rs"]
mod scan_tests;

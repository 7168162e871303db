//! What the request path of one node holds, and the small questions every stop asks of it.
//!
//! Locks, in the order in which they may be nested: registry stripe, then lane. The desk, the health and the median
//! are leaves: nothing is locked while they are held.

use crate::request::admit::{Caps, Desk};
use crate::request::brisk::WAKE_UP;
use crate::request::config::RequestConfig;
use crate::request::copy_name::CopyName;
use crate::request::counters::Counters;
use crate::request::doors::CancelSender;
use crate::request::health::{ServiceMedian, StorageHealth};
use crate::request::held::HeldCopy;
use crate::request::lane_room::{Called, LaneRoom};
use crate::request::path::{Neighbours, TablesStatus};
use crate::request::recent_ties::RecentTiesBounds;
use crate::request::records::StartRecords;
use crate::request::slow_log::SlowLog;
use crate::request::tie::{TieSettings, TieTable};
use crate::storage::key::LaneOfKey;
use crate::storage::state_store::StateStore;
use arc_swap::ArcSwap;
use crossbeam::sync::Unparker;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tiedkv_protocol::ids::{CallerId, NodeId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::flags;

/// Stripes of the tie registry.
const STRIPES: usize = 64;
/// Stripes of the desk; all connections of a caller share one.
const DESKS: usize = 16;

/// The request path of one node, without its threads.
pub struct PathState {
    pub(crate) config: RequestConfig,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) cancels: Arc<dyn CancelSender>,
    pub(crate) barrier: Arc<dyn crate::request::barrier::ReadBarrier>,
    pub(crate) members: ArcSwap<Vec<NodeId>>,
    pub(crate) lane_of_key: LaneOfKey,
    pub(crate) lanes: Vec<LaneRoom>,
    pub(crate) counters: Counters,
    pub(crate) records: StartRecords,
    pub(crate) slow: SlowLog,
    pub(crate) fail_reads: AtomicBool,
    pub(crate) answer_early: AtomicBool,
    pub(crate) draining: AtomicBool,
    pub(crate) closing: AtomicBool,
    /// Pages of scans that are being made.
    pub(crate) pages: Arc<AtomicU32>,
    stripes: Vec<Mutex<TieTable<Arc<HeldCopy>>>>,
    desks: Vec<Mutex<Desk<Arc<HeldCopy>>>>,
    health: Mutex<StorageHealth>,
    /// False until the first storage error: then the health need not be asked.
    health_touched: AtomicBool,
    median: Mutex<ServiceMedian>,
    service_p50_ns: AtomicU64,
    flags: AtomicU8,
    in_flight: AtomicU64,
    /// Held only by who waits for the end of a drain and by who ends the last copy then.
    draining_wait: Mutex<()>,
    none_in_flight: Condvar,
    workers: Vec<Unparker>,
    keeper: Unparker,
    /// When the keeper wakes up by itself, ns; 0: it is awake; the largest number: never.
    keeper_until: AtomicU64,
    /// The earliest end of a copy set aside since the keeper last began to look, ns.
    aside_until: AtomicU64,
}

impl PathState {
    pub(crate) fn new(config: RequestConfig, around: Neighbours, workers: Vec<Unparker>, keeper: Unparker) -> Self {
        let applied = around.store.view().position();
        let entries_max = (config.recent_ties_max / STRIPES).max(1);
        let recent = RecentTiesBounds {
            entries_max,
            caller_entries_max: entries_max.div_ceil(2),
            filer_entries_max: entries_max.div_ceil(2),
            ..RecentTiesBounds::of_stripes(STRIPES)
        };
        let ties = TieSettings { recent, set_aside_max: config.aside_limit, barrier_max: config.barrier_limit };
        let caps = Caps {
            caller_in_flight_max: config.caller_in_flight_max,
            connection_in_flight_max: config.connection_in_flight_max,
            caller_rate_max: config.caller_rate_max,
        };
        Self {
            members: ArcSwap::from_pointee(sorted(around.members)),
            lane_of_key: LaneOfKey::new(config.node, config.lanes),
            lanes: (0..config.lanes)
                .map(|_| {
                    let workers = usize::from(config.workers_per_lane);
                    LaneRoom::new(workers, config.queue_max, config.aside_max, applied)
                })
                .collect(),
            counters: Counters::default(),
            records: StartRecords::new(config.start_records_max),
            slow: SlowLog::new(config.slow_read),
            fail_reads: AtomicBool::new(false),
            answer_early: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            pages: Arc::default(),
            stripes: (0..STRIPES).map(|_| Mutex::new(TieTable::new(ties))).collect(),
            desks: (0..DESKS).map(|_| Mutex::new(Desk::new(caps))).collect(),
            health: Mutex::default(),
            health_touched: AtomicBool::new(false),
            median: Mutex::default(),
            service_p50_ns: AtomicU64::new(0),
            flags: AtomicU8::new(0),
            in_flight: AtomicU64::new(0),
            draining_wait: Mutex::new(()),
            none_in_flight: Condvar::new(),
            workers,
            keeper,
            keeper_until: AtomicU64::new(u64::MAX),
            aside_until: AtomicU64::new(u64::MAX),
            store: around.store,
            cancels: around.cancels,
            barrier: around.barrier,
            config,
        }
    }

    /// Entries of the tables that copies pass through.
    pub(crate) fn tables(&self) -> TablesStatus {
        let registry = self.stripes.iter().map(|stripe| stripe.lock().len() as u64).sum();
        let mut tables = TablesStatus { registry, ..TablesStatus::default() };
        for desk in &self.desks {
            let desk = desk.lock();
            let (callers, connections) = desk.known();
            tables.desks += desk.in_flight() as u64;
            tables.callers += callers as u64;
            tables.connections += connections as u64;
        }
        tables
    }

    /// The registry stripe in which all events of this copy's race meet.
    pub(crate) fn stripe_of(&self, name: &CopyName) -> &Mutex<TieTable<Arc<HeldCopy>>> {
        self.stripe(&name.race())
    }

    pub(crate) fn stripe(&self, race: &crate::request::tie::Race) -> &Mutex<TieTable<Arc<HeldCopy>>> {
        &self.stripes[race.stripe(STRIPES)]
    }

    /// Early cancels that the rings of all stripes lost to their bounds.
    pub(crate) fn early_cancels_lost(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.lock().recent().cancels_lost_total()).sum()
    }

    pub(crate) fn desk(&self, caller: CallerId) -> &Mutex<Desk<Arc<HeldCopy>>> {
        &self.desks[(caller.0 as usize ^ (caller.0 >> 64) as usize) % DESKS]
    }

    pub(crate) fn lane(&self, copy: &HeldCopy) -> &LaneRoom {
        &self.lanes[usize::from(copy.lane)]
    }

    pub(crate) fn wake(&self, called: Called) {
        match called {
            Called::Nobody => {}
            Called::Worker(worker) => self.workers.get(worker).into_iter().for_each(Unparker::unpark),
            Called::Keeper => self.keeper.unpark(),
        }
    }

    /// What a get takes, where that is known and less than a wake-up.
    pub(crate) fn brisk(&self) -> Option<Duration> {
        let service = self.service_p50();
        (!self.config.device.is_modelled() && !service.is_zero() && service < WAKE_UP).then_some(service)
    }

    pub(crate) fn wake_all(&self) {
        self.workers.iter().chain([&self.keeper]).for_each(Unparker::unpark);
    }

    pub(crate) fn wake_keeper(&self) {
        self.keeper.unpark();
    }

    /// The keeper begins to look: whoever sets a copy aside from here on is seen by its look, or by
    /// [`keeper_sleeps_until`](Self::keeper_sleeps_until), and need not wake it once more.
    pub(crate) fn keeper_looks(&self) {
        self.keeper_until.store(0, SeqCst);
        self.aside_until.store(u64::MAX, SeqCst);
    }

    /// The keeper looked and goes to sleep until `next` (`None`: until it is called), or sooner, as this says, for what
    /// was set aside while it looked.
    pub(crate) fn keeper_sleeps_until(&self, next: Option<Moment>) -> Option<Moment> {
        let next = next.map_or(u64::MAX, |next| next.0);
        self.keeper_until.store(next, SeqCst);
        let sooner = self.aside_until.load(SeqCst);
        if sooner < next {
            self.keeper_until.store(sooner, SeqCst);
        }
        Some(Moment(next.min(sooner))).filter(|until| until.0 < u64::MAX)
    }

    /// A copy was set aside until then: calls the keeper if it would sleep too long, or for what it is due `now`.
    pub(crate) fn call_keeper(&self, until: Moment, now: bool) {
        // First this, then that: a keeper about to sleep does it the other way around.
        self.aside_until.fetch_min(until.0, SeqCst);
        if now || until.0 < self.keeper_until.load(SeqCst) {
            self.wake_keeper();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    pub(crate) fn service_p50(&self) -> Duration {
        Duration::from_nanos(self.service_p50_ns.load(Relaxed))
    }

    /// One good answer's service time. A sample is skipped rather than waited for.
    pub(crate) fn note_service(&self, service: Duration) {
        if let Some(mut median) = self.median.try_lock() {
            median.sample(service);
            self.service_p50_ns.store(median.median().as_nanos() as u64, Relaxed);
        }
    }

    /// A storage read ended.
    pub(crate) fn note_storage(&self, failed: bool, now: Moment) {
        if failed {
            self.counters.storage_errors.add_one();
            self.health_touched.store(true, SeqCst);
            self.health.lock().failed(now);
        } else if self.health_touched.load(Relaxed) {
            self.health.lock().succeeded();
        }
    }

    /// Whether a copy must be refused before its start because storage keeps failing.
    pub(crate) fn storage_refuses(&self, now: Moment) -> bool {
        self.health_touched.load(Relaxed) && self.health.lock().refuses(now)
    }

    /// As [`PathState::storage_refuses`], without using a probe up.
    pub(crate) fn storage_latched(&self, now: Moment) -> bool {
        self.health_touched.load(Relaxed) && self.health.lock().latched(now)
    }

    pub(crate) fn storage_suspect(&self, now: Moment) -> bool {
        self.health_touched.load(Relaxed) && self.health.lock().suspect(now)
    }

    pub(crate) fn set_flags(&self, flags: u8) {
        self.flags.store(flags, Relaxed);
    }

    /// All flags of this node now.
    pub(crate) fn flags(&self, now: Moment) -> u8 {
        let mut all = self.flags.load(Relaxed);
        let own = [
            (self.config.device.is_modelled(), flags::MODELLED),
            (self.is_draining(), flags::DRAINING),
            (self.storage_suspect(now), flags::STORAGE_SUSPECT),
        ];
        own.into_iter().filter(|(set, _)| *set).for_each(|(_, flag)| all |= flag);
        all
    }

    /// A copy is in; it will leave exactly once.
    pub(crate) fn count_in(&self) {
        self.in_flight.fetch_add(1, SeqCst);
    }

    pub(crate) fn count_out(&self) {
        let last = self.in_flight.fetch_sub(1, SeqCst) == 1;
        if last && self.draining.load(SeqCst) {
            let _waits_or_looks_later = self.draining_wait.lock();
            self.none_in_flight.notify_all();
        }
    }

    /// Blocks until nothing is in flight, at most until `deadline`; true when nothing is. Drain first.
    pub(crate) fn wait_for_none(&self, deadline: Moment) -> bool {
        let mut waiting = self.draining_wait.lock();
        while self.in_flight() > 0 {
            if self.none_in_flight.wait_until(&mut waiting, crate::clock::instant(deadline)).timed_out() {
                return self.in_flight() == 0;
            }
        }
        true
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(SeqCst)
    }
}

/// Sorted, each once.
pub(crate) fn sorted(mut members: Vec<NodeId>) -> Vec<NodeId> {
    members.sort_unstable();
    members.dedup();
    members
}

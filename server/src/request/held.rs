//! One copy while it is on this node, and what stands in a lane: copies and background jobs.

use crate::request::barrier::BarrierAnswer;
use crate::request::copy_name::CopyName;
use crate::request::copy_state::CopyState;
use crate::request::doors::Caller;
use crate::storage::disturbance::Job;
use crate::storage::scan::PageProgress;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{Class, ReadRequest};

/// No worker serves the copy.
const NOBODY: u32 = u32::MAX;

/// One copy from admission to its end. One allocation, shared by registry, lane, desk and worker.
pub struct HeldCopy {
    /// The word that start, cancel and withdraw race for.
    pub state: CopyState,
    /// Its name in the registry.
    pub name: CopyName,
    /// Who asked, and where the answer goes.
    pub caller: Caller,
    /// What was asked.
    pub request: ReadRequest,
    /// The lane it is charged to.
    pub lane: u16,
    /// When it was admitted.
    pub admitted: Moment,
    /// When its caller stops waiting, on this node's clock.
    pub deadline: Moment,
    /// What a linearizable read waits for.
    pub barrier: Option<HeldBarrier>,
    /// What a scan has read so far.
    pub page: Option<Box<HeldPage>>,
    // Written by the worker that serves it; the lane's lock orders them between the chunks of one operation.
    started_ns: AtomicU64,
    left_ns: AtomicU64,
    worker: AtomicU32,
    /// The node whose cancel ended it, plus one; 0 for none.
    ended_by: AtomicU64,
}

/// What admission adds to a request.
pub struct Admission {
    /// The lane it is charged to.
    pub lane: u16,
    /// Now.
    pub admitted: Moment,
    /// Receipt and the time left that it is given.
    pub deadline: Moment,
    /// Asked for a linearizable read.
    pub barrier: Option<HeldBarrier>,
    /// Where a scan collects its page.
    pub page: Option<Box<HeldPage>>,
}

/// A page of a scan while it is made. Its place among the pages of the node is free again when it is dropped.
pub struct HeldPage {
    /// What is read so far; locked by the worker that runs a chunk.
    pub progress: Mutex<PageProgress>,
    places: Arc<AtomicU32>,
}

impl HeldPage {
    /// A page, if fewer than `pages_max` are being made; `places` counts them.
    pub fn new(progress: PageProgress, places: &Arc<AtomicU32>, pages_max: u32) -> Option<Box<Self>> {
        let free = |count: u32| (count < pages_max).then_some(count + 1);
        places.fetch_update(Relaxed, Relaxed, free).ok()?;
        Some(Box::new(Self { progress: Mutex::new(progress), places: Arc::clone(places) }))
    }
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        self.places.fetch_sub(1, Relaxed);
    }
}

/// The question asked at admission of a linearizable read.
pub struct HeldBarrier {
    /// Its number within the lane.
    pub number: u64,
    /// Where the answer will stand.
    pub answer: Arc<BarrierAnswer>,
}

impl HeldCopy {
    /// A copy that is about to queue.
    pub fn new(caller: Caller, request: ReadRequest, admission: Admission) -> Self {
        let Admission { lane, admitted, deadline, barrier, page } = admission;
        Self {
            state: CopyState::default(),
            name: CopyName::of(caller.id, caller.connection, &request),
            caller,
            request,
            lane,
            admitted,
            deadline,
            barrier,
            page,
            started_ns: AtomicU64::new(0),
            left_ns: AtomicU64::new(0),
            worker: AtomicU32::new(NOBODY),
            ended_by: AtomicU64::new(0),
        }
    }

    /// It starts now and has this much to be served.
    pub fn begin(&self, now: Moment, service: Duration) {
        self.started_ns.store(now.0.max(1), Relaxed);
        self.set_left(service);
    }

    /// When it started.
    pub fn started(&self) -> Option<Moment> {
        match self.started_ns.load(Relaxed) {
            0 => None,
            started => Some(Moment(started)),
        }
    }

    /// This peer's cancel ends it.
    pub fn note_ended_by(&self, peer: NodeId) {
        self.ended_by.store(peer.0.wrapping_add(1), Relaxed);
    }

    /// Whose cancel ended it, if one did.
    pub fn ended_by(&self) -> Option<NodeId> {
        self.ended_by.load(Relaxed).checked_sub(1).map(NodeId)
    }

    /// Modelled service time that is left.
    pub fn left(&self) -> Duration {
        Duration::from_nanos(self.left_ns.load(Relaxed))
    }

    /// Notes the modelled service time that is left.
    pub fn set_left(&self, left: Duration) {
        self.left_ns.store(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// This worker serves it now: it is woken when the copy has to stop. Call with the stripe locked.
    pub fn served_by(&self, worker: Option<usize>) {
        self.worker.store(worker.map_or(NOBODY, |worker| worker as u32), Relaxed);
    }

    /// Who serves it now. Call with the stripe locked.
    pub fn worker(&self) -> Option<usize> {
        match self.worker.load(Relaxed) {
            NOBODY => None,
            worker => Some(worker as usize),
        }
    }
}

impl AsRef<CopyState> for HeldCopy {
    fn as_ref(&self) -> &CopyState {
        &self.state
    }
}

/// What waits in a lane.
#[derive(Clone)]
pub enum Work {
    /// A copy.
    Copy(Arc<HeldCopy>),
    /// A background job of the modelled disturbance.
    Job(Job),
}

impl Work {
    /// True for a copy of a get.
    pub fn is_get(&self) -> bool {
        matches!(self, Self::Copy(copy) if copy.page.is_none())
    }

    /// The class of a page of a scan.
    pub fn class_of_page(&self) -> Option<Class> {
        match self {
            Self::Copy(copy) if copy.page.is_some() => Some(copy.request.class),
            Self::Copy(_) | Self::Job(_) => None,
        }
    }

    /// True for a copy that ended before its start.
    pub fn is_withdrawn(&self) -> bool {
        match self {
            Self::Copy(copy) => copy.state.phase().is_withdrawn(),
            Self::Job(_) => false,
        }
    }
}

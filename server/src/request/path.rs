//! The public door of the request path: what connections, the cancel channel and the node call.
//!
//! Copies end exactly once: answered, or silent by rule R8 (docs/tie-protocol.md). No call here waits for a
//! queue, a peer or a device.

use crate::request::barrier::ReadBarrier;
use crate::request::config::{BadRequestConfig, RequestConfig};
use crate::request::counters::{Counters, CountersSnapshot};
use crate::request::doors::{Caller, CancelSender};
use crate::storage::state_store::StateStore;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::{Disturbance, ReadRequest};
use tiedkv_protocol::response::{Failure, ReadReply, Service, StartRecord};

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
    /// Per lane.
    pub lanes: Vec<LaneStatus>,
}

/// A page of start records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPage {
    /// Sequence number of the first record here; more than asked for if older ones were overwritten.
    pub first: u64,
    /// Sequence number after the last one recorded so far.
    pub end: u64,
    /// The records.
    pub records: Vec<StartRecord>,
}

/// The request path of one node. Cheap to clone; all clones are one path.
#[derive(Clone)]
pub struct RequestPath {
    inner: Arc<Inner>,
}

struct Inner {
    config: RequestConfig,
    counters: Counters,
}

impl RequestPath {
    /// Starts the workers.
    ///
    /// # Errors
    /// When a setting is out of its bounds or a thread cannot be made.
    pub fn start(config: RequestConfig, _neighbours: Neighbours) -> Result<Self, StartError> {
        config.check()?;
        Ok(Self { inner: Arc::new(Inner { config, counters: Counters::default() }) })
    }

    /// Takes one copy that was received whole at `received`. Its answer, if it gets one, goes to the caller's sink,
    /// possibly before this returns.
    pub fn read(&self, caller: &Caller, request: ReadRequest, _received: Moment) {
        self.inner.counters.received.add_one();
        let service = Service {
            node: self.inner.config.node,
            started: false,
            queue_wait_us: 0,
            service_time_us: 0,
            queue_depth: 0,
            flags: 0,
            unhealthy_pairs: 0,
        };
        let outcome = Err(Failure::new(ErrorCode::TryElsewhere, "this node cannot serve reads yet"));
        self.inner.counters.answered_refused.add_one();
        caller.replies.read_reply(ReadReply { request: request.request, service, outcome }, Bytes::new());
    }

    /// The client waits for these copies no more. Unknown ones are remembered, in case the copy comes later.
    pub fn withdraw(&self, _caller: &Caller, _requests: &[RequestId]) {}

    /// The connection is gone: withdraws all of its copies. Call once, after its last `read`.
    pub fn connection_lost(&self, _caller: &Caller) {}

    /// A cancel arrived on the channel that `from` was authenticated on. Call it from the channel's own thread.
    pub fn cancel(&self, _from: NodeId, _cancel: Cancel) {}

    /// The membership changed.
    pub fn set_members(&self, _members: Vec<NodeId>) {}

    /// Bits of [`tiedkv_protocol::response::flags`] that the operator or the node adds to every answer
    /// (`TIES_OFF`, `NO_EXTRA_COPIES`, `TOPOLOGY_CHANGED`).
    pub fn set_flags(&self, _flags: u8) {}

    /// All flags of this node now: for pongs.
    pub fn flags(&self) -> u8 {
        0
    }

    /// Disturbs a modelled device from now on.
    ///
    /// # Errors
    /// `NotAllowed` on a real device or when the node was not started so; `OverLimit` for values out of bounds.
    pub fn disturb(&self, _disturbance: Disturbance) -> Result<(), Failure> {
        Err(Failure::new(ErrorCode::NotAllowed, "the device of this node is real; it cannot be disturbed"))
    }

    /// Makes every storage read fail, or work again: for tests.
    pub fn fail_reads(&self, _on: bool) {}

    /// Starts (emptying what was kept) or stops the recording of start records.
    pub fn record_starts(&self, _on: bool) {}

    /// Records from sequence number `from`, at most `count_max`.
    pub fn take_starts(&self, _from: u64, _count_max: usize) -> StartPage {
        StartPage::default()
    }

    /// The counters.
    pub fn counters(&self) -> CountersSnapshot {
        self.inner.counters.snapshot()
    }

    /// The state of lanes and storage.
    pub fn status(&self) -> PathStatus {
        PathStatus {
            modelled: false,
            draining: false,
            storage_suspect: false,
            storage_latched: false,
            in_flight: self.counters().in_flight(),
            service_p50_us: 0,
            lanes: Vec::new(),
        }
    }

    /// From now on new copies are answered `TryElsewhere` and every answer carries `DRAINING`.
    pub fn drain(&self) {}

    /// Drains, lets what is in flight finish for at most `patience`, answers the rest `TryElsewhere`, and ends the
    /// workers. Blocks; call it from a thread that may.
    pub fn stop(&self, _patience: Duration) {}
}

//! A simulated node: the driver around the shipped rooms of a server (registry of ties, lanes, copies set aside,
//! device and its disturbance).
//!
//! It stands where the worker threads and connections of a real node stand; every decision about a copy is taken by
//! the shipped rooms. Planted bugs are put in here, beside the rooms.

use crate::sim::config::{Planted, WorldConfig};
use crate::sim::wire::{CopyMessage, CopySight, NodeOut, Reply, Sight, ToClient, Wake};
use std::collections::BTreeMap;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, RequestId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::{Class, Disturbance};
use tiedkv_protocol::response::Service;
use tiedkv_protocol::tie::CopyNumber;
use tiedkv_server::request::copy_name::{CopyName, Race, Which};
use tiedkv_server::request::copy_state::{Phase, StateCell, Verdict, Waited};
use tiedkv_server::request::counters::Counters;
use tiedkv_server::request::lane::{Lane, Pushed, Waiting};
use tiedkv_server::request::recent_ties::Filer;
use tiedkv_server::request::set_aside::SetAside;
use tiedkv_server::request::tie::{
    Arrival, Arriving, CancelOutcome, HandOver, TieSettings, TieTable, WithdrawOutcome,
};
use tiedkv_server::storage::device::ModelledConfig;
use tiedkv_server::storage::disturbance::{DevicePhase, Job, LaneDisturbance, LaneName};
use tiedkv_server::storage::key::LaneOfKey;

/// An entry of a lane.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Copy(CopyName),
    Job(Duration),
}

/// What a worker serves.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    /// `None` for a job.
    pub(crate) copy: Option<CopyName>,
    pub(crate) left: Duration,
    pub(crate) chunk_left: Duration,
    pub(crate) since: Moment,
    pub(crate) phase: DevicePhase,
    /// Asked to stop while its device stands still.
    pub(crate) stops: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) serving: Option<Serving>,
    pub(crate) epoch: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SimLane {
    pub(crate) queue: Lane<Item>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) disturbance: LaneDisturbance,
}

/// What a node knows of a copy beside the registry.
#[derive(Clone, Debug)]
pub(crate) struct CopyInfo {
    pub(crate) message: CopyMessage,
    pub(crate) connection: u64,
    pub(crate) caller: CallerId,
    pub(crate) lane: u16,
    pub(crate) admitted: Moment,
    pub(crate) started: Option<Moment>,
    pub(crate) left: Duration,
}

/// One node. A crash replaces it by a new one of the same identity.
pub struct Node {
    /// Its identity.
    pub id: NodeId,
    /// The shipped counters; they balance at rest.
    pub counters: Counters,
    /// What it has applied.
    pub applied: Position,
    /// Storage reads fail fast.
    pub fails: bool,
    /// Judges every deadline as over.
    pub wrong_clock: bool,
    pub(crate) table: TieTable<Phase>,
    pub(crate) lanes: Vec<SimLane>,
    pub(crate) aside: SetAside<Item>,
    pub(crate) copies: BTreeMap<CopyName, CopyInfo>,
    names: BTreeMap<(u64, RequestId), CopyName>,
    key_lane: LaneOfKey,
    pub(crate) device: ModelledConfig,
    pub(crate) chunk_max: Duration,
    pub(crate) planted: Option<Planted>,
}

impl Node {
    /// A node that just started.
    pub fn new(id: NodeId, config: &WorldConfig, now: Moment) -> Self {
        let device = ModelledConfig { mean_service: config.service, seed: config.seed, disturbance_allowed: true };
        let lane = |_| SimLane {
            queue: Lane::new(config.queue_max),
            workers: vec![Worker::default(); config.workers],
            disturbance: LaneDisturbance::quiet(),
        };
        let mut node = Self {
            id,
            counters: Counters::default(),
            applied: Position(0),
            fails: false,
            wrong_clock: false,
            table: TieTable::new(TieSettings::of_stripes(1)),
            lanes: (0..config.lanes).map(lane).collect(),
            aside: SetAside::new(8, Position(0)),
            copies: BTreeMap::new(),
            names: BTreeMap::new(),
            key_lane: LaneOfKey::new(id, config.lanes),
            device,
            chunk_max: config.chunk_max,
            planted: config.planted,
        };
        node.disturb(&config.disturbance, now);
        node
    }

    /// Disturbs all lanes from now on.
    pub fn disturb(&mut self, asked: &Disturbance, now: Moment) {
        for (number, lane) in (0..).zip(&mut self.lanes) {
            let name = LaneName { node: self.id, lane: number, workers: lane.workers.len() as u16 };
            lane.disturbance = LaneDisturbance::new(asked, &self.device, name, now, now.0);
        }
    }

    /// The first wake-ups of a node that starts.
    pub fn begin(&self, out: &mut Vec<NodeOut>) {
        for (lane, state) in (0..).zip(&self.lanes) {
            if let Some(at) = state.disturbance.next_job() {
                out.push(NodeOut::Wake { at, wake: Wake::Job { lane } });
            }
        }
    }

    /// A copy arrives.
    pub fn copy(
        &mut self,
        caller: CallerId,
        connection: u64,
        copy: CopyMessage,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        self.counters.received.add_one();
        let which = match &copy.tie {
            Some(tie) => Which::Tied { tie: tie.id, number: tie.number },
            None => Which::Untied { connection, request: copy.request },
        };
        let name = CopyName { caller, which };
        let lane = self.key_lane.lane(&copy.key.to_be_bytes());
        // How slow the device is counts at the start, as on a node.
        let left = self.device.service(copy.read);
        let (class, extra, tie) = (Class::Interactive, copy.kind.is_extra(), copy.tie.clone());
        let deadline = now + if self.wrong_clock { Duration::ZERO } else { copy.time_left };
        let info = CopyInfo { message: copy, connection, caller, lane, admitted: now, started: None, left };
        let sight = sight(&info);
        let arriving = Arriving { name, tie, deadline, copy: Phase::Queued };
        match self.table.arrive(arriving, now) {
            Arrival::Queue => {}
            Arrival::CancelledEarly { .. } => {
                self.counters.early_dropped.add_one();
                return out.push(NodeOut::Saw(Sight::DroppedEarly(sight)));
            }
            Arrival::WithdrawnEarly => {
                self.counters.withdrawn.add_one();
                return out.push(NodeOut::Saw(Sight::Withdrawn(sight)));
            }
            Arrival::Duplicate => {
                out.push(NodeOut::Saw(Sight::Met(sight)));
                return self.answer(&info, Err((ErrorCode::Duplicate, Duration::ZERO)), now, out);
            }
        }
        self.names.insert((connection, info.message.request), name);
        self.copies.insert(name, info);
        out.push(NodeOut::Saw(Sight::Queued(sight)));
        let table = &self.table;
        let pushed =
            self.lanes[usize::from(lane)].queue.push(Item::Copy(name), class, extra, |item| gone(table, item));
        match pushed {
            Pushed::Queued => {}
            Pushed::Refused(item) | Pushed::QueuedInsteadOf(item) => {
                if let Item::Copy(shed) = item
                    && self.table.refuse(&shed, now) == Verdict::Answer
                {
                    self.end_answered(&shed, Err((ErrorCode::Busy, self.device.mean_service)), now, out);
                }
            }
        }
        self.dispatch(lane, now, out);
    }

    /// The client waits for these no more.
    pub fn withdraw(&mut self, connection: u64, requests: &[RequestId], now: Moment, out: &mut Vec<NodeOut>) {
        for request in requests {
            // In one ordered stream an unknown one has ended; nothing is kept of it.
            if let Some(name) = self.names.get(&(connection, *request)).copied() {
                self.withdraw_copy(&name, now, out);
            }
        }
    }

    /// The connection is gone.
    pub fn connection_lost(&mut self, connection: u64, now: Moment, out: &mut Vec<NodeOut>) {
        let range = (connection, RequestId(0))..=(connection, RequestId(u64::MAX));
        let names: Vec<CopyName> = self.names.range(range).map(|(_, name)| *name).collect();
        for name in names {
            self.withdraw_copy(&name, now, out);
        }
    }

    fn withdraw_copy(&mut self, name: &CopyName, now: Moment, out: &mut Vec<NodeOut>) {
        let Some(sight) = self.copies.get(name).map(sight) else { return };
        out.push(NodeOut::Saw(Sight::Withdrawn(sight)));
        match self.table.withdraw(name, now) {
            WithdrawOutcome::Withdrawn { waited, .. } => {
                self.counters.withdrawn.add_one();
                self.left_queue(name, waited == Waited::Queued);
                self.forget(name);
            }
            WithdrawOutcome::Stop { .. } => self.interrupt(name, now, out),
            WithdrawOutcome::Filed(_) | WithdrawOutcome::Ignored => {}
        }
    }

    /// A cancel arrives.
    pub fn cancel(&mut self, from: NodeId, cancel: Cancel, now: Moment, out: &mut Vec<NodeOut>) {
        self.counters.cancels_received.add_one();
        if self.planted == Some(Planted::WaitingChunkCountsAsQueued) {
            self.plant_waiting_chunk(&cancel);
        }
        let outcome = self.table.cancel(from, &cancel, now);
        match outcome {
            CancelOutcome::Filed(_) => {
                self.counters.cancels_filed.add_one();
                if self.planted == Some(Planted::NoEarlyCancels) {
                    self.table.recent_mut().evict(&Race::of_cancel(&cancel), Filer::Peer(from));
                }
            }
            CancelOutcome::Withdrawn { waited, .. } => {
                if let Some(name) = self.name_of(&cancel) {
                    self.saw(&name, Sight::Cancelled, out);
                    self.counters.cancelled.add_one();
                    self.left_queue(&name, waited == Waited::Queued);
                    self.forget(&name);
                }
            }
            CancelOutcome::Yield { .. } => self.yield_copy(&cancel, now, out),
            CancelOutcome::CancelBack(back) => {
                if self.planted == Some(Planted::RunningYieldsToAny) {
                    if let Some(name) = self.name_of(&cancel)
                        && let Some(copy) = self.table.copy_mut(&name)
                    {
                        copy.step(Phase::give_way);
                    }
                    return self.yield_copy(&cancel, now, out);
                }
                self.counters.cancels_sent_back.add_one();
                self.hand_over(back, out);
            }
            CancelOutcome::Equal | CancelOutcome::Stranger => self.counters.cancels_ignored.add_one(),
            CancelOutcome::Ignored => {}
        }
    }

    fn yield_copy(&mut self, cancel: &Cancel, now: Moment, out: &mut Vec<NodeOut>) {
        if let Some(name) = self.name_of(cancel) {
            self.counters.duplicates_seen.add_one();
            self.saw(&name, Sight::YieldAsked, out);
            self.interrupt(&name, now, out);
        }
    }

    /// Something the node asked to be woken for.
    pub fn wake(&mut self, wake: Wake, now: Moment, out: &mut Vec<NodeOut>) {
        match wake {
            Wake::Worker { lane, worker, epoch } => self.phase_over(lane, worker, epoch, now, out),
            Wake::Lane { lane } => self.dispatch(lane, now, out),
            Wake::Job { lane } => {
                let table = &self.table;
                let state = &mut self.lanes[usize::from(lane)];
                while let Some(Job { service, class, .. }) = state.disturbance.job_due(now) {
                    match state.queue.push(Item::Job(service), class, false, |item| gone(table, item)) {
                        Pushed::Queued => {}
                        Pushed::Refused(_) => self.counters.jobs_dropped.add_one(),
                        Pushed::QueuedInsteadOf(_) => self.counters.jobs_dropped.add_one(),
                    }
                }
                if let Some(at) = state.disturbance.next_job() {
                    out.push(NodeOut::Wake { at, wake: Wake::Job { lane } });
                }
                self.dispatch(lane, now, out);
            }
            Wake::Aside => {
                while let Some(waiting) = self.aside.expired(now) {
                    let Item::Copy(name) = waiting.item else { continue };
                    if self.table.refuse(&name, now) == Verdict::Answer {
                        self.end_answered(&name, Err((ErrorCode::Behind, Duration::ZERO)), now, out);
                    }
                }
            }
        }
    }

    /// The replica has applied up to here.
    pub fn applied(&mut self, position: Position, now: Moment, out: &mut Vec<NodeOut>) {
        self.applied = self.applied.max(position);
        while let Some(waiting) = self.aside.applied(self.applied) {
            self.back_to_lane(waiting, now, out);
        }
    }

    pub(crate) fn back_to_lane(&mut self, waiting: Waiting<Item>, now: Moment, out: &mut Vec<NodeOut>) {
        let Item::Copy(name) = waiting.item else { return };
        if !self.table.queue_again(&name) {
            return;
        }
        let Some(lane) = self.copies.get(&name).map(|info| info.lane) else { return };
        self.lanes[usize::from(lane)].queue.put_back(waiting);
        self.dispatch(lane, now, out);
    }

    pub(crate) fn hand_over(&mut self, hand_over: HandOver, out: &mut Vec<NodeOut>) {
        for to in hand_over.to {
            out.push(NodeOut::Saw(Sight::CancelSent { to, cancel: hand_over.cancel }));
            out.push(NodeOut::Cancel { to, cancel: hand_over.cancel });
        }
    }

    pub(crate) fn end_answered(
        &mut self,
        name: &CopyName,
        outcome: Result<Position, (ErrorCode, Duration)>,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        let Some(info) = self.forget(name) else { return };
        out.push(NodeOut::Saw(Sight::Answered {
            copy: sight(&info),
            good: outcome.is_ok(),
            started: info.started.is_some(),
            code: outcome.as_ref().err().map(|(code, _)| *code),
            position: outcome.as_ref().ok().copied().unwrap_or(Position(0)),
            need: info.message.need,
        }));
        self.answer(&info, outcome, now, out);
    }

    fn answer(
        &mut self,
        info: &CopyInfo,
        outcome: Result<Position, (ErrorCode, Duration)>,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        let counter = match &outcome {
            Ok(_) => &self.counters.answered_good,
            Err((ErrorCode::Expired, _)) => &self.counters.answered_expired,
            Err(_) if info.started.is_some() => &self.counters.answered_failed,
            Err(_) => &self.counters.answered_refused,
        };
        counter.add_one();
        let began = info.started.unwrap_or(now);
        let served = now.since(began);
        if outcome.is_ok() {
            self.counters.service_time_us.add_time(served);
        }
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let service = Service {
            node: self.id,
            started: info.started.is_some(),
            queue_wait_us: micros(began.since(info.admitted)),
            service_time_us: if info.started.is_some() { micros(served) } else { 0 },
            queue_depth: self.lanes[usize::from(info.lane)].queue.live() as u32,
            flags: 0,
            unhealthy_pairs: 0,
        };
        let reply = Reply { request: info.message.request, service, outcome };
        out.push(NodeOut::Send { connection: info.connection, message: ToClient::Reply(reply) });
    }

    pub(crate) fn end_silent(&mut self, name: &CopyName, verdict: Verdict, now: Moment, out: &mut Vec<NodeOut>) {
        let served = self.copies.get(name).and_then(|info| info.started).map(|started| now.since(started));
        match verdict {
            Verdict::Yielded => {
                self.counters.yielded.add_one();
                self.saw(name, Sight::Yielded, out);
            }
            Verdict::Withdrawn => {
                self.counters.withdrawn.add_one();
                self.counters.withdrawn_running.add_one();
            }
            Verdict::Answer | Verdict::GoOn | Verdict::Over => self.saw(name, Sight::Vanished, out),
        }
        self.counters.wasted_us.add_time(served.unwrap_or_default());
        self.forget(name);
    }

    pub(crate) fn saw(&self, name: &CopyName, make: fn(CopySight) -> Sight, out: &mut Vec<NodeOut>) {
        if let Some(info) = self.copies.get(name) {
            out.push(NodeOut::Saw(make(sight(info))));
        }
    }

    pub(crate) fn forget(&mut self, name: &CopyName) -> Option<CopyInfo> {
        let info = self.copies.remove(name)?;
        self.names.remove(&(info.connection, info.message.request));
        Some(info)
    }

    fn left_queue(&mut self, name: &CopyName, queued: bool) {
        if queued && let Some(info) = self.copies.get(name) {
            self.lanes[usize::from(info.lane)].queue.withdrawn();
        }
    }

    fn name_of(&self, cancel: &Cancel) -> Option<CopyName> {
        let race = Race::of_cancel(cancel);
        (0..3)
            .map(|number| CopyName {
                caller: race.caller,
                which: Which::Tied { tie: cancel.tie, number: CopyNumber(number) },
            })
            .find(|name| self.copies.contains_key(name))
    }

    /// The bug: a started copy that waits in its lane for its next chunk is taken for a queued one.
    fn plant_waiting_chunk(&mut self, cancel: &Cancel) {
        let Some(name) = self.name_of(cancel) else { return };
        let serves = |worker: &Worker| worker.serving.as_ref().is_some_and(|one| one.copy == Some(name));
        let on_worker = self.lanes.iter().any(|lane| lane.workers.iter().any(serves));
        if let Some(copy) = self.table.copy_mut(&name)
            && copy.phase().is_running()
            && !on_worker
        {
            *copy = Phase::Queued;
        }
    }

    /// What is left on a node; empty at rest.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{}: {count} {what}", self.id));
            }
        };
        note("copies in the registry", self.table.len());
        note("copies known", self.copies.len());
        note("requests known", self.names.len());
        for lane in &self.lanes {
            let copies = lane
                .queue
                .iter()
                .filter(|(.., item)| matches!(item, Item::Copy(name) if self.table.copy(name).is_some()));
            note("copies in a lane", copies.count());
            note("busy workers", lane.workers.iter().filter(|worker| worker.serving.is_some()).count());
        }
        let aside = self.aside.iter().filter(|(_, waiting)| !gone(&self.table, &waiting.item));
        note("copies set aside", aside.count());
        left
    }
}

/// Withdrawn, or ended otherwise: an entry to be dropped.
pub(crate) fn gone(table: &TieTable<Phase>, item: &Item) -> bool {
    match item {
        Item::Job(_) => false,
        Item::Copy(name) => table.copy(name).is_none_or(|copy| copy.is_withdrawn()),
    }
}

fn sight(info: &CopyInfo) -> CopySight {
    CopySight {
        read: info.message.read,
        tie: info.message.tie.as_ref().map(|tie| (tie.id, tie.number)),
        connection: info.connection,
        request: info.message.request,
        caller: info.caller,
    }
}

pub(crate) fn name_bits(name: &CopyName) -> u64 {
    match name.which {
        Which::Tied { tie, .. } => tie.0 as u64,
        Which::Untied { request, .. } => request.0,
    }
}

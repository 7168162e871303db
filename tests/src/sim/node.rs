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
use tiedkv_protocol::limits::TIE_DELAY_CAP;
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
use tiedkv_server::request::set_aside::{Inserted, Need, SetAside};
use tiedkv_server::request::tie::{
    Arrival, Arriving, CancelOutcome, HandOver, Servable, Start, TieSettings, TieTable, WithdrawOutcome,
};
use tiedkv_server::storage::device::ModelledConfig;
use tiedkv_server::storage::disturbance::{DevicePhase, Job, LaneDisturbance, LaneName};
use tiedkv_server::storage::key::LaneOfKey;

/// An entry of a lane.
#[derive(Clone, Debug)]
enum Item {
    Copy(CopyName),
    Job(Duration),
}

/// What a worker serves.
#[derive(Clone, Debug)]
struct Serving {
    /// `None` for a job.
    copy: Option<CopyName>,
    left: Duration,
    chunk_left: Duration,
    since: Moment,
    phase: DevicePhase,
    /// Asked to stop while its device stands still.
    stops: bool,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    serving: Option<Serving>,
    epoch: u64,
}

#[derive(Clone, Debug)]
struct SimLane {
    queue: Lane<Item>,
    workers: Vec<Worker>,
    disturbance: LaneDisturbance,
}

/// What a node knows of a copy beside the registry.
#[derive(Clone, Debug)]
struct CopyInfo {
    message: CopyMessage,
    connection: u64,
    caller: CallerId,
    lane: u16,
    admitted: Moment,
    started: Option<Moment>,
    left: Duration,
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
    table: TieTable<Phase>,
    lanes: Vec<SimLane>,
    aside: SetAside<Item>,
    copies: BTreeMap<CopyName, CopyInfo>,
    names: BTreeMap<(u64, RequestId), CopyName>,
    key_lane: LaneOfKey,
    device: ModelledConfig,
    chunk_max: Duration,
    planted: Option<Planted>,
}

impl Node {
    /// A node that just started.
    pub fn new(id: NodeId, config: &WorldConfig, now: Moment) -> Self {
        let device =
            ModelledConfig { mean_service: config.service, seed: config.seed, disturbance_allowed: true };
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
    pub fn copy(&mut self, caller: CallerId, connection: u64, copy: CopyMessage, now: Moment, out: &mut Vec<NodeOut>) {
        self.counters.received.add_one();
        let which = match &copy.tie {
            Some(tie) => Which::Tied { tie: tie.id, number: tie.number },
            None => Which::Untied { connection, request: copy.request },
        };
        let name = CopyName { caller, which };
        let lane = self.key_lane.lane(&copy.key.to_be_bytes());
        let service = self.device.service(copy.read);
        let left = self.lanes[usize::from(lane)].disturbance.pace.slowed(service);
        let (class, extra, tie) = (Class::Interactive, copy.kind.is_extra(), copy.tie.clone());
        let deadline = now + if self.wrong_clock { Duration::ZERO } else { copy.time_left };
        let info = CopyInfo { message: copy, connection, caller, lane, admitted: now, started: None, left };
        let sight = sight(&info);
        let arriving = Arriving { name, tie, connection, deadline, copy: Phase::Queued };
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

    fn back_to_lane(&mut self, waiting: Waiting<Item>, now: Moment, out: &mut Vec<NodeOut>) {
        let Item::Copy(name) = waiting.item else { return };
        if !self.table.queue_again(&name) {
            return;
        }
        let Some(lane) = self.copies.get(&name).map(|info| info.lane) else { return };
        self.lanes[usize::from(lane)].queue.put_back(waiting);
        self.dispatch(lane, now, out);
    }

    fn dispatch(&mut self, lane: u16, now: Moment, out: &mut Vec<NodeOut>) {
        loop {
            let table = &self.table;
            let state = &mut self.lanes[usize::from(lane)];
            let Some(worker) = state.workers.iter().position(|worker| worker.serving.is_none()) else { return };
            if let Some(at) = state.disturbance.pace.start_stalled_until(now) {
                if state.queue.live() > 0 {
                    out.push(NodeOut::Wake { at, wake: Wake::Lane { lane } });
                }
                return;
            }
            let Some(waiting) = state.queue.pop(|item| gone(table, item)) else { return };
            match waiting.item {
                Item::Job(service) => {
                    let left = state.disturbance.pace.slowed(service);
                    self.serve(lane, worker, None, left, now, out);
                }
                Item::Copy(name) => self.start(name, waiting, (lane, worker), now, out),
            }
        }
    }

    fn start(
        &mut self,
        name: CopyName,
        waiting: Waiting<Item>,
        (lane, worker): (u16, usize),
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        let Some(info) = self.copies.get(&name) else { return };
        let (need, left) = (info.message.need, info.left);
        let servable = if need <= self.applied { Servable::Now } else { Servable::NotYet };
        match self.table.start(&name, servable, self.device.mean_service, now) {
            Start::Run(hand_over) => {
                self.counters.started.add_one();
                self.saw(&name, Sight::Started, out);
                if let Some(hand_over) = hand_over
                    && self.planted != Some(Planted::StartWithoutCancel)
                {
                    self.counters.cancels_sent.add(hand_over.to.len() as u64);
                    self.hand_over(hand_over, out);
                }
                let left = if self.fails { Duration::from_micros(50) } else { left };
                if let Some(info) = self.copies.get_mut(&name) {
                    info.started = Some(now);
                    info.left = left;
                }
                self.serve(lane, worker, Some(name), left, now, out);
            }
            Start::RunsOn => self.serve(lane, worker, Some(name), left, now, out),
            Start::Stopped(verdict) => self.end_silent(&name, verdict, now, out),
            Start::Overdue | Start::Expired if self.planted == Some(Planted::ExpiresSilently) => {
                self.saw(&name, Sight::Vanished, out);
                self.counters.withdrawn.add_one();
                self.forget(&name);
            }
            Start::Overdue | Start::Expired => {
                self.end_answered(&name, Err((ErrorCode::Expired, Duration::ZERO)), now, out);
            }
            Start::SetAside { until } => self.set_aside(&name, waiting, until, now, out),
            Start::Behind => self.end_answered(&name, Err((ErrorCode::Behind, Duration::ZERO)), now, out),
            Start::Gone => self.lanes[usize::from(lane)].queue.dropped(),
        }
    }

    fn set_aside(
        &mut self,
        name: &CopyName,
        waiting: Waiting<Item>,
        until: Moment,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        let Some(info) = self.copies.get(name) else { return };
        self.counters.set_aside.add_one();
        if self.planted == Some(Planted::SetAsideCancels)
            && let Some(tie) = &info.message.tie
        {
            let cancel = Cancel { caller: info.caller, tie: tie.id, number: tie.number };
            let to = tie.cancelled_by_start().collect();
            self.hand_over(HandOver { to, cancel }, out);
        }
        let need = Need::Position(self.copies.get(name).map_or(Position(0), |info| info.message.need));
        let table = &self.table;
        match self.aside.insert(waiting, need, until, |item| gone(table, item)) {
            Inserted::Waits => out.push(NodeOut::Wake { at: until, wake: Wake::Aside }),
            Inserted::Servable(waiting) => self.back_to_lane(waiting, now, out),
            Inserted::Full(_) => {
                if self.table.refuse(name, now) == Verdict::Answer {
                    self.end_answered(name, Err((ErrorCode::Behind, Duration::ZERO)), now, out);
                }
            }
        }
    }

    /// A worker takes up an operation or its next chunk.
    fn serve(
        &mut self,
        lane: u16,
        worker: usize,
        copy: Option<CopyName>,
        left: Duration,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        let chunk_left = if copy.is_some() { self.chunk_max.min(left) } else { left };
        let state = &mut self.lanes[usize::from(lane)];
        let phase = state.disturbance.pace.phase(now, chunk_left);
        if let DevicePhase::Stalled(until) = phase {
            out.push(NodeOut::Saw(Sight::StalledStart { place: (lane, worker), until }));
        }
        let worker_state = &mut state.workers[worker];
        worker_state.epoch += 1;
        let epoch = worker_state.epoch;
        worker_state.serving = Some(Serving { copy, left, chunk_left, since: now, phase, stops: false });
        let (DevicePhase::Stalled(at) | DevicePhase::Serving(at)) = phase;
        out.push(NodeOut::Wake { at, wake: Wake::Worker { lane, worker, epoch } });
    }

    fn phase_over(&mut self, lane: u16, worker: usize, epoch: u64, now: Moment, out: &mut Vec<NodeOut>) {
        let state = &mut self.lanes[usize::from(lane)];
        let Some(worker_state) = state.workers.get_mut(worker).filter(|worker| worker.epoch == epoch) else { return };
        let Some(serving) = &mut worker_state.serving else { return };
        if matches!(serving.phase, DevicePhase::Serving(_)) {
            let served = now.since(serving.since);
            serving.left = serving.left.saturating_sub(served);
            serving.chunk_left = serving.chunk_left.saturating_sub(served);
        }
        let done = serving.left.is_zero();
        if !serving.stops && !done && !serving.chunk_left.is_zero() {
            // A stall began or ended in the middle.
            serving.since = now;
            serving.phase = state.disturbance.pace.phase(now, serving.chunk_left);
            let (DevicePhase::Stalled(at) | DevicePhase::Serving(at)) = serving.phase;
            worker_state.epoch += 1;
            let epoch = worker_state.epoch;
            return out.push(NodeOut::Wake { at, wake: Wake::Worker { lane, worker, epoch } });
        }
        let Some(serving) = worker_state.serving.take() else { return };
        match serving.copy {
            None => self.counters.jobs_done.add_one(),
            Some(name) => self.copy_over(&name, &serving, done && !serving.stops, lane, now, out),
        }
        self.dispatch(lane, now, out);
    }

    /// A copy's work or chunk is done, or it stops.
    fn copy_over(
        &mut self,
        name: &CopyName,
        serving: &Serving,
        done: bool,
        lane: u16,
        now: Moment,
        out: &mut Vec<NodeOut>,
    ) {
        if done {
            let verdict = self.table.finish(name, now);
            if verdict != Verdict::Answer {
                return self.end_silent(name, verdict, now, out);
            }
            // A replica that fails fast answers with codes of refusals too: only `started` tells them apart.
            let code = if name_bits(name) % 2 == 0 { ErrorCode::Storage } else { ErrorCode::Busy };
            let outcome = if self.fails { Err((code, Duration::ZERO)) } else { Ok(self.applied) };
            return self.end_answered(name, outcome, now, out);
        }
        match self.table.stop(name, now) {
            Verdict::GoOn => {
                if let Some(info) = self.copies.get_mut(name) {
                    info.left = serving.left;
                }
                self.lanes[usize::from(lane)].queue.push_again(Item::Copy(*name), Class::Interactive);
            }
            verdict => self.end_silent(name, verdict, now, out),
        }
    }

    /// A running copy was asked to stop: at once if it is being served, at the end of a stall, or at its next pop.
    fn interrupt(&mut self, name: &CopyName, now: Moment, out: &mut Vec<NodeOut>) {
        let Some(lane) = self.copies.get(name).map(|info| info.lane) else { return };
        let holds =
            |worker: &Worker| worker.serving.as_ref().is_some_and(|serving| serving.copy.as_ref() == Some(name));
        let state = &mut self.lanes[usize::from(lane)];
        let Some(worker) = state.workers.iter_mut().find(|worker| holds(worker)) else { return };
        let Some(serving) = &mut worker.serving else { return };
        let stalled = matches!(serving.phase, DevicePhase::Stalled(_));
        if stalled && self.planted != Some(Planted::StallEndedByYield) {
            serving.stops = true;
            return;
        }
        worker.epoch += 1;
        worker.serving = None;
        let verdict = self.table.stop(name, now);
        self.end_silent(name, verdict, now, out);
        self.dispatch(lane, now, out);
    }

    fn hand_over(&mut self, hand_over: HandOver, out: &mut Vec<NodeOut>) {
        for to in hand_over.to {
            out.push(NodeOut::Saw(Sight::CancelSent { to, cancel: hand_over.cancel }));
            out.push(NodeOut::Cancel { to, cancel: hand_over.cancel });
        }
    }

    fn end_answered(
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

    fn end_silent(&mut self, name: &CopyName, verdict: Verdict, now: Moment, out: &mut Vec<NodeOut>) {
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

    fn saw(&self, name: &CopyName, make: fn(CopySight) -> Sight, out: &mut Vec<NodeOut>) {
        if let Some(info) = self.copies.get(name) {
            out.push(NodeOut::Saw(make(sight(info))));
        }
    }

    fn forget(&mut self, name: &CopyName) -> Option<CopyInfo> {
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
            let copies = lane.queue.iter().filter(|(.., item)| matches!(item, Item::Copy(name) if self.table.copy(name).is_some()));
            note("copies in a lane", copies.count());
            note("busy workers", lane.workers.iter().filter(|worker| worker.serving.is_some()).count());
        }
        let aside = self.aside.iter().filter(|(_, waiting)| !gone(&self.table, &waiting.item));
        note("copies set aside", aside.count());
        left
    }
}

/// Withdrawn, or ended otherwise: an entry to be dropped.
fn gone(table: &TieTable<Phase>, item: &Item) -> bool {
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

fn name_bits(name: &CopyName) -> u64 {
    match name.which {
        Which::Tied { tie, .. } => tie.0 as u64,
        Which::Untied { request, .. } => request.0,
    }
}

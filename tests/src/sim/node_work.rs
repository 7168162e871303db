//! The workers of a simulated node: pop, start, serve in chunks, stop, finish.
//!
//! Stands where the worker threads of a real node stand; the decisions are the shipped rooms'.

use crate::sim::config::Planted;
use crate::sim::node::{Item, Node, Serving, Worker, gone, name_bits};
use crate::sim::wire::{NodeOut, Sight, Wake};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::Class;
use tiedkv_server::request::copy_name::CopyName;
use tiedkv_server::request::copy_state::Verdict;
use tiedkv_server::request::lane::Waiting;
use tiedkv_server::request::set_aside::{Inserted, Need};
use tiedkv_server::request::tie::{HandOver, Servable, Start};
use tiedkv_server::storage::disturbance::DevicePhase;

impl Node {
    pub(crate) fn dispatch(&mut self, lane: u16, now: Moment, out: &mut Vec<NodeOut>) {
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
                let slowed = self.lanes[usize::from(lane)].disturbance.pace.slowed(left);
                let left = if self.fails { Duration::from_micros(50) } else { slowed };
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

    pub(crate) fn phase_over(&mut self, lane: u16, worker: usize, epoch: u64, now: Moment, out: &mut Vec<NodeOut>) {
        let state = &mut self.lanes[usize::from(lane)];
        let Some(worker_state) = state.workers.get_mut(worker).filter(|worker| worker.epoch == epoch) else {
            return;
        };
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
            let code = if name_bits(name).is_multiple_of(2) { ErrorCode::Storage } else { ErrorCode::Busy };
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
    pub(crate) fn interrupt(&mut self, name: &CopyName, now: Moment, out: &mut Vec<NodeOut>) {
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
}

//! A simulated client process: the driver around the shipped rooms of the client (engine, race, pace).
//!
//! It stands where `tied_read` and the connections of a real client stand: requests and their numbers, links that
//! break and fall silent, pings, timers, withdraws. Every decision about a read is taken by the shipped rooms.

use crate::sim::client_link::{Link, Links, OutCopy};
use crate::sim::config::{Planted, WorldConfig};
use crate::sim::wire::{CopyMessage, Reply, ToNode};
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tiedkv_client::copies::{Action, Actions, Answer, CopyIndex, Event, Outcome, Timer};
use tiedkv_client::engine::{Asked, Decision, Engine, Replica};
use tiedkv_client::learn::Ended;
use tiedkv_client::pace::{Pace, PaceSettings};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::race::Race;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, ReadId, RequestId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{CopyKind, ReadLevel};
use tiedkv_protocol::response::{Failure, Found, Service};

/// Which read of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadKey(pub u64);

/// What a client does, in order.
#[derive(Clone, Debug)]
pub enum ClientOut {
    /// Send on the current connection to a node.
    Send {
        /// To which node (index).
        node: usize,
        /// On which connection.
        connection: u64,
        /// What.
        message: ToNode,
    },
    /// Come back then.
    Timer {
        /// When.
        at: Moment,
        /// Of which read.
        read: ReadKey,
        /// Which of its timers.
        timer: Timer,
    },
    /// Look at a link then.
    LookAtLink {
        /// When.
        at: Moment,
        /// To which node (index).
        node: usize,
    },
    /// A read ended.
    Ended(Box<EndedRead>),
}

/// How a read ended.
#[derive(Clone, Debug)]
pub struct EndedRead {
    /// Its id.
    pub read: ReadId,
    /// When it began.
    pub began: Moment,
    /// How.
    pub outcome: Outcome,
    /// The race as it ended.
    pub race: Race,
    /// Its policy.
    pub policy: ReadPolicy,
    /// For a good answer: its position and what was asked.
    pub position: Option<(Position, Position)>,
    /// The hedge delay that its view has learned.
    pub hedge_delay: Option<Duration>,
}

/// What became of copies, for the balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Copies sent.
    pub sent: u64,
    /// Good answers that a caller got.
    pub won: u64,
    /// Answers after the read was over or the copy given up, of any kind.
    pub late: u64,
    /// Refused before the start, but for expired ones.
    pub refused: u64,
    /// Answered `Expired`.
    pub expired: u64,
    /// Failed after the start.
    pub failed: u64,
    /// Given up and not answered.
    pub unanswered: u64,
    /// Hedges, rescues and paid retries.
    pub extra: u64,
    /// Reads with a good answer.
    pub good_reads: u64,
}

pub(crate) struct ReadState {
    pub(crate) view: usize,
    id: ReadId,
    policy: ReadPolicy,
    race: Race,
    asked: Asked,
    decision: Decision,
    key: u64,
    need: Position,
    began: Moment,
    /// Node, connection and request of each copy, once sent.
    sent: BTreeMap<CopyIndex, (usize, u64, RequestId, CopyKind)>,
    good: Option<(Service, Position)>,
}

/// One client process.
pub struct Client {
    /// Scopes its ties.
    pub caller: CallerId,
    /// What became of its copies.
    pub counters: ClientCounters,
    pub(crate) links: Links,
    pub(crate) views: Vec<Engine>,
    pub(crate) reads: BTreeMap<ReadKey, ReadState>,
    rng: StdRng,
    /// Stands for the operating system's randomness.
    ids: StdRng,
    next_read: u64,
    pub(crate) planted: Option<Planted>,
    gated: bool,
    scratch: Actions,
}

impl Client {
    /// A client that knows all nodes and has no connection yet.
    pub fn new(caller: CallerId, nodes: &[NodeId], config: &WorldConfig, now: Moment) -> Self {
        let link = |node: &NodeId| Link {
            node: *node,
            connection: None,
            next_request: 0,
            pace: Pace::new(PaceSettings::default()),
            owed: BTreeMap::new(),
            given_up: BTreeMap::new(),
            quiet_since: now,
            looked_at: false,
            silent: false,
        };
        let mut views: Vec<Engine> = (0..config.views).map(|_| Engine::new(config.engine, now)).collect();
        views.iter_mut().for_each(|view| view.members(nodes));
        Self {
            caller,
            counters: ClientCounters::default(),
            links: Links(nodes.iter().map(link).collect()),
            views,
            reads: BTreeMap::new(),
            rng: StdRng::seed_from_u64(config.seed ^ caller.0 as u64 ^ 0xc11e_4717),
            ids: StdRng::seed_from_u64(config.seed ^ caller.0 as u64 ^ 0x0001_d50f_71e5),
            next_read: 0,
            planted: config.planted,
            gated: config.engine.gate.is_some(),
            scratch: Actions::new(),
        }
    }

    /// A read begins.
    pub fn begin(
        &mut self,
        policy: ReadPolicy,
        deadline: Duration,
        need: Position,
        now: Moment,
        out: &mut Vec<ClientOut>,
    ) -> ReadKey {
        let view = self.rng.random_range(0..self.views.len());
        let replicas: Vec<Replica<'_>> = self
            .links
            .0
            .iter()
            .map(|link| Replica { node: link.node, zone: "", down: link.connection.is_none() || link.silent })
            .collect();
        let asked = Asked { gated: self.gated, ..policy.into() };
        let decision = self.views[view].decide(asked, now + deadline, &replicas, &self.links, now, &mut self.rng);
        let key = ReadKey(self.next_read);
        self.next_read += 1;
        let state = ReadState {
            view,
            id: ReadId(self.rng.random()),
            policy,
            race: Race::new(decision.plan.clone()),
            asked,
            decision,
            key: self.rng.random(),
            need,
            began: now,
            sent: BTreeMap::new(),
            good: None,
        };
        self.reads.insert(key, state);
        self.event(key, Event::Begin, now, out);
        key
    }

    /// A timer of a read fires.
    pub fn timer(&mut self, read: ReadKey, timer: Timer, now: Moment, out: &mut Vec<ClientOut>) {
        self.event(read, Event::Timer(timer), now, out);
    }

    /// The caller of a read leaves.
    pub fn drop_read(&mut self, read: ReadKey, now: Moment, out: &mut Vec<ClientOut>) {
        self.event(read, Event::Dropped, now, out);
    }

    /// An answer arrives.
    pub fn reply(&mut self, node: usize, connection: u64, reply: Reply, now: Moment, out: &mut Vec<ClientOut>) {
        self.heard(node, connection, now);
        let link = &mut self.links.0[node];
        let sent = link.given_up.remove(&reply.request);
        if let Some(sent) = sent {
            self.counters.late += 1;
            self.counters.unanswered -= 1;
            self.sample(node, now.since(sent), &reply.service, now);
        }
        let Some(copy) = self.links.0[node].owed.remove(&reply.request) else { return };
        let latency = now.since(copy.sent);
        self.sample(node, latency, &reply.service, now);
        let Some(state) = self.reads.get_mut(&copy.read) else { return };
        let code = reply.outcome.as_ref().err().map(|(code, _)| *code);
        let view = &mut self.views[state.view];
        view.answered(latency, &reply.service, code, now);
        view.copy_gone(reply.service.node, copy.kind);
        if let Ok(position) = &reply.outcome {
            state.good = Some((reply.service, *position));
        }
        let answer = self.judge(&reply);
        let counters = &mut self.counters;
        *match (&answer, code) {
            (Answer::Good, _) => &mut counters.won,
            (_, Some(ErrorCode::Expired)) => &mut counters.expired,
            (Answer::Refused { .. }, _) => &mut counters.refused,
            _ => &mut counters.failed,
        } += 1;
        self.event(copy.read, Event::Answer { copy: copy.copy, answer }, now, out);
    }

    fn judge(&self, reply: &Reply) -> Answer {
        let outcome = match &reply.outcome {
            Ok(position) => Ok(Found {
                version: None,
                level: ReadLevel::Session { seen: *position },
                position: *position,
                remaining_ms: None,
            }),
            Err((code, hint)) => {
                let retry_after_us = u64::try_from(hint.as_micros()).unwrap_or(u64::MAX);
                Err(Failure { retry_after_us, ..Failure::new(*code, "") })
            }
        };
        let mut service = reply.service;
        if self.planted == Some(Planted::DecidesByCode) {
            service.started &= !matches!(outcome, Err(Failure { code: ErrorCode::Busy, .. }));
        }
        Answer::judge(&service, &outcome)
    }

    fn sample(&mut self, node: usize, latency: Duration, service: &Service, now: Moment) {
        let wait = Duration::from_micros(u64::from(service.queue_wait_us));
        let served = Duration::from_micros(u64::from(service.service_time_us));
        self.links.0[node].pace.record(latency, wait, served, now);
    }

    pub(crate) fn tell_all(&mut self, event: Event, now: Moment, out: &mut Vec<ClientOut>) {
        let keys: Vec<ReadKey> = self.reads.keys().copied().collect();
        for key in keys {
            self.event(key, event, now, out);
        }
    }

    fn event(&mut self, key: ReadKey, event: Event, now: Moment, out: &mut Vec<ClientOut>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Some(state) = self.reads.get_mut(&key) else { return };
            let mut actions = std::mem::take(&mut self.scratch);
            let ids = &mut self.ids;
            let mut tie_id = || TieId(ids.random());
            let engine = &mut self.views[state.view];
            let mut host = engine.host(state.asked, &self.links, &mut tie_id, &mut self.rng);
            state.race.on_event(event, now, &mut host, &mut actions);
            for action in actions.drain(..) {
                self.act(key, action, now, &mut events, out);
            }
            self.scratch = actions;
        }
    }

    fn act(
        &mut self,
        key: ReadKey,
        action: Action,
        now: Moment,
        events: &mut VecDeque<Event>,
        out: &mut Vec<ClientOut>,
    ) {
        match action {
            Action::Send(send) => {
                let Some(node) = self.links.0.iter().position(|link| link.node == send.replica) else { return };
                let Some(state) = self.reads.get_mut(&key) else { return };
                let link = &mut self.links.0[node];
                let Some(connection) = link.connection else {
                    return events.push_back(Event::NotSent { copy: send.copy });
                };
                if link.owed.is_empty() {
                    link.quiet_since = now;
                }
                link.next_request += 1;
                let request = RequestId(link.next_request);
                let copy = OutCopy { read: key, copy: send.copy, kind: send.kind, sent: now };
                link.owed.insert(request, copy);
                state.sent.insert(send.copy, (node, connection, request, send.kind));
                self.counters.sent += 1;
                self.counters.extra += u64::from(send.kind.is_extra());
                self.views[state.view].copy_sent(send.replica, send.kind);
                let message = ToNode::Copy(CopyMessage {
                    request,
                    read: state.id,
                    kind: send.kind,
                    tie: send.tie,
                    key: state.key,
                    need: state.need,
                    time_left: state.race.plan().deadline.since(now),
                });
                out.push(ClientOut::Send { node, connection, message });
                self.look_later(node, now, out);
            }
            Action::Withdraw(copies) => self.withdraw(key, &copies, now, out),
            Action::Arm { timer, at } => out.push(ClientOut::Timer { at, read: key, timer }),
            Action::Finish(outcome) => self.finish(key, outcome, now, out),
        }
    }

    fn withdraw(&mut self, key: ReadKey, copies: &[CopyIndex], _now: Moment, out: &mut Vec<ClientOut>) {
        let Some(state) = self.reads.get(&key) else { return };
        let mut by_link: BTreeMap<(usize, u64), Vec<RequestId>> = BTreeMap::new();
        for copy in copies {
            let Some((node, connection, request, kind)) = state.sent.get(copy).copied() else { continue };
            let link = &mut self.links.0[node];
            let Some(owed) = link.owed.remove(&request) else { continue };
            link.given_up.insert(request, owed.sent);
            self.counters.unanswered += 1;
            self.views[state.view].copy_gone(link.node, kind);
            by_link.entry((node, connection)).or_default().push(request);
        }
        for ((node, connection), requests) in by_link {
            out.push(ClientOut::Send { node, connection, message: ToNode::Withdraw(requests) });
        }
    }

    fn finish(&mut self, key: ReadKey, outcome: Outcome, now: Moment, out: &mut Vec<ClientOut>) {
        let Some(state) = self.reads.remove(&key) else { return };
        let won = matches!(outcome, Outcome::Won(_));
        let service = state.good.filter(|_| won).map(|(service, _)| service);
        let latency = now.since(state.began);
        let view = &mut self.views[state.view];
        let ended = Ended::of(&state.race, &state.decision);
        view.read_ended(state.asked, &ended, latency, service.as_ref(), now);
        let hedge_delay = view.latency(state.asked.sort, state.policy.shape).map(|latency| latency.hedge_delay());
        self.counters.good_reads += u64::from(won);
        out.push(ClientOut::Ended(Box::new(EndedRead {
            read: state.id,
            began: state.began,
            outcome,
            policy: state.policy,
            position: state.good.filter(|_| won).map(|(_, position)| (position, state.need)),
            race: state.race,
            hedge_delay,
        })));
    }

    /// The id of a read under way.
    pub fn read_id(&self, read: ReadKey) -> Option<ReadId> {
        self.reads.get(&read).map(|state| state.id)
    }

    /// What is left in a client; empty at rest.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("client {}: {count} {what}", self.caller));
            }
        };
        note("reads", self.reads.len());
        for link in &self.links.0 {
            note("copies owed", link.owed.len());
            for view in &self.views {
                note("copies counted as out", view.load(link.node).outstanding as usize);
            }
        }
        left
    }
}

//! One client view's decisions in one place: choice, gate, pacing, budget and what is learned from answers.
//!
//! [`Engine::decide`] makes the plan of a read, [`Engine::host`] answers its race, [`Engine::answered`] and
//! [`Engine::read_ended`] learn. It holds no race, no connection and no clock; round trips belong to connections
//! and are asked through [`Ways`].

use crate::budget::{Budget, BudgetSettings};
use crate::control::Control;
use crate::copies::{End, Host, Order, Outcome, Plan, SentCopy};
use crate::gate::{Gate, GateSettings, NotTied, Question};
use crate::latency::{Latency, LatencySettings};
use crate::policy::{ReadPolicy, Shape};
use crate::probation::{Probation, ProbationSettings, Sign};
use crate::race::Race;
use crate::retry::{BackoffSettings, backoff};
use crate::select::{Candidate, Choice, Load, order};
use rand::Rng;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::Mode;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Service;

/// Settings of one view; see each part for its defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSettings {
    /// Order of the replicas. Default random.
    pub choice: Choice,
    /// C3's weight of own copies: views that share the replicas. Default 1.
    pub clients: f64,
    /// Delays of extra copies.
    pub latency: LatencySettings,
    /// The bucket of extra work.
    pub budget: BudgetSettings,
    /// Judge per read whether tying pays; `None`: every read goes by its policy. Default on.
    pub gate: Option<GateSettings>,
    /// Share of tied reads that go untied to measure by. Default 0.01; used with the gate only.
    pub hold_out: f64,
    /// Pauses between rounds.
    pub backoff: BackoffSettings,
    /// When replicas go on probation.
    pub probation: ProbationSettings,
    /// Most hedges and rescues out at once. Default 64.
    pub extras_out_max: u32,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            choice: Choice::Random,
            clients: 1.0,
            latency: LatencySettings::default(),
            budget: BudgetSettings::default(),
            gate: Some(GateSettings::default()),
            hold_out: 0.01,
            backoff: BackoffSettings::default(),
            probation: ProbationSettings::default(),
            extras_out_max: 64,
        }
    }
}

/// The ways to the replicas, as their connections know them.
pub trait Ways {
    /// The tie delay after a copy to `node`; the cap while unknown.
    fn tie_delay(&self, node: NodeId) -> Duration;
    /// One way to `node`, if known.
    fn one_way(&self, node: NodeId) -> Option<Duration>;
}

/// A replica of the shard as the view finds it. Given sorted by NodeId.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// Which.
    pub node: NodeId,
    /// Its failure domain; empty when zones are not used.
    pub zone: &'a str,
    /// Its link is down: asked last.
    pub down: bool,
}

/// What one read will do, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For [`Race::new`].
    pub plan: Plan,
    /// Why it goes with fewer copies than its policy says, if so.
    pub not_tied: Option<NotTied>,
    /// It runs untied to measure by.
    pub hold_out: bool,
}

/// Decides and learns for one client view.
#[derive(Clone, Debug)]
pub struct Engine {
    settings: EngineSettings,
    /// The switch and the ceiling.
    pub control: Control,
    /// Whom to avoid.
    pub probation: Probation,
    budget: Budget,
    gate: Gate,
    loads: SmallVec<[(NodeId, Load); 4]>,
    /// One per shape, made when first used.
    latency: [Option<Box<Latency>>; 4],
    extras_out: u32,
    not_tied: [u64; NotTied::ALL.len()],
    suppressed: u64,
}

impl Engine {
    /// Knows nothing yet.
    pub fn new(settings: EngineSettings, now: Moment) -> Self {
        Self {
            settings,
            control: Control::default(),
            probation: Probation::new(settings.probation),
            budget: Budget::new(settings.budget, now),
            gate: Gate::new(settings.gate.unwrap_or_default()),
            loads: SmallVec::new(),
            latency: [const { None }; 4],
            extras_out: 0,
            not_tied: [0; NotTied::ALL.len()],
            suppressed: 0,
        }
    }

    /// The replicas changed: forgets others, freezes the delays and learns anew.
    pub fn members(&mut self, nodes: &[NodeId]) {
        self.loads.retain(|(node, _)| nodes.contains(node));
        self.probation.members(nodes);
        self.gate.members(nodes);
        self.latency.iter_mut().flatten().for_each(|latency| latency.relearn());
    }

    /// Makes the plan of one read.
    pub fn decide(
        &mut self,
        policy: ReadPolicy,
        deadline: Moment,
        replicas: &[Replica<'_>],
        ways: &impl Ways,
        now: Moment,
        rng: &mut impl Rng,
    ) -> Decision {
        self.budget.replica_down(replicas.iter().any(|replica| replica.down), now);
        let candidates: SmallVec<[Candidate<'_>; 4]> = replicas
            .iter()
            .map(|replica| Candidate {
                node: replica.node,
                zone: replica.zone,
                load: self.load(replica.node),
                avoid: replica.down
                    || self.gate.wants_none(replica.node)
                    || self.probation.avoid(replica.node, now),
            })
            .collect();
        let order = order(self.settings.choice, self.settings.clients, &candidates, rng);
        let allowed = self.control.allowed(rng);
        let extra = allowed.mode == Mode::On && !self.gate.no_extra_copies();
        let mut decision = Decision {
            plan: Plan {
                order,
                width: policy.width(),
                hedge: policy.hedge() && extra,
                rescue: policy.rescue && extra,
                deadline,
            },
            not_tied: None,
            hold_out: false,
        };
        if policy.width() > 1 {
            self.narrow(&mut decision, allowed.mode, allowed.copies_max, replicas, ways, now, rng);
        }
        if let Some(reason) = decision.not_tied {
            self.not_tied[reason as usize] += 1;
        }
        decision
    }

    /// Cuts the width of a tied plan where it does not pay or is not allowed.
    #[allow(clippy::too_many_arguments, reason = "the parts of one decision, each of its own type")]
    fn narrow(
        &mut self,
        decision: &mut Decision,
        mode: Mode,
        copies_max: u8,
        replicas: &[Replica<'_>],
        ways: &impl Ways,
        now: Moment,
        rng: &mut impl Rng,
    ) {
        let cut = |decision: &mut Decision, width: u8, reason| {
            decision.plan.width = width;
            decision.not_tied = Some(reason);
        };
        match mode {
            Mode::Off => return cut(decision, 1, NotTied::SwitchedOff),
            Mode::Observe => return cut(decision, 1, NotTied::Observing),
            Mode::On => {}
        }
        let Some(first) = decision.plan.order.first().copied() else { return };
        if decision.plan.order.len() < 2 {
            return cut(decision, 1, NotTied::OneReplica);
        }
        if copies_max < decision.plan.width {
            cut(decision, copies_max, NotTied::Ceiling);
        }
        if self.settings.gate.is_some() && decision.plan.width > 1 {
            let question = Question {
                one_way: ways.one_way(first),
                tie_delay: ways.tie_delay(first),
                time_left: decision.plan.deadline.since(now),
            };
            if let Some(reason) = self.gate.closed(question) {
                return cut(decision, 1, reason);
            }
            if self.settings.hold_out > 0.0 && rng.random::<f64>() < self.settings.hold_out {
                decision.hold_out = true;
                return cut(decision, 1, NotTied::HoldOut);
            }
        }
        let members: SmallVec<[NodeId; 8]> = replicas.iter().map(|replica| replica.node).collect();
        let wanted = decision.plan.width;
        let healthy = self.healthy_first(&mut decision.plan.order, &members);
        if healthy < wanted && healthy < decision.plan.order.len() as u8 {
            cut(decision, healthy, NotTied::UnhealthyPair);
        }
    }

    /// Puts replicas whose cancels reach all before them first; returns how many, the first included.
    fn healthy_first(&self, order: &mut Order, members: &[NodeId]) -> u8 {
        let mut healthy = Order::new();
        let mut rest = Order::new();
        for node in order.iter().copied() {
            let well = healthy.iter().all(|before| !self.gate.pair_unhealthy(*before, node, members));
            if well { healthy.push(node) } else { rest.push(node) }
        }
        let count = healthy.len() as u8;
        healthy.extend(rest);
        *order = healthy;
        count
    }

    /// Answers for a race of `policy`. `tie_id` draws from the operating system's randomness (R5); `rng` need not.
    pub fn host<'a, W: Ways, R: Rng>(
        &'a mut self,
        policy: ReadPolicy,
        ways: &'a W,
        tie_id: &'a mut dyn FnMut() -> TieId,
        rng: &'a mut R,
    ) -> EngineHost<'a, W, R> {
        EngineHost { engine: self, policy, ways, tie_id, rng }
    }

    /// A copy went out.
    pub fn copy_sent(&mut self, node: NodeId, kind: CopyKind) {
        self.load_mut(node).outstanding += 1;
        self.extras_out += u32::from(kind.is_extra());
    }

    /// A copy is no longer out: answered, withdrawn or lost. Once per copy.
    pub fn copy_gone(&mut self, node: NodeId, kind: CopyKind) {
        let load = self.load_mut(node);
        load.outstanding = load.outstanding.saturating_sub(1);
        self.extras_out = self.extras_out.saturating_sub(u32::from(kind.is_extra()));
    }

    /// An answer came `latency` after its copy went to the wire; late ones too. `code` is its error, if it is one.
    pub fn answered(&mut self, latency: Duration, service: &Service, code: Option<ErrorCode>, now: Moment) {
        self.gate.heard(service.node, service.flags, service.unhealthy_pairs);
        match code {
            None => {
                self.load_mut(service.node).answered(latency, service);
                self.probation.observe(service.node, Sign::Good(latency), now);
            }
            Some(ErrorCode::Storage) => self.probation.observe(service.node, Sign::StorageFailed, now),
            Some(_) if service.started => self.probation.observe(service.node, Sign::Failed, now),
            Some(_) => {}
        }
    }

    /// What a node said of itself last, from whatever answer on whatever link.
    pub fn heard(&mut self, node: NodeId, flags: u8, unhealthy_pairs: u64) {
        self.gate.heard(node, flags, unhealthy_pairs);
    }

    /// The link to `node` was lost or fell silent while it owed answers.
    pub fn link_failed(&mut self, node: NodeId, now: Moment) {
        self.probation.observe(node, Sign::Failed, now);
    }

    /// The read ended `latency` after its first copy went to the wire. `winner` is the good answer's report.
    pub fn read_ended(
        &mut self,
        policy: ReadPolicy,
        hold_out: bool,
        race: &Race,
        latency: Duration,
        winner: Option<&Service>,
        now: Moment,
    ) {
        let estimates = self.latency_mut(policy.shape);
        match race.outcome() {
            Some(Outcome::Won(copy)) => {
                let won_by_extra = race.copies().get(usize::from(copy.0)).is_some_and(|copy| copy.kind.is_extra());
                if won_by_extra {
                    estimates.record_longer_than(latency, hold_out, now);
                } else {
                    estimates.record(latency, hold_out, now);
                }
                self.budget.good_answer();
                if let Some(service) = winner {
                    self.gate.answered(race.plan().width, service);
                }
            }
            Some(Outcome::Dropped) => estimates.record_longer_than(latency, hold_out, now),
            Some(Outcome::GaveUp(_)) if race.copies().iter().any(is_open) => {
                estimates.record_longer_than(latency, hold_out, now);
            }
            _ => {}
        }
    }

    /// Delays of hedge and rescue of a shape, as they stand.
    pub fn latency(&self, shape: Shape) -> Option<&Latency> {
        self.latency[shape as usize].as_deref()
    }

    /// How often each reason kept a read from its full policy.
    pub fn not_tied(&self, reason: NotTied) -> u64 {
        self.not_tied[reason as usize]
    }

    /// Extra copies that the bucket or the bound on copies out suppressed.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// The bucket of extra work.
    pub fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// What this view knows of a replica's load.
    pub fn load(&self, node: NodeId) -> Load {
        self.loads.iter().find(|(known, _)| *known == node).map(|(_, load)| *load).unwrap_or_default()
    }

    fn load_mut(&mut self, node: NodeId) -> &mut Load {
        let at = self.loads.iter().position(|(known, _)| *known == node).unwrap_or_else(|| {
            self.loads.push((node, Load::default()));
            self.loads.len() - 1
        });
        &mut self.loads[at].1
    }

    fn latency_mut(&mut self, shape: Shape) -> &mut Latency {
        let settings = self.settings.latency;
        self.latency[shape as usize].get_or_insert_with(|| Box::new(Latency::new(settings)))
    }
}

fn is_open(copy: &SentCopy) -> bool {
    matches!(copy.end, End::Out | End::LinkLost | End::LinkSilent)
}

/// Answers a race out of an engine, for the time of one event.
pub struct EngineHost<'a, W, R> {
    engine: &'a mut Engine,
    policy: ReadPolicy,
    ways: &'a W,
    tie_id: &'a mut dyn FnMut() -> TieId,
    rng: &'a mut R,
}

impl<W: Ways, R: Rng> Host for EngineHost<'_, W, R> {
    fn tie_id(&mut self) -> TieId {
        (self.tie_id)()
    }

    fn tie_delay(&mut self, first: NodeId) -> Duration {
        self.ways.tie_delay(first)
    }

    fn hedge_delay(&mut self) -> Duration {
        let engine = &self.engine;
        engine.latency(self.policy.shape).map_or(engine.settings.latency.fallback, Latency::hedge_delay)
    }

    fn rescue_delay(&mut self) -> Duration {
        let engine = &self.engine;
        engine.latency(self.policy.shape).map_or(engine.settings.latency.fallback, Latency::rescue_delay)
    }

    fn token(&mut self, kind: CopyKind, now: Moment) -> bool {
        let engine = &mut *self.engine;
        let room = !kind.is_extra() || engine.extras_out < engine.settings.extras_out_max;
        let given = room && engine.budget.take(now);
        engine.suppressed += u64::from(!given);
        given
    }

    fn backoff(&mut self, round: u8, hint: Duration) -> Duration {
        backoff(&self.engine.settings.backoff, round, hint, self.rng)
    }
}

#[cfg(test)]
#[path = "engine_test.rs"]
mod tests;

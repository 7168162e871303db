//! One client view's decisions in one place: choice, gate, pacing, budget and what is learned from answers.
//!
//! [`Engine::decide`] makes the plan of a read, [`Engine::host`] answers its race ([`crate::engine_host`]), and what
//! came of it is learned in [`crate::learn`]. It holds no race, no connection and no clock; round trips belong to
//! connections and are asked through [`Ways`].

use crate::budget::{Budget, BudgetSettings, CallShare};
use crate::control::Control;
use crate::copies::{Order, Plan};
use crate::engine_host::{EngineHost, Suppressed};
use crate::gate::{Gate, GateSettings, NotTied, Question};
use crate::latency::{Latency, LatencySettings};
use crate::observe::Observed;
use crate::operation::Sort;
use crate::policy::{ReadPolicy, SHAPES, Shape};
use crate::probation::{Probation, ProbationSettings};
use crate::retry::BackoffSettings;
use crate::select::{Candidate, Choice, Load, order};
use crate::strain::{Strain, StrainSettings};
use crate::wins::{Wins, WinsSettings};
use rand::Rng;
use slab::Slab;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::hello::{Ceiling, Mode};
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

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
    /// Share of judged reads that go untied and unhedged to measure by (a rescue stays). Default 0.01.
    pub hold_out: f64,
    /// Pauses between rounds.
    pub backoff: BackoffSettings,
    /// When replicas go on probation.
    pub probation: ProbationSettings,
    /// Most hedges and rescues out at once. Default 64.
    pub extras_out_max: u32,
    /// When answers are so bad that hedges stay away.
    pub strain: StrainSettings,
    /// When later copies that do not win are only observed (judged reads only).
    pub wins: WinsSettings,
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
            strain: StrainSettings::default(),
            wins: WinsSettings::default(),
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

/// A call for many keys that is under way; see [`Engine::open_call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(pub(crate) usize);

/// What a read wants before anything is decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// What is read, and how fresh.
    pub sort: Sort,
    /// How it is to be sent.
    pub policy: ReadPolicy,
    /// Judge whether tying pays, hold out a share, rest what does not win. Obeying switch, ceiling and nodes is no
    /// part of this: that is always done.
    pub gated: bool,
    /// The call for many keys that it is part of.
    pub call: Option<CallId>,
}

impl From<ReadPolicy> for Asked {
    /// A session get that is not judged.
    fn from(policy: ReadPolicy) -> Self {
        Self { sort: Sort::default(), policy, gated: false, call: None }
    }
}

/// What one read will do, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For [`Race::new`](crate::race::Race::new).
    pub plan: Plan,
    /// Why it goes with fewer copies than its policy says, if so.
    pub not_tied: Option<NotTied>,
    /// It runs untied to measure by.
    pub hold_out: bool,
    /// What it would have sent, if it only observes.
    pub observed: Option<Observed>,
}

/// Decides and learns for one client view.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) settings: EngineSettings,
    /// The switches and the ceiling; see [`Engine::ceiling`].
    pub control: Control,
    /// Whom to avoid.
    pub probation: Probation,
    pub(crate) budget: Budget,
    /// What observed reads would have spent.
    pub(crate) unspent: Budget,
    pub(crate) gate: Gate,
    pub(crate) strain: Strain,
    pub(crate) wins: Wins,
    pub(crate) loads: SmallVec<[(NodeId, Load); 4]>,
    /// One per sort and shape, made when first used.
    pub(crate) latency: Box<[Option<Box<Latency>>; Sort::COUNT * SHAPES]>,
    pub(crate) calls: Slab<CallShare>,
    pub(crate) extras_out: u32,
    not_tied: [u64; NotTied::ALL.len()],
    pub(crate) suppressed: [u64; Suppressed::ALL.len()],
    /// Since they were taken last; see [`Engine::take_suppressed`].
    pub(crate) suppressed_lately: SmallVec<[Suppressed; 4]>,
}

impl Engine {
    /// Knows nothing yet.
    pub fn new(settings: EngineSettings, now: Moment) -> Self {
        Self {
            settings,
            control: Control::default(),
            probation: Probation::new(settings.probation),
            budget: Budget::new(settings.budget, now),
            unspent: Budget::new(settings.budget, now),
            gate: Gate::new(settings.gate.unwrap_or_default()),
            strain: Strain::new(settings.strain),
            wins: Wins::new(settings.wins),
            loads: SmallVec::new(),
            latency: Box::new([const { None }; Sort::COUNT * SHAPES]),
            calls: Slab::new(),
            extras_out: 0,
            not_tied: [0; NotTied::ALL.len()],
            suppressed: [0; Suppressed::ALL.len()],
            suppressed_lately: SmallVec::new(),
        }
    }

    /// The replicas changed: forgets others, freezes the delays and learns anew.
    pub fn members(&mut self, nodes: &[NodeId]) {
        self.loads.retain(|(node, _)| nodes.contains(node));
        self.probation.members(nodes);
        let ejected = self.control.ceiling().ejected;
        nodes.iter().for_each(|node| self.probation.eject(*node, ejected.contains(*node)));
        self.gate.members(nodes);
        self.latency.iter_mut().flatten().for_each(|latency| latency.relearn());
    }

    /// A node told the operator's ceiling: mode, copies, budget and who is ejected hold from now on.
    pub fn ceiling(&mut self, ceiling: Ceiling, now: Moment) {
        if self.control.learn(ceiling) {
            self.budget.ceiling(ceiling.budget_ppm, now);
            self.unspent.ceiling(ceiling.budget_ppm, now);
            for node in self.probation.nodes() {
                self.probation.eject(node, ceiling.ejected.contains(node));
            }
        }
    }

    /// A call for `width` keys begins: its keys name it in [`Asked::call`]. To be closed.
    #[must_use = "a call is closed again"]
    pub fn open_call(&mut self, width: usize) -> CallId {
        CallId(self.calls.insert(self.budget.open(width)))
    }

    /// The call is over.
    pub fn close_call(&mut self, call: CallId) {
        let _ = self.calls.try_remove(call.0);
    }

    /// Keys that shared a copy were served in this time, all of them.
    pub fn keys_served(&mut self, keys: usize, service_time: Duration) {
        self.gate.keys_served(keys, service_time);
    }

    /// How many keys of a call may share a copy; see [`Gate::keys_together`]. `one_way`: to the nearest replica.
    pub fn keys_together(&self, asked: Asked, one_way: Option<Duration>) -> usize {
        let tied = asked.policy.width() > 1;
        // Ties that are not judged are sent as asked for, and so is what measures.
        if asked.policy.shape.measures() || (tied && !asked.gated) {
            return 1;
        }
        self.gate.keys_together(tied, one_way)
    }

    /// Makes the plan of one read.
    pub fn decide(
        &mut self,
        asked: Asked,
        deadline: Moment,
        replicas: &[Replica<'_>],
        ways: &impl Ways,
        now: Moment,
        rng: &mut impl Rng,
    ) -> Decision {
        let down = replicas.iter().any(|replica| replica.down);
        self.budget.replica_down(down, now);
        self.unspent.replica_down(down, now);
        let by_load = self.settings.choice != Choice::Random;
        let candidates: SmallVec<[Candidate<'_>; 4]> = replicas
            .iter()
            .map(|replica| Candidate {
                node: replica.node,
                zone: replica.zone,
                load: if by_load { self.load(replica.node).as_of(now) } else { Load::default() },
                avoid: replica.down
                    || self.gate.wants_none(replica.node)
                    || self.probation.avoid(replica.node, now),
            })
            .collect();
        let order = order(self.settings.choice, self.settings.clients, &candidates, rng);
        let policy = asked.policy;
        let naive = policy.shape.measures();
        let plan = Plan { order, width: policy.width(), hedge: false, rescue: false, deadline, naive };
        let mut decision = Decision { plan, not_tied: None, hold_out: false, observed: None };
        if policy.is_plain() {
            return decision;
        }
        let allowed = self.control.allowed(asked.operation(), rng);
        let mut mode = allowed.mode;
        let mut reason = match mode {
            Mode::Off => Some(NotTied::SwitchedOff),
            Mode::Observe => Some(NotTied::Observing),
            Mode::On => None,
        };
        if asked.gated && mode == Mode::On && self.wins.rests(asked.operation(), now) {
            (mode, reason) = (Mode::Observe, Some(NotTied::NotWinning));
        }
        let extra = !self.gate.no_extra_copies();
        decision.plan.hedge = policy.hedge() && extra;
        decision.plan.rescue = policy.rescue && extra;
        if policy.width() > 1 && mode != Mode::Off {
            self.narrow(&mut decision, asked, allowed.copies_max, replicas, ways, now);
        }
        let bets = decision.plan.width > 1 || decision.plan.hedge;
        if mode == Mode::On && asked.gated && bets && self.holds_out(rng) {
            decision.hold_out = true;
            decision.not_tied = Some(NotTied::HoldOut);
            (decision.plan.width, decision.plan.hedge) = (1, false);
        }
        if let Some(reason) = reason {
            if mode == Mode::Observe {
                decision.observed = Some(self.observe(&decision.plan, asked, ways, allowed.sample));
                decision.hold_out = true;
            }
            (decision.plan.width, decision.plan.hedge, decision.plan.rescue) = (1, false, false);
            decision.not_tied = Some(reason);
        }
        if let Some(reason) = decision.not_tied {
            self.not_tied[reason as usize] += 1;
        }
        decision
    }

    fn holds_out(&self, rng: &mut impl Rng) -> bool {
        self.settings.hold_out > 0.0 && rng.random::<f64>() < self.settings.hold_out
    }

    /// Cuts the width of a tied plan where it does not pay or is not allowed.
    fn narrow(
        &mut self,
        decision: &mut Decision,
        asked: Asked,
        copies_max: u8,
        replicas: &[Replica<'_>],
        ways: &impl Ways,
        now: Moment,
    ) {
        let cut = |decision: &mut Decision, width: u8, reason| {
            decision.plan.width = width;
            decision.not_tied = Some(reason);
        };
        let Some(first) = decision.plan.order.first().copied() else { return };
        if decision.plan.order.len() < 2 {
            return cut(decision, 1, NotTied::OneReplica);
        }
        if self.gate.ties_off() {
            return cut(decision, 1, NotTied::TiesOff);
        }
        if copies_max < decision.plan.width {
            cut(decision, copies_max, NotTied::Ceiling);
        }
        if asked.gated && decision.plan.width > 1 {
            let question = Question {
                one_way: ways.one_way(first),
                tie_delay: ways.tie_delay(first),
                time_left: decision.plan.deadline.since(now),
            };
            if let Some(reason) = self.gate.closed(question) {
                return cut(decision, 1, reason);
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

    fn observe(&self, plan: &Plan, asked: Asked, ways: &impl Ways, sample: bool) -> Observed {
        let known = self.latency(asked.sort, asked.policy.shape);
        let fallback = &self.settings.latency;
        let hedge = known.map_or(fallback.hedge_unknown(), Latency::hedge_delay);
        let rescue = known.map_or(fallback.rescue_unknown(), Latency::rescue_delay);
        Observed {
            policy: asked.policy,
            width: plan.width,
            tie_delay: plan.order.first().map_or(Duration::ZERO, |first| ways.tie_delay(*first)),
            hedge_delay: plan.hedge.then_some(hedge),
            rescue_delay: plan.rescue.then_some(rescue),
            replicas: plan.order.len() as u8,
            sample,
        }
    }

    /// Answers for a race. `tie_id` draws from the operating system's randomness (R5); `rng` need not.
    pub fn host<'a, W: Ways, R: Rng>(
        &'a mut self,
        asked: Asked,
        ways: &'a W,
        tie_id: &'a mut dyn FnMut() -> TieId,
        rng: &'a mut R,
    ) -> EngineHost<'a, W, R> {
        EngineHost { engine: self, asked, ways, tie_id, rng }
    }

    /// A token for a sample to `node`: a copy that no race sends. Few are out to one node, for nothing ends them.
    pub fn sample_token(&mut self, node: NodeId, now: Moment) -> bool {
        self.probation.shadows_out(node) < SAMPLES_OUT_MAX && self.shadow_token(now)
    }

    fn shadow_token(&mut self, now: Moment) -> bool {
        !self.gate.no_extra_copies() && self.budget.take(now)
    }

    /// A replica on probation that a shadow read is due for; its token is taken.
    pub fn shadow_due(&mut self, now: Moment) -> Option<NodeId> {
        if self.probation.on_probation() == 0 || self.budget.tokens() == 0 {
            return None;
        }
        let due = self.probation.shadow_due(now)?;
        self.shadow_token(now).then_some(due)
    }

    /// What is known of a sort and shape: delays, quantiles with and without.
    pub fn latency(&self, sort: Sort, shape: Shape) -> Option<&Latency> {
        self.latency[slot(sort, shape)].as_deref()
    }

    pub(crate) fn latency_mut(&mut self, sort: Sort, shape: Shape) -> &mut Latency {
        let settings = self.settings.latency;
        self.latency[slot(sort, shape)].get_or_insert_with(|| Box::new(Latency::new(settings)))
    }

    /// How often each reason kept a read from its full policy.
    pub fn not_tied(&self, reason: NotTied) -> u64 {
        self.not_tied[reason as usize]
    }

    /// Extra copies that were not sent, by reason.
    pub fn suppressed(&self, reason: Suppressed) -> u64 {
        self.suppressed[reason as usize]
    }

    /// The extra copies that were not sent since this was called last.
    pub fn take_suppressed(&mut self) -> SmallVec<[Suppressed; 4]> {
        std::mem::take(&mut self.suppressed_lately)
    }

    /// The bucket of extra work.
    pub fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Hedges and rescues of an operation nearly always win: their delay is too long.
    pub fn delay_too_long(&self, asked: Asked) -> bool {
        self.wins.delay_too_long(asked.operation())
    }

    /// What this view knows of a replica's load.
    pub fn load(&self, node: NodeId) -> Load {
        self.loads.iter().find(|(known, _)| *known == node).map(|(_, load)| *load).unwrap_or_default()
    }

    /// Hedges and rescues that are out.
    pub fn extras_out(&self) -> u32 {
        self.extras_out
    }

    /// Whether a copy of this kind counts among those that are bounded. Shadows have a bound of their own: a replica
    /// that leaves them unanswered must not keep hedges and rescues away from the others.
    pub(crate) fn bounded(kind: CopyKind) -> bool {
        matches!(kind, CopyKind::Hedge | CopyKind::Rescue)
    }
}

impl Asked {
    /// What is read.
    pub fn operation(self) -> crate::operation::Operation {
        self.sort.operation
    }
}

/// Most samples out to one node.
const SAMPLES_OUT_MAX: u32 = 16;

fn slot(sort: Sort, shape: Shape) -> usize {
    sort.index() * SHAPES + shape as usize
}

#[cfg(test)]
#[path = "engine_test.rs"]
mod tests;

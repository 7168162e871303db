//! An engine's answers to a race, for the time of one event: delays, tokens, pauses. Why an extra copy is not sent
//! is said here and counted.

use crate::copies::Host;
use crate::engine::{Asked, Engine, Ways};
use crate::latency::Latency;
use crate::retry::backoff;
use rand::Rng;
use std::time::Duration;
use tiedkv_protocol::hello::Mode;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::limits::TIE_COPIES_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

/// Why an extra copy was not sent when its time came. It is asked again at the next firing point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suppressed {
    /// The bucket is empty.
    NoToken,
    /// As many extra copies are out as may be.
    TooManyOut,
    /// The call for many keys has had its share.
    CallSpent,
    /// Many answers are refusals or failures: no hedges.
    ErrorsHigh,
    /// Most replicas say that their workers are busy over 80 %: no hedges.
    NodesBusy,
    /// A node asks for no extra copies.
    NodesWantNone,
    /// The switch or the ceiling was turned while the read was under way.
    SwitchedOff,
}

impl Suppressed {
    /// All reasons.
    pub const ALL: [Suppressed; 7] = [
        Self::NoToken,
        Self::TooManyOut,
        Self::CallSpent,
        Self::ErrorsHigh,
        Self::NodesBusy,
        Self::NodesWantNone,
        Self::SwitchedOff,
    ];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoToken => "no-token",
            Self::TooManyOut => "too-many-out",
            Self::CallSpent => "call-spent",
            Self::ErrorsHigh => "errors-high",
            Self::NodesBusy => "nodes-busy",
            Self::NodesWantNone => "nodes-want-none",
            Self::SwitchedOff => "switched-off",
        }
    }
}

/// See the head of this room.
pub struct EngineHost<'a, W, R> {
    pub(crate) engine: &'a mut Engine,
    pub(crate) asked: Asked,
    pub(crate) ways: &'a W,
    pub(crate) tie_id: &'a mut dyn FnMut() -> TieId,
    pub(crate) rng: &'a mut R,
}

impl<W, R> EngineHost<'_, W, R> {
    /// Why no hedge or rescue may go out now, whatever the bucket holds.
    fn forbidden(&self, kind: CopyKind) -> Option<Suppressed> {
        let engine = &self.engine;
        if engine.control.mode(self.asked.operation()) != Mode::On {
            return Some(Suppressed::SwitchedOff);
        }
        if engine.gate.no_extra_copies() {
            return Some(Suppressed::NodesWantNone);
        }
        if kind == CopyKind::Hedge && engine.strain.errors_high() {
            return Some(Suppressed::ErrorsHigh);
        }
        if kind == CopyKind::Hedge && engine.gate.busy() {
            return Some(Suppressed::NodesBusy);
        }
        if engine.extras_out >= engine.settings.extras_out_max {
            return Some(Suppressed::TooManyOut);
        }
        let call = self.asked.call.and_then(|call| engine.calls.get(call.0));
        call.is_some_and(|share| share.left() == 0).then_some(Suppressed::CallSpent)
    }
}

impl<W: Ways, R: Rng> Host for EngineHost<'_, W, R> {
    fn tie_id(&mut self) -> TieId {
        (self.tie_id)()
    }

    fn tie_delay(&mut self, first: NodeId) -> Duration {
        self.ways.tie_delay(first)
    }

    fn hedge_delay(&mut self) -> Duration {
        if self.asked.policy.at_once() {
            return Duration::ZERO;
        }
        let engine = &self.engine;
        let known = engine.latency(self.asked.sort, self.asked.policy.shape);
        known.map_or(engine.settings.latency.hedge_unknown(), Latency::hedge_delay)
    }

    fn rescue_delay(&mut self) -> Duration {
        let engine = &self.engine;
        let known = engine.latency(self.asked.sort, self.asked.policy.shape);
        known.map_or(engine.settings.latency.rescue_unknown(), Latency::rescue_delay)
    }

    fn width_max(&self) -> u8 {
        let control = &self.engine.control;
        let on = control.mode(self.asked.operation()) == Mode::On && !self.engine.gate.ties_off();
        if on { control.ceiling().copies_max.min(TIE_COPIES_MAX as u8) } else { 1 }
    }

    fn token(&mut self, kind: CopyKind, now: Moment) -> bool {
        if self.asked.policy.shape.measures() && kind == CopyKind::Hedge {
            return true;
        }
        let forbidden = if Engine::bounded(kind) { self.forbidden(kind) } else { None };
        let engine = &mut *self.engine;
        let mut call = self.asked.call.and_then(|call| engine.calls.get_mut(call.0));
        let taken = forbidden.is_none()
            && match &mut call {
                Some(call) => engine.budget.take_for(call, now),
                None => engine.budget.take(now),
            };
        if taken {
            if let Some(call) = call.filter(|_| Engine::bounded(kind)) {
                call.spend();
            }
            return true;
        }
        let reason = forbidden.unwrap_or(Suppressed::NoToken);
        engine.suppressed[reason as usize] += 1;
        engine.suppressed_lately.push(reason);
        false
    }

    fn backoff(&mut self, round: u8, hint: Duration) -> Duration {
        backoff(&self.engine.settings.backoff, round, hint, self.rng)
    }
}

//! What an engine learns: from copies that go out and end, from answers, and from how reads end.
//!
//! A copy that lost its race, was withdrawn, or came late is no error of its replica and never counts as one.

use crate::copies::{End, GiveUp, Outcome, SentCopy};
use crate::engine::{Asked, Decision, Engine};
use crate::observe::Unsent;
use crate::probation::Sign;
use crate::race::Race;
use crate::select::Load;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Service;

impl Engine {
    /// A copy went out.
    pub fn copy_sent(&mut self, node: NodeId, kind: CopyKind) {
        self.load_mut(node).outstanding += 1;
        self.extras_out += u32::from(Self::bounded(kind));
        if kind == CopyKind::Shadow {
            self.probation.shadow_sent(node);
        }
    }

    /// A copy is no longer out: answered, withdrawn or lost. Once per copy.
    pub fn copy_gone(&mut self, node: NodeId, kind: CopyKind) {
        let load = self.load_mut(node);
        load.outstanding = load.outstanding.saturating_sub(1);
        self.extras_out = self.extras_out.saturating_sub(u32::from(Self::bounded(kind)));
        if kind == CopyKind::Shadow {
            self.probation.shadow_gone(node);
        }
    }

    /// An answer came `latency` after its copy went to the wire; late ones too. `code` is its error, if it is one.
    pub fn answered(&mut self, latency: Duration, service: &Service, code: Option<ErrorCode>, now: Moment) {
        self.gate.heard(service.node, service.flags, service.unhealthy_pairs);
        // The caller's fault, or a change of members: says nothing of the cluster's strain.
        let telling = code.is_none_or(|code| code.caller_move() != Move::FixTheCall);
        if telling {
            self.strain.answered(code.is_none());
            if code.is_some() {
                self.load_mut(service.node).answered_badly(now);
            }
        }
        match code {
            None => {
                self.load_mut(service.node).answered(latency, service);
                self.probation.observe(service.node, Sign::Good(latency), now);
            }
            Some(ErrorCode::Storage) => self.probation.observe(service.node, Sign::StorageFailed, now),
            Some(_) if service.started => self.probation.observe(service.node, Sign::Failed, now),
            Some(_) => self.probation.spoke(service.node, now),
        }
    }

    /// A page came: how long it took says nothing of gets, but its node answers.
    pub fn page_answered(&mut self, service: &Service, now: Moment) {
        self.gate.heard(service.node, service.flags, service.unhealthy_pairs);
        self.probation.spoke(service.node, now);
    }

    /// What a node said of itself last, from whatever answer on whatever link.
    pub fn heard(&mut self, node: NodeId, flags: u8, unhealthy_pairs: u64) {
        self.gate.heard(node, flags, unhealthy_pairs);
    }

    /// The link to `node` was lost or fell silent while it owed answers.
    pub fn link_failed(&mut self, node: NodeId, now: Moment) {
        self.strain.answered(false);
        self.probation.observe(node, Sign::Failed, now);
    }

    /// The read ended `latency` after its first copy went to the wire. `winner` is the good answer's report. Gives
    /// the copies that it would have sent, if it only observed.
    pub fn read_ended(
        &mut self,
        asked: Asked,
        decision: &Ended<'_>,
        latency: Duration,
        winner: Option<&Service>,
        now: Moment,
    ) -> SmallVec<[Unsent; 4]> {
        let Ended { race, hold_out, observed } = *decision;
        let estimates = self.latency_mut(asked.sort, asked.policy.shape);
        match race.outcome() {
            Some(Outcome::Won(copy)) => {
                let won_by_extra = race.copies().get(usize::from(copy.0)).is_some_and(|copy| copy.kind.is_extra());
                if won_by_extra {
                    estimates.record_longer_than(latency, hold_out, now);
                } else {
                    estimates.record(latency, hold_out, now);
                }
                match asked.call.and_then(|call| self.calls.get_mut(call.0)) {
                    Some(call) => self.budget.good_answer_of(call),
                    None => self.budget.good_answer(),
                }
                self.unspent.good_answer();
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
        // Only the first copy had a start: that a later one came to nothing says nothing.
        if let Some(first) = race.copies().first().filter(|copy| copy.end == End::Out) {
            // A copy of a tie may have been cancelled by its peer: alone its silence says nothing of its node.
            if race.outcome() == Some(Outcome::GaveUp(GiveUp::Deadline)) && first.number.is_none() {
                self.probation.unanswered(first.replica, latency, now);
            }
            self.probation.silent(first.replica, latency, now);
        }
        if let Some(outcome) = race.outcome() {
            self.wins.read_ended(asked.operation(), race.copies(), outcome, now);
        }
        let Some(observed) = observed else { return SmallVec::new() };
        // What would have kept it from being sent; copies out and a call's share are not known of copies that never were.
        let hedges_rest = self.strain.errors_high() || self.gate.busy();
        let none = self.gate.no_extra_copies();
        let unspent = &mut self.unspent;
        observed.unsent(latency, |kind| {
            let kept_back = none || (kind == CopyKind::Hedge && hedges_rest);
            !kept_back && unspent.take(now)
        })
    }

    fn load_mut(&mut self, node: NodeId) -> &mut Load {
        let at = self.loads.iter().position(|(known, _)| *known == node).unwrap_or_else(|| {
            self.loads.push((node, Load::default()));
            self.loads.len() - 1
        });
        &mut self.loads[at].1
    }
}

/// A read that ended: its race and what of its decision matters now.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// As it ended.
    pub race: &'a Race,
    /// It ran untied to measure by.
    pub hold_out: bool,
    /// What it would have sent, if it only observed.
    pub observed: Option<crate::observe::Observed>,
}

impl<'a> Ended<'a> {
    /// The end of a race that a decision began.
    pub fn of(race: &'a Race, decision: &Decision) -> Self {
        Self { race, hold_out: decision.hold_out, observed: decision.observed }
    }
}

fn is_open(copy: &SentCopy) -> bool {
    matches!(copy.end, End::Out | End::LinkLost | End::LinkSilent)
}

//! Extra untied copies of a race: hedges and rescues (rule R9 of docs/tie-protocol.md).
//!
//! Only an untied copy can be counted on when a winner hangs after its start. Each costs a token; an empty bucket
//! suppresses the copy only and is asked again at the next firing. When to fire is [`crate::latency`]'s to say.

use crate::copies::{Actions, End, Host, SentCopy, Timer};
use crate::race::{Race, note};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

/// Rescues are armed for whole multiples of this. Nearly all reads are answered before; with moments of their own each
/// would still wake the timer once for nothing, which cost reads from memory a tenth of their processor time.
const RESCUE_GRID: Duration = Duration::from_millis(2);

/// The first moment of the grid that is not before `at`.
fn on_grid(at: Moment) -> Moment {
    Moment(at.0.checked_next_multiple_of(RESCUE_GRID.as_nanos() as u64).unwrap_or(u64::MAX))
}

impl Race {
    /// Arms the timers of the extra copies that the plan asks for and that are not armed.
    pub(crate) fn arm_extras(&mut self, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        if self.outcome().is_some() {
            return;
        }
        if self.plan.hedge && self.timers.at(Timer::Hedge).is_none() && !self.has_hedge() {
            self.arm(Timer::Hedge, now + host.hedge_delay(), actions);
        }
        if self.plan.rescue && self.timers.at(Timer::Rescue).is_none() {
            self.arm(Timer::Rescue, on_grid(now + host.rescue_delay()), actions);
        }
    }

    /// A timer of extra copies fired: sends one if a replica, a place and a token are there; asks again later
    /// while replicas are left.
    pub(crate) fn extra_due(&mut self, kind: CopyKind, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        self.send_extra(kind, now, host, actions);
        let done = kind == CopyKind::Hedge && self.has_hedge();
        if done || self.extra_replica(kind).is_none() {
            return;
        }
        match kind {
            CopyKind::Hedge => self.arm(Timer::Hedge, now + host.hedge_delay(), actions),
            _ => self.arm(Timer::Rescue, on_grid(now + host.rescue_delay()), actions),
        }
    }

    /// An extra copy was refused, failed or lost its link: the next one goes out at once. A hedge that gets no token
    /// now is asked again one delay later; the timer of rescues runs in any case.
    pub(crate) fn extra_again(&mut self, kind: CopyKind, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        if self.outcome().is_some() {
            return;
        }
        self.send_extra(kind, now, host, actions);
        let waits = kind == CopyKind::Hedge && !self.has_hedge() && self.extra_replica(kind).is_some();
        if waits && self.plan.hedge && self.timers.at(Timer::Hedge).is_none() {
            self.arm(Timer::Hedge, now + host.hedge_delay(), actions);
        }
    }

    fn send_extra(&mut self, kind: CopyKind, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        let Some(replica) = self.extra_replica(kind) else { return };
        if self.below_bound() && host.token(kind, now) {
            note(&mut self.got_extra, replica);
            // An unmarked one is served and counted as if it were a first copy.
            let kind = if self.plan.naive { CopyKind::Retry } else { kind };
            self.send(replica, None, kind, None, actions);
        }
    }

    /// A usable replica that got no extra copy in this round: first one without any copy of this read. Where all hold
    /// one a rescue still goes (a copy of a tie may be cancelled, or hang after its start), but a hedge does not go to
    /// a replica that has a live copy, and no extra copy goes to the only replica: it would stand behind the first.
    fn extra_replica(&self, kind: CopyKind) -> Option<NodeId> {
        if self.plan.order.len() < 2 {
            return None;
        }
        let mut usable = self.candidates();
        usable.retain(|replica| !self.got_extra.contains(replica));
        if kind == CopyKind::Hedge {
            usable.retain(|replica| !self.holds_live(*replica));
        }
        let fresh = usable.iter().find(|replica| self.copies.iter().all(|copy| copy.replica != **replica));
        fresh.or(usable.first()).copied()
    }

    fn holds_live(&self, replica: NodeId) -> bool {
        self.copies.iter().any(|copy| copy.replica == replica && copy.end == End::Out)
    }

    fn has_hedge(&self) -> bool {
        let hedge = |copy: &SentCopy| {
            copy.kind == CopyKind::Hedge || (self.plan.naive && copy.kind == CopyKind::Retry && copy.tie.is_none())
        };
        // One on a link that is lost or silent is none that can be counted on.
        self.copies.iter().any(|copy| hedge(copy) && copy.end == End::Out)
    }
}

//! The state machine of one read: `(event, now) -> actions`, from the first copy to the outcome.
//!
//! It decides which replica gets a copy and when, what a refusal, a failure or a silence means, when a fresh tie
//! begins, and who has won (rules R1-R15 of docs/tie-protocol.md). It does no I/O, reads no clock, draws no
//! randomness and keeps no estimates: those come in through [`Host`]. `tied_read` drives it on sockets, the
//! simulation and the model checker drive it in their own worlds. Its parts: [`crate::copies`] (its words),
//! [`crate::extra`] (hedges and rescues).

use crate::copies::{
    Action, Actions, Answer, CopyIndex, End, Event, GiveUp, Host, Order, Outcome, Plan, ROUNDS_MAX, Send, SentCopy,
    Timer, Timers,
};
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::limits::{READ_COPIES_OUT_MAX, TIE_COPIES_MAX};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::tie::{CopyNumber, Members, Tie};

/// One tie of the read; a read that goes untied is a tie of width one without an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnTie {
    /// `None`: its copies travel untied.
    id: Option<TieId>,
    members: Members,
    width: u8,
    /// The first number not sent yet.
    next: u8,
    /// A copy of it failed after its start or was on a lost link: none of its copies can be counted on.
    suspect: bool,
    /// How long after one copy the next goes out.
    delay: Duration,
}

/// One read. Cheap to clone and comparable, so that a model checker can keep it in its states.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Race {
    pub(crate) plan: Plan,
    pub(crate) copies: SmallVec<[SentCopy; 4]>,
    ties: SmallVec<[OwnTie; 1]>,
    pub(crate) timers: Timers,
    /// Saw a failure after the start: out for the rest of the read.
    failed: Order,
    /// Refused, or its link was lost, in this round.
    out_this_round: Order,
    /// Got a hedge or rescue in this round.
    pub(crate) got_extra: Order,
    /// Fresh ties that still cost nothing.
    free_ties: u8,
    /// 0 for the first round over the replicas.
    round: u8,
    /// Smallest hint of this round's refusals.
    hint: Option<Duration>,
    /// The planned next copy waits for a place under the bound of copies out.
    held: bool,
    outcome: Option<Outcome>,
}

impl Race {
    /// A read that has not begun; the first event is [`Event::Begin`].
    pub fn new(plan: Plan) -> Self {
        let free_ties = u8::try_from(plan.order.len().saturating_sub(1)).unwrap_or(u8::MAX);
        Self {
            plan,
            copies: SmallVec::new(),
            ties: SmallVec::new(),
            timers: Timers::default(),
            failed: Order::new(),
            out_this_round: Order::new(),
            got_extra: Order::new(),
            free_ties,
            round: 0,
            hint: None,
            held: false,
            outcome: None,
        }
    }

    /// Takes one event and appends what to do. Events after the outcome change nothing.
    pub fn on_event(&mut self, event: Event, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        if self.outcome.is_some() {
            return;
        }
        match event {
            Event::Begin => self.begin(now, host, actions),
            Event::NotSent { copy } => {
                self.on_answer(copy, Answer::Refused { code: None, hint: Duration::ZERO }, now, host, actions);
            }
            Event::Answer { copy, answer } => self.on_answer(copy, answer, now, host, actions),
            Event::LinkLost { replica } => self.on_link(replica, End::LinkLost, now, host, actions),
            Event::LinkSilent { replica } => self.on_link(replica, End::LinkSilent, now, host, actions),
            Event::Timer(timer) => self.on_timer(timer, now, host, actions),
            Event::Dropped => self.finish(Outcome::Dropped, actions),
        }
    }

    /// When a timer is due, if it is armed.
    pub fn armed(&self, timer: Timer) -> Option<Moment> {
        self.timers.at(timer)
    }

    /// The timer that is due first.
    pub fn next_due(&self) -> Option<(Timer, Moment)> {
        Timer::ALL
            .into_iter()
            .filter_map(|timer| self.timers.at(timer).map(|at| (timer, at)))
            .min_by_key(|(_, at)| *at)
    }

    /// How the read ended, once it has.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Every copy sent so far, in order; [`CopyIndex`] is the index.
    pub fn copies(&self) -> &[SentCopy] {
        &self.copies
    }

    /// What the read was begun with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Rounds over the replicas so far, less one.
    pub fn round(&self) -> u8 {
        self.round
    }

    /// Fresh ties begun after the first one.
    pub fn fresh_ties(&self) -> usize {
        self.ties.len().saturating_sub(1)
    }

    fn begin(&mut self, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        if !self.ties.is_empty() {
            return;
        }
        self.arm(Timer::Deadline, self.plan.deadline, actions);
        if self.plan.order.is_empty() {
            return self.finish(Outcome::GaveUp(GiveUp::NoReplica), actions);
        }
        let members = members_of(&self.plan.order);
        self.begin_tie(members, CopyKind::First, now, host, actions);
        self.arm_extras(now, host, actions);
    }

    fn on_timer(&mut self, timer: Timer, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        // A driver may keep timers that were moved or disarmed: they fire into nothing.
        if self.timers.at(timer).is_none_or(|at| at > now) {
            return;
        }
        self.timers.disarm(timer);
        match timer {
            Timer::Deadline => self.finish(Outcome::GaveUp(GiveUp::Deadline), actions),
            Timer::NextCopy => self.send_planned(now, actions),
            Timer::Hedge => self.extra_due(CopyKind::Hedge, now, host, actions),
            Timer::Rescue => self.extra_due(CopyKind::Rescue, now, host, actions),
            Timer::Backoff => {
                self.round += 1;
                self.hint = None;
                self.out_this_round.clear();
                self.got_extra.clear();
                let candidates = self.candidates();
                self.begin_tie(members_of(&candidates), CopyKind::Retry, now, host, actions);
                self.arm_extras(now, host, actions);
            }
        }
    }

    fn on_answer(
        &mut self,
        copy: CopyIndex,
        answer: Answer,
        now: Moment,
        host: &mut impl Host,
        actions: &mut Actions,
    ) {
        let Some(record) = self.copies.get_mut(usize::from(copy.0)) else { return };
        if record.end.is_answer() {
            return;
        }
        let (replica, kind, tie, was_out) = (record.replica, record.kind, record.tie, record.end == End::Out);
        match answer {
            Answer::Good => {
                record.end = End::Won;
                return self.finish(Outcome::Won(copy), actions);
            }
            Answer::FixTheCall { code } => {
                record.end = End::Failed(code);
                return self.finish(Outcome::GaveUp(GiveUp::FixTheCall(copy)), actions);
            }
            // Its node knows other members: a change of them is under way. The read goes on at once, and untied.
            Answer::Refused { code: code @ Some(ErrorCode::BadTie), .. } if record.number.is_some() => {
                record.end = End::Refused(code);
                self.plan.width = 1;
                self.suspect(tie);
            }
            Answer::Refused { code, hint } => {
                record.end = End::Refused(code);
                note(&mut self.out_this_round, replica);
                if !hint.is_zero() {
                    self.hint = Some(self.hint.map_or(hint, |known| known.min(hint)));
                }
                // The tie lives: its next member is asked at once, beyond the planned width too.
                if was_out && tie.is_some_and(|index| self.is_current(index)) && !self.current_suspect() {
                    self.send_next_member(now, CopyKind::Tied, actions);
                }
            }
            Answer::Failed { code } => {
                record.end = End::Failed(code);
                note(&mut self.failed, replica);
                self.suspect(tie);
            }
        }
        self.settle(now, host, actions);
        if tie.is_none() && was_out {
            self.extra_again(kind, now, host, actions);
        }
    }

    fn on_link(&mut self, replica: NodeId, end: End, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        let mut lost: SmallVec<[(CopyKind, Option<u8>); 4]> = SmallVec::new();
        for copy in self.copies.iter_mut().filter(|copy| copy.replica == replica) {
            match copy.end {
                End::Out => {
                    lost.push((copy.kind, copy.tie));
                    copy.end = end;
                }
                // A silent link that is now closed: nothing is left there to withdraw.
                End::LinkSilent => copy.end = end,
                _ => {}
            }
        }
        if lost.is_empty() {
            return;
        }
        note(&mut self.out_this_round, replica);
        for (_, tie) in &lost {
            self.suspect(*tie);
        }
        self.settle(now, host, actions);
        if let Some((kind, _)) = lost.iter().find(|(_, tie)| tie.is_none()) {
            self.extra_again(*kind, now, host, actions);
        }
    }

    /// After a copy ended: goes on with a held copy, a fresh tie or another round, or ends the read.
    fn settle(&mut self, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        if self.outcome.is_some() || self.timers.at(Timer::Backoff).is_some() {
            return;
        }
        if self.held && !self.current_suspect() {
            self.send_planned(now, actions);
        }
        if !self.current_suspect() && self.current_lives() {
            return;
        }
        if self.fail_over(now, host, actions) || self.any_unsuspected_lives() {
            return;
        }
        self.another_round(now, host, actions);
    }

    /// Begins a fresh tie if one may begin.
    fn fail_over(&mut self, now: Moment, host: &mut impl Host, actions: &mut Actions) -> bool {
        let mut candidates = self.candidates();
        // Replicas that hold an untied live copy of this read come last. They are not left out: an extra copy ranks
        // below first ones on its node and may wait there for long.
        candidates.sort_by_key(|replica| self.holds_live_extra(*replica));
        if candidates.is_empty() {
            return false;
        }
        if self.free_ties > 0 {
            self.free_ties -= 1;
        } else if !self.below_bound() || !host.token(CopyKind::Retry, now) {
            return false;
        }
        self.begin_tie(members_of(&candidates), CopyKind::Retry, now, host, actions);
        true
    }

    /// Every replica refused or was lost: a further round after a backoff, from the budget; else the error (R10).
    fn another_round(&mut self, now: Moment, host: &mut impl Host, actions: &mut Actions) {
        let somebody = self.plan.order.iter().any(|replica| !self.failed.contains(replica));
        if somebody && self.round + 1 < ROUNDS_MAX && self.below_bound() {
            let at = now + host.backoff(self.round, self.hint.unwrap_or(Duration::ZERO));
            if at < self.plan.deadline && host.token(CopyKind::Retry, now) {
                self.timers.disarm(Timer::NextCopy);
                return self.arm(Timer::Backoff, at, actions);
            }
        }
        self.finish(Outcome::GaveUp(GiveUp::NothingLeft), actions);
    }

    /// Begins a tie of `members` (not empty), in their order, and sends its copy 0.
    fn begin_tie(
        &mut self,
        members: Members,
        kind: CopyKind,
        now: Moment,
        host: &mut impl Host,
        actions: &mut Actions,
    ) {
        let Some(first) = members.first().copied() else {
            return self.finish(Outcome::GaveUp(GiveUp::NothingLeft), actions);
        };
        let width = self.plan.width.min(host.width_max()).clamp(1, members.len() as u8);
        let (id, delay) =
            if width > 1 { (Some(host.tie_id()), host.tie_delay(first)) } else { (None, Duration::ZERO) };
        self.held = false;
        self.timers.disarm(Timer::NextCopy);
        self.ties.push(OwnTie { id, members, width, next: 0, suspect: false, delay });
        self.send_next_member(now, kind, actions);
    }

    /// The tie delay is over (or a place came free): the next planned copy.
    fn send_planned(&mut self, now: Moment, actions: &mut Actions) {
        self.held = false;
        let Some(tie) = self.ties.last() else { return };
        if tie.suspect || tie.next >= tie.width {
            return;
        }
        if self.below_bound() {
            self.send_next_member(now, CopyKind::Tied, actions);
        } else {
            self.held = true;
        }
    }

    /// Sends a copy to the next member of the current tie that is not out of this round, if there is one.
    fn send_next_member(&mut self, now: Moment, kind: CopyKind, actions: &mut Actions) {
        let index = self.ties.len().saturating_sub(1);
        let Some(tie) = self.ties.get_mut(index) else { return };
        let (failed, out) = (&self.failed, &self.out_this_round);
        while let Some(replica) = tie.members.get(usize::from(tie.next)).copied() {
            let number = tie.next;
            tie.next += 1;
            if failed.contains(&replica) || out.contains(&replica) {
                continue;
            }
            let wire = tie.id.map(|id| Tie {
                id,
                number: CopyNumber(number),
                members: tie.members.clone(),
                width: tie.width,
            });
            let kind = if number > 0 && wire.is_none() { CopyKind::Retry } else { kind };
            let next_at = (tie.next < tie.width).then_some(now + tie.delay);
            self.send(replica, wire, kind, Some(index as u8), actions);
            match next_at {
                Some(at) => self.arm(Timer::NextCopy, at, actions),
                None => self.timers.disarm(Timer::NextCopy),
            }
            return;
        }
        self.timers.disarm(Timer::NextCopy);
    }

    pub(crate) fn send(
        &mut self,
        replica: NodeId,
        tie: Option<Tie>,
        kind: CopyKind,
        index: Option<u8>,
        actions: &mut Actions,
    ) {
        let copy = CopyIndex(self.copies.len() as u16);
        let number = tie.as_ref().map(|tie| tie.number);
        self.copies.push(SentCopy { replica, kind, number, tie: index, end: End::Out });
        actions.push(Action::Send(Send { copy, replica, tie, kind }));
    }

    pub(crate) fn arm(&mut self, timer: Timer, at: Moment, actions: &mut Actions) {
        self.timers.arm(timer, at);
        actions.push(Action::Arm { timer, at });
    }

    fn finish(&mut self, outcome: Outcome, actions: &mut Actions) {
        self.outcome = Some(outcome);
        self.timers = Timers::default();
        let open: SmallVec<[CopyIndex; 4]> = (0u16..)
            .zip(&self.copies)
            .filter(|(_, copy)| matches!(copy.end, End::Out | End::LinkSilent))
            .map(|(index, _)| CopyIndex(index))
            .collect();
        if !open.is_empty() && !self.plan.naive {
            actions.push(Action::Withdraw(open));
        }
        actions.push(Action::Finish(outcome));
    }

    /// Replicas that a tie may use now: no failure after the start, not out of this round. Holding an old copy
    /// takes no replica out (R2).
    pub(crate) fn candidates(&self) -> Order {
        let usable = |replica: &&NodeId| !self.failed.contains(replica) && !self.out_this_round.contains(replica);
        self.plan.order.iter().filter(usable).copied().collect()
    }

    /// True while one more copy may be out.
    pub(crate) fn below_bound(&self) -> bool {
        self.copies.iter().filter(|copy| copy.end == End::Out).count() < READ_COPIES_OUT_MAX
    }

    fn holds_live_extra(&self, replica: NodeId) -> bool {
        self.copies.iter().any(|copy| copy.replica == replica && copy.tie.is_none() && copy.end == End::Out)
    }

    fn is_current(&self, index: u8) -> bool {
        usize::from(index) + 1 == self.ties.len()
    }

    fn current_suspect(&self) -> bool {
        self.ties.last().is_some_and(|tie| tie.suspect)
    }

    fn current_lives(&self) -> bool {
        self.copies.iter().any(|copy| copy.end == End::Out && copy.tie.is_some_and(|tie| self.is_current(tie)))
    }

    fn any_unsuspected_lives(&self) -> bool {
        let sound = |tie: Option<u8>| {
            tie.and_then(|index| self.ties.get(usize::from(index))).is_none_or(|tie| !tie.suspect)
        };
        self.copies.iter().any(|copy| copy.end == End::Out && sound(copy.tie))
    }

    fn suspect(&mut self, tie: Option<u8>) {
        if let Some(tie) = tie.and_then(|index| self.ties.get_mut(usize::from(index))) {
            tie.suspect = true;
        }
    }
}

/// The first of those that may be asked: a tie has no more members.
fn members_of(candidates: &[NodeId]) -> Members {
    Members::from_slice(&candidates[..candidates.len().min(TIE_COPIES_MAX)])
}

/// Adds `replica` to a list in which it stands at most once.
pub(crate) fn note(list: &mut Order, replica: NodeId) {
    if !list.contains(&replica) {
        list.push(replica);
    }
}

#[cfg(test)]
#[path = "race_test.rs"]
mod tests;

//! The path of a read: choose replicas -> pace copies -> first good answer -> withdraw the rest.
//!
//! Holds no policy: [`crate::choose`] asks the pure rooms whom to ask, [`crate::race`] says which copy goes when and
//! who has won; here their words become frames and waits. Everything of one read lives in [`Running`]; dropping it,
//! at whatever point, withdraws every copy.
//!
//! Cost of a read in the common case: one allocation (the mailbox), one entry in the timer, no task of its own.

use crate::choose::{Chosen, TableWays, Wish, asked, choose};
use crate::clock;
use crate::connections::Connections;
use crate::copies::{Action, Actions, Answer, CopyIndex, Event, Plan, Send, Timer};
use crate::engine::{CallId, Engine};
use crate::error::{Cause, CopyFate, Error};
use crate::exchange::Handed;
use crate::mailbox::{Mail, Mailbox};
use crate::operation::{LevelName, Operation};
use crate::options::{Level, ReadOptions, deadline_of};
use crate::race::Race;
use crate::read_end::GoodAnswer;
use crate::report::Read;
use crate::shadow::{Sample, Shadow};
use crate::tally::Tally;
use crate::timer::Alarm;
use crate::view::{Own, ViewInner};
use bytes::Bytes;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::limits::KEY_BYTES_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{CopyKind, ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::{Failure, Found, ReadReply, Service};

/// One read of a key, with what it shares with others of its call.
pub(crate) struct OneRead<'o> {
    pub(crate) key: Bytes,
    pub(crate) options: &'o ReadOptions,
    pub(crate) operation: Operation,
    /// The call for many keys that it is part of.
    pub(crate) call: Option<CallId>,
    /// When its call began.
    pub(crate) began: Moment,
}

/// Reads one key.
///
/// # Cancel safety
/// Dropping the future withdraws every copy.
pub(crate) async fn tied_read(view: &Arc<ViewInner>, one: OneRead<'_>) -> Result<Read, Error> {
    let OneRead { key, options, operation, call, began } = one;
    check_key(&key)?;
    let whole = Whole { what: ReadOperation::Get { key }, options, operation, call, began };
    Ok(read(view, whole).await?.into())
}

/// A read of whatever can be read.
pub(crate) struct Whole<'o> {
    pub(crate) what: ReadOperation,
    pub(crate) options: &'o ReadOptions,
    pub(crate) operation: Operation,
    pub(crate) call: Option<CallId>,
    pub(crate) began: Moment,
}

/// Reads whatever can be read.
///
/// # Cancel safety
/// Dropping the future withdraws every copy.
pub(crate) async fn read(view: &Arc<ViewInner>, whole: Whole<'_>) -> Result<GoodAnswer, Error> {
    let Whole { what, options, operation, call, began } = whole;
    let deadline = deadline_of(options.deadline, view.shared.config().deadline)?;
    let until = began + deadline;
    check_options(options)?;
    let (level, name) = level_of(view, options)?;
    let asked = asked(view, options, operation, name, call);
    let connections = view.shared.connections();
    // A read of its own begins where its call does: one look at the clock less.
    let mut now = if call.is_none() { began } else { clock::now() };
    if !connections.any_link() {
        if !connections.wait(until, Connections::any_link).await {
            return Err(nobody(view, deadline, began));
        }
        now = clock::now();
    }
    let wish = Wish { asked, options, level, what, deadline: until };
    let (chosen, plan) = choose(view, &mut view.own.lock(), wish, now);
    // The delay of a tie is counted from when its first copy leaves.
    now = if plan.width > 1 { clock::now() } else { now };
    // Made where it stays: a read is large.
    let mut running = Running::new(view, chosen, plan, deadline, options.planned.unwrap_or(began), now);
    running.begin(now);
    while running.race.outcome().is_none() && !connections.is_closed() {
        now = poll_fn(|context| running.poll_event(context)).await;
    }
    running.result(now)
}

pub(crate) fn check_key(key: &Bytes) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let message = format!("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}", key.len());
        return Err(Error::call(ErrorCode::OverLimit, message));
    }
    Ok(())
}

/// A node that is named is asked once: a policy of more copies beside it could have no effect.
pub(crate) fn check_options(options: &ReadOptions) -> Result<(), Error> {
    match (options.node, options.policy) {
        (Some(node), Some(policy)) if !policy.is_plain() => {
            let message = format!("node {node} alone is asked once: leave out `{policy}`, or say `untied`");
            Err(Error::call(ErrorCode::Unsupported, message))
        }
        _ => Ok(()),
    }
}

pub(crate) fn level_of(view: &ViewInner, options: &ReadOptions) -> Result<(ReadLevel, LevelName), Error> {
    let level = options.level.unwrap_or(view.shared.config().level);
    let mut seen = view.seen();
    if let Some(token) = options.token {
        seen = seen.max(view.check_token(token)?);
        if level != Level::Session {
            let reason = match level {
                Level::Linearizable => "a linearizable read sees every acknowledged write already",
                _ => "a stale read waits for no position",
            };
            let message = format!("a position token has an effect only on session reads: {reason}");
            return Err(Error::call(ErrorCode::BadToken, message));
        }
    }
    Ok((level.on_wire(seen), level.into()))
}

fn nobody(view: &ViewInner, deadline: Duration, began: Moment) -> Error {
    let connections = view.shared.connections();
    let cause = match connections.is_closed() {
        true => Cause::Closed,
        false => Cause::NoReplica(format!(" within {deadline:?}{}", connections.dial_errors())),
    };
    Error::new(cause, Vec::new(), clock::now().since(began))
}

/// What is known of one copy beside the race.
pub(crate) struct Copy {
    pub(crate) handed: Option<Handed>,
    pub(crate) sent: Moment,
    pub(crate) fate: Option<CopyFate>,
    /// What its node said about its service.
    pub(crate) service: Option<Service>,
}

/// One read under way.
pub(crate) struct Running<'v> {
    pub(crate) view: &'v Arc<ViewInner>,
    pub(crate) chosen: Chosen,
    /// The clock as of what happened last, until the read waits again.
    looked: Option<Moment>,
    pub(crate) race: Race,
    pub(crate) copies: SmallVec<[Copy; 3]>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) alarm: Alarm,
    /// When the next copy is due and when to be woken for it.
    copy_alarm: Option<(Moment, Moment)>,
    pub(crate) deadline: Duration,
    /// When the caller meant to send.
    pub(crate) planned: Moment,
    pub(crate) winner: Option<(ReadReply, Bytes, Moment)>,
    pub(crate) tie_delay_realised: Option<Duration>,
    /// When the extra copy of an observed read is sent for real.
    sample_at: Option<Moment>,
    /// The other answer that this read's is compared with.
    pub(crate) sample: Option<Arc<Sample>>,
    pub(crate) settled: bool,
}

impl<'v> Running<'v> {
    /// Sends the first copy.
    fn begin(&mut self, now: Moment) {
        self.feed(Event::Begin, now, self.view.own.lock());
        self.send_shadow(now);
    }

    fn new(
        view: &'v Arc<ViewInner>,
        chosen: Chosen,
        plan: Plan,
        deadline: Duration,
        planned: Moment,
        now: Moment,
    ) -> Self {
        let tally = view.shared.connections().counters.tallies.of(chosen.slot);
        tally.reads.fetch_add(1, Relaxed);
        if plan.width > 1 {
            tally.ties.fetch_add(1, Relaxed);
        }
        if let Some(reason) = chosen.not_tied {
            tally.not_tied[reason as usize].fetch_add(1, Relaxed);
        }
        // Only one get names a version that can be compared.
        let comparable = matches!(chosen.what, ReadOperation::Get { .. });
        let sampled = chosen.observed.as_ref().filter(|observed| observed.sample && comparable);
        let sample_at = sampled.and_then(|observed| observed.first_after()).map(|after| now + after);
        Self {
            view,
            race: Race::new(plan),
            chosen,
            looked: Some(now),
            copies: SmallVec::new(),
            mailbox: Arc::default(),
            alarm: view.shared.connections().timer.alarm(),
            copy_alarm: None,
            deadline,
            planned,
            winner: None,
            tie_delay_realised: None,
            sample_at,
            sample: None,
            settled: false,
        }
    }

    /// Waits for the next thing that happens to the read, mail of a link or a timer that is due, and takes it to the
    /// race. Gives when it happened.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Moment> {
        if let Poll::Ready(mail) = self.mailbox.poll_take(context) {
            let now = clock::now();
            let mut own = self.view.own.lock();
            let event = self.open(mail, &mut own, now);
            self.feed(event, now, own);
            return Poll::Ready(now);
        }
        // Right after an event its look at the clock serves.
        let mut now = self.looked.take().unwrap_or_else(clock::now);
        if self.sample_at.is_some_and(|at| now >= at) {
            self.send_sample(now);
        }
        let Some((timer, at)) = self.race.next_due() else { return Poll::Pending };
        if timer == Timer::NextCopy {
            // Some tens of microseconds away: choosing and sending may have taken that.
            now = clock::now();
        }
        let wake_at = if timer == Timer::NextCopy { self.copy_alarm(at, now) } else { at };
        if now < wake_at {
            self.alarm.set(self.sample_at.map_or(wake_at, |sample| sample.min(wake_at)), context.waker());
            return Poll::Pending;
        }
        if timer == Timer::NextCopy {
            let counters = &self.view.shared.connections().counters;
            counters.tie_overshoot.add(now.since(at).max(at.since(now)));
        }
        self.feed(Event::Timer(timer), now, self.view.own.lock());
        Poll::Ready(now)
    }

    /// When to be woken for a copy that is due at `at`: earlier by what alarms usually come late, but by no more than
    /// half of the wait. Said once per copy.
    fn copy_alarm(&mut self, at: Moment, now: Moment) -> Moment {
        match self.copy_alarm {
            Some((known, alarm)) if known == at => alarm,
            _ => {
                let lead = self.view.shared.connections().timer.lead().min(at.since(now) / 2);
                self.copy_alarm = Some((at, at - lead));
                at - lead
            }
        }
    }

    /// Gives the race an event and does what it says; `own` is given back before anything is sent.
    fn feed(&mut self, event: Event, now: Moment, mut own: MutexGuard<'v, Own>) {
        self.looked = Some(now);
        let view = self.view;
        let mut events: SmallVec<[Event; 2]> = SmallVec::new();
        let (mut event, mut next) = (event, 0);
        loop {
            let by_timer = matches!(event, Event::Timer(_));
            // One that was woken for a little early is due all the same.
            let due = match event {
                Event::Timer(timer) => self.race.armed(timer).map_or(now, |at| at.max(now)),
                _ => now,
            };
            // Small enough to stand here: kept in `self` it would be moved with it.
            let mut actions = Actions::new();
            let ways = TableWays { table: &self.chosen.table, cap: view.shared.config().tie_delay_cap };
            let board = &view.shared.connections().board;
            let suppressed = own.ask(&mut self.race, (event, due), self.chosen.asked, &ways, board, &mut actions);
            // Counted as out before they leave: what cannot leave is taken back.
            for action in &actions {
                if let Action::Send(send) = action {
                    own.engine.copy_sent(send.replica, send.kind);
                }
            }
            drop(own);
            for reason in suppressed {
                self.tally().suppressed[reason as usize].fetch_add(1, Relaxed);
            }
            for action in actions.drain(..) {
                match action {
                    Action::Send(send) => events.extend(self.send(send, by_timer, now)),
                    // All that are out are withdrawn when the read is settled.
                    Action::Withdraw(_) | Action::Finish(_) => {}
                    // The race is asked for its next timer before each wait.
                    Action::Arm { .. } => {}
                }
            }
            let Some(following) = events.get(next).copied() else { return };
            (event, next) = (following, next + 1);
            own = view.own.lock();
        }
    }

    /// Hands one copy to a link of its replica; the event if it could not leave.
    fn send(&mut self, send: Send, by_timer: bool, now: Moment) -> Option<Event> {
        let (copy, tied) = (send.copy, send.tie.is_some());
        let handed = match self.chosen.table.peer(send.replica) {
            Some(peer) => match peer.link() {
                Some(link) => {
                    link.send_copy(self.request(&send, now), self.chosen.slot, &self.mailbox, copy.0, now)
                }
                None => Err(peer.dial_error().unwrap_or_else(|| "not connected yet".to_owned())),
            },
            None => Err("it left the cluster".to_owned()),
        };
        if let ([first], true) = (self.copies.as_slice(), tied && by_timer) {
            self.tie_delay_realised = Some(now.since(first.sent));
        }
        match handed {
            Ok(handed) => {
                self.copies.push(Copy { handed: Some(handed), sent: now, fate: None, service: None });
                None
            }
            Err(reason) => {
                self.view.own.lock().engine.copy_gone(send.replica, send.kind);
                let fate = Some(CopyFate::NotSent(reason));
                self.copies.push(Copy { handed: None, sent: now, fate, service: None });
                Some(Event::NotSent { copy })
            }
        }
    }

    /// Sends a copy that measures, if one is due. Nobody waits for it.
    fn send_shadow(&self, now: Moment) {
        if let Some(replica) = self.chosen.shadow {
            self.shadow(replica, None, now);
        }
    }

    /// Sends the extra copy of an observed read for real: its answer is compared and thrown away.
    fn send_sample(&mut self, now: Moment) {
        self.sample_at = None;
        let first = self.race.copies().first().map(|copy| copy.replica);
        let other = self.race.plan().order.iter().copied().find(|node| Some(*node) != first);
        let Some(other) = other.filter(|to| self.view.own.lock().engine.sample_token(*to, now)) else { return };
        let sample = Sample::new(self.chosen.slot);
        if self.shadow(other, Some(sample.clone()), now) {
            self.sample = Some(sample);
        }
    }

    /// True if it was handed over.
    fn shadow(&self, replica: NodeId, sample: Option<Arc<Sample>>, now: Moment) -> bool {
        let Some(link) = self.chosen.table.peer(replica).and_then(|peer| peer.link()) else { return false };
        let send = Send { copy: CopyIndex(0), replica, tie: None, kind: CopyKind::Shadow };
        let reader = Shadow::new(self.view, sample);
        self.view.own.lock().engine.copy_sent(replica, CopyKind::Shadow);
        let handed = link.send_shadow(self.request(&send, now), self.chosen.slot, reader, now);
        if let Err(reason) = &handed {
            self.view.own.lock().engine.copy_gone(replica, CopyKind::Shadow);
            tracing::debug!(node = %replica, %reason, "no shadow copy");
        }
        handed.is_ok()
    }

    pub(crate) fn tally(&self) -> &Tally {
        self.view.shared.connections().counters.tallies.of(self.chosen.slot)
    }

    fn request(&self, send: &Send, now: Moment) -> ReadRequest {
        let chosen = &self.chosen;
        ReadRequest {
            request: tiedkv_protocol::ids::RequestId(0),
            shard: chosen.table.topology.shard,
            read: chosen.read,
            kind: send.kind,
            tie: send.tie.clone(),
            level: chosen.level,
            class: chosen.class,
            time_left_us: u64::try_from(self.race.plan().deadline.since(now).as_micros()).unwrap_or(u64::MAX),
            operation: chosen.what.clone(),
        }
    }

    /// What a piece of mail means for the race.
    fn open(&mut self, mail: Mail, own: &mut Own, now: Moment) -> Event {
        match mail {
            Mail::Answer { copy, reply, value, received } => {
                self.on_answer((copy, reply, value, received), &mut own.engine)
            }
            Mail::LinkLost { node, reason } => {
                let copies = self.race.copies().iter().zip(&mut self.copies);
                for (sent, copy) in copies.filter(|(sent, copy)| sent.replica == node && copy.fate.is_none()) {
                    copy.fate = Some(CopyFate::lost(&reason));
                    own.engine.copy_gone(node, sent.kind);
                }
                own.link_lost(node, reason, now);
                Event::LinkLost { replica: node }
            }
        }
    }

    fn on_answer(&mut self, answer: (u16, ReadReply, Bytes, Moment), engine: &mut Engine) -> Event {
        let (index, reply, value, received) = answer;
        let copy = CopyIndex(index);
        let answer = self.judge(&reply);
        let sent = self.race.copies().get(usize::from(index)).copied();
        let service = self.chosen.table.without_old_ceiling(reply.service, engine.control.ceiling().version);
        if let (Some(sent), Some(known)) = (sent, self.copies.get_mut(usize::from(index))) {
            let code = reply.outcome.as_ref().err().map(|failure| failure.code);
            known.service = Some(reply.service);
            if code.is_none() && !self.chosen.what.is_short() {
                engine.page_answered(&service, received);
            } else {
                let service = service.of_one(self.chosen.what.gets());
                engine.answered(received.since(known.sent), &service, code, received);
            }
            if known.fate.is_none() {
                engine.copy_gone(sent.replica, sent.kind);
            }
            known.fate = match (&answer, &reply.outcome) {
                (Answer::Good, _) => Some(CopyFate::Won),
                (Answer::Refused { .. }, Err(failure)) => Some(CopyFate::Refused(Box::new(failure.clone()))),
                (_, Err(failure)) => Some(CopyFate::Failed(Box::new(failure.clone()))),
                (_, Ok(found)) => Some(CopyFate::Failed(Box::new(too_early(found)))),
            };
            let tally = self.view.shared.connections().counters.tallies.of(self.chosen.slot);
            match (answer, reply.outcome.is_ok()) {
                (Answer::Good, _) => tally.won.add(sent.kind),
                (_, true) => tally.copies_failed.add(sent.kind),
                // Counted by the link.
                (_, false) => {}
            }
        }
        if answer == Answer::Good {
            self.winner = Some((reply, value, received));
        }
        Event::Answer { copy, answer }
    }

    /// As [`Answer::judge`]; an answer from before what the session has seen is a failure of its node.
    fn judge(&self, reply: &ReadReply) -> Answer {
        match (&reply.outcome, self.chosen.level) {
            (Ok(found), ReadLevel::Session { seen }) if found.position < seen => {
                Answer::Failed { code: ErrorCode::Behind }
            }
            (outcome, _) => Answer::judge(&reply.service, outcome),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.tally().dropped.fetch_add(1, Relaxed);
            let now = clock::now();
            self.feed(Event::Dropped, now, self.view.own.lock());
            self.settle(now);
        }
    }
}

/// An answer that lies before what the session has seen.
fn too_early(found: &Found) -> Failure {
    let Position(have) = found.position;
    let mut failure =
        Failure::new(ErrorCode::Behind, format!("answered from position {have}, before the session's"));
    failure.have = Some(found.position);
    failure
}

#[cfg(test)]
#[path = "old_ceiling_test.rs"]
mod tests;

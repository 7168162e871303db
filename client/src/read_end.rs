//! The end of a read: withdraw the rest, balance the books, tell the view what was learned, make the caller's result.

use crate::choose::Chosen;
use crate::copies::{CopyIndex, GiveUp, Outcome, SentCopy};
use crate::error::{Cause, CopyFate, CopyReport, Error};
use crate::learn::Ended;
use crate::mailbox::Mail;
use crate::observe::{Answered, Unsent};
use crate::report::{Read, ReadReport, Value};
use crate::tied_read::{Copy, Running};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{CopyKind, ReadLevel};
use tiedkv_protocol::response::{Failure, Found, ReadReply};

/// A good answer, whatever was read.
pub(crate) struct GoodAnswer {
    pub(crate) found: Found,
    pub(crate) payload: Bytes,
    pub(crate) report: ReadReport,
}

impl From<GoodAnswer> for Read {
    fn from(answer: GoodAnswer) -> Self {
        let GoodAnswer { found, payload: value, report } = answer;
        let remaining = found.remaining_ms.map(Duration::from_millis);
        let value = found.version.map(|version| Value { value, version, position: found.position, remaining });
        Self { value, report }
    }
}

impl Running<'_> {
    /// Withdraws what is still out and balances the books. Once.
    pub(crate) fn settle(&mut self, now: Moment) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let tally = self.view.shared.connections().counters.tallies.of(self.chosen.slot);
        // The copies of a read that was answered are cancelled already, as a rule; others may wait or run for nobody.
        let urgent = !matches!(self.race.outcome(), Some(Outcome::Won(_)));
        for copy in self.copies.iter().filter(|_| !self.race.plan().naive) {
            // Also copies on links of a replica of which another link was lost.
            if let Some(handed) = copy.handed.as_ref().filter(|_| copy.service.is_none()) {
                handed.link.withdraw(handed.id, urgent);
            }
        }
        for mail in self.mailbox.close() {
            let Mail::Answer { copy, reply, .. } = mail else { continue };
            let (Some(sent), Some(known)) =
                (self.race.copies().get(usize::from(copy)), self.copies.get_mut(usize::from(copy)))
            else {
                continue;
            };
            if reply.outcome.is_ok() {
                tally.late.add(sent.kind);
                known.fate.get_or_insert(CopyFate::Late);
            }
        }
        let mut own = self.view.own.lock();
        for (sent, known) in self.race.copies().iter().zip(&mut self.copies) {
            if known.handed.is_some() && matches!(known.fate, None | Some(CopyFate::Late)) {
                own.engine.copy_gone(sent.replica, sent.kind);
            }
            known.fate.get_or_insert(CopyFate::Unanswered);
        }
        // The client's own wait before the first copy and after the answer does not enter.
        let mut unsent = SmallVec::new();
        if let Some(first) = self.copies.first() {
            let end = self.winner.as_ref().map_or(now, |(_, _, received)| *received);
            let latency = end.since(first.sent);
            let Chosen { asked, hold_out, observed, .. } = self.chosen;
            if self.chosen.what.is_short() {
                let gets = self.chosen.what.gets();
                let winner = self.winner.as_ref().map(|(reply, _, _)| reply.service.of_one(gets));
                let ended = Ended { race: &self.race, hold_out, observed };
                unsent = own.engine.read_ended(asked, &ended, latency, winner.as_ref(), end);
            } else if let Some(observed) = observed {
                // The time of a page teaches nothing of gets; its tie would have gone out all the same, and nothing else.
                unsent = observed.unsent(latency, |_| false);
            }
        }
        let (slot, asked) = (self.chosen.slot, self.chosen.asked);
        // It is learned per operation: of a policy without extra copies it says nothing.
        if asked.policy.hedge() || asked.policy.rescue {
            let too_long = own.engine.delay_too_long(asked);
            match own.says_too_long(slot, too_long).then_some(too_long) {
                Some(true) => _ = tally.delay_too_long.fetch_add(1, Relaxed),
                Some(false) => _ = tally.delay_too_long.fetch_sub(1, Relaxed),
                None => {}
            }
        }
        drop(own);
        self.count_end(&unsent);
    }

    /// Counts how the read ended.
    fn count_end(&self, unsent: &[Unsent]) {
        let tally = self.tally();
        if self.race.fresh_ties() > 0 {
            tally.fresh_ties.fetch_add(self.race.fresh_ties() as u64, Relaxed);
        }
        let asked = self.chosen.asked.policy;
        unsent.iter().for_each(|copy| tally.unsent.add(copy.kind));
        if let Some(first) = unsent.first() {
            tally.unsent_after.add(first.after);
        }
        let (Some(first), Some((reply, _, received))) = (self.copies.first(), &self.winner) else { return };
        tally.client_wait.add(first.sent.since(self.planned));
        // The hold-out is drawn among reads with a bet on lateness: only those can be compared with it.
        let could_bet = asked.width() > 1 || asked.hedge();
        let bets = self.chosen.tie_delay.is_some() || self.race.plan().hedge;
        let spread = match self.chosen.hold_out {
            true => &tally.without,
            false if could_bet && !bets => &tally.cut,
            false => &tally.with,
        };
        spread.add(received.since(first.sent));
        if let Some(Outcome::Won(copy)) = self.race.outcome()
            && let Some(won) = self.race.copies().get(usize::from(copy.0))
        {
            let number = if won.kind == CopyKind::First { Some(0) } else { won.number.map(|number| number.0) };
            if let Some(count) = number.and_then(|number| tally.won_by_number.get(usize::from(number))) {
                count.fetch_add(1, Relaxed);
            }
            if won.kind.is_extra()
                && let Some(sent) = self.copies.get(usize::from(copy.0))
            {
                tally.extra_path.add(received.since(sent.sent));
            }
        }
        if let (Some(sample), Ok(found)) = (&self.sample, &reply.outcome) {
            sample.came(Answered { version: found.version, position: found.position }, self.view);
        }
    }

    /// The caller's result; by reference, since a read is large. Once. `now`: when the read ended.
    pub(crate) fn result(&mut self, now: Moment) -> Result<GoodAnswer, Error> {
        self.settle(now);
        let outcome = self.race.outcome().unwrap_or(Outcome::Dropped);
        self.note_if_slow(matches!(outcome, Outcome::Won(_)), now);
        if let (Outcome::Won(copy), Some((reply, value, _))) = (outcome, self.winner.take())
            && let Ok(found) = reply.outcome
        {
            self.tally().answered.fetch_add(1, Relaxed);
            return Ok(self.answered(copy, &reply, found, value, now));
        }
        self.tally().failed.fetch_add(1, Relaxed);
        Err(self.failed(outcome, now))
    }

    fn answered(
        &mut self,
        copy: CopyIndex,
        reply: &ReadReply,
        found: Found,
        payload: Bytes,
        now: Moment,
    ) -> GoodAnswer {
        if !matches!(self.chosen.level, ReadLevel::Stale { .. }) {
            self.view.saw(found.position);
        }
        let sent = self.race.copies().get(usize::from(copy.0));
        let first_sent = self.copies.first().map_or(now, |first| first.sent);
        let span = |us: u32| Duration::from_micros(u64::from(us));
        let report = ReadReport {
            read: self.chosen.read,
            node: reply.service.node,
            kind: sent.map_or(CopyKind::First, |sent| sent.kind),
            copies: self.copy_reports(),
            queue_wait: span(reply.service.queue_wait_us),
            service_time: span(reply.service.service_time_us),
            queue_depth: reply.service.queue_depth,
            latency: now.since(self.planned),
            client_wait: first_sent.since(self.planned),
            tie_delay: self.chosen.tie_delay,
            tie_delay_realised: self.tie_delay_realised,
            not_tied: self.chosen.not_tied,
            fresh_ties: u32::try_from(self.race.fresh_ties()).unwrap_or(u32::MAX),
            token: self.view.token_of(found.position),
        };
        GoodAnswer { found, payload, report }
    }

    fn failed(&mut self, outcome: Outcome, now: Moment) -> Error {
        let fate = |copy: &Copy| copy.fate.clone();
        let call = |copy: CopyIndex| self.copies.get(usize::from(copy.0)).and_then(fate);
        let cause = match outcome {
            Outcome::GaveUp(GiveUp::Deadline) => Cause::Deadline(self.deadline),
            Outcome::GaveUp(GiveUp::FixTheCall(copy)) => match call(copy) {
                Some(CopyFate::Failed(failure) | CopyFate::Refused(failure)) => Cause::Call(*failure),
                _ => Cause::Call(Failure::new(ErrorCode::Malformed, "the node says that the call is wrong")),
            },
            _ if self.view.shared.connections().is_closed() => Cause::Closed,
            _ => Cause::NoReplica(String::new()),
        };
        Error::new(cause, self.copy_reports().into_vec(), now.since(self.planned))
    }

    /// Takes the fates out: asked once, last of all.
    fn copy_reports(&mut self) -> SmallVec<[CopyReport; 3]> {
        let known = self.copies.iter_mut().map(|copy| copy.fate.take().unwrap_or(CopyFate::Unanswered));
        let report = |(sent, fate): (&SentCopy, CopyFate)| CopyReport { node: sent.replica, kind: sent.kind, fate };
        self.race.copies().iter().zip(known).map(report).collect()
    }
}

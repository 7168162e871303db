//! The registry of one stripe: which copies are here, and what arrival, start, cancel, withdraw and end mean for
//! them. The table of the tie (docs/tie-protocol.md) is this room; each of its cells has a unit test.
//!
//! **How to hold the lock.** One mutex per stripe ([`Race::stripe`]). Three steps are atomic (rule R15): *arrival*
//! ([`TieTable::arrive`] and the push into the lane), *start* ([`TieTable::start`] and the hand-over of its cancels),
//! *cancel* ([`TieTable::cancel`], the hand-over of a cancel sent back, and [`Lane::withdrawn`]): keep the guard until
//! the step is complete. The lane's lock may be taken inside the stripe's, never the other way round: a worker pops,
//! lets go of the lane, then starts. Whatever an outcome tells to wake, answer or count may be done afterwards.
//!
//! It knows no clock, no network and no storage; bounds on the number of copies are kept by admission.
//!
//! [`Lane::withdrawn`]: super::lane::Lane::withdrawn

pub use super::copy_name::{CopyName, Race, RaceId, Which};
use super::copy_state::{EndStep, Phase, StartStep, StateCell, Verdict, Waited};
use super::recent_ties::{Filed, Filer, RecentTies, RecentTiesBounds};
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::TIE_DELAY_CAP;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// A copy that was admitted and wants to queue.
#[derive(Clone, Debug)]
pub struct Arriving<C> {
    /// Its name.
    pub name: CopyName,
    /// Its tie, already checked against this node and the membership; `None` for an untied copy.
    pub tie: Option<Tie>,
    /// When its caller stops waiting, on this node's clock.
    pub deadline: Moment,
    /// The handle whose word is raced for; its phase is queued.
    pub copy: C,
}

/// What became of an arrival.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// Registered: push it into its lane before the stripe is unlocked; if the lane refuses, [`TieTable::refuse`].
    Queue,
    /// A peer that it names had started before: drop it, say nothing.
    CancelledEarly {
        /// The peer.
        by: NodeId,
    },
    /// Its client had withdrawn it before: drop it, say nothing.
    WithdrawnEarly,
    /// A copy of its race is or was here, under this or another number: a protocol error, to be answered.
    Duplicate,
}

/// Cancels to hand over before the stripe is unlocked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HandOver {
    /// To whom, each once.
    pub to: SmallVec<[NodeId; 2]>,
    /// What they are told.
    pub cancel: Cancel,
}

/// Whether the replica can serve a copy now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Servable {
    /// Yes.
    Now,
    /// It has not applied what the level asks for.
    NotYet,
    /// What the level asks for is not known yet: the answer to a read barrier is on its way.
    NotKnown,
}

/// What a worker does with a copy that it popped.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// It runs: hand the cancels over (none for an untied copy), unlock, read.
    Run(Option<HandOver>),
    /// It runs already: do its next chunk.
    RunsOn,
    /// It was running and had been asked to stop: it ended, say nothing. Yielded or withdrawn.
    Stopped(Verdict),
    /// It was running and its caller's deadline is over: it ended, answer `Expired` with `started`.
    Overdue,
    /// Its time left does not suffice: it ended, answer `Expired`.
    Expired,
    /// Put it among the copies set aside, until this moment at most. Nobody is cancelled.
    SetAside {
        /// The first limit that it was given counts, however often it is set aside.
        until: Moment,
    },
    /// It was set aside as long as it may be: it ended, answer `Behind`.
    Behind,
    /// It was withdrawn between pop and start: drop it, tell the lane
    /// ([`Lane::dropped`](super::lane::Lane::dropped)).
    Gone,
}

/// What became of a peer's cancel.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CancelOutcome<C> {
    /// Its copy is not here: filed, to be judged when the copy comes.
    Filed(Filed),
    /// The copy had not started and never will: say nothing to its client; if it was queued, tell its lane.
    Withdrawn {
        /// The copy.
        copy: C,
        /// Where it waited.
        waited: Waited,
    },
    /// The copy runs and has to stop at its next cancellation point: wake its worker.
    Yield {
        /// The copy.
        copy: C,
    },
    /// The copy runs and goes on: hand this over to the sender (rule R12).
    CancelBack(HandOver),
    /// The sender claims this copy's own number: a faulty client. Count.
    Equal,
    /// The copy does not name the sender under that number. Count.
    Stranger,
    /// The copy has ended or is ending.
    Ignored,
}

/// What became of a withdraw, or of one copy of a lost connection.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WithdrawOutcome<C> {
    /// The copy is not here: filed, so that it is dropped when it comes.
    Filed(Filed),
    /// The copy had not started and never will; if it was queued, tell its lane.
    Withdrawn {
        /// The copy.
        copy: C,
        /// Where it waited.
        waited: Waited,
    },
    /// The copy runs and will stop at its next cancellation point: wake its worker.
    Stop {
        /// The copy.
        copy: C,
    },
    /// The copy has ended or is ending.
    Ignored,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry<C> {
    copy: C,
    tie: Option<Tie>,
    deadline: Moment,
    /// What it was set aside for, and until when at most.
    aside: Option<(Servable, Moment)>,
}

/// Settings of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TieSettings {
    /// Bounds of the ring of early cancels and ended ties.
    pub recent: RecentTiesBounds,
    /// Longest time set aside; half of the time left when that is less. Default: the cap of the tie delay.
    pub set_aside_max: Duration,
    /// The same for the answer to a read barrier, which is as long as a round to the leader and its quorum. Default:
    /// 500 ms.
    pub barrier_max: Duration,
}

/// See [`TieSettings::barrier_max`].
pub const BARRIER_MAX: Duration = Duration::from_millis(500);

impl TieSettings {
    /// The defaults of one of `stripes` stripes.
    pub fn of_stripes(stripes: usize) -> Self {
        Self {
            recent: RecentTiesBounds::of_stripes(stripes),
            set_aside_max: TIE_DELAY_CAP,
            barrier_max: BARRIER_MAX,
        }
    }
}

/// The registry of one stripe. `C` is the shared handle of a copy in a node, a plain [`Phase`] in a model.
#[derive(Clone, Debug)]
pub struct TieTable<C> {
    copies: HashMap<Race, Entry<C>, RandomState>,
    recent: RecentTies,
    set_aside_max: Duration,
    barrier_max: Duration,
}

impl<C: StateCell + Clone> TieTable<C> {
    /// An empty registry.
    pub fn new(settings: TieSettings) -> Self {
        Self {
            copies: HashMap::default(),
            recent: RecentTies::new(settings.recent),
            set_aside_max: settings.set_aside_max,
            barrier_max: settings.barrier_max,
        }
    }

    /// A copy arrives: early cancels are judged against the names it carries, and it is registered, in one step.
    pub fn arrive(&mut self, arriving: Arriving<C>, now: Moment) -> Arrival {
        let Arriving { name, tie, deadline, copy } = arriving;
        let race = name.race();
        if self.copies.contains_key(&race) {
            return Arrival::Duplicate;
        }
        for (filer, number) in self.recent.filed(&race, now) {
            match filer {
                Filer::Here => return Arrival::Duplicate,
                Filer::Client if number == name.number() => return Arrival::WithdrawnEarly,
                Filer::Peer(by) if tie.as_ref().is_some_and(|tie| gives_way_to(tie, by, number)) => {
                    return Arrival::CancelledEarly { by };
                }
                Filer::Client | Filer::Peer(_) => {}
            }
        }
        self.copies.insert(race, Entry { copy, tie, deadline, aside: None });
        Arrival::Queue
    }

    /// A worker popped this copy; `service_p50` is what a read takes at least, to judge its time left by.
    pub fn start(&mut self, name: &CopyName, servable: Servable, service_p50: Duration, now: Moment) -> Start {
        let Some(entry) = entry(&mut self.copies, name) else { return Start::Gone };
        let phase = entry.copy.phase();
        if phase.is_running() {
            return self.resume(name, now);
        }
        if now + service_p50 > entry.deadline {
            return if self.refuse(name, now) == Verdict::Answer { Start::Expired } else { Start::Gone };
        }
        if servable != Servable::Now {
            return self.set_aside(name, servable, now);
        }
        match entry.copy.step(Phase::start) {
            StartStep::Started => {}
            StartStep::RunsOn | StartStep::MustStop => return self.resume(name, now),
            StartStep::Withdrawn | StartStep::Over => return Start::Gone,
        }
        Start::Run(entry.tie.as_ref().map(|tie| HandOver {
            to: tie.cancelled_by_start().collect(),
            cancel: Cancel { caller: name.caller, tie: tie.id, number: tie.number },
        }))
    }

    /// A peer says that its copy of a tie started.
    pub fn cancel(&mut self, sender: NodeId, cancel: &Cancel, now: Moment) -> CancelOutcome<C> {
        let race = Race::of_cancel(cancel);
        let Some(entry) = self.copies.get_mut(&race) else {
            if self.recent.entry(&race, Filer::Here, now).is_some() {
                return CancelOutcome::Ignored;
            }
            return CancelOutcome::Filed(self.recent.file(race, Filer::Peer(sender), cancel.number, now));
        };
        let Some(tie) = &entry.tie else { return CancelOutcome::Stranger };
        if cancel.number == tie.number {
            return CancelOutcome::Equal;
        }
        if !gives_way_to(tie, sender, cancel.number) {
            return CancelOutcome::Stranger;
        }
        if entry.copy.phase().is_running() && tie.number < cancel.number {
            if entry.copy.phase().must_stop() {
                return CancelOutcome::Ignored;
            }
            let cancel = Cancel { number: tie.number, ..*cancel };
            return CancelOutcome::CancelBack(HandOver { to: SmallVec::from_iter([sender]), cancel });
        }
        match entry.copy.step(Phase::give_way) {
            EndStep::Withdrawn(waited) => {
                let copy = entry.copy.clone();
                self.end(race, now);
                CancelOutcome::Withdrawn { copy, waited }
            }
            EndStep::Asked => CancelOutcome::Yield { copy: entry.copy.clone() },
            EndStep::Nothing => CancelOutcome::Ignored,
        }
    }

    /// The client withdraws a copy, or its connection is gone.
    pub fn withdraw(&mut self, name: &CopyName, now: Moment) -> WithdrawOutcome<C> {
        let race = name.race();
        if !self.copies.contains_key(&race) {
            if self.recent.entry(&race, Filer::Here, now).is_some() {
                return WithdrawOutcome::Ignored;
            }
            return WithdrawOutcome::Filed(self.recent.file(race, Filer::Client, name.number(), now));
        }
        let Some(entry) = entry(&mut self.copies, name) else { return WithdrawOutcome::Ignored };
        match entry.copy.step(Phase::withdraw) {
            EndStep::Withdrawn(waited) => {
                let copy = entry.copy.clone();
                self.end(race, now);
                WithdrawOutcome::Withdrawn { copy, waited }
            }
            EndStep::Asked => WithdrawOutcome::Stop { copy: entry.copy.clone() },
            EndStep::Nothing => WithdrawOutcome::Ignored,
        }
    }

    /// A started copy's work is done, well or badly (an answer), or its deadline is over. [`Verdict::Answer`]: send
    /// the answer; anything else: say nothing.
    pub fn finish(&mut self, name: &CopyName, now: Moment) -> Verdict {
        self.take(name, Phase::finish, now)
    }

    /// A copy will not start: lane full, shed, behind, draining. [`Verdict::Answer`]: answer it. A shed or refused
    /// copy that turns out withdrawn ([`Verdict::Withdrawn`], [`Verdict::Over`]) and was queued: tell its lane.
    pub fn refuse(&mut self, name: &CopyName, now: Moment) -> Verdict {
        self.take(name, Phase::refuse, now)
    }

    /// A running copy is at a cancellation point and its word says that it must stop, or its chunk is done:
    /// [`Verdict::GoOn`]: read on, or queue the next chunk; anything else: it ended, say nothing.
    pub fn stop(&mut self, name: &CopyName, now: Moment) -> Verdict {
        self.take(name, Phase::stop, now)
    }

    /// A copy that was set aside can be served: put it back into its lane, under the same lock. False when it was
    /// withdrawn meanwhile: drop it.
    pub fn queue_again(&mut self, name: &CopyName) -> bool {
        entry(&mut self.copies, name).is_some_and(|entry| entry.copy.step(Phase::queue_again))
    }

    /// The handle of a copy that is here.
    pub fn copy(&self, name: &CopyName) -> Option<&C> {
        let entry = self.copies.get(&name.race())?;
        (entry.number() == name.number()).then_some(&entry.copy)
    }

    /// As [`TieTable::copy`], to be changed: how tests plant a fault.
    pub fn copy_mut(&mut self, name: &CopyName) -> Option<&mut C> {
        entry(&mut self.copies, name).map(|entry| &mut entry.copy)
    }

    /// The ring of early cancels and ended ties.
    pub fn recent(&self) -> &RecentTies {
        &self.recent
    }

    /// As [`TieTable::recent`], to be changed: eviction at a chosen moment.
    pub fn recent_mut(&mut self) -> &mut RecentTies {
        &mut self.recent
    }

    /// Copies here, in any phase before their end.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// True when no copy is here.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// All copies here with their phase, sorted by name.
    pub fn sorted(&self) -> Vec<(CopyName, Phase)> {
        let mut all: Vec<_> = self.copies.iter().map(|(race, e)| (name_of(race, e), e.copy.phase())).collect();
        all.sort_unstable();
        all
    }

    fn resume(&mut self, name: &CopyName, now: Moment) -> Start {
        match self.stop(name, now) {
            Verdict::GoOn => {}
            Verdict::Yielded => return Start::Stopped(Verdict::Yielded),
            Verdict::Withdrawn => return Start::Stopped(Verdict::Withdrawn),
            Verdict::Answer | Verdict::Over => return Start::Gone,
        }
        let overdue = entry(&mut self.copies, name).is_some_and(|entry| now >= entry.deadline);
        if overdue && self.finish(name, now) == Verdict::Answer { Start::Overdue } else { Start::RunsOn }
    }

    fn set_aside(&mut self, name: &CopyName, lacks: Servable, now: Moment) -> Start {
        let max = if lacks == Servable::NotKnown { self.barrier_max } else { self.set_aside_max };
        let Some(entry) = entry(&mut self.copies, name) else { return Start::Gone };
        let until = match entry.aside {
            Some((before, until)) if before == lacks => until,
            // An answered barrier begins the wait for its position, once: it is never out again.
            _ => now + max.min(entry.deadline.since(now) / 2),
        };
        entry.aside = Some((lacks, until));
        if now >= until {
            return if self.refuse(name, now) == Verdict::Answer { Start::Behind } else { Start::Gone };
        }
        if entry.copy.step(Phase::set_aside) { Start::SetAside { until } } else { Start::Gone }
    }

    fn take(&mut self, name: &CopyName, step: fn(Phase) -> (Phase, Verdict), now: Moment) -> Verdict {
        let Some(entry) = entry(&mut self.copies, name) else { return Verdict::Over };
        let verdict = entry.copy.step(step);
        if verdict != Verdict::GoOn {
            self.end(name.race(), now);
        }
        verdict
    }

    /// The copy of this race is no longer here; a tie's is remembered for a while.
    fn end(&mut self, race: Race, now: Moment) {
        if let Some(entry) = self.copies.remove(&race)
            && let Some(tie) = &entry.tie
        {
            self.recent.file(race, Filer::Here, tie.number, now);
        }
    }
}

impl<C> Entry<C> {
    fn number(&self) -> CopyNumber {
        self.tie.as_ref().map_or(CopyNumber(0), |tie| tie.number)
    }
}

fn entry<'a, C>(copies: &'a mut HashMap<Race, Entry<C>, RandomState>, name: &CopyName) -> Option<&'a mut Entry<C>> {
    copies.get_mut(&name.race()).filter(|entry| entry.number() == name.number())
}

fn name_of<C>(race: &Race, entry: &Entry<C>) -> CopyName {
    let which = match race.id {
        RaceId::Tie(tie) => Which::Tied { tie, number: entry.number() },
        RaceId::Request { connection, request } => Which::Untied { connection, request },
    };
    CopyName { caller: race.caller, which }
}

/// A cancel counts when the copy names its sender, under the number that the cancel claims, and not its own.
fn gives_way_to(tie: &Tie, sender: NodeId, number: CopyNumber) -> bool {
    number != tie.number && tie.number_of(sender) == Some(number)
}

/// Equal when the same copies are here in the same phases and the same entries are filed.
impl<C: PartialEq> PartialEq for TieTable<C> {
    fn eq(&self, other: &Self) -> bool {
        self.recent == other.recent && self.copies == other.copies
    }
}

impl<C: Eq> Eq for TieTable<C> {}

impl<C: Hash> Hash for TieTable<C> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut copies: Vec<_> = self.copies.iter().collect();
        copies.sort_unstable_by_key(|(race, _)| **race);
        copies.hash(state);
        self.recent.hash(state);
    }
}

#[cfg(test)]
#[path = "tie_test.rs"]
mod tests;

//! Copies that a worker took but whose replica has not yet applied what their level asks for.
//!
//! Bounded in number and in time (rule R6, docs/tie-protocol.md): when either bound is reached the copy is answered
//! `Behind`. Ordered by what is needed; a copy keeps its original place in its lane and goes through the whole
//! start step again. Withdrawn ones are dropped lazily. Knows no tie and cancels nobody.

use super::lane::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::moment::Moment;

/// Copies set aside on one node (or one lane), by default.
pub const SET_ASIDE_MAX: usize = 1024;

/// What a copy waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// This position is applied.
    Position(Position),
    /// This read barrier is answered; barriers are numbered in the order in which they are sent.
    Barrier(u64),
}

/// What became of an attempt to set a copy aside.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted<T> {
    /// It waits here.
    Waits,
    /// What it needs came meanwhile: queue it again at once.
    Servable(Waiting<T>),
    /// The list is full: answer `Behind`.
    Full(Waiting<T>),
}

#[derive(Clone, Debug)]
struct Aside<T> {
    waiting: Waiting<T>,
    until: Moment,
}

/// The copies set aside.
#[derive(Clone, Debug)]
pub struct SetAside<T> {
    by_need: BTreeMap<(Need, u64), Aside<T>>,
    by_time: BTreeSet<(Moment, Need, u64)>,
    copies_max: usize,
    applied: Position,
    answered: Option<u64>,
    serial: u64,
}

impl<T> SetAside<T> {
    /// An empty list for at most `copies_max` copies, on a replica that has applied `applied`.
    pub fn new(copies_max: usize, applied: Position) -> Self {
        Self { by_need: BTreeMap::new(), by_time: BTreeSet::new(), copies_max, applied, answered: None, serial: 0 }
    }

    /// Sets a copy aside until `need` is met or until `until`.
    pub fn insert(
        &mut self,
        waiting: Waiting<T>,
        need: Need,
        until: Moment,
        is_withdrawn: impl Fn(&T) -> bool,
    ) -> Inserted<T> {
        if self.met(need) {
            return Inserted::Servable(waiting);
        }
        if self.by_need.len() >= self.copies_max {
            self.sweep(is_withdrawn);
        }
        if self.by_need.len() >= self.copies_max {
            return Inserted::Full(waiting);
        }
        self.serial += 1;
        self.by_time.insert((until, need, self.serial));
        self.by_need.insert((need, self.serial), Aside { waiting, until });
        Inserted::Waits
    }

    /// The replica has applied `position`: takes the next copy that waited for no more than that, if any. Call
    /// until `None`.
    pub fn applied(&mut self, position: Position) -> Option<Waiting<T>> {
        self.applied = self.applied.max(position);
        let key = *self.by_need.keys().next()?;
        matches!(key.0, Need::Position(needed) if needed <= self.applied).then_some(())?;
        self.take(key)
    }

    /// The barrier of this number (and all before it) is answered: takes the next copy that waited for it, if any.
    /// Call until `None`.
    pub fn barrier_answered(&mut self, barrier: u64) -> Option<Waiting<T>> {
        self.answered = self.answered.max(Some(barrier));
        let key = *self.by_need.range((Need::Barrier(0), 0)..).next()?.0;
        matches!(key.0, Need::Barrier(waited) if waited <= barrier).then_some(())?;
        self.take(key)
    }

    /// Takes the next copy whose limit is over (answer `Behind`, unless it was withdrawn), if any. Call until
    /// `None`.
    pub fn expired(&mut self, now: Moment) -> Option<Waiting<T>> {
        let (until, need, serial) = *self.by_time.first()?;
        (until <= now).then_some(())?;
        self.take((need, serial))
    }

    /// When [`SetAside::expired`] has something next.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.by_time.first().map(|(until, _, _)| *until)
    }

    /// Copies set aside, withdrawn ones included until they are swept.
    pub fn len(&self) -> usize {
        self.by_need.len()
    }

    /// True when nothing is set aside.
    pub fn is_empty(&self) -> bool {
        self.by_need.is_empty()
    }

    /// All copies with what they need, in that order.
    pub fn iter(&self) -> impl Iterator<Item = (Need, &Waiting<T>)> {
        self.by_need.iter().map(|((need, _), aside)| (*need, &aside.waiting))
    }

    /// Empties the list (the node shuts down): whoever calls answers what is not withdrawn.
    pub fn drain(&mut self) -> Vec<Waiting<T>> {
        self.by_time.clear();
        std::mem::take(&mut self.by_need).into_values().map(|aside| aside.waiting).collect()
    }

    fn met(&self, need: Need) -> bool {
        match need {
            Need::Position(position) => position <= self.applied,
            Need::Barrier(barrier) => self.answered >= Some(barrier),
        }
    }

    fn take(&mut self, key: (Need, u64)) -> Option<Waiting<T>> {
        let aside = self.by_need.remove(&key)?;
        self.by_time.remove(&(aside.until, key.0, key.1));
        Some(aside.waiting)
    }

    fn sweep(&mut self, is_withdrawn: impl Fn(&T) -> bool) {
        let by_time = &mut self.by_time;
        self.by_need.retain(|(need, serial), aside| {
            let keep = !is_withdrawn(&aside.waiting.item);
            if !keep {
                by_time.remove(&(aside.until, *need, *serial));
            }
            keep
        });
    }
}

#[cfg(test)]
#[path = "set_aside_test.rs"]
mod tests;

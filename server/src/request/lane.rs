//! The queue of one lane: three classes, extra copies last, bounded, cheap to withdraw from.
//!
//! A withdrawn entry stays until it comes up or until there are too many of them, but never takes a live one's
//! place: whoever withdraws a *queued* copy calls [`Lane::withdrawn`], and whoever finds a popped one withdrawn
//! (or gets a withdrawn one back) calls [`Lane::dropped`]. The lane knows no tie and no worker. Its lock may be
//! taken while a registry stripe is locked, never the other way round.

use std::collections::VecDeque;
use tiedkv_protocol::request::Class;

/// A waiting lower class (or a waiting extra copy within its class) is served at least once in so many pops.
pub const POPS_PER_LOWER: u32 = 20;

/// The place of an entry in the order of arrival at its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One entry, as popped, shed or put back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting<T> {
    /// The copy or job.
    pub item: T,
    /// Its class.
    pub class: Class,
    /// It ranks below the first copies of its class and is shed first (hedge, rescue, shadow).
    pub extra: bool,
    /// Its place.
    pub ticket: Ticket,
}

/// What became of a push.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Queued,
    /// It waits; this extra copy made room and has to be answered `Busy`: refuse it at its own stripe, after this
    /// one is unlocked; if it turns out to be withdrawn meanwhile, call [`Lane::dropped`].
    QueuedInsteadOf(T),
    /// The lane is full: answer `Busy`.
    Refused(T),
}

#[derive(Clone, Debug)]
struct ClassQueue<T> {
    ordinary: VecDeque<(Ticket, T)>,
    extra: VecDeque<(Ticket, T)>,
    /// Pops of this class since an extra copy was taken, while one waited.
    extra_skipped: u32,
    /// Pops of the lane since this class was served, while it had work.
    skipped: u32,
}

impl<T> Default for ClassQueue<T> {
    fn default() -> Self {
        Self { ordinary: VecDeque::new(), extra: VecDeque::new(), extra_skipped: 0, skipped: 0 }
    }
}

impl<T> ClassQueue<T> {
    fn len(&self) -> usize {
        self.ordinary.len() + self.extra.len()
    }

    fn take(&mut self) -> Option<(bool, Ticket, T)> {
        let due = self.extra_skipped + 1 >= POPS_PER_LOWER;
        let extra = !self.extra.is_empty() && (due || self.ordinary.is_empty());
        self.extra_skipped = if extra || self.extra.is_empty() { 0 } else { self.extra_skipped + 1 };
        let (ticket, item) = if extra { self.extra.pop_front()? } else { self.ordinary.pop_front()? };
        Some((extra, ticket, item))
    }
}

/// The queue of one lane.
#[derive(Clone, Debug)]
pub struct Lane<T> {
    classes: [ClassQueue<T>; 3],
    waiting_max: usize,
    next_ticket: u64,
    /// Withdrawn entries inside. May be off for an instant, because the one who withdraws and the one who drops
    /// report in any order; exact when both have.
    withdrawn: i64,
}

const CLASSES: [Class; 3] = [Class::Interactive, Class::Batch, Class::Background];

impl<T> Lane<T> {
    /// An empty lane for at most `waiting_max` live entries (chunks and entries put back come on top).
    pub fn new(waiting_max: usize) -> Self {
        Self { classes: Default::default(), waiting_max, next_ticket: 0, withdrawn: 0 }
    }

    /// Adds a new entry at the end of its class. When the lane is full, a first copy pushes out the youngest
    /// extra one of the lowest class that has any; an extra one is refused.
    pub fn push(&mut self, item: T, class: Class, extra: bool, is_withdrawn: impl Fn(&T) -> bool) -> Pushed<T> {
        self.compact_if_worthwhile(&is_withdrawn);
        let mut shed = None;
        if self.live() >= self.waiting_max {
            shed = if extra { None } else { self.shed_youngest_extra(&is_withdrawn) };
            if shed.is_none() {
                return Pushed::Refused(item);
            }
        }
        let ticket = self.ticket();
        let queue = &mut self.classes[class as usize];
        let queue = if extra { &mut queue.extra } else { &mut queue.ordinary };
        queue.push_back((ticket, item));
        shed.map_or(Pushed::Queued, Pushed::QueuedInsteadOf)
    }

    /// Queues the next chunk of a running operation at the end of its class. Never refused: it was admitted once;
    /// never shed: it has started.
    pub fn push_again(&mut self, item: T, class: Class) {
        let ticket = self.ticket();
        self.classes[class as usize].ordinary.push_back((ticket, item));
    }

    /// The place of a new entry that waits elsewhere first; `None` when the lane is full.
    pub fn reserve(&mut self) -> Option<Ticket> {
        (self.live() < self.waiting_max).then(|| self.ticket())
    }

    /// Puts an entry back to its original place (a copy that was set aside and can be served now). Never refused.
    pub fn put_back(&mut self, waiting: Waiting<T>) {
        let queue = &mut self.classes[waiting.class as usize];
        let queue = if waiting.extra { &mut queue.extra } else { &mut queue.ordinary };
        let at = queue.partition_point(|(ticket, _)| *ticket < waiting.ticket);
        queue.insert(at, (waiting.ticket, waiting.item));
    }

    /// Takes the entry whose turn it is; withdrawn ones are dropped on the way.
    pub fn pop(&mut self, is_withdrawn: impl Fn(&T) -> bool) -> Option<Waiting<T>> {
        loop {
            let index = self.next_class()?;
            let (extra, ticket, item) = self.classes[index].take()?;
            if is_withdrawn(&item) {
                self.withdrawn -= 1;
                continue;
            }
            self.count_pop(index);
            return Some(Waiting { item, class: CLASSES[index], extra, ticket });
        }
    }

    /// An entry of this lane was withdrawn while it was queued.
    pub fn withdrawn(&mut self) {
        self.withdrawn += 1;
    }

    /// A withdrawn entry turned up outside: it was popped, and found withdrawn when it was to start.
    pub fn dropped(&mut self) {
        self.withdrawn -= 1;
    }

    /// Entries that wait, without the withdrawn ones: the queue depth.
    pub fn live(&self) -> usize {
        usize::try_from(self.len() as i64 - self.withdrawn).unwrap_or(0)
    }

    /// Entries in memory.
    pub fn len(&self) -> usize {
        self.classes.iter().map(ClassQueue::len).sum()
    }

    /// True when nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether anything of a higher class than this is in memory.
    pub fn any_before(&self, class: Class) -> bool {
        self.classes[..class as usize].iter().any(|queue| queue.len() > 0)
    }

    /// All entries in memory with class, extra and ticket: classes in order, first copies before extra ones.
    pub fn iter(&self) -> impl Iterator<Item = (Class, bool, Ticket, &T)> {
        CLASSES.into_iter().zip(&self.classes).flat_map(|(class, queue)| {
            let ordinary = queue.ordinary.iter().map(move |(ticket, item)| (class, false, *ticket, item));
            ordinary.chain(queue.extra.iter().map(move |(ticket, item)| (class, true, *ticket, item)))
        })
    }

    /// Empties the lane (the node shuts down): whoever calls answers what is not withdrawn.
    pub fn drain(&mut self) -> Vec<T> {
        self.withdrawn = 0;
        let classes = std::mem::take(&mut self.classes);
        classes.into_iter().flat_map(|q| q.ordinary.into_iter().chain(q.extra)).map(|(_, item)| item).collect()
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Interactive before batch before background, except that a lower class that waits comes up in time: two of
    /// them may be due at once, so the first is due one pop early.
    fn next_class(&self) -> Option<usize> {
        let due =
            |index: &usize| self.classes[*index].len() > 0 && self.classes[*index].skipped + 2 >= POPS_PER_LOWER;
        let most_overdue = [1, 2].into_iter().filter(due).max_by_key(|index| self.classes[*index].skipped);
        most_overdue.or_else(|| (0..3).find(|index| self.classes[*index].len() > 0))
    }

    fn count_pop(&mut self, served: usize) {
        for (index, queue) in self.classes.iter_mut().enumerate() {
            queue.skipped = if index == served || queue.len() == 0 { 0 } else { queue.skipped + 1 };
        }
    }

    /// Memory stays within twice the bound: more withdrawn entries than that are swept, which pays for itself.
    fn compact_if_worthwhile(&mut self, is_withdrawn: &impl Fn(&T) -> bool) {
        if self.withdrawn <= 16 || self.withdrawn < self.len() as i64 / 2 {
            return;
        }
        let before = self.len();
        for queue in &mut self.classes {
            queue.ordinary.retain(|(_, item)| !is_withdrawn(item));
            queue.extra.retain(|(_, item)| !is_withdrawn(item));
        }
        self.withdrawn -= (before - self.len()) as i64;
    }

    fn shed_youngest_extra(&mut self, is_withdrawn: &impl Fn(&T) -> bool) -> Option<T> {
        for queue in self.classes.iter_mut().rev() {
            while let Some((_, item)) = queue.extra.pop_back() {
                if is_withdrawn(&item) {
                    self.withdrawn -= 1;
                } else {
                    return Some(item);
                }
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "lane_test.rs"]
mod tests;

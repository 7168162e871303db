//! The ring of one registry stripe: cancels that came before their copy, withdraws that overtook theirs, and
//! ties whose copy ended here.
//!
//! Filed per (caller, tie, filer), so that nobody's entry shadows another's (rule R13, docs/tie-protocol.md).
//! Bounded by number and by age, with a share per caller and per filer; whatever is lost to a bound costs a
//! duplicate, never a read. This room does not judge an entry against the names of a copy: `tie` does.

use super::copy_name::Race;
use foldhash::fast::RandomState;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;
use tiedkv_protocol::ids::{CallerId, NodeId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::tie::CopyNumber;

/// Bounds of one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentTiesBounds {
    /// Most entries of one stripe (about 200 bytes each when full); at least 1. Sized reads/s x age.
    pub entries_max: usize,
    /// Entries older than this have no effect: above the cap of the tie delay plus the flight of a cancel.
    pub age_max: Duration,
    /// Most entries of one caller.
    pub caller_entries_max: usize,
    /// Most entries filed by one peer, by the clients, or by this node itself.
    pub filer_entries_max: usize,
}

/// Entries of all stripes together, by default.
pub const RECENT_TIES_MAX: usize = 64 * 1024;
/// Greatest age by default: far above the cap of the tie delay (10 ms) and any flight that is worth waiting for.
pub const RECENT_TIES_AGE: Duration = Duration::from_millis(500);

impl RecentTiesBounds {
    /// The default of one of `stripes` stripes: half of the entries for any one caller and any one filer.
    pub fn of_stripes(stripes: usize) -> Self {
        let entries_max = (RECENT_TIES_MAX / stripes.max(1)).max(1);
        Self {
            entries_max,
            age_max: RECENT_TIES_AGE,
            caller_entries_max: entries_max.div_ceil(2),
            filer_entries_max: entries_max.div_ceil(2),
        }
    }
}

/// Who filed an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Filer {
    /// A peer: its copy started before ours arrived.
    Peer(NodeId),
    /// The client: it withdrew a copy that had not arrived.
    Client,
    /// This node: its copy of the race ended.
    Here,
}

/// What became of an attempt to file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filed {
    /// It stands in the ring.
    New,
    /// The same filer had filed for this race before.
    Again,
    /// The share of the caller or of the filer is used up; not filed.
    OverShare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    filer: Filer,
    number: CopyNumber,
    at: Moment,
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    race: Race,
    at: Moment,
    serial: u64,
}

/// One ring.
#[derive(Clone, Debug)]
pub struct RecentTies {
    bounds: RecentTiesBounds,
    races: HashMap<Race, SmallVec<[Entry; 2]>, RandomState>,
    /// In order of filing; slots whose entry was evicted before are skipped by their serial.
    order: VecDeque<Slot>,
    callers: HashMap<CallerId, usize, RandomState>,
    filers: HashMap<Filer, usize, RandomState>,
    serial: u64,
    evicted: u64,
    cancels_lost: u64,
}

impl RecentTies {
    /// An empty ring; memory is taken as it fills.
    pub fn new(bounds: RecentTiesBounds) -> Self {
        Self {
            bounds,
            races: HashMap::default(),
            order: VecDeque::new(),
            callers: HashMap::default(),
            filers: HashMap::default(),
            serial: 0,
            evicted: 0,
            cancels_lost: 0,
        }
    }

    /// Files one entry; the oldest makes room when the ring is full.
    pub fn file(&mut self, race: Race, filer: Filer, number: CopyNumber, now: Moment) -> Filed {
        self.drop_old(now);
        if self.entry(&race, filer, now).is_some() {
            return Filed::Again;
        }
        let of_caller = self.callers.get(&race.caller).copied().unwrap_or(0);
        let of_filer = self.filers.get(&filer).copied().unwrap_or(0);
        if of_caller >= self.bounds.caller_entries_max || of_filer >= self.bounds.filer_entries_max {
            self.cancels_lost += u64::from(filer != Filer::Here);
            return Filed::OverShare;
        }
        while self.order.len() >= self.bounds.entries_max.max(1) {
            self.evicted += 1;
            let filer = self.drop_front();
            self.cancels_lost += u64::from(filer.is_some_and(|filer| filer != Filer::Here));
        }
        self.serial += 1;
        let serial = self.serial;
        self.races.entry(race).or_default().push(Entry { filer, number, at: now, serial });
        self.order.push_back(Slot { race, at: now, serial });
        *self.callers.entry(race.caller).or_default() += 1;
        *self.filers.entry(filer).or_default() += 1;
        Filed::New
    }

    /// The number under which `filer` filed for this race lately.
    pub fn entry(&self, race: &Race, filer: Filer, now: Moment) -> Option<CopyNumber> {
        self.live(race, now).find(|entry| entry.filer == filer).map(|entry| entry.number)
    }

    /// All who filed for this race lately.
    pub fn filed(&self, race: &Race, now: Moment) -> impl Iterator<Item = (Filer, CopyNumber)> + '_ {
        self.live(race, now).map(|entry| (entry.filer, entry.number))
    }

    /// Forgets one entry before its time, as a full ring does. False when there is none.
    pub fn evict(&mut self, race: &Race, filer: Filer) -> bool {
        let serial =
            self.races.get(race).and_then(|entries| entries.iter().find(|e| e.filer == filer)).map(|e| e.serial);
        serial.is_some_and(|serial| self.remove(race, serial).is_some())
    }

    /// How many entries stand in it, old ones included.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True when nothing is filed.
    pub fn is_empty(&self) -> bool {
        self.races.is_empty()
    }

    /// How many entries made room for others before they were old.
    pub fn evicted_total(&self) -> u64 {
        self.evicted
    }

    /// How many early cancels and early withdraws made room for others before they were old, or were not filed
    /// because a share was used up: each may have cost a duplicate.
    pub fn cancels_lost_total(&self) -> u64 {
        self.cancels_lost
    }

    /// All entries, sorted.
    pub fn sorted(&self) -> Vec<(Race, Filer, CopyNumber)> {
        let mut all: Vec<_> = self
            .races
            .iter()
            .flat_map(|(race, entries)| entries.iter().map(|e| (*race, e.filer, e.number)))
            .collect();
        all.sort_unstable();
        all
    }

    fn live(&self, race: &Race, now: Moment) -> impl Iterator<Item = &Entry> + '_ {
        let age_max = self.bounds.age_max;
        self.races.get(race).into_iter().flatten().filter(move |entry| now.since(entry.at) <= age_max)
    }

    fn drop_old(&mut self, now: Moment) {
        while self.order.front().is_some_and(|slot| now.since(slot.at) > self.bounds.age_max) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) -> Option<Filer> {
        let slot = self.order.pop_front()?;
        self.remove(&slot.race, slot.serial)
    }

    /// Removes an entry; who had filed it.
    fn remove(&mut self, race: &Race, serial: u64) -> Option<Filer> {
        let entries = self.races.get_mut(race)?;
        let index = entries.iter().position(|entry| entry.serial == serial)?;
        let filer = entries.swap_remove(index).filer;
        if entries.is_empty() {
            self.races.remove(race);
        }
        lower(&mut self.callers, &race.caller);
        lower(&mut self.filers, &filer);
        Some(filer)
    }
}

fn lower<K: Hash + Eq>(counts: &mut HashMap<K, usize, RandomState>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Two rings are equal when the same entries stand in them; the order of filing only decides who is evicted first.
impl PartialEq for RecentTies {
    fn eq(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }
}

impl Eq for RecentTies {}

impl Hash for RecentTies {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}

#[cfg(test)]
#[path = "recent_ties_test.rs"]
mod tests;

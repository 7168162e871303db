//! The log on a made-up disk: what was appended or voted is there at once, and survives a crash once it was synced.

use super::runtime::{Party, draw_time, sleep, spawn_for};
use super::types::{Entry, LogId, Planted, SimTypes, Vote};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Clone, Default)]
struct Files {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
}

enum Change {
    Append(Vec<Entry>),
    Truncate(u64),
    Purge(LogId),
    Vote(Vote),
    Committed(LogId),
}

impl Files {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Append(entries) => {
                self.entries.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
            }
            Change::Truncate(from) => drop(self.entries.split_off(from)),
            Change::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(*upto);
            }
            Change::Vote(vote) => self.vote = Some(*vote),
            Change::Committed(committed) => self.committed = Some(*committed),
        }
    }
}

enum Whom {
    Append(IOFlushed<SimTypes>),
    Vote(oneshot::Sender<()>),
}

#[derive(Default)]
struct Disk {
    synced: Files,
    newest: Files,
    waiting: Vec<Change>,
    told: Vec<Whom>,
    syncing: bool,
    slow: Duration,
}

/// The log of one node. What is synced outlives it: [`SimLog::after_crash`].
#[derive(Clone)]
pub struct SimLog {
    party: Party,
    planted: Option<Planted>,
    disk: Arc<Mutex<Disk>>,
}

impl SimLog {
    /// An empty log.
    pub fn new(party: Party, planted: Option<Planted>) -> Self {
        Self { party, planted, disk: Arc::default() }
    }

    /// The log as it is found after a crash.
    pub fn after_crash(&self) -> Self {
        let disk = self.disk.lock();
        let synced = disk.synced.clone();
        let found = Disk { newest: synced.clone(), synced, slow: disk.slow, ..Disk::default() };
        Self { disk: Arc::new(Mutex::new(found)), ..self.clone() }
    }

    /// Every sync takes up to this much longer.
    pub fn slow(&self, by: Duration) {
        self.disk.lock().slow = by;
    }

    fn change(&self, change: Change, told: Option<Whom>) {
        let mut disk = self.disk.lock();
        disk.newest.apply(&change);
        disk.waiting.push(change);
        disk.told.extend(told);
        if !std::mem::replace(&mut disk.syncing, true) {
            drop(disk);
            spawn_for(self.party, self.clone().sync());
        }
    }

    async fn sync(self) {
        loop {
            let (changes, told, slow) = {
                let mut disk = self.disk.lock();
                (std::mem::take(&mut disk.waiting), std::mem::take(&mut disk.told), disk.slow)
            };
            if changes.is_empty() {
                break;
            }
            sleep(Duration::from_micros(100) + draw_time(Duration::from_millis(2)) + draw_time(slow)).await;
            {
                let mut disk = self.disk.lock();
                for change in &changes {
                    disk.synced.apply(change);
                }
            }
            told.into_iter().for_each(tell);
            if self.disk.lock().waiting.is_empty() {
                break;
            }
        }
        self.disk.lock().syncing = false;
    }

    fn read(&self, range: &impl RangeBounds<u64>) -> Vec<Entry> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        if let (Bound::Included(from), Bound::Excluded(to)) = bounds
            && from >= to
        {
            return Vec::new();
        }
        self.disk.lock().newest.entries.range(bounds).map(|(_, entry)| entry.clone()).collect()
    }
}

fn tell(whom: Whom) {
    match whom {
        Whom::Append(callback) => callback.io_completed(Ok(())),
        // Whoever waited may be gone.
        Whom::Vote(sender) => drop(sender.send(())),
    }
}

impl RaftLogReader<SimTypes> for SimLog {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.read(&range))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.disk.lock().newest.vote)
    }
}

impl RaftLogStorage<SimTypes> for SimLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<SimTypes>> {
        let disk = self.disk.lock();
        let last = disk.newest.entries.values().next_back().map(|entry| entry.log_id);
        let purged = disk.newest.purged;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        if self.planted == Some(Planted::VoteNotSynced) {
            self.disk.lock().newest.vote = Some(*vote);
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        self.change(Change::Vote(*vote), Some(Whom::Vote(sender)));
        receiver.await.map_err(|_| io::Error::other("the disk is gone"))
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        // Not worth a sync of its own: goes with the next one.
        if let Some(committed) = committed {
            let mut disk = self.disk.lock();
            let change = Change::Committed(committed);
            disk.newest.apply(&change);
            disk.waiting.push(change);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let disk = self.disk.lock();
        let last = disk.newest.entries.keys().next_back().copied();
        Ok(disk.newest.committed.filter(|committed| Some(committed.index) <= last))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimTypes>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = Change::Append(entries.into_iter().collect());
        if self.planted == Some(Planted::AppendNotSynced) {
            self.disk.lock().newest.apply(&entries);
            callback.io_completed(Ok(()));
        } else {
            self.change(entries, Some(Whom::Append(callback)));
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> io::Result<()> {
        self.change(Change::Truncate(last_kept.map_or(0, |id| id.index + 1)), None);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.change(Change::Purge(upto), None);
        Ok(())
    }
}

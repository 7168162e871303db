//! Reads of the engine that wait for none of its locks while it writes tables.
//!
//! lsm-tree (3.1.10) makes each new list of its tables durable under the lock of that list, which every read takes: at
//! the end of a flush for the fsyncs of the list, at the end of a compaction also for those of the new tables. With
//! values of 8 MiB that is tens of milliseconds at a time in which no read of a node goes on, and on all replicas at
//! once, since they flush at the same position. A view that is published while that may happen pins the list that it
//! shows and reads from it: dearer by a merge of iterators (five times a get), so only then, and not for long if no
//! other view follows. A value that the engine keeps apart from its key is the exception: it is fetched under the lock.
//! Pins what it shows until it is dropped.

use crate::clock;
use fjall::{AbstractTree, Database, Keyspace, SeqNo, Slice};
use lsm_tree::{Tree, ValueType};
use std::ops::Bound;
use tiedkv_protocol::moment::Moment;

/// Rows in order of key, from both ends.
pub(super) type Rows<'a> = Box<dyn DoubleEndedIterator<Item = Result<(Slice, Slice), fjall::Error>> + 'a>;
/// From a key to a key.
pub(super) type Bounds = (Bound<Slice>, Bound<Slice>);

type Read = Box<dyn Fn(&Bounds) -> Rows<'static> + Send + Sync>;

/// One keyspace at one sequence number; see the head of this room.
pub(super) struct Unlocked {
    read: Read,
    /// The engine will have done by then what it does now, unless it says otherwise.
    until: Moment,
    database: Database,
}

impl Unlocked {
    /// What a snapshot at `seqno` shows. Waits for the lock; for the one thread that publishes.
    pub(super) fn pin(database: &Database, keyspace: &Keyspace, seqno: SeqNo, until: Moment) -> Self {
        // The type of the engine's list has no name outside of it.
        let version = keyspace.tree.get_version_history_lock().get_version_for_snapshot(seqno);
        let keyspace = keyspace.clone();
        let read: Read = Box::new(move |bounds| {
            let rows = Tree::create_internal_range(version.clone(), bounds, seqno, None);
            let keyspace = keyspace.clone();
            Box::new(rows.filter_map(move |row| {
                let row = match row {
                    Ok(row) if row.key.value_type == ValueType::Indirection => {
                        let value = keyspace.tree.get(&row.key.user_key, seqno);
                        value.map(|value| Some((row.key.user_key, value?)))
                    }
                    Ok(row) => Ok(Some((row.key.user_key, row.value))),
                    Err(error) => Err(error),
                };
                row.map_err(fjall::Error::from).transpose()
            }))
        });
        Self { read, until, database: database.clone() }
    }

    /// Whether to read here: the engine may hold its lock for long.
    pub(super) fn pays(&self) -> bool {
        self.database.active_compactions() > 0 || clock::now() < self.until
    }

    /// The value of a key as kept.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>, fjall::Error> {
        let key = Slice::from(key);
        let row = self.rows(&(Bound::Included(key.clone()), Bound::Included(key))).next().transpose()?;
        Ok(row.map(|(_, value)| value))
    }

    pub(super) fn rows(&self, bounds: &Bounds) -> Rows<'static> {
        (self.read)(bounds)
    }
}

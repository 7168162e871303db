//! The store that lives in memory: views are frozen roots of an [`OrderedMap`], published by one pointer swap.
//!
//! Keeps nothing over a restart. Can be told to lag, for tests: it applies but does not publish.

use crate::storage::ordered_map::OrderedMap;
use crate::storage::scan::{KeyRange, SeenRow};
use crate::storage::state_store::{Mutation, PositionListener, StateStore, StorageError, Stored, View};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use tiedkv_protocol::ids::{Position, Version};

/// An in-memory [`StateStore`]. A view costs an atomic load and a reference count; a put copies the path of its
/// key (about 4 nodes of at most 32 entries at a million keys), never the whole.
#[derive(Default)]
pub struct MemoryStore {
    applied: Mutex<Applied>,
    published: ArcSwap<MemoryView>,
    listeners: RwLock<Vec<Arc<dyn PositionListener>>>,
}

#[derive(Default)]
struct Applied {
    newest: Arc<MemoryView>,
    lagging: bool,
}

/// One frozen state.
#[derive(Clone, Debug)]
struct MemoryView {
    map: OrderedMap<Stored>,
    position: Position,
    stamp_ms: u64,
}

impl Default for MemoryView {
    fn default() -> Self {
        Self { map: OrderedMap::default(), position: Position(0), stamp_ms: 0 }
    }
}

impl MemoryStore {
    /// An empty store at position 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// While on, batches are applied but not published: the replica lags. Switching off publishes at once.
    pub fn lag(&self, on: bool) {
        let mut applied = self.applied.lock();
        applied.lagging = on;
        if !on {
            self.publish(&applied);
        }
    }

    // Called with the apply lock held, so that listeners see positions in order.
    fn publish(&self, applied: &Applied) {
        if self.published.load().position == applied.newest.position {
            return;
        }
        self.published.store(Arc::clone(&applied.newest));
        for listener in self.listeners.read().iter() {
            listener.published(applied.newest.position);
        }
    }
}

impl StateStore for MemoryStore {
    fn view(&self) -> Arc<dyn View> {
        self.published.load_full()
    }

    fn applied(&self) -> Arc<dyn View> {
        self.applied.lock().newest.clone()
    }

    fn apply(&self, batch: &[Mutation], position: Position, stamp_ms: u64) -> Result<(), StorageError> {
        let mut applied = self.applied.lock();
        if position <= applied.newest.position {
            return Err(StorageError::Failed(format!(
                "batch {position} does not come after {}",
                applied.newest.position
            )));
        }
        let mut next = MemoryView::clone(&applied.newest);
        for mutation in batch {
            match mutation {
                Mutation::Delete { key } => {
                    next.map.remove(key);
                }
                Mutation::Put { key, .. } | Mutation::PutUntil { key, .. } => {
                    if let Some(stored) = mutation.stored(Version(position.0)) {
                        next.map.insert(key.clone(), stored);
                    }
                }
            }
        }
        next.position = position;
        next.stamp_ms = stamp_ms;
        applied.newest = Arc::new(next);
        if !applied.lagging {
            self.publish(&applied);
        }
        Ok(())
    }

    fn watch(&self, listener: Arc<dyn PositionListener>) {
        self.listeners.write().push(listener);
    }
}

impl View for MemoryView {
    fn position(&self) -> Position {
        self.position
    }

    fn stamp_ms(&self) -> u64 {
        self.stamp_ms
    }

    fn generation(&self) -> u64 {
        0
    }

    fn get(&self, key: &[u8]) -> Result<Option<Stored>, StorageError> {
        Ok(self.map.value(key).filter(|stored| stored.alive(self.stamp_ms)).cloned())
    }

    fn scan(&self, range: KeyRange<'_>, look: &mut dyn FnMut(SeenRow<'_>) -> bool) -> Result<(), StorageError> {
        self.map.visit(range.lo, range.hi, range.reverse, &mut |key, stored: &Stored| {
            let Stored { value, version, expires_ms } = stored;
            look(SeenRow { key, value, version: *version, expires_ms: *expires_ms })
        });
        Ok(())
    }
}

#[cfg(test)]
#[path = "memory_test.rs"]
mod tests;

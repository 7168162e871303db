//! The keyspaces of one generation of a store: values, outcomes of writes, the index of expiries.

use crate::storage::fjall_store::StoreSettings;
use crate::storage::state_store::StorageError;
use crate::storage::view::engine_error;
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions};

const NAMES: [&str; 3] = ["data-", "outcomes-", "expiry-"];

/// See the head of this room. Cheap to clone; clones are the same keyspaces.
#[derive(Clone)]
pub(super) struct Spaces {
    pub(super) data: Keyspace,
    pub(super) outcomes: Keyspace,
    pub(super) expiry: Keyspace,
}

impl Spaces {
    /// Opens or creates those of a generation.
    pub(super) fn open(
        database: &Database,
        generation: u64,
        settings: &StoreSettings,
    ) -> Result<Self, StorageError> {
        let open = |name: &str, memtable_bytes: u64| {
            let options = || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes);
            database.keyspace(&format!("{name}{generation}"), options).map_err(engine_error)
        };
        let [data, outcomes, expiry] = NAMES;
        Ok(Self {
            data: open(data, settings.memtable_bytes)?,
            outcomes: open(outcomes, settings.memtable_bytes / 2)?,
            expiry: open(expiry, settings.memtable_bytes / 4)?,
        })
    }

    /// Deletes all of them; views of them go on.
    pub(super) fn delete(self, database: &Database) -> Result<(), StorageError> {
        [self.data, self.outcomes, self.expiry]
            .into_iter()
            .try_for_each(|keyspace| database.delete_keyspace(keyspace).map_err(engine_error))
    }
}

/// The generation that a keyspace belongs to.
pub(super) fn generation_of(name: &str) -> Option<u64> {
    NAMES.iter().find_map(|prefix| name.strip_prefix(prefix))?.parse().ok()
}

/// Fills an empty keyspace in ascending order of key.
///
/// # Errors
/// When the engine cannot write, `source` fails, or its keys are out of order.
pub(super) fn ingest(
    keyspace: &Keyspace,
    source: impl Iterator<Item = Result<(Bytes, Bytes), StorageError>>,
) -> Result<u64, StorageError> {
    let mut source = source.peekable();
    if source.peek().is_none() {
        return Ok(0);
    }
    let mut ingestion = keyspace.start_ingestion().map_err(engine_error)?;
    let mut count = 0;
    let mut last = Bytes::new();
    for item in source {
        let (key, value) = item?;
        // The engine panics on keys out of order, and these may come from a damaged stream.
        if count > 0 && key <= last {
            return Err(StorageError::Corrupt("keys of a snapshot out of order".to_owned()));
        }
        last = key.clone();
        ingestion.write(key.as_ref(), value.as_ref()).map_err(engine_error)?;
        count += 1;
    }
    ingestion.finish().map_err(engine_error)?;
    Ok(count)
}

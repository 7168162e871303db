//! The keyspaces of one generation of a store: values, outcomes of writes, the index of expiries.

use crate::storage::fjall_store::StoreSettings;
use crate::storage::state_store::StorageError;
use crate::storage::view::engine_error;
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::FilterPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

const NAMES: [&str; 3] = ["data-", "outcomes-", "expiry-"];

/// Bytes of a table of values: merging holds a hash of each of its keys, 8 bytes, in one vector that doubles. With
/// the engine's 64 MiB that was a million hashes, and 20 MiB of resident memory after the first large merge.
const DATA_TABLE_BYTES: u64 = 16 << 20;
/// The same of outcomes and expiries, whose rows are smaller.
const SMALL_TABLE_BYTES: u64 = 4 << 20;
/// Values from this size on are kept apart from their keys, in files that merging does not touch before a quarter of one
/// is stale (Lu et al., "WiscKey: Separating Keys from Values in SSD-conscious Storage", FAST 2016). A memtable holds
/// less than one value of the largest size, so a merge of the first level read eight of them. Smaller ones stay with
/// their keys, where a scan finds them without a seek. A keyspace keeps the layout that it was created with.
const APART_BYTES: u32 = 64 << 10;

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
        let [data, outcomes, expiry] = NAMES;
        let open = |name: &str, memtable_bytes: u64, table_bytes: u64| {
            let merging = Leveled::default().with_table_target_size(table_bytes);
            let options = || {
                let options = KeyspaceCreateOptions::default()
                    .max_memtable_size(memtable_bytes)
                    .compaction_strategy(Arc::new(merging));
                // Outcomes and expiries are only ever read by ranges, for which no filter is asked.
                if name == data {
                    // As they are: compressing would be work on every flush and every read of a large value.
                    let apart = KvSeparationOptions::default()
                        .separation_threshold(APART_BYTES)
                        .compression(CompressionType::None);
                    options.with_kv_separation(Some(apart))
                } else {
                    options.filter_policy(FilterPolicy::disabled())
                }
            };
            database.keyspace(&format!("{name}{generation}"), options).map_err(engine_error)
        };
        Ok(Self {
            data: open(data, settings.memtable_bytes, DATA_TABLE_BYTES)?,
            outcomes: open(outcomes, settings.memtable_bytes / 2, SMALL_TABLE_BYTES)?,
            expiry: open(expiry, settings.memtable_bytes / 4, SMALL_TABLE_BYTES)?,
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

/// The engine syncs what is in the folder of a new keyspace, not that the folder is there.
///
/// # Errors
/// When it cannot.
pub(super) fn sync_names(folder: &Path) -> Result<(), StorageError> {
    let synced = File::open(folder.join("keyspaces")).and_then(|names| names.sync_all());
    synced.map_err(|error| engine_error(error.into()))
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

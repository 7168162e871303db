//! What the request path and Raft need of a store: apply batches in order, publish views, watch positions.
//!
//! After each applied batch a store publishes one view; a read takes one view for value *and* position, so it
//! never sees half a batch nor a position that disagrees with its value. The store knows no queue and no tie.

use crate::storage::scan::{KeyRange, SeenRow};
use bytes::Bytes;
use std::sync::Arc;
use tiedkv_protocol::ids::{Position, Version};

/// A value as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The bytes, whole.
    pub value: Bytes,
    /// The position of the write that made it.
    pub version: Version,
    /// The log time at which it expires; `None`: it does not.
    pub expires_ms: Option<u64>,
}

impl Stored {
    /// It has not expired at this log time.
    pub fn alive(&self, stamp_ms: u64) -> bool {
        self.expires_ms.is_none_or(|expires| expires > stamp_ms)
    }
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// The new value.
        value: Bytes,
    },
    /// Removes a key; an absent one is no error.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Sets a key that expires, or sets when it does.
    PutUntil {
        /// The key.
        key: Bytes,
        /// The value, version and log time of its end.
        stored: Stored,
    },
}

impl Mutation {
    /// The key that is changed.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::PutUntil { key, .. } => key,
        }
    }

    /// What the key is afterwards; `version`: of this write.
    pub fn stored(&self, version: Version) -> Option<Stored> {
        match self {
            Self::Put { value, .. } => Some(Stored { value: value.clone(), version, expires_ms: None }),
            Self::Delete { .. } => None,
            Self::PutUntil { stored, .. } => Some(stored.clone()),
        }
    }
}

/// Why a store cannot answer. After one of these on the write path the node stops acknowledging.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The disk or engine failed.
    #[error("storage failed: {0}")]
    Failed(String),
    /// No space.
    #[error("disk full: {0}")]
    Full(String),
    /// What was read back does not match its checksum.
    #[error("corrupt data: {0}")]
    Corrupt(String),
}

/// A frozen state of the store.
pub trait View: Send + Sync {
    /// The position all of its values come from.
    fn position(&self) -> Position;
    /// Log time at that position, milliseconds since the Unix epoch as the leader stamped it.
    fn stamp_ms(&self) -> u64;
    /// Grows when a snapshot replaces the whole store.
    fn generation(&self) -> u64;
    /// The value of a key, unless it has expired at the view's log time.
    ///
    /// # Errors
    /// When the engine cannot read.
    fn get(&self, key: &[u8]) -> Result<Option<Stored>, StorageError>;
    /// Shows the keys of a range in order, expired ones too, until `look` says false.
    ///
    /// # Errors
    /// When the engine cannot read.
    fn scan(&self, range: KeyRange<'_>, look: &mut dyn FnMut(SeenRow<'_>) -> bool) -> Result<(), StorageError>;
}

/// Told after each publication; called on the apply thread, so it must be quick and must not block.
pub trait PositionListener: Send + Sync {
    /// A view at `position` is published.
    fn published(&self, position: Position);
}

/// A replica's data.
pub trait StateStore: Send + Sync + 'static {
    /// The newest published view; cheap (an atomic load and a reference count).
    fn view(&self) -> Arc<dyn View>;
    /// The newest applied state, published or not: what the next write sees.
    fn applied(&self) -> Arc<dyn View>;
    /// Applies one batch atomically at `position` and publishes a view of it.
    ///
    /// # Errors
    /// When the engine cannot write; nothing of the batch is visible then.
    fn apply(&self, batch: &[Mutation], position: Position, stamp_ms: u64) -> Result<(), StorageError>;
    /// Registers a listener for all later publications.
    fn watch(&self, listener: Arc<dyn PositionListener>);
}

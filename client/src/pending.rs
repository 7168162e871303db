//! Who waits for the answers of one connection: from a [`RequestId`] to the read, write or ping it belongs to.
//!
//! An id is index, kind of copy, slot and a count that never repeats, so that an answer to a copy that was withdrawn is
//! still counted by its kind and policy although nothing is kept of it. Does no I/O.

use crate::mailbox::Mailbox;
use crate::tally::{SLOT_BITS, Slot};
use bytes::Bytes;
use slab::Slab;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::{AdminReply, ReadReply, WriteReply};
use tokio::sync::oneshot;

const INDEX_BITS: u32 = 20;
const KIND_BITS: u32 = 3;
const COUNT_SHIFT: u32 = INDEX_BITS + KIND_BITS + SLOT_BITS;

/// Most entries that an id can name; settings stay below.
pub(crate) const PENDING_MAX: usize = 1 << INDEX_BITS;

/// Why a call on a link got no answer: the link was lost, for this reason.
#[derive(Clone, Debug)]
pub(crate) struct Lost(pub(crate) Arc<str>);

/// Who learns from the answer to a shadow copy.
pub(crate) trait ShadowReader: fmt::Debug + Send + Sync {
    /// It came `latency` after the copy was handed over.
    fn shadow_answered(&self, latency: Duration, reply: &ReadReply, now: Moment);

    /// It will not be answered.
    fn shadow_lost(&self, node: NodeId);
}

/// Who is told.
#[derive(Debug)]
pub(crate) enum Owed {
    /// A copy of a read.
    Copy {
        /// Its read.
        mailbox: Arc<Mailbox>,
        /// Its index in the race.
        copy: u16,
    },
    /// A copy that measures: no caller waits for it.
    Shadow(Arc<dyn ShadowReader>),
    /// A try of a write.
    Write(oneshot::Sender<Result<(WriteReply, Bytes), Lost>>),
    /// An administrative request.
    Admin(oneshot::Sender<Result<(AdminReply, Bytes), Lost>>),
    /// A ping of the link itself.
    Ping,
}

#[derive(Debug)]
struct Entry {
    id: RequestId,
    sent: Moment,
    owed: Owed,
}

/// See the head of this room.
#[derive(Debug)]
pub(crate) struct Pending {
    entries: Slab<Entry>,
    count: u64,
    entries_max: usize,
    pings: usize,
    /// Set when the link is lost: nothing is added any more.
    lost: Option<Arc<str>>,
}

/// Why nothing was added.
#[derive(Clone, Debug)]
pub(crate) enum NotAdded {
    /// The link is lost.
    Lost(Arc<str>),
    /// The bound is reached.
    Full(usize),
}

impl Pending {
    pub(crate) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.clamp(1, PENDING_MAX);
        Self { entries: Slab::new(), count: 0, entries_max, pings: 0, lost: None }
    }

    /// Adds one that waits; kind and slot are kept in the id of a copy.
    pub(crate) fn add(
        &mut self,
        owed: Owed,
        copy: Option<(CopyKind, Slot)>,
        now: Moment,
    ) -> Result<RequestId, NotAdded> {
        if let Some(reason) = &self.lost {
            return Err(NotAdded::Lost(reason.clone()));
        }
        if self.entries.len() >= self.entries_max {
            return Err(NotAdded::Full(self.entries_max));
        }
        self.count += 1;
        let slot = self.entries.vacant_entry();
        let marks = copy.map_or(KIND_NONE, |(kind, slot)| slot.bits() << KIND_BITS | kind as u64);
        let id = RequestId((self.count << COUNT_SHIFT) | (marks << INDEX_BITS) | slot.key() as u64);
        self.pings += usize::from(matches!(owed, Owed::Ping));
        slot.insert(Entry { id, sent: now, owed });
        Ok(id)
    }

    /// Takes out the one that waits for `id`, with the moment it was sent.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<(Owed, Moment)> {
        let index = (id.0 & ((1 << INDEX_BITS) - 1)) as usize;
        if self.entries.get(index)?.id != id {
            return None;
        }
        let entry = self.entries.remove(index);
        self.pings -= usize::from(matches!(entry.owed, Owed::Ping));
        Some((entry.owed, entry.sent))
    }

    /// Takes out all and refuses to add any more.
    pub(crate) fn lose(&mut self, reason: Arc<str>) -> Vec<(RequestId, Owed)> {
        self.lost = Some(reason);
        self.pings = 0;
        self.entries.drain().map(|entry| (entry.id, entry.owed)).collect()
    }

    /// Answers owed, pings not counted.
    pub(crate) fn owed(&self) -> usize {
        self.entries.len() - self.pings
    }

    /// Pings without an echo.
    pub(crate) fn pings(&self) -> usize {
        self.pings
    }
}

const KIND_NONE: u64 = 7;

/// The kind of copy that an id was given to, and the slot in which it counts.
pub(crate) fn copy_of(id: RequestId) -> Option<(CopyKind, Slot)> {
    let kind = CopyKind::ALL.get(((id.0 >> INDEX_BITS) & ((1 << KIND_BITS) - 1)) as usize).copied()?;
    Some((kind, Slot::of_bits(id.0 >> (INDEX_BITS + KIND_BITS) & ((1 << SLOT_BITS) - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_finds_nobody() {
        let mut pending = Pending::new(2);
        let slot = Slot::of_bits(17);
        let first = pending.add(Owed::Ping, Some((CopyKind::Rescue, slot)), Moment(5)).expect("room");
        assert_eq!((pending.owed(), pending.pings()), (0, 1));
        assert_eq!(pending.take(first).map(|(_, sent)| sent), Some(Moment(5)));
        let second = pending.add(Owed::Ping, None, Moment(6)).expect("room");
        assert_ne!(first, second);
        assert!(pending.take(first).is_none());
        assert_eq!(copy_of(first), Some((CopyKind::Rescue, slot)));
        assert_eq!(copy_of(second), None);
        assert!(pending.take(RequestId(u64::MAX)).is_none());
    }

    #[test]
    fn bounds_and_loss_refuse() {
        let mut pending = Pending::new(1);
        pending.add(Owed::Ping, None, Moment(1)).expect("room");
        assert!(matches!(pending.add(Owed::Ping, None, Moment(1)), Err(NotAdded::Full(1))));
        assert_eq!(pending.lose("gone".into()).len(), 1);
        assert!(matches!(pending.add(Owed::Ping, None, Moment(1)), Err(NotAdded::Lost(_))));
    }
}

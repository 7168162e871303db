//! Do the replicas hold the same? Every replica hashes its state at the same positions, each at a moment of its own, and
//! asks the others for theirs. One that differs from a majority takes itself out of service, for good; the others raise
//! an alarm that names it. What a disk or a bug changed without breaking a checksum of the engine is found by this alone.
//!
//! A position at which a replica was busy, lagging or installing a snapshot is left out by it; a majority of
//! members must have hashed one for anything to be said about it.

use crate::raft::jitter::{self, Work};
use crate::storage::state_store::{StorageError, View as _};
use crate::storage::view::FjallView;
use bytes::Bytes;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, Position};
use tokio::sync::mpsc;

/// The sums of so many positions are remembered for the others.
const REMEMBERED: usize = 8;
/// Bytes hashed between two pauses, and the pause: a check is never in a hurry.
const STRETCH_BYTES: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(2);

/// The state at a position, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Where.
    pub position: Position,
    /// First 8 bytes of the SHA-256 of what is there (FIPS 180-4).
    pub sum: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct CheckCounters {
    /// States hashed.
    pub hashed: AtomicU64,
    /// Positions at which a majority agreed with this replica.
    pub agreed: AtomicU64,
    /// Positions at which replicas differed: an alarm.
    pub differed: AtomicU64,
}

/// The sums of this replica.
#[derive(Debug, Default)]
pub struct Sums {
    recent: Mutex<VecDeque<Sum>>,
    /// What became of checks.
    pub counters: CheckCounters,
}

impl Sums {
    /// The sum at a position, if it is remembered.
    pub fn at(&self, position: Position) -> Option<u64> {
        self.recent.lock().iter().find(|sum| sum.position == position).map(|sum| sum.sum)
    }

    fn remember(&self, sum: Sum) {
        let mut recent = self.recent.lock();
        if recent.len() >= REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(sum);
        self.counters.hashed.fetch_add(1, Relaxed);
    }
}

/// Where the applier hands in the views to be hashed. Dropped, the checker's thread ends.
pub struct Checker {
    every: u64,
    views: Sender<Arc<FjallView>>,
    /// Nothing is sent on it: its end is the checker's.
    _stop: Sender<()>,
}

impl Checker {
    /// Starts the thread; sums are remembered in `sums` and told to `told`. States are hashed at multiples of `every`
    /// (0: never), each at a moment within `window`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(
        own: NodeId,
        every: u64,
        window: Duration,
        sums: Arc<Sums>,
        told: mpsc::Sender<Sum>,
    ) -> std::io::Result<Self> {
        let ((views, inbox), (stop, stopped)) = (bounded(1), bounded(0));
        let run = move || check(own, window, &sums, &told, &inbox, &stopped);
        std::thread::Builder::new().name("tiedkv-check".to_owned()).spawn(run)?;
        Ok(Self { every, views, _stop: stop })
    }

    /// The state at this position is to be hashed, so a commit ends here.
    pub fn is_due(&self, position: Position) -> bool {
        self.every > 0 && position.0.is_multiple_of(self.every)
    }

    /// Hands a view in; while the one before is not done, this one is left out.
    pub fn offer(&self, view: impl FnOnce() -> Arc<FjallView>) {
        if self.views.is_empty() {
            // The thread ends with this handle, so it is there.
            let _ = self.views.try_send(view());
        }
    }
}

fn check(
    own: NodeId,
    window: Duration,
    sums: &Sums,
    told: &mpsc::Sender<Sum>,
    inbox: &Receiver<Arc<FjallView>>,
    stopped: &Receiver<()>,
) {
    // False when the applier is gone.
    let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    if rustix::process::nice(19).is_err() {
        tracing::debug!("the checker keeps its priority");
    }
    while let Ok(view) = inbox.recv() {
        if !wait(jitter::moment(own, Work::Check, view.position().0, window)) {
            return;
        }
        match hash(&view, || wait(PAUSE)) {
            Ok(Some(sum)) => {
                let sum = Sum { position: view.position(), sum };
                sums.remember(sum);
                // Nobody asks the others any more when the group ends.
                let _ = told.try_send(sum);
            }
            Ok(None) => return,
            // Read errors are the business of who reads for a caller: they latch there.
            Err(error) => tracing::error!(%error, "the state could not be hashed"),
        }
    }
}

/// The sum of all values and outcomes in force; `None` when `pause` says to stop.
///
/// # Errors
/// When the engine cannot read.
pub fn hash(view: &FjallView, mut pause: impl FnMut() -> bool) -> Result<Option<u64>, StorageError> {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    let mut bytes = 0;
    hash.update(&view.stamp_ms().to_le_bytes());
    hash.update(&view.forgotten().0.to_le_bytes());
    let records: [&mut dyn Iterator<Item = Result<(Bytes, Bytes), StorageError>>; 2] =
        [&mut view.values(), &mut view.kept_outcomes()];
    for records in records {
        for record in records {
            let (key, value) = record?;
            hash.update(&(key.len() as u64).to_le_bytes());
            hash.update(&key);
            hash.update(&(value.len() as u64).to_le_bytes());
            hash.update(&value);
            bytes += key.len() + value.len();
            if bytes >= STRETCH_BYTES {
                bytes = 0;
                if !pause() {
                    return Ok(None);
                }
            }
        }
        hash.update(b"end");
    }
    let whole = hash.finish();
    Ok(whole.as_ref().first_chunk::<8>().map(|first| u64::from_le_bytes(*first)))
}

/// What the sums of the members at one position say. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A majority, this replica among them, agrees, and nobody differs so far.
    Agreed,
    /// A majority, this replica among them, agrees; these differ.
    Others(Vec<NodeId>),
    /// A majority agrees on something else.
    Odd,
    /// All have told and no majority agrees.
    Split,
    /// Too few have told.
    Open,
}

/// Judges the sums that are known of `members` at one position.
pub fn judge(own: NodeId, members: &[NodeId], sums: &BTreeMap<NodeId, u64>) -> Finding {
    let mut votes: BTreeMap<u64, usize> = BTreeMap::new();
    for sum in members.iter().filter_map(|member| sums.get(member)) {
        *votes.entry(*sum).or_default() += 1;
    }
    let told: usize = votes.values().sum();
    let Some((right, _)) = votes.into_iter().find(|(_, count)| 2 * count > members.len()) else {
        return if told == members.len() { Finding::Split } else { Finding::Open };
    };
    if sums.get(&own).is_some_and(|sum| *sum != right) {
        return Finding::Odd;
    }
    let others: Vec<NodeId> =
        members.iter().copied().filter(|member| sums.get(member).is_some_and(|sum| *sum != right)).collect();
    if others.is_empty() { Finding::Agreed } else { Finding::Others(others) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(of: &[(u64, u64)]) -> BTreeMap<NodeId, u64> {
        of.iter().map(|(node, sum)| (NodeId(*node), *sum)).collect()
    }

    #[test]
    fn a_majority_is_right_and_the_odd_one_is_named() {
        let members = [1, 2, 3].map(NodeId);
        let judged = |of: &[(u64, u64)]| judge(NodeId(1), &members, &sums(of));
        assert_eq!(judged(&[(1, 5)]), Finding::Open);
        assert_eq!(judged(&[(1, 5), (2, 5)]), Finding::Agreed);
        assert_eq!(judged(&[(1, 5), (2, 5), (3, 6)]), Finding::Others(vec![NodeId(3)]));
        assert_eq!(judged(&[(1, 5), (2, 6)]), Finding::Open);
        assert_eq!(judged(&[(1, 5), (2, 6), (3, 6)]), Finding::Odd);
        assert_eq!(judged(&[(1, 5), (2, 6), (3, 7)]), Finding::Split);
        // Whoever is no member has no say.
        assert_eq!(judged(&[(1, 5), (8, 6), (9, 6)]), Finding::Open);
    }
}

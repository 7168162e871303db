//! Counters of the request path. They balance at rest: received = answered (good, refused, expired, failed) +
//! withdrawn + early-dropped + yielded. Owned by a node, not by the process: three nodes in one test do not
//! share them.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::request::CopyKind;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts events; each field only grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Copies received, by kind, in the order of [`CopyKind::ALL`].
            pub received_by_kind: [Counter; CopyKind::ALL.len()],
            /// Copies started, by kind, in the order of [`CopyKind::ALL`].
            pub started_by_kind: [Counter; CopyKind::ALL.len()],
        }

        /// All counters at one moment (fields read one after the other).
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CountersSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Copies received, by kind, in the order of [`CopyKind::ALL`].
            pub received_by_kind: [u64; CopyKind::ALL.len()],
            /// Copies started, by kind, in the order of [`CopyKind::ALL`].
            pub started_by_kind: [u64; CopyKind::ALL.len()],
        }

        impl Counters {
            /// Reads all.
            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot {
                    $($name: self.$name.value(),)*
                    received_by_kind: std::array::from_fn(|i| self.received_by_kind[i].value()),
                    started_by_kind: std::array::from_fn(|i| self.started_by_kind[i].value()),
                }
            }
        }
    };
}

counters! {
    /// Copies received, whatever became of them.
    received,
    /// Copies started.
    started,
    /// Good answers.
    answered_good,
    /// Refusals (not started): busy, behind, try-elsewhere, malformed, over limit, bad tie, duplicate.
    answered_refused,
    /// Answers `Expired`, before or after the start.
    answered_expired,
    /// Failures after the start.
    answered_failed,
    /// Ended without an answer because the client withdrew it or is gone.
    withdrawn,
    /// Of those, withdrawn after their start.
    withdrawn_running,
    /// Ended without an answer before the start: a named peer's cancel came while the copy waited.
    cancelled,
    /// Dropped without an answer at arrival: a named peer's cancel had come early.
    early_dropped,
    /// Ended without an answer after the start: yielded to a lower number.
    yielded,
    /// Cancels handed to the cancel channel by starts.
    cancels_sent,
    /// Cancels handed to the cancel channel in reply to a higher number's cancel.
    cancels_sent_back,
    /// Cancels received.
    cancels_received,
    /// Cancels received from a node that the copy does not name, or with a number that is not the sender's.
    cancels_ignored,
    /// Cancels received before their copy (or for one that never comes).
    cancels_filed,
    /// Early cancels that the ring lost to a bound before they were old: each may have cost a duplicate.
    early_cancels_lost,
    /// Live lower bound of duplicates: running copies that learnt of another runner of their tie.
    duplicates_seen,
    /// Chunks of scans that were read.
    scan_chunks,
    /// Copies set aside at least once.
    set_aside,
    /// Service time of good answers, microseconds.
    service_time_us,
    /// Service time of yielded and withdrawn copies, microseconds.
    wasted_us,
    /// Queue wait of started copies, microseconds.
    queue_wait_us,
    /// Storage errors.
    storage_errors,
    /// Background jobs done.
    jobs_done,
    /// Background jobs that found their lane full.
    jobs_dropped,
    /// Service time of background jobs, microseconds.
    jobs_us,
    /// Time that workers were held by stalls after a start, microseconds.
    stalled_us,
}

impl CountersSnapshot {
    /// Ends that were answered.
    pub fn answered(&self) -> u64 {
        self.answered_good + self.answered_refused + self.answered_expired + self.answered_failed
    }

    /// Ends that are silent by rule R8 (docs/tie-protocol.md).
    pub fn silent(&self) -> u64 {
        self.withdrawn + self.cancelled + self.early_dropped + self.yielded
    }

    /// Copies that have not ended: received less all ends.
    pub fn in_flight(&self) -> u64 {
        self.received.saturating_sub(self.answered() + self.silent())
    }
}

/// One counter; relaxed, on its own it orders nothing.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Adds whole microseconds.
    pub fn add_time(&self, span: Duration) {
        self.0.fetch_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The count.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

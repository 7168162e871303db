//! Whether the disk of a replica has room for more writes: asked of the system a few times a second, read by every write.
//!
//! A leader refuses writes while less than a reserve is free, so that log and store never meet the end of the disk, which
//! would stop the node; reads go on, and so do writes once space is free again. It frees nothing by itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::response::Failure;
use tokio::time::interval;

/// How often the system is asked.
const ASKED_EVERY: Duration = Duration::from_millis(200);
/// A caller that was refused may try again after this.
const RETRY_AFTER_US: u64 = 500_000;

/// The room left for one replica.
#[derive(Debug)]
pub struct DiskSpace {
    reserve_bytes: AtomicU64,
    free_bytes: AtomicU64,
    full: AtomicBool,
}

impl DiskSpace {
    /// Room until the system says otherwise.
    pub fn new(reserve_bytes: u64) -> Self {
        Self {
            reserve_bytes: AtomicU64::new(reserve_bytes),
            free_bytes: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
        }
    }

    /// Changes the reserve; looked at anew within a second.
    pub fn set_reserve(&self, bytes: u64) {
        self.reserve_bytes.store(bytes, Relaxed);
    }

    /// Refuses a write while the disk is full.
    ///
    /// # Errors
    /// `DiskFull`, with what is free and what must be.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.full.load(Relaxed) {
            return Ok(());
        }
        let (free, reserve) = (self.free_bytes.load(Relaxed), self.reserve_bytes.load(Relaxed));
        let message = format!("the leader's disk has {free} bytes left; writes need {reserve}. Reads go on");
        Err(Failure { retry_after_us: RETRY_AFTER_US, ..Failure::new(ErrorCode::DiskFull, message) })
    }

    fn saw(&self, free_bytes: u64) {
        let full = free_bytes < self.reserve_bytes.load(Relaxed);
        self.free_bytes.store(free_bytes, Relaxed);
        if self.full.swap(full, Relaxed) != full {
            match full {
                true => tracing::error!(free_bytes, "the disk is full: writes are refused until space is freed"),
                false => tracing::info!(free_bytes, "the disk has room again: writes are taken"),
            }
        }
    }
}

/// Asks the system about the disk of `folder` until the group ends.
pub(super) async fn watch(space: Arc<DiskSpace>, folder: PathBuf) {
    let mut ticks = interval(ASKED_EVERY);
    loop {
        ticks.tick().await;
        // Cheap: the system knows it without reading the disk. A system that does not tell changes nothing.
        if let Ok(found) = rustix::fs::statvfs(&folder) {
            space.saw(found.f_bavail.saturating_mul(found.f_frsize));
        }
        if Arc::strong_count(&space) == 1 {
            return;
        }
    }
}

//! What the scene `real-disk` does beside its reads: overwrites keys, so that the stores flush, compact and take
//! snapshots, and drops the cluster's files from the page cache, so that reads reach the disk.
//!
//! Only files of this cluster are dropped, by posix_fadvise(2): what waits to be written stays. It never deletes.

use crate::load::workload::Workload;
use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{Advice, fadvise};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiedkv_client::{Client, WriteOptions};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How often the page cache is dropped.
const DROP_EVERY: Duration = Duration::from_millis(500);
/// Time between two overwrites: 400 a second, 1.6 MB of values on each node.
const WRITE_EVERY: Duration = Duration::from_micros(2_500);
/// Overwrites that are out at the same time; at more the next one waits.
const WRITES_OUT_MAX: usize = 64;
/// Longest wait for one of them.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Overwrites and drops until it is dropped.
///
/// # Errors
/// When a write fails.
///
/// # Cancel safety
/// A write that is out may be applied; it writes what is there already.
pub(super) async fn disturb(client: &Client, workload: Workload, folder: &Path, seed: u64) -> Result<()> {
    let (mut drops, mut writes) = (tokio::time::interval(DROP_EVERY), tokio::time::interval(WRITE_EVERY));
    drops.set_missed_tick_behavior(MissedTickBehavior::Delay);
    writes.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut rng = StdRng::seed_from_u64(seed);
    let mut out: JoinSet<Result<(), tiedkv_client::Error>> = JoinSet::new();
    loop {
        tokio::select! {
            _ = drops.tick() => {
                let folder = folder.to_owned();
                // A folder that vanishes meanwhile is none to drop.
                tokio::task::spawn_blocking(move || drop_cached(&folder)).await.context("dropping the page cache")?;
            }
            _ = writes.tick(), if out.len() < WRITES_OUT_MAX => {
                let number = rng.random_range(0..workload.count.max(1));
                let (client, key, value) = (client.clone(), workload.key(number), workload.value(number));
                out.spawn(async move {
                    let options = WriteOptions { deadline: Some(WRITE_DEADLINE), ..WriteOptions::default() };
                    client.put_with(key, value, options).await.map(drop)
                });
            }
            Some(written) = out.join_next() => written.context("an overwrite was lost")?.context("an overwrite")?,
        }
    }
}

/// Tells the system to forget the clean pages of all files below `folder`; bytes of these files.
fn drop_cached(folder: &Path) -> u64 {
    let (mut bytes, mut folders) = (0, vec![PathBuf::from(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => {
                    // A file that a compaction has removed since is none to drop.
                    let Ok(file) = std::fs::File::open(entry.path()) else { continue };
                    if fadvise(&file, 0, None, Advice::DontNeed).is_ok() {
                        bytes += file.metadata().map_or(0, |known| known.len());
                    }
                }
                _ => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_at_any_depth_are_dropped_and_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("node-1/data");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("table"), vec![7; 8_192]).unwrap();
        std::fs::write(folder.path().join("log"), b"x").unwrap();
        assert_eq!(drop_cached(folder.path()), 8_193);
        assert_eq!(std::fs::read(deep.join("table")).unwrap(), vec![7; 8_192]);
        assert_eq!(drop_cached(&folder.path().join("none")), 0);
    }
}

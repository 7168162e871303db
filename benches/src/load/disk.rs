//! One stream of small appends, each made durable: what a write to the log costs at least on this disk, and how many of
//! them one stream can do.

use crate::clock;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

/// About a log entry with a value of 100 bytes.
const APPEND_BYTES: usize = 170;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SyncFigures {
    /// Appends made durable per second.
    pub per_s: f64,
    /// Median time of one, microseconds.
    pub p50_us: u64,
}

/// Appends to a file in `folder` for `span`, with one fdatasync each; the file is removed. Blocks.
///
/// # Errors
/// When the file cannot be written.
pub fn fdatasyncs(folder: &Path, span: Duration) -> io::Result<SyncFigures> {
    let path = folder.join("fdatasync-probe");
    let mut file = File::create(&path)?;
    let begun = clock::now();
    let mut times = Vec::new();
    while begun.elapsed() < span {
        let sent = clock::now();
        file.write_all(&[7; APPEND_BYTES])?;
        file.sync_data()?;
        times.push(sent.elapsed());
    }
    let per_s = times.len() as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    times.sort_unstable();
    let p50 = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(SyncFigures { per_s, p50_us: u64::try_from(p50.as_micros()).unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_nothing_and_measures_something() {
        let folder = tempfile::tempdir().unwrap();
        let figures = fdatasyncs(folder.path(), Duration::from_millis(20)).unwrap();
        assert!(figures.per_s > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

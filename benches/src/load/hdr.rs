//! Writes histograms as an HdrHistogram interval log (version 1.3), which the tools of that project read: one interval
//! per policy and kind of call, values in microseconds, maxima in milliseconds.

use crate::clock;
use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Writes `all` (tag and values) to `path`; they were collected over the last `took`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, all: &[(String, &Histogram<u64>)], took: Duration) -> Result<()> {
    let name = || path.display().to_string();
    let mut bytes = Vec::new();
    let began = clock::since_epoch().saturating_sub(took);
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("tiedkv bench run; microseconds").with_max_value_divisor(1_000.0);
    let mut log = builder.begin_log_with(&mut bytes, &mut serializer).with_context(name)?;
    for (tag, histogram) in all {
        // Tags must not hold commas or blanks; ours never do.
        log.write_histogram(histogram, began, took, Tag::new(tag)).map_err(|error| anyhow!("{error:?}"))?;
    }
    std::fs::File::create(path).and_then(|mut file| file.write_all(&bytes)).with_context(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn the_log_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.hlog");
        let mut latency = Histogram::<u64>::new(3).unwrap();
        latency.record_n(1_500, 10).unwrap();
        write(&path, &[("get-tied2".to_owned(), &latency)], Duration::from_secs(2)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(|entry| entry.unwrap()).collect();
        let tags: Vec<&str> = entries
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Interval(interval) => interval.tag().map(|tag| tag.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(tags, ["get-tied2"]);
    }
}

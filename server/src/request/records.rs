//! A bounded ring of start records, off until asked for: what the benchmark joins over all nodes to count
//! duplicates, and the node's own trace for the ideals.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tiedkv_protocol::response::StartRecord;

/// A page of start records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPage {
    /// Sequence number of the first record here; more than asked for if older ones were overwritten.
    pub first: u64,
    /// Sequence number after the last one recorded so far.
    pub end: u64,
    /// The records.
    pub records: Vec<StartRecord>,
}

/// The ring. While off, a record costs one relaxed load.
#[derive(Debug)]
pub struct StartRecords {
    on: AtomicBool,
    ring: Mutex<Ring>,
    count_max: usize,
}

#[derive(Debug, Default)]
struct Ring {
    first: u64,
    records: VecDeque<StartRecord>,
}

impl StartRecords {
    /// Keeps the newest `count_max` records; memory is taken while recording only.
    pub fn new(count_max: usize) -> Self {
        Self { on: AtomicBool::new(false), ring: Mutex::default(), count_max }
    }

    /// Starts (emptying the ring, counting from 0 again) or stops. What was kept can be read after a stop.
    pub fn switch(&self, on: bool) {
        let mut ring = self.ring.lock();
        if on {
            *ring = Ring::default();
        }
        self.on.store(on, Relaxed);
    }

    /// Keeps one record if recording is on.
    pub fn record(&self, record: impl FnOnce() -> StartRecord) {
        if !self.on.load(Relaxed) {
            return;
        }
        let record = record();
        let mut ring = self.ring.lock();
        if ring.records.len() >= self.count_max {
            ring.records.pop_front();
            ring.first += 1;
        }
        ring.records.push_back(record);
    }

    /// Records from sequence number `from` on, at most `count_max`.
    pub fn page(&self, from: u64, count_max: usize) -> StartPage {
        let ring = self.ring.lock();
        let end = ring.first + ring.records.len() as u64;
        let first = from.clamp(ring.first, end);
        let skip = (first - ring.first) as usize;
        let records = ring.records.iter().skip(skip).take(count_max).copied().collect();
        StartPage { first, end, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_protocol::ids::{CallerId, ReadId};
    use tiedkv_protocol::request::CopyKind;
    use tiedkv_protocol::response::CopyEnd;

    fn record(read: u128) -> StartRecord {
        StartRecord {
            caller: CallerId(1),
            read: ReadId(read),
            tie: None,
            kind: CopyKind::First,
            lane: 0,
            admitted_us: 1,
            started_us: 2,
            ended_us: 3,
            end: CopyEnd::Answered,
        }
    }

    fn reads(page: &StartPage) -> Vec<u128> {
        page.records.iter().map(|record| record.read.0).collect()
    }

    #[test]
    fn nothing_is_kept_until_switched_on_and_pages_follow_each_other() {
        let records = StartRecords::new(100);
        records.record(|| record(0));
        assert_eq!(records.page(0, 10), StartPage::default());
        records.switch(true);
        (1..=5).for_each(|read| records.record(|| record(read)));
        records.switch(false);
        records.record(|| record(6));
        let page = records.page(0, 3);
        assert_eq!((page.first, page.end, reads(&page)), (0, 5, vec![1, 2, 3]));
        let page = records.page(3, 3);
        assert_eq!((page.first, reads(&page)), (3, vec![4, 5]));
        assert_eq!(records.page(9, 3).records, []);
    }

    #[test]
    fn the_oldest_are_overwritten_and_the_page_says_so() {
        let records = StartRecords::new(3);
        records.switch(true);
        (0..5).for_each(|read| records.record(|| record(read)));
        let page = records.page(0, 10);
        assert_eq!((page.first, page.end, reads(&page)), (2, 5, vec![2, 3, 4]));
        records.switch(true);
        assert_eq!(records.page(0, 10), StartPage::default());
    }
}

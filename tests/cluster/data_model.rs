//! Random operations against three real nodes and a sorted map: every answer, and the rows of every replica at the end,
//! are the map's. With ties and without; times to live among them.

use crate::bed::PATIENCE;
use crate::data::replicated;
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tiedkv_client::{
    Client, Conditional, Expect, Level, ReadOptions, ReadPolicy, Row, ScanOptions, ScanRange, WriteOptions,
};
use tiedkv_protocol::request::ReadLevel;

const STEPS: u32 = 480;
/// A time to live that does not end within a test, and one that has ended before the next write.
const LONG: Duration = Duration::from_secs(3_600);
const BRIEF: Duration = Duration::from_millis(1);

/// Draws that a seed repeats (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }

    /// Few letters, so that keys meet; the edges of bytes among them.
    fn key(&mut self) -> Bytes {
        let length = 1 + self.below(3);
        (0..length).map(|_| [0, b'a', b'b', 0xfe, 0xff][self.below(5) as usize]).collect()
    }

    fn value(&mut self) -> Bytes {
        let length = self.below(40);
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    fn range(&mut self) -> (ScanRange, Bytes, Option<Bytes>) {
        let (lo, hi) = (self.key(), self.key());
        match self.below(5) {
            0 => (ScanRange::all(), Bytes::new(), None),
            1 => (ScanRange::starting_at(lo.clone()), lo, None),
            2 => (ScanRange::before(hi.clone()), Bytes::new(), Some(hi)),
            3 => (ScanRange::prefix(lo.clone()), lo.clone(), tiedkv_protocol::scan::prefix_end(&lo)),
            _ => (ScanRange::between(lo.clone(), hi.clone()), lo, Some(hi)),
        }
    }
}

/// What the map knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    value: Bytes,
    expires: bool,
}

struct Play {
    client: Client,
    model: BTreeMap<Bytes, Known>,
    draws: Draws,
    policy: ReadPolicy,
}

impl Play {
    fn read(&self) -> ReadOptions {
        ReadOptions {
            policy: Some(self.policy),
            level: Some(Level::Session),
            deadline: Some(PATIENCE),
            ..ReadOptions::default()
        }
    }

    fn write(&self) -> WriteOptions {
        WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() }
    }

    fn inside(&self, lo: &Bytes, hi: Option<&Bytes>) -> Vec<(Bytes, Bytes)> {
        let inside = |key: &Bytes| key >= lo && hi.is_none_or(|hi| key < hi);
        let rows = self.model.iter().filter(|(key, _)| inside(key));
        rows.map(|(key, known)| (key.clone(), known.value.clone())).collect()
    }

    async fn step(&mut self) {
        match self.draws.below(18) {
            0..=4 => {
                let (key, value) = (self.draws.key(), self.draws.value());
                self.client.put_with(key.clone(), value.clone(), self.write()).await.unwrap();
                self.model.insert(key, Known { value, expires: false });
            }
            5 => {
                let key = self.draws.key();
                self.client.delete_with(key.clone(), self.write()).await.unwrap();
                self.model.remove(&key);
            }
            6 | 7 => {
                let key = self.draws.key();
                let read = self.client.get_with(key.clone(), self.read()).await.unwrap();
                let left = read.value.as_ref().and_then(|value| value.remaining);
                assert!(left.is_none_or(|left| left <= LONG && left > LONG / 2), "{key:?}: {left:?}");
                let found = read.value.map(|value| Known { value: value.value, expires: left.is_some() });
                assert_eq!(found.as_ref(), self.model.get(&key), "get {key:?}");
                assert_eq!(self.client.exists(key.clone()).await.unwrap(), self.model.contains_key(&key));
            }
            8 | 9 => self.scan().await,
            10 => {
                let (range, lo, hi) = self.draws.range();
                let count = self.client.view(1).count(&range, self.read_as_of_now()).await.unwrap();
                assert_eq!(count, self.inside(&lo, hi.as_ref()).len() as u64, "count {range:?}");
            }
            11 => {
                let (key, by) = (Bytes::from_static(b"n"), self.draws.below(2_000) as i64 - 1_000);
                let counted = self.client.increment(key.clone(), by).await.unwrap();
                let before = self.model.get(&key);
                let (number, expires) =
                    before.map_or((0, false), |known| (text_number(&known.value), known.expires));
                assert_eq!(counted.number, Some(number + by));
                self.model.insert(key, Known { value: (number + by).to_string().into(), expires });
            }
            12 | 13 => self.conditional().await,
            14..=16 => self.time_to_live().await,
            _ => {
                let (lo, hi) = (self.draws.key(), self.draws.key());
                // A small part, so that there is something left.
                let gone: Vec<_> = self.inside(&lo, Some(&hi));
                if gone.len() < 8 {
                    let range = ScanRange::between(lo, hi);
                    let removed = self.client.delete_range(&range, ScanOptions::default(), |_| {}).await.unwrap();
                    assert_eq!(removed, gone.len() as u64, "delete {range:?}");
                    gone.iter().for_each(|(key, _)| drop(self.model.remove(key)));
                }
            }
        }
    }

    /// A put if the key is as the model says, or if it is not.
    async fn conditional(&mut self) {
        let (key, value) = (self.draws.key(), self.draws.value());
        let known = self.model.get(&key).map(|known| known.value.clone());
        let right = self.draws.below(2) == 0;
        let expect = match (&known, right) {
            (None, true) => Expect::Absent,
            (Some(known), true) => Expect::Value(known.clone()),
            (None, false) => Expect::Present,
            (Some(_), false) => Expect::Absent,
        };
        let done =
            self.client.compare_and_set_with(key.clone(), expect, value.clone(), self.write()).await.unwrap();
        match done {
            Conditional::Applied(_) => assert!(right, "applied although it did not hold: {key:?}"),
            Conditional::Unmet(unmet) => {
                assert!(!right, "not applied although it held: {key:?}");
                assert_eq!(unmet.current.and_then(|current| current.value), known);
            }
        }
        if right {
            self.model.insert(key, Known { value, expires: false });
        }
    }

    /// A key that gets a time, another time, or none; or one that is gone by the next write.
    async fn time_to_live(&mut self) {
        let (key, value) = (self.draws.key(), self.draws.value());
        match self.draws.below(5) {
            0 | 1 => {
                self.client.put_for_with(key.clone(), value.clone(), LONG, self.write()).await.unwrap();
                self.model.insert(key, Known { value, expires: true });
            }
            2 => {
                let touched = self.client.touch_with(key.clone(), LONG, self.write()).await.unwrap();
                assert_eq!(touched, self.model.contains_key(&key), "touch {key:?}");
                self.model.entry(key).and_modify(|known| known.expires = true);
            }
            3 => {
                let kept = self.client.persist_with(key.clone(), self.write()).await.unwrap();
                assert_eq!(kept, self.model.contains_key(&key), "persist {key:?}");
                self.model.entry(key).and_modify(|known| known.expires = false);
            }
            _ => {
                self.client.put_for_with(key.clone(), value.clone(), BRIEF, self.write()).await.unwrap();
                // The leader's clock passes the end, and the next entry's stamp says so.
                tokio::time::sleep(5 * BRIEF).await;
                let other = Bytes::from_static(b"stamp");
                self.client.put_with(other.clone(), value.clone(), self.write()).await.unwrap();
                self.model.insert(other, Known { value, expires: false });
                self.model.remove(&key);
                let read = self.client.get_with(key.clone(), self.read()).await.unwrap();
                assert_eq!(read.value, None, "{key:?} has expired");
            }
        }
    }

    /// The options of another session that has seen what this one has.
    fn read_as_of_now(&self) -> ReadOptions {
        ReadOptions { token: Some(self.client.token()), ..self.read() }
    }

    async fn scan(&mut self) {
        let (range, lo, hi) = self.draws.range();
        let limit = (self.draws.below(2) == 0).then(|| 1 + self.draws.below(10));
        let options = ScanOptions {
            reverse: self.draws.below(2) == 0,
            keys_only: self.draws.below(3) == 0,
            limit,
            page_rows: 1 + self.draws.below(6) as u32,
            page_bytes: 1 + self.draws.below(300) as u32,
            pages_ahead: 1 + self.draws.below(3) as u8,
            read: self.read(),
        };
        let mut expected = self.inside(&lo, hi.as_ref());
        if options.reverse {
            expected.reverse();
        }
        expected.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
        let mut scan = self.client.scan(&range, options.clone()).unwrap();
        // Somewhere it goes on from its token.
        let turn = self.draws.below(expected.len() as u64 + 1) as usize;
        let mut found = Vec::new();
        loop {
            if found.len() == turn {
                let text = scan.token().to_string();
                scan = self.client.resume(text.parse().unwrap(), options.clone()).unwrap();
            }
            let Some(row) = scan.next().await.unwrap() else { break };
            found.push((row.key, row.value));
        }
        if options.keys_only {
            expected.iter_mut().for_each(|(_, value)| value.clear());
        }
        assert_eq!(found, expected, "{range:?} {options:?}");
    }
}

fn text_number(value: &Bytes) -> i64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

#[tokio::test]
async fn every_answer_and_the_rows_of_every_replica_are_those_of_a_sorted_map() {
    let bed = replicated().await;
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let mut play =
        Play { client: bed.client.clone(), model: BTreeMap::new(), draws: Draws(seed), policy: ReadPolicy::UNTIED };
    for policy in [ReadPolicy::UNTIED, ReadPolicy::TIED2, ReadPolicy::TIED3] {
        play.policy = policy;
        for _ in 0..STEPS / 3 {
            play.step().await;
        }
    }
    assert!(play.model.len() > 10, "{} rows at the end", play.model.len());
    assert!(play.model.values().any(|known| known.expires), "no key with a time at the end");
    let seen = play.client.token().position;
    let mut versions = Vec::new();
    for node in bed.cluster.nodes() {
        let mut wire = Wire::connect(&bed.cluster.certs(), node.ports().client()).await;
        let rows = wire.rows(ReadLevel::Session { seen }).await;
        versions.push(rows.iter().map(|row| row.version).collect::<Vec<_>>());
        let known = |row: Row| (row.key, Known { value: row.value, expires: row.remaining_ms.is_some() });
        let rows: BTreeMap<Bytes, Known> = rows.into_iter().map(known).collect();
        assert_eq!(rows, play.model, "{} with seed {seed}", node.id());
    }
    assert!(
        versions.iter().all(|of_node| *of_node == versions[0]),
        "versions differ between replicas: {versions:?}"
    );
}

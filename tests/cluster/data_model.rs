//! Random operations against three real nodes and a sorted map: every answer, and the rows of every replica at the end,
//! are the map's. With ties and without.

use crate::bed::PATIENCE;
use crate::data::replicated;
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::BTreeMap;
use tiedkv_client::{
    Client, Conditional, Expect, Level, ReadOptions, ReadPolicy, ScanOptions, ScanRange, WriteOptions,
};
use tiedkv_protocol::request::ReadLevel;

const STEPS: u32 = 450;

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

struct Play {
    client: Client,
    model: BTreeMap<Bytes, Bytes>,
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
        self.model.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    async fn step(&mut self) {
        match self.draws.below(15) {
            0..=4 => {
                let (key, value) = (self.draws.key(), self.draws.value());
                self.client.put_with(key.clone(), value.clone(), self.write()).await.unwrap();
                self.model.insert(key, value);
            }
            5 => {
                let key = self.draws.key();
                self.client.delete_with(key.clone(), self.write()).await.unwrap();
                self.model.remove(&key);
            }
            6 | 7 => {
                let key = self.draws.key();
                let read = self.client.get_with(key.clone(), self.read()).await.unwrap();
                assert_eq!(read.value.map(|value| value.value).as_ref(), self.model.get(&key), "get {key:?}");
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
                let before = self.model.get(&key).map_or(0, text_number);
                assert_eq!(counted.number, Some(before + by));
                self.model.insert(key, (before + by).to_string().into());
            }
            12 | 13 => self.conditional().await,
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
        let known = self.model.get(&key).cloned();
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
            self.model.insert(key, value);
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
    let seen = play.client.token().position;
    for node in bed.cluster.nodes() {
        let mut wire = Wire::connect(&bed.cluster.certs(), node.ports().client()).await;
        let rows = wire.rows(ReadLevel::Session { seen }).await;
        let rows: BTreeMap<Bytes, Bytes> = rows.into_iter().map(|row| (row.key, row.value)).collect();
        assert_eq!(rows, play.model, "{} with seed {seed}", node.id());
    }
}

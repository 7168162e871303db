//! Random operations of every kind against three real nodes and a sorted map: every answer, and the rows of every
//! replica at the end, are the map's. From several sessions of two clients, with ties and without, several seeds.

use crate::bed::{Bed, PATIENCE};
use crate::data::{patient_url, replicated};
use crate::data_model_draws::Draws;
use crate::data_model_map::{Known, Map, Outcome};
use crate::data_model_send::send;
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::BTreeMap;
use tiedkv_client::{
    Client, Level, ReadOptions, ReadPolicy, Row, ScanOptions, ScanRange, Value, View, WriteOptions,
};
use tiedkv_protocol::ids::PositionToken;
use tiedkv_protocol::request::ReadLevel;

/// Operations of one seed.
const STEPS: u32 = 400;
/// Always played; the environment's `SEED` is played behind them.
const SEEDS: [u64; 4] = [7, 8, 9, 10];
/// Most rows that one delete of a range takes away in between.
const GONE_MAX: usize = 3;

struct Play {
    clients: [Client; 2],
    /// Sessions: two of the first client, one of the second.
    views: [View; 3],
    map: Map,
    draws: Draws,
    /// Covers every write so far.
    latest: PositionToken,
    /// The session that wrote last.
    writer: usize,
    /// How many calls came to what.
    came_to: BTreeMap<&'static str, u32>,
}

impl Play {
    async fn new(bed: &Bed) -> Self {
        let other = Client::connect_url(&patient_url(bed)).await.unwrap();
        other.all_connected(PATIENCE).await.unwrap();
        let views = [bed.client.view(1), bed.client.view(2), other.view(3)];
        Self {
            latest: views[0].token(),
            clients: [bed.client.clone(), other],
            views,
            map: Map::empty(),
            draws: Draws(0),
            writer: 0,
            came_to: BTreeMap::new(),
        }
    }

    fn came_to(&mut self, what: &'static str) {
        *self.came_to.entry(what).or_default() += 1;
    }

    /// A policy, and a level at which the map knows the answer whichever session wrote last.
    fn read(&mut self, view: usize) -> ReadOptions {
        let policy = [ReadPolicy::UNTIED, ReadPolicy::TIED2, ReadPolicy::TIED3][self.draws.index(3)];
        let (level, token) = match self.draws.below(3) {
            0 => (Level::Linearizable, None),
            1 => (Level::Session, Some(self.latest)),
            _ => {
                // A session reads its own writes; of another's it must have been told.
                if view != self.writer {
                    self.views[view].observe(self.latest).unwrap();
                }
                (Level::Session, None)
            }
        };
        ReadOptions {
            policy: Some(policy),
            level: Some(level),
            token,
            deadline: Some(PATIENCE),
            ..ReadOptions::default()
        }
    }

    async fn step(&mut self) {
        let view = self.draws.index(self.views.len());
        match self.draws.below(20) {
            0..=9 => self.write(view).await,
            10 => self.delete_range(view).await,
            11..=13 => self.get(view).await,
            14 => self.multi_get(view).await,
            15 => self.exists(view).await,
            16 => self.count(view).await,
            _ => self.scan(view).await,
        }
    }

    fn wrote(&mut self, view: usize) {
        (self.writer, self.latest) = (view, self.views[view].token());
    }

    async fn write(&mut self, view: usize) {
        let write = self.draws.write(&self.map);
        let expected = self.map.judge(&write);
        let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
        let answer = send(&self.views[view], &write, options).await;
        assert_eq!(answer.outcome, expected, "{write:?}");
        match expected {
            Outcome::Applied { .. } => {
                let version = answer.report.map_or(self.map.last, |report| report.version);
                assert!(answer.report.is_none() || version > self.map.last, "{version} after {}", self.map.last);
                self.map.apply(&write, version);
                self.wrote(view);
                self.came_to("applied");
            }
            Outcome::Unmet { .. } => self.came_to("unmet"),
            Outcome::Refused(code) => self.came_to(code.name()),
        }
    }

    async fn delete_range(&mut self, view: usize) {
        let (range, lo, hi) = self.draws.range(&self.map);
        let gone = self.map.inside(&lo, hi.as_ref());
        // A small part, so that there is something left; all of it goes at the end of a seed.
        if gone.len() > GONE_MAX {
            return;
        }
        self.delete(view, &range, &gone).await;
    }

    async fn delete(&mut self, view: usize, range: &ScanRange, gone: &[(Bytes, Known)]) {
        let options = ScanOptions { read: self.read(view), page_rows: 16, ..ScanOptions::default() };
        let mut told = 0;
        let removed = self.views[view].delete_range(range, options, |gone| told = gone).await.unwrap();
        assert_eq!((removed, told), (gone.len() as u64, gone.len() as u64), "delete {range:?}");
        for (key, _) in gone {
            self.map.rows.remove(key);
        }
        if removed > 0 {
            self.wrote(view);
            self.came_to("range deleted");
        }
    }

    /// What was read of a key is what the map says.
    fn assert_read(&mut self, key: &Bytes, found: Option<&Value>) {
        let known = self.map.rows.get(key);
        let right = match (known, found) {
            (None, None) => true,
            (Some(known), Some(found)) => {
                let left = found.remaining.map(|left| left.as_millis() as u64);
                known.is(&found.value, found.version, left) && found.version.0 <= found.position.0
            }
            _ => false,
        };
        assert!(right, "{key:?} is read as {found:?}, the map has {known:?}");
        self.came_to(if found.is_some() { "found" } else { "absent" });
    }

    async fn get(&mut self, view: usize) {
        let (key, options) = (self.draws.key(&self.map), self.read(view));
        let read = self.views[view].get_with(key.clone(), options).await.unwrap();
        self.assert_read(&key, read.value.as_ref());
    }

    async fn multi_get(&mut self, view: usize) {
        let mut keys = Vec::new();
        for _ in 0..1 + self.draws.below(12) {
            keys.push(self.draws.key(&self.map));
        }
        // Repeats are kept.
        keys.push(keys[0].clone());
        let options = self.read(view);
        let many = self.views[view].multi_get(keys.clone()).with(options).send().await.unwrap();
        assert_eq!(many.values.len(), keys.len());
        for (key, value) in keys.iter().zip(&many.values) {
            self.assert_read(key, value.as_ref());
        }
    }

    /// The options of a call in a client's own session, which has seen nothing of what the views did.
    fn told(&mut self, view: usize) -> ReadOptions {
        let options = self.read(view);
        // A token beside another level is an error.
        let token = (options.level == Some(Level::Session)).then_some(self.latest);
        ReadOptions { token, ..options }
    }

    async fn exists(&mut self, view: usize) {
        let (key, options) = (self.draws.key(&self.map), self.told(view));
        let found = self.clients[view % 2].exists_with(key.clone(), options).await.unwrap();
        assert_eq!(found, self.map.rows.contains_key(&key), "whether {key:?} exists");
        self.came_to(if found { "found" } else { "absent" });
    }

    async fn count(&mut self, view: usize) {
        let (range, lo, hi) = self.draws.range(&self.map);
        let options = self.told(view);
        let count = self.clients[view % 2].count_with(&range, options).await.unwrap();
        assert_eq!(count, self.map.inside(&lo, hi.as_ref()).len() as u64, "count {range:?}");
        self.came_to("counted");
    }

    async fn scan(&mut self, view: usize) {
        let (range, lo, hi) = self.draws.range(&self.map);
        let limit = (self.draws.below(2) == 0).then(|| 1 + self.draws.below(10));
        let mut options = ScanOptions {
            reverse: self.draws.below(2) == 0,
            keys_only: self.draws.below(3) == 0,
            limit,
            page_rows: 1 + self.draws.below(20) as u32,
            page_bytes: 1 + self.draws.below(1_000) as u32,
            pages_ahead: 1 + self.draws.below(3) as u8,
            read: self.read(view),
        };
        let mut expected = self.map.inside(&lo, hi.as_ref());
        if options.reverse {
            expected.reverse();
        }
        expected.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
        let what = format!("{range:?} {options:?}");
        let mut scan = self.views[view].scan(&range, options.clone()).unwrap();
        // Somewhere it goes on from its token, in another session.
        let turn = self.draws.index(expected.len() + 1);
        let mut found: Vec<Row> = Vec::new();
        loop {
            if found.len() == turn {
                let token = scan.token().to_string();
                let other = self.draws.index(self.views.len());
                options.read = self.read(other);
                scan = self.views[other].resume(token.parse().unwrap(), options.clone()).unwrap();
            }
            let Some(row) = scan.next().await.unwrap() else { break };
            found.push(row);
        }
        assert_eq!(found.len(), expected.len(), "{what}: {found:?} in place of {expected:?}");
        for (row, (key, known)) in found.iter().zip(&expected) {
            let right = match options.keys_only {
                true => row.value.is_empty() && row.version == known.version,
                false => known.is(&row.value, row.version, row.remaining_ms),
            };
            assert!(row.key == *key && right, "{what}: {row:?} in place of {key:?} {known:?}");
        }
        self.came_to(if found.is_empty() { "nothing scanned" } else { "scanned" });
    }

    /// Every replica has exactly the rows of the map, in their versions.
    async fn hold_against(&self, bed: &Bed) {
        for node in bed.cluster.nodes() {
            let mut wire = Wire::connect(&bed.cluster.certs(), node.ports().client()).await;
            let rows = wire.rows(ReadLevel::Session { seen: self.latest.position }).await;
            assert!(rows.iter().map(|row| &row.key).eq(self.map.rows.keys()), "keys of {}: {rows:?}", node.id());
            for (row, known) in rows.iter().zip(self.map.rows.values()) {
                let right = known.is(&row.value, row.version, row.remaining_ms);
                assert!(right, "{}: {row:?} in place of {known:?}", node.id());
            }
        }
    }
}

#[tokio::test]
async fn every_answer_and_the_rows_of_every_replica_are_those_of_a_sorted_map() {
    let bed = replicated().await;
    let mut play = Play::new(&bed).await;
    let named = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    for seed in SEEDS.into_iter().chain(named) {
        println!("SEED={seed}");
        play.draws = Draws(seed);
        for _ in 0..STEPS {
            play.step().await;
        }
        play.hold_against(&bed).await;
        // The next seed begins with nothing, so that it can be played alone.
        let all = play.map.inside(&Bytes::new(), None);
        assert!(!all.is_empty(), "no row at the end of SEED={seed}");
        play.delete(0, &ScanRange::all(), &all).await;
        play.hold_against(&bed).await;
    }
    println!("{:?}", play.came_to);
    for what in ["applied", "unmet", "not-a-number", "number-overflow", "found", "absent", "counted", "scanned"] {
        assert!(play.came_to.get(what).is_some_and(|count| *count > 0), "no call came to `{what}`");
    }
}

//! The load of a nemesis run: sessions that read at every level and policy, put, delete, compare and set, write batches
//! and count, each with one call out at a time; and what they saw.
//!
//! Keys change with time, so that the history of each stays short. A value names its write.

use super::Clock;
use crate::check::history::{Asked, Call, Came, Freshness, Value};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use tiedkv_client::conditional::{Batch, Conditional, Unmet};
use tiedkv_client::error::Error;
use tiedkv_client::options::{Level, ReadOptions, WriteOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::{Client, Expect, View};
use tiedkv_protocol::error::Move;

/// How long the same keys are used.
const EPOCH: Duration = Duration::from_millis(700);
/// Keys of one epoch.
const KEYS: u32 = 6;
/// Time of one call.
const DEADLINE: Duration = Duration::from_millis(1_500);
/// Bound of bounded reads.
const BOUND: Duration = Duration::from_millis(400);
/// Longest pause between two calls of a session.
const PAUSE_MAX_US: u64 = 6_000;

/// What one session, or all, saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Calls of keys.
    pub calls: Vec<Call>,
    /// Increments by one.
    pub counts: Vec<Count>,
    /// Calls that failed for good and certainly changed nothing.
    pub failed: u64,
}

impl Seen {
    /// Adds what another saw.
    pub fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.counts.extend(other.counts);
        self.failed += other.failed;
    }

    /// Calls made.
    pub fn operations(&self) -> u64 {
        (self.calls.len() + self.counts.len()) as u64 + self.failed
    }
}

/// One increment by one.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Of which counter.
    pub counter: u32,
    /// It was acknowledged; else its outcome is unknown.
    pub acknowledged: bool,
    /// What it made, if that was told.
    pub number: Option<i64>,
}

/// The text of a key.
pub fn key(number: u32) -> String {
    format!("key {number}")
}

/// The text of a counter.
pub fn counter(number: u32) -> String {
    format!("counter {number}")
}

/// One session.
pub struct Session {
    number: u32,
    view: View,
    clock: Clock,
    random: StdRng,
    written: u64,
    seen: Seen,
}

/// When a call began, and of what.
struct Begun {
    key: u32,
    asked: Asked,
    freshness: Freshness,
    began: u64,
}

impl Session {
    /// A session of its own over a client's connections.
    pub fn new(number: u32, client: &Client, clock: Clock, seed: u64) -> Self {
        let seed = seed ^ (u64::from(number) << 32);
        let (view, random) = (client.view(seed), StdRng::seed_from_u64(seed));
        Self { number, view, clock, random, written: 0, seen: Seen::default() }
    }

    /// Calls until `until`.
    pub async fn run(mut self, until: Duration) -> Seen {
        while self.clock.now() < until {
            self.call().await;
            let pause = Duration::from_micros(self.random.random_range(0..PAUSE_MAX_US));
            tokio::time::sleep(pause).await;
        }
        self.seen
    }

    /// Reads keys at the end, linearizable, tied.
    pub async fn read_all(mut self, keys: impl Iterator<Item = u32>) -> Seen {
        for key in keys {
            self.read(key, Level::Linearizable, ReadPolicy::TIED3, Duration::from_secs(10)).await;
        }
        self.seen
    }

    async fn call(&mut self) {
        let epoch = (self.clock.now().as_millis() / EPOCH.as_millis()) as u32;
        let key = epoch * KEYS + self.random.random_range(0..KEYS);
        match self.random.random_range(0..100) {
            0..50 => {
                let level = match self.random.random_range(0..4) {
                    0 => Level::Linearizable,
                    1 => Level::Session,
                    2 => Level::Stale { bound: None },
                    _ => Level::Stale { bound: Some(BOUND) },
                };
                let policies = [
                    ReadPolicy::UNTIED,
                    ReadPolicy::TIED2,
                    ReadPolicy::TIED3,
                    ReadPolicy { rescue: true, ..ReadPolicy::TIED2 },
                    ReadPolicy { rescue: true, ..ReadPolicy::HEDGED },
                ];
                let policy = policies[self.random.random_range(0..policies.len())];
                self.read(key, level, policy, DEADLINE).await;
            }
            50..72 => self.put(key).await,
            72..78 => self.delete(key).await,
            78..92 => self.compare_and_set(key).await,
            92..96 => self.batch(key, epoch * KEYS + (key + 1) % KEYS).await,
            _ => self.increment(epoch).await,
        }
    }

    fn value(&mut self) -> Value {
        self.written += 1;
        (u64::from(self.number) + 1) << 40 | self.written
    }

    fn begin(&self, key: u32, asked: Asked, freshness: Freshness) -> Begun {
        Begun { key, asked, freshness, began: self.clock.ns() }
    }

    fn end(&mut self, begun: &Begun, came: Came, version: u64, position: u64) {
        let Begun { key, asked, freshness, began } = *begun;
        let (session, ended) = (self.number, self.clock.ns());
        self.seen.calls.push(Call { session, key, asked, began, ended, came, freshness, version, position });
    }

    /// A write that failed: unknown, or certainly not applied.
    fn failed(&mut self, begun: &Begun, error: &Error) {
        match error.caller_move() {
            Move::UnknownOutcome => self.end(begun, Came::Unknown, 0, 0),
            _ => self.seen.failed += 1,
        }
    }

    async fn read(&mut self, key: u32, level: Level, policy: ReadPolicy, deadline: Duration) {
        let freshness = match level {
            Level::Linearizable => Freshness::Linearizable,
            Level::Session => Freshness::Session,
            Level::Stale { bound } => Freshness::Stale(bound.map(|bound| bound.as_nanos() as u64)),
        };
        let begun = self.begin(key, Asked::Read, freshness);
        let options = ReadOptions {
            policy: Some(policy),
            level: Some(level),
            deadline: Some(deadline),
            ..ReadOptions::default()
        };
        match self.view.get_with(self::key(key), options).await {
            Ok(read) => {
                let found = read.value.as_ref().map(|value| number(&value.value));
                let version = read.value.as_ref().map_or(0, |value| value.version.0);
                self.end(&begun, Came::Found(found), version, read.report.token.position.0);
            }
            Err(_) => self.seen.failed += 1,
        }
    }

    async fn put(&mut self, key: u32) {
        let value = self.value();
        let begun = self.begin(key, Asked::Put(value), Freshness::Linearizable);
        match self.view.put_with(self::key(key), value.to_string(), options()).await {
            Ok(report) => self.end(&begun, Came::Done, report.version.0, report.token.position.0),
            Err(error) => self.failed(&begun, &error),
        }
    }

    async fn delete(&mut self, key: u32) {
        let begun = self.begin(key, Asked::Delete, Freshness::Linearizable);
        match self.view.delete_with(self::key(key), options()).await {
            Ok(report) => self.end(&begun, Came::Done, report.version.0, report.token.position.0),
            Err(error) => self.failed(&begun, &error),
        }
    }

    async fn compare_and_set(&mut self, key: u32) {
        // What it was lately, so that some succeed.
        let known = match self.view.get(self::key(key)).await {
            Ok(known) => known,
            Err(_) => return self.seen.failed += 1,
        };
        let expected = known.as_ref().map(|known| number(&known.value));
        let expect = match known {
            None => Expect::Absent,
            // By version names the same state as by value, since values are unique.
            Some(known) if self.random.random_bool(0.5) => Expect::Version(known.version),
            Some(known) => Expect::Value(known.value),
        };
        let value = self.value();
        let begun = self.begin(key, Asked::CompareAndSet(expected, value), Freshness::Linearizable);
        let called = self.view.compare_and_set(self::key(key), expect, value.to_string(), options());
        match called.await {
            Ok(Conditional::Applied(applied)) => {
                let report = applied.report;
                self.end(&begun, Came::Done, report.version.0, report.token.position.0);
            }
            Ok(Conditional::Unmet(unmet)) => self.unmet(&begun, &unmet),
            Err(error) => self.failed(&begun, &error),
        }
    }

    fn unmet(&mut self, begun: &Begun, unmet: &Unmet) {
        if unmet.tries > 1 {
            // Of a repeat the state shown is that of the repeat, not that which was judged: says only "not applied".
            self.seen.failed += 1;
            return;
        }
        let shown = unmet.current.as_ref().and_then(|current| current.value.as_ref()).map(number);
        self.end(begun, Came::Unmet(shown), 0, unmet.token.position.0);
    }

    async fn batch(&mut self, one: u32, other: u32) {
        let keys = [one, other];
        let values = [self.value(), self.value()];
        let begun = [0, 1].map(|index| self.begin(keys[index], Asked::Put(values[index]), Freshness::Linearizable));
        let batch = keys
            .iter()
            .zip(values)
            .fold(Batch::new(), |batch, (key, value)| batch.put(self::key(*key), value.to_string()));
        match self.view.batch(batch, options()).await {
            Ok(Conditional::Applied(applied)) => {
                let (version, position) = (applied.report.version.0, applied.report.token.position.0);
                begun.iter().for_each(|begun| self.end(begun, Came::Done, version, position));
            }
            Ok(Conditional::Unmet(_)) => begun.iter().for_each(|begun| self.end(begun, Came::Unmet(None), 0, 0)),
            Err(error) => begun.iter().for_each(|begun| self.failed(begun, &error)),
        }
    }

    async fn increment(&mut self, counter: u32) {
        match self.view.increment(self::counter(counter), 1, options()).await {
            Ok(counted) => {
                self.seen.counts.push(Count { counter, acknowledged: true, number: counted.number });
            }
            Err(error) if error.caller_move() == Move::UnknownOutcome => {
                self.seen.counts.push(Count { counter, acknowledged: false, number: None });
            }
            Err(_) => self.seen.failed += 1,
        }
    }
}

fn options() -> WriteOptions {
    WriteOptions { deadline: Some(DEADLINE), ..WriteOptions::default() }
}

/// The value of bytes; one that no session wrote becomes one that no session writes.
fn number(value: &Bytes) -> Value {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(Value::MAX)
}

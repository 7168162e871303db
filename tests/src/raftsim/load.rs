//! What callers do in a simulated world: sessions that write with idempotency keys, try elsewhere with the same key, and
//! read at every level, often from two replicas at once; and what they saw, for the checkers.

use super::network::ask;
use super::node::Wrote;
use super::runtime::{draw, draw_time, now_ns, once_in, sleep, within};
use super::world::{CLIENTS, World};
use crate::check::history::{Asked, Call, Came, Freshness, Value};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, Condition, Expect, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, ClientId, Position, Version};
use tiedkv_protocol::response::Written;
use tiedkv_server::raft::command::settled;
use tiedkv_server::raft::types::{Answer, Change, Command, WriteKey, digest};

/// Keys in use at one time, and for how long: histories stay short.
const KEYS: u32 = 4;
const EPOCH_NS: u64 = 700_000_000;
/// One try of a call, and all of them.
const TRY_MAX: Duration = Duration::from_millis(120);
const CALL_MAX_NS: u64 = 600_000_000;
/// Bound of bounded reads.
const BOUND_NS: u64 = 150_000_000;
/// Wall time at the begin of a world, ms.
const WALL_MS: i64 = 1_700_000_000_000;

/// What sessions saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Calls of keys.
    pub calls: Vec<Call>,
    /// Increments: acknowledged, and of unknown outcome.
    pub counts: (u64, u64),
    /// Calls that certainly changed nothing.
    pub failed: u64,
}

/// One session.
pub struct Session {
    number: u32,
    world: Arc<World>,
    sequence: u64,
    /// Highest position seen.
    seen: Position,
    leader: u64,
    /// Acknowledged writes, to be sent once more.
    past: Vec<(Command, Version)>,
    saw: Seen,
}

/// What became of a call to write.
enum Ended {
    Done(Written),
    Refused(ErrorCode, Option<Bytes>, bool),
    Failed,
    Unknown,
}

/// The key of bytes.
pub fn key(number: u32) -> Bytes {
    Bytes::from(format!("key {number}"))
}

/// The one counter.
pub const COUNTER: &str = "counter";

impl Session {
    /// A session that has seen nothing.
    pub fn new(number: u32, world: &Arc<World>) -> Self {
        Self {
            number,
            world: world.clone(),
            sequence: 0,
            seen: Position(0),
            leader: 1,
            past: Vec::new(),
            saw: Seen::default(),
        }
    }

    /// Calls until this time has passed.
    pub async fn run(mut self, span: Duration) -> Seen {
        let end = now_ns() + span.as_nanos() as u64;
        while now_ns() < end {
            self.call().await;
            sleep(draw_time(Duration::from_millis(15))).await;
        }
        self.saw
    }

    /// Reads these keys, linearizable, each until it is answered.
    ///
    /// # Errors
    /// When one is not answered in time.
    pub async fn read_all(mut self, keys: impl Iterator<Item = u32>) -> Result<Seen, String> {
        for key in keys {
            let read =
                within(Duration::from_secs(10), async { while !self.read(key, Freshness::Linearizable).await {} });
            read.await.ok_or_else(|| format!("key {key} could not be read when all was healed"))?;
        }
        Ok(self.saw)
    }

    /// One write that must be possible.
    pub async fn write_one(&mut self) -> bool {
        let change = Change::Put { key: Bytes::from_static(b"healed"), value: Bytes::new() };
        matches!(self.write(change).await, Ended::Done(_))
    }

    async fn call(&mut self) {
        let epoch = (now_ns() / EPOCH_NS) as u32;
        let key = epoch * KEYS + draw(u64::from(KEYS)) as u32;
        match draw(100) {
            0..45 => {
                let levels = [
                    Freshness::Linearizable,
                    Freshness::Linearizable,
                    Freshness::Session,
                    Freshness::Stale(None),
                    Freshness::Stale(Some(BOUND_NS)),
                ];
                self.read(key, levels[draw(levels.len() as u64) as usize]).await;
            }
            45..68 => self.put(key).await,
            68..74 => self.delete(key).await,
            74..88 => self.compare_and_set(key).await,
            88..93 => self.batch(key, epoch * KEYS + (key + 1) % KEYS).await,
            93..97 => self.increment().await,
            _ => self.repeat().await,
        }
    }

    /// A write that was acknowledged comes once more, as a copy that was long on its way or a caller that is not sure.
    async fn repeat(&mut self) {
        if self.past.is_empty() {
            return;
        }
        let (command, version) = self.past[draw(self.past.len() as u64) as usize].clone();
        let (world, party) = (self.world.clone(), CLIENTS + u64::from(self.number));
        let tried = within(TRY_MAX, ask(&world, party, self.leader, |node| node.write(command))).await.flatten();
        if let Some(Wrote::Settled(answer, position)) = tried
            && let Ok(written) = settled(answer, position).outcome
            && (!written.repeated || written.version != version)
        {
            let what = format!("what was applied as {version:?} was applied again: {written:?}");
            self.world.watch.lock().add("applied exactly once", what);
        }
    }

    fn value(&mut self) -> Value {
        (u64::from(self.number) + 1) << 40 | (self.sequence + 1)
    }

    fn end(&mut self, begun: (u32, Asked, Freshness, u64), came: Came, version: u64, position: u64) {
        let (key, asked, freshness, began) = begun;
        self.seen = self.seen.max(Position(position));
        let session = self.number;
        let call = Call { session, key, asked, began, ended: now_ns(), came, freshness, version, position };
        self.world.watch.lock().note((session, key, call.ended, format!("{came:?}"), version, position));
        self.saw.calls.push(call);
    }

    /// True when it was answered.
    async fn read(&mut self, number: u32, freshness: Freshness) -> bool {
        let began = now_ns();
        let names = self.world.names();
        let first = names[draw(names.len() as u64) as usize];
        let second = names[draw(names.len() as u64) as usize];
        let party = CLIENTS + u64::from(self.number);
        let (world, seen) = (self.world.clone(), self.seen);
        let copy = |node: u64| ask(&world, party, node, move |node| node.read(freshness, seen));
        let tied = async {
            // The first good answer wins, as with ties; the other is not waited for.
            let mut one = std::pin::pin!(copy(first));
            let mut other = std::pin::pin!(copy(second));
            match futures_util::future::select(one.as_mut(), other.as_mut()).await {
                futures_util::future::Either::Left((answer, rest)) => match answer.flatten() {
                    Some(found) => Some(found),
                    None => rest.await.flatten(),
                },
                futures_util::future::Either::Right((answer, rest)) => match answer.flatten() {
                    Some(found) => Some(found),
                    None => rest.await.flatten(),
                },
            }
        };
        let Some(Some(served)) = within(2 * TRY_MAX, tied).await else {
            self.saw.failed += 1;
            return false;
        };
        let found = served.view.get(&key(number));
        let version = found.as_ref().map_or(0, |stored| stored.version.0);
        let value = found.map(|stored| value_of(&stored.value));
        let position = served.view.position().0;
        self.end((number, Asked::Read, freshness, began), Came::Found(value), version, position);
        true
    }

    async fn put(&mut self, number: u32) {
        let value = self.value();
        let begun = (number, Asked::Put(value), Freshness::Linearizable, now_ns());
        let change = Change::Put { key: key(number), value: Bytes::from(value.to_string()) };
        let ended = self.write(change).await;
        self.ended(begun, ended);
    }

    async fn delete(&mut self, number: u32) {
        let begun = (number, Asked::Delete, Freshness::Linearizable, now_ns());
        let ended = self.write(Change::Delete { key: key(number) }).await;
        self.ended(begun, ended);
    }

    async fn compare_and_set(&mut self, number: u32) {
        if !self.read(number, Freshness::Session).await {
            return;
        }
        let Some(Call { came: Came::Found(known), .. }) = self.saw.calls.last().copied() else { return };
        let expect = known.map_or(Expect::Absent, |known| Expect::Value(Bytes::from(known.to_string())));
        let value = self.value();
        let begun = (number, Asked::CompareAndSet(known, value), Freshness::Linearizable, now_ns());
        let change = Change::Atomic(Atomic {
            conditions: vec![Condition { key: key(number), expect }],
            operations: vec![Operation::Put { key: key(number), value: Bytes::from(value.to_string()) }],
        });
        let ended = self.write(change).await;
        self.ended(begun, ended);
    }

    async fn batch(&mut self, one: u32, other: u32) {
        let value = self.value();
        let values = [value, value | 1 << 39];
        let begun =
            [0, 1].map(|index| ([one, other][index], Asked::Put(values[index]), Freshness::Linearizable, now_ns()));
        let put = |(number, value): (u32, Value)| Operation::Put {
            key: key(number),
            value: Bytes::from(value.to_string()),
        };
        let operations = [one, other].into_iter().zip(values).map(put).collect();
        let ended = self.write(Change::Atomic(Atomic { conditions: Vec::new(), operations })).await;
        match ended {
            Ended::Failed | Ended::Refused(..) => self.saw.failed += 1,
            Ended::Unknown => begun.into_iter().for_each(|begun| self.end(begun, Came::Unknown, 0, 0)),
            Ended::Done(written) => begun
                .into_iter()
                .for_each(|begun| self.end(begun, Came::Done, written.version.0, written.position.0)),
        }
    }

    async fn increment(&mut self) {
        let operation = Operation::Increment { key: Bytes::from_static(COUNTER.as_bytes()), by: 1 };
        let change = Change::Atomic(Atomic { conditions: Vec::new(), operations: vec![operation] });
        match self.write(change).await {
            Ended::Done(written) => {
                self.seen = self.seen.max(written.position);
                self.saw.counts.0 += 1;
            }
            Ended::Unknown => self.saw.counts.1 += 1,
            Ended::Failed | Ended::Refused(..) => self.saw.failed += 1,
        }
    }

    fn ended(&mut self, begun: (u32, Asked, Freshness, u64), ended: Ended) {
        match ended {
            Ended::Done(written) => self.end(begun, Came::Done, written.version.0, written.position.0),
            Ended::Refused(ErrorCode::ConditionFailed, shown, true) => {
                self.end(begun, Came::Unmet(shown.map(|value| value_of(&value))), 0, 0);
            }
            // Of a repeat the state shown is not the one that was judged.
            Ended::Failed | Ended::Refused(..) => self.saw.failed += 1,
            Ended::Unknown => self.end(begun, Came::Unknown, 0, 0),
        }
    }

    /// One key for all tries; a try whose fate is not known makes the outcome unknown unless a later one tells it.
    async fn write(&mut self, change: Change) -> Ended {
        self.sequence += 1;
        let began = now_ns();
        let mut key = WriteKey {
            caller: CallerId(1),
            client: ClientId(u128::from(self.number) + 1),
            sequence: self.sequence,
        };
        let party = CLIENTS + u64::from(self.number);
        let (digest, mut floor) = (digest(&change), self.seen);
        let mut doubtful = false;
        let mut tries = 0;
        while now_ns() - began < CALL_MAX_NS {
            let node = self.leader;
            let off = self.world.clocks.lock().get(&node).copied().unwrap_or(0);
            let stamp_ms = (WALL_MS + (now_ns() / 1_000_000) as i64 + off).cast_unsigned();
            let command = Command { stamp_ms, key, floor, digest, change: change.clone() };
            tries += 1;
            let world = self.world.clone();
            let tried = within(TRY_MAX, ask(&world, party, node, |node| node.write(command))).await.flatten();
            match tried {
                Some(Wrote::Settled(answer, position)) => {
                    let shown = shown(&answer);
                    return match settled(answer, position).outcome {
                        Ok(written) => {
                            let sent = Command { stamp_ms, key, floor, digest, change };
                            self.past.push((sent, written.version));
                            Ended::Done(written)
                        }
                        // As the crate does: made before this session had seen a position of a world that has forgotten
                        // much, as one whose clock has jumped.
                        Err(failure)
                            if failure.code == ErrorCode::KeyExpired
                                && !doubtful
                                && failure.have.is_some_and(|have| have > floor) =>
                        {
                            self.sequence += 1;
                            (key.sequence, floor) = (self.sequence, failure.have.unwrap_or_default());
                            tries = 0;
                            continue;
                        }
                        // Refused as too old: an earlier try may have been applied and forgotten.
                        Err(failure) if doubtful && failure.code == ErrorCode::KeyExpired => Ended::Unknown,
                        Err(failure) => Ended::Refused(failure.code, shown, tries == 1),
                    };
                }
                Some(Wrote::NotLeader(Some(leader))) if leader != node => self.leader = leader,
                Some(Wrote::NotLeader(_)) => self.elsewhere().await,
                Some(Wrote::Unknown) | None => {
                    doubtful = true;
                    self.elsewhere().await;
                }
            }
        }
        if doubtful { Ended::Unknown } else { Ended::Failed }
    }

    async fn elsewhere(&mut self) {
        sleep(draw_time(Duration::from_millis(20))).await;
        let names = self.world.names();
        if !once_in(3) {
            self.leader = names[draw(names.len() as u64) as usize];
        }
    }
}

fn value_of(bytes: &Bytes) -> Value {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or(Value::MAX)
}

fn shown(answer: &Answer) -> Option<Bytes> {
    match answer {
        Answer::Unmet(unmet) => unmet.current.as_ref().and_then(|current| current.value.clone()),
        _ => None,
    }
}

//! Times to live over three groups: an idle cluster ticks, all replicas agree, and neither an election nor a restart
//! lengthens a time or brings a key back.

#![allow(clippy::disallowed_methods, reason = "tests measure by the machine's clock")]

use super::tests::{Cluster, eventually};
use super::*;
use std::collections::BTreeMap;
use std::time::Instant;
use tiedkv_protocol::atomic::{Atomic, Operation};
use tiedkv_protocol::ids::{ClientId, Position, RequestId, SHARD_ZERO};
use tiedkv_protocol::request::{IdempotencyKey, WriteOperation};

/// Puts a key that expires, through whoever leads.
fn put_for(cluster: &Cluster, key: &str, ttl: Duration) -> Position {
    let operation = Operation::PutFor {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from_static(b"v"),
        ttl_ms: ttl.as_millis() as u64,
    };
    let body = Atomic { conditions: Vec::new(), operations: vec![operation] }.encode().unwrap();
    let request = WriteRequest {
        request: RequestId(1),
        shard: SHARD_ZERO,
        idempotency: IdempotencyKey { client: ClientId(1), sequence: cluster.next(), floor: Position(0) },
        time_left_us: 5_000_000,
        operation: WriteOperation::Atomic,
    };
    eventually(&format!("put {key}"), || {
        let write = cluster.group(cluster.leader()).write(CallerId(7), request.clone(), body.clone());
        let (reply, _) = cluster.runtime.block_on(write);
        reply.outcome.ok().map(|written| written.position)
    })
}

/// What a replica keeps, expired or not.
fn kept(cluster: &Cluster, index: usize) -> BTreeMap<Bytes, Bytes> {
    cluster.group(index).store().current().values().map(Result::unwrap).collect()
}

#[test]
fn an_idle_cluster_ticks_until_its_keys_are_gone_and_then_rests() {
    let cluster = Cluster::start(|_| ());
    cluster.leader();
    let begun = Instant::now();
    let position = put_for(&cluster, "lease", Duration::from_millis(1_500));
    cluster.put("stays", "1");
    for index in 0..3 {
        cluster.applied(index, position);
        assert_eq!(cluster.get(index, "lease").as_deref(), Some("v"));
    }
    for index in 0..3 {
        eventually("it is absent", || cluster.get(index, "lease").is_none().then_some(()));
    }
    assert!(begun.elapsed() >= Duration::from_millis(1_400), "after {:?}", begun.elapsed());
    for index in 0..3 {
        eventually("it is removed", || (kept(&cluster, index).len() == 1).then_some(()));
        assert_eq!(kept(&cluster, index), kept(&cluster, 0), "byte for byte");
    }
    // Nothing is to expire any more: log time rests.
    let stamp = cluster.group(0).store().current().stamp_ms();
    let looked = Instant::now();
    eventually("two ticks' time", || (looked.elapsed() > Duration::from_millis(2_200)).then_some(()));
    assert_eq!(cluster.group(0).store().current().stamp_ms(), stamp);
}

#[test]
fn an_election_and_a_restart_of_all_neither_lengthen_a_time_nor_bring_a_key_back() {
    let mut cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    let position = put_for(&cluster, "lease", Duration::from_secs(4));
    (0..3).for_each(|index| cluster.applied(index, position));
    let begun = Instant::now();
    cluster.groups[leader] = None;
    let others: Vec<usize> = (0..3).filter(|index| *index != leader).collect();
    for index in &others {
        eventually("it is absent", || cluster.get(*index, "lease").is_none().then_some(()));
    }
    let took = begun.elapsed();
    assert!((3_000..9_000).contains(&took.as_millis()), "{took:?}: 4 s, a tick and an election");
    for index in 0..3 {
        cluster.groups[index] = None;
    }
    for index in 0..3 {
        cluster.boot(index);
    }
    let written = cluster.put("after", "1");
    for index in 0..3 {
        cluster.applied(index, written.position);
        assert_eq!(cluster.get(index, "lease"), None);
    }
}

/// Log time stands still while nobody runs; the first write afterwards must not count from there.
#[test]
fn the_first_time_to_live_after_an_outage_is_as_long_as_asked_for() {
    let mut cluster = Cluster::start(|_| ());
    cluster.leader();
    let before = cluster.put("before", "1").position;
    (0..3).for_each(|index| cluster.applied(index, before));
    (0..3).for_each(|index| cluster.groups[index] = None);
    let stopped = Instant::now();
    eventually("an outage", || (stopped.elapsed() > Duration::from_secs(5)).then_some(()));
    (0..3).for_each(|index| cluster.boot(index));
    let begun = Instant::now();
    let position = put_for(&cluster, "lease", Duration::from_secs(3));
    let leader = cluster.leader();
    cluster.applied(leader, position);
    // Log time catches up by now, if it did not before.
    let mut writes = 0;
    eventually("a second and a half", || {
        cluster.put(&format!("w{writes}"), "1");
        writes += 1;
        let alive = cluster.get(cluster.leader(), "lease");
        assert_eq!(alive.as_deref(), Some("v"), "gone after {:?} of 3 s", begun.elapsed());
        (begun.elapsed() > Duration::from_millis(1_500)).then_some(())
    });
    eventually("it is gone in its time", || cluster.get(cluster.leader(), "lease").is_none().then_some(()));
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn thousands_of_keys_that_expire_together_are_removed_while_writes_go_on() {
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    for batch in 0..6 {
        let operations = (0..1_000).map(|n| Operation::PutFor {
            key: Bytes::from(format!("k{batch}-{n}")),
            value: Bytes::from_static(b"v"),
            ttl_ms: 1_000,
        });
        let body = Atomic { conditions: Vec::new(), operations: operations.collect() }.encode().unwrap();
        let request = WriteRequest {
            request: RequestId(1),
            shard: SHARD_ZERO,
            idempotency: IdempotencyKey { client: ClientId(1), sequence: cluster.next(), floor: Position(0) },
            time_left_us: 5_000_000,
            operation: WriteOperation::Atomic,
        };
        let write = cluster.group(leader).write(CallerId(7), request, body);
        cluster.runtime.block_on(write).0.outcome.unwrap();
    }
    assert_eq!(kept(&cluster, leader).len(), 6_000);
    let mut writes = 0;
    eventually("all are removed", || {
        cluster.put(&format!("w{writes}"), "1");
        writes += 1;
        kept(&cluster, leader).keys().all(|key| key.starts_with(b"w")).then_some(())
    });
    assert_eq!(kept(&cluster, leader).len(), writes);
}

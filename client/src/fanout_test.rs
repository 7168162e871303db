//! Tests of calls for many keys against scripted nodes over real QUIC.

use super::*;
use crate::fake_node::{Deed, FakeCluster};
use crate::policy::ReadPolicy;
use crate::test_support::{connect, run, stale};
use tiedkv_protocol::limits::INLINE_VALUE_BYTES_MAX;
use tiedkv_protocol::request::CopyKind;

const MS: Duration = Duration::from_millis(1);

/// Which key a copy asks for: `k17` is 17.
fn number(key: &Bytes) -> u64 {
    std::str::from_utf8(&key[1..]).unwrap().parse().unwrap()
}

fn keys(count: u64) -> Vec<String> {
    (0..count).map(|number| format!("k{number}")).collect()
}

#[test]
fn order_and_repeats_are_kept_and_frames_are_shared() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        for node in &cluster.nodes {
            let values = (0..300).filter(|number| number % 3 != 0);
            let pair = |number: u64| (Bytes::from(format!("k{number}")), Bytes::from(format!("v{number}")));
            node.state.lock().values.extend(values.map(pair));
        }
        let client = connect(&cluster).await;
        let before = client.stats();
        let asked: Vec<u64> = (0..300).rev().chain([7, 7, 9]).collect();
        let names = asked.iter().map(|number| format!("k{number}"));
        let many = client.multi_get(names).with(stale(ReadPolicy::UNTIED)).send().await.unwrap();
        assert_eq!(many.values.len(), 303);
        for (number, value) in asked.iter().zip(&many.values) {
            let found = value.as_ref().map(|value| value.value.clone());
            assert_eq!(found, (number % 3 != 0).then(|| Bytes::from(format!("v{number}"))));
        }
        let after = client.stats();
        let (frames, writes) = (after.frames_sent - before.frames_sent, after.stream_writes - before.stream_writes);
        assert!(frames >= 303 && writes * 10 < frames, "{frames} frames in {writes} writes");
        assert_eq!((after.multi_gets, after.multi_get_keys, after.completeness()), (1, 303, 1.0));
        assert_eq!(after.multi_gets_whole, 1);
        let stats = after.of(Operation::MultiGet, ReadPolicy::UNTIED).unwrap();
        assert_eq!((stats.reads, stats.won_by_number[0]), (303, 303));
        assert!(after.balanced());
    });
}

#[test]
fn each_key_is_a_tie_of_its_own() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match request.kind {
            CopyKind::First => Deed::Silence,
            _ => Deed::Answer(Duration::ZERO),
        });
        let client = connect(&cluster).await;
        let many = client.multi_get(keys(20)).with(stale(ReadPolicy::TIED2)).send().await.unwrap();
        assert!(many.values.iter().all(Option::is_none));
        let ties: std::collections::BTreeSet<_> =
            cluster.reads().iter().map(|(_, read)| read.tie.as_ref().unwrap().id.0).collect();
        assert_eq!(ties.len(), 20);
        let stats = client.stats();
        assert_eq!(stats.of(Operation::MultiGet, ReadPolicy::TIED2).unwrap().won_by_number, [0, 20, 0]);
    });
}

#[test]
fn keys_share_copies_where_no_tie_pays_and_what_does_not_fit_is_asked_again() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let large = Bytes::from(vec![7; 2 * INLINE_VALUE_BYTES_MAX]);
        for node in &cluster.nodes {
            let mut state = node.state.lock();
            let pair = |number: u64| (Bytes::from(format!("k{number}")), Bytes::from(format!("v{number}")));
            state.values.extend((0..200).filter(|number| number % 3 != 0).map(pair));
            state.values.insert(Bytes::from_static(b"k50"), large.clone());
            state.keys_answered = 5;
        }
        let client = connect(&cluster).await;
        // A copy per key, until something is known of the nodes.
        client.multi_get(keys(100)).with(stale(ReadPolicy::UNTIED)).send().await.unwrap();
        assert_eq!(cluster.reads().len(), 100);
        let many = client.multi_get(keys(200)).with(stale(ReadPolicy::UNTIED)).send().await.unwrap();
        for (number, value) in many.values.iter().enumerate() {
            let found = value.as_ref().map(|value| value.value.clone());
            let text = (number % 3 != 0).then(|| Bytes::from(format!("v{number}")));
            assert_eq!(found, if number == 50 { Some(large.clone()) } else { text }, "{number}");
        }
        let copies = cluster.reads().len() - 100;
        assert!((40..100).contains(&copies), "{copies} copies of at most 5 keys answered");
        let stats = client.stats();
        assert_eq!((stats.multi_gets, stats.multi_get_keys, stats.completeness()), (2, 300, 1.0));
        assert!(stats.balanced());
        // A tie that was asked for is sent, whatever would pay.
        client.multi_get(keys(50)).with(stale(ReadPolicy::TIED2)).send().await.unwrap();
        let ties = cluster.reads().iter().filter(|(_, read)| read.tie.is_some()).count();
        assert!(ties >= 50, "{ties}");
    });
}

#[test]
fn a_partial_answer_marks_what_is_missing_and_never_calls_it_absent() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match number(request.operation.first_key()) {
            7 => Deed::Silence,
            _ => Deed::Answer(Duration::ZERO),
        });
        let client = connect(&cluster).await;
        let options = ReadOptions { deadline: Some(MS * 5_000), ..stale(ReadPolicy::TIED2) };
        let call = client.multi_get(keys(100)).with(options.clone()).partial(0.99, MS * 100);
        let part = call.send().await.unwrap();
        assert_eq!(part.entries[7], Entry::Missing);
        assert_eq!(part.entries.iter().filter(|entry| **entry == Entry::Absent).count(), 99);
        assert!((part.completeness - 0.99).abs() < 1e-9 && part.latency >= MS * 100);
        assert!(part.latency < MS * 4_000, "{:?}", part.latency);
        // Two of 21 are over what 0.95 forgives: an error at the deadline that carries what came.
        let keys = keys(20).into_iter().chain(["k7".to_owned()]);
        let options = ReadOptions { deadline: Some(MS * 300), ..options };
        let error = client.multi_get(keys).with(options).partial(0.95, MS * 100).send().await.unwrap_err();
        assert_eq!(error.error.caller_move(), Move::GiveUp);
        assert_eq!(error.entries.iter().filter(|entry| entry.is_answered()).count(), 19);
        assert!(error.to_string().starts_with("19 of 21 keys were answered: no answer within"), "{error}");
        let stats = client.stats();
        assert_eq!((stats.multi_gets, stats.multi_gets_partial, stats.multi_gets_failed), (2, 1, 1));
        assert_eq!(stats.multi_gets_whole, 0);
        assert!((stats.completeness() - 118.0 / 121.0).abs() < 1e-9);
        assert!(stats.balanced() && stats.outstanding.total() == 0, "{stats:?}");
    });
}

#[test]
fn a_whole_call_fails_with_the_key_that_failed_and_wrong_ones_send_nothing() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        cluster.script(|_, request| match number(request.operation.first_key()) {
            3 => Deed::Refuse(ErrorCode::OverLimit),
            _ => Deed::Answer(MS * 20),
        });
        let client = connect(&cluster).await;
        let error = client.multi_get(keys(5)).with(stale(ReadPolicy::UNTIED)).send().await.unwrap_err();
        assert_eq!((error.error.code(), error.entries.len()), (Some(ErrorCode::OverLimit), 5));
        let sent = cluster.reads().len();
        let wrong = async |call: MultiGet| call.send().await.unwrap_err().error;
        assert!(wrong(client.multi_get(["", "a"])).await.to_string().contains("a key has 1 to"));
        assert!(wrong(client.multi_get(keys(10_001))).await.to_string().contains("at most 10000 keys"));
        let error = client.multi_get(keys(2)).partial(1.0, MS).send().await.unwrap_err();
        assert!(error.to_string().contains("no partial answer"), "{error}");
        assert_eq!(cluster.reads().len(), sent);
        assert_eq!(client.multi_get(keys(0)).send().await.unwrap().values, []);
    });
}

#[test]
fn a_call_that_is_dropped_withdraws_every_copy_of_every_key() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Silence);
        let client = connect(&cluster).await;
        let call = client.multi_get(keys(200)).with(stale(ReadPolicy::TIED2)).send();
        assert!(tokio::time::timeout(MS * 50, call).await.is_err());
        let stats = client.stats();
        assert_eq!((stats.outstanding.total(), stats.reads_dropped), (0, 200));
        assert_eq!(stats.withdrawn.total(), stats.sent.total());
        let mut patience = 0;
        while cluster.withdrawn() < cluster.reads().len() || cluster.reads().len() < 200 {
            tokio::time::sleep(MS).await;
            patience += 1;
            assert!(patience < 10_000, "{} of {} withdrawn", cluster.withdrawn(), cluster.reads().len());
        }
    });
}

#[test]
fn ten_thousand_keys_are_read_in_one_call() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster).await;
        let options = ReadOptions { deadline: Some(MS * 30_000), ..stale(ReadPolicy::UNTIED) };
        let many = client.multi_get(keys(10_000)).with(options).send().await.unwrap();
        assert_eq!(many.values.len(), 10_000);
        assert_eq!(client.stats().sent.total(), 10_000);
    });
}

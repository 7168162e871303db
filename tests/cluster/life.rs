//! The life of a replicated cluster under load: leaders killed, nodes stopped in order, nodes that hang, nodes far
//! behind, all restarted.

use crate::bed::{Bed, PATIENCE, until};
use crate::wire::{Copy, Wire};
use crate::writers::Callers;
use std::time::{Duration, Instant};
use tiedkv_client::Client;
use tiedkv_client::options::WriteOptions;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::request::ReadLevel;
use tokio::task::JoinSet;

/// Writes go on within this time whatever happens to the leader.
const GOES_ON: Duration = Duration::from_secs(3);

const NONE: [String; 0] = [];

#[tokio::test]
async fn writes_go_on_when_the_leader_is_killed_and_each_is_applied_once() {
    let mut bed = Bed::replicated().await;
    for _ in 0..2 {
        let callers = Callers::start(&bed.client, 6, 2, Some(PATIENCE));
        callers.go_on(200).await;
        let leader = bed.leader().await;
        bed.cluster.kill(leader);
        callers.go_on(400).await;
        bed.cluster.restart(leader).unwrap();
        bed.cluster.wait_ready().await.unwrap();
        callers.go_on(200).await;
        let seen = callers.end().await;
        assert_eq!(seen.failed, NONE);
        assert!(seen.gap < GOES_ON && seen.longest[0] < GOES_ON, "{:?} {:?}", seen.gap, seen.longest);
        seen.hold_against(&bed).await;
        bed.client.all_connected(PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn nodes_that_stop_in_order_cost_a_client_with_default_settings_no_error() {
    let mut bed = Bed::replicated().await;
    // The leader each time, then a follower.
    for round in 0..3 {
        let leader = bed.leader().await;
        let node = if round < 2 { leader } else { bed.followers().await[0] };
        let callers = Callers::start(&bed.client, 6, 6, None);
        callers.go_on(100).await;
        let began = Instant::now();
        let status = bed.cluster.stop(node, PATIENCE).await.unwrap();
        println!("stopped after {:?}", began.elapsed());
        assert!(status.success(), "{status}");
        callers.go_on(100).await;
        bed.cluster.restart(node).unwrap();
        bed.cluster.wait_ready().await.unwrap();
        bed.client.all_connected(PATIENCE).await.unwrap();
        callers.go_on(100).await;
        let seen = callers.end().await;
        assert_eq!(seen.failed, NONE, "round {round}");
        assert!(seen.gap < Duration::from_secs(1), "leadership moved first: {:?}", seen.gap);
        seen.hold_against(&bed).await;
    }
}

#[tokio::test]
async fn a_follower_that_hangs_delays_nobody() {
    let mut bed = Bed::replicated().await;
    let hung = bed.followers().await[0];
    let leader = bed.leader().await;
    let term = async |bed: &Bed| bed.status(leader).await.unwrap()["replica"]["term"].as_u64().unwrap();
    let before = term(&bed).await;
    let callers = Callers::start(&bed.client, 6, 2, Some(PATIENCE));
    callers.go_on(100).await;
    bed.cluster.pause(hung).unwrap();
    callers.go_on(1_500).await;
    bed.cluster.resume(hung).unwrap();
    bed.client.all_connected(PATIENCE).await.unwrap();
    callers.go_on(300).await;
    // Its own patience is over as well, but nobody else would vote: it asks before it raises the term.
    assert_eq!((term(&bed).await, bed.leader().await), (before, leader));
    let seen = callers.end().await;
    assert_eq!(seen.failed, NONE);
    assert!(seen.gap < GOES_ON && seen.longest[0] < GOES_ON, "{:?} {:?}", seen.gap, seen.longest);
    bed.client.all_connected(PATIENCE).await.unwrap();
    seen.hold_against(&bed).await;
}

#[tokio::test]
async fn a_leader_that_hung_is_replaced_and_serves_nothing_old_when_it_goes_on() {
    let mut bed = Bed::replicated().await;
    let put = async |client: &Client, value: &'static str| {
        let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
        client.put_with("key", value, options).await.unwrap()
    };
    put(&bed.client, "old").await;
    let hung = bed.leader().await;
    let address = bed.cluster.nodes().iter().find(|node| node.id() == hung).unwrap().ports().client();
    let mut wire = Wire::connect(&bed.cluster.certs(), address).await;
    let callers = Callers::start(&bed.client, 6, 2, Some(PATIENCE));
    callers.go_on(100).await;
    bed.cluster.pause(hung).unwrap();
    callers.go_on(200).await;
    put(&bed.client, "new").await;
    // These wait in the socket of the one that hangs: the first thing it sees when it goes on, as if it still led.
    for _ in 0..20 {
        wire.copy(Copy::untied("key").at(ReadLevel::Linearizable).within(Duration::from_secs(5))).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    bed.cluster.resume(hung).unwrap();
    let mut good = 0;
    for _ in 0..20 {
        let (reply, value) = wire.reply().await;
        match reply.outcome {
            Ok(_) => {
                assert_eq!(value, "new", "a linearizable read after the write of `new` began");
                good += 1;
            }
            Err(failure) => assert!(
                matches!(failure.code, ErrorCode::TryElsewhere | ErrorCode::Behind | ErrorCode::Expired),
                "{failure:?}"
            ),
        }
    }
    println!("{good} of 20 linearizable reads answered by the one that hung");
    let seen = callers.end().await;
    assert_eq!(seen.failed, NONE);
    assert!(seen.gap < GOES_ON && seen.longest[0] < GOES_ON, "{:?} {:?}", seen.gap, seen.longest);
    until(
        "it answers linearizable reads again",
        async || {
            wire.copy(Copy::untied("key").at(ReadLevel::Linearizable).within(Duration::from_secs(1))).await;
            let (reply, value) = wire.reply().await;
            reply.outcome.is_ok().then(|| value.to_vec())
        },
        |value| value.as_deref() == Some(b"new"),
    )
    .await;
    seen.hold_against(&bed).await;
}

/// Writes `count` values of 100 bytes over `keys` keys, 256 at a time; the last position.
async fn fill(bed: &Bed, count: usize, keys: usize) -> Position {
    let mut writes = JoinSet::new();
    let mut last = Position(0);
    for number in 0..count {
        let client = bed.client.clone();
        writes.spawn(async move {
            let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
            client
                .put_with(format!("key {}", number % keys), vec![b'x'; 100], options)
                .await
                .unwrap()
                .token
                .position
        });
        if writes.len() >= 256 {
            last = last.max(writes.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(written) = writes.join_next().await {
        last = last.max(written.unwrap());
    }
    last
}

/// Resident memory of each running node, MiB.
fn resident(bed: &Bed) -> Vec<(NodeId, u64)> {
    let pages = bed.cluster.nodes().iter().filter_map(|node| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid()?)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        Some((node.id(), line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024))
    });
    pages.collect()
}

/// Stops a follower for `count` writes; it catches up while the others serve.
async fn a_follower_misses(count: usize, more: &str, by_snapshot: bool) {
    let more = more.to_owned();
    let mut bed = Bed::replicated_with(3, |settings| settings.more = more).await;
    let behind = bed.followers().await[0];
    fill(&bed, 500, 500).await;
    bed.cluster.stop(behind, PATIENCE).await.unwrap();
    let missed = fill(&bed, count, 1_000).await;
    if by_snapshot {
        until(
            "the log is cut beyond the one that is behind",
            async || {
                bed.status(bed.leader().await).await.and_then(|page| page["replica"]["log"]["purged"].as_u64())
            },
            |purged| purged.is_some_and(|purged| purged > missed.0 - count as u64 + 1),
        )
        .await;
    }
    let before = resident(&bed);
    bed.cluster.restart(behind).unwrap();
    let began = Instant::now();
    let callers = Callers::start(&bed.client, 2, 2, None);
    callers.go_on(20).await;
    let last = fill(&bed, 10, 10).await;
    bed.until_applied(&[behind], last).await;
    let took = began.elapsed();
    let seen = callers.end().await;
    let after = resident(&bed);
    println!("{count} writes missed, caught up in {took:?}; MiB before {before:?}, after {after:?}");
    assert_eq!(seen.failed, NONE, "the others serve meanwhile");
    assert!(after.iter().all(|(_, mib)| *mib < 200), "{after:?}");
    let log = std::fs::read_to_string(bed.cluster.nodes()[behind.0 as usize - 1].log()).unwrap();
    assert_eq!(log.contains("a snapshot arrived"), by_snapshot, "{log}");
    bed.cluster.wait_ready().await.unwrap();
    seen.hold_against(&bed).await;
}

#[tokio::test]
async fn a_follower_that_missed_little_catches_up_by_the_log() {
    a_follower_misses(2_000, "", false).await;
}

#[tokio::test]
async fn a_follower_that_missed_much_catches_up_by_a_snapshot() {
    a_follower_misses(4_000, "snapshot_entries = 500\nlog_keep_entries = 200\n", true).await;
}

#[tokio::test]
#[ignore = "long: 100,000 writes"]
async fn a_follower_that_missed_100_000_writes_catches_up() {
    a_follower_misses(100_000, "", true).await;
}

#[tokio::test]
async fn all_three_restart_in_order_and_by_kill() {
    let mut bed = Bed::replicated().await;
    for killed in [true, false] {
        let callers = Callers::start(&bed.client, 4, 0, Some(PATIENCE));
        callers.go_on(200).await;
        let nodes = bed.nodes();
        if killed {
            nodes.iter().for_each(|node| bed.cluster.kill(*node));
        } else {
            bed.cluster.stop_all(PATIENCE).await;
        }
        for node in nodes {
            bed.cluster.restart(node).unwrap();
        }
        bed.cluster.wait_ready().await.unwrap();
        callers.go_on(50).await;
        let seen = callers.end().await;
        assert_eq!(seen.failed, NONE);
        bed.client.all_connected(PATIENCE).await.unwrap();
        seen.hold_against(&bed).await;
    }
}

//! Replicas that die, hang, fail or come back, under reads of the real client.

use crate::bed::{Bed, PATIENCE, until, within};
use std::time::{Duration, Instant};
use tiedkv_client::Client;
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;

fn options(policy: ReadPolicy, deadline: Duration) -> ReadOptions {
    ReadOptions {
        policy: Some(policy),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(deadline),
        ..ReadOptions::default()
    }
}

/// Starts `count` reads at once.
fn reads(client: &Client, count: usize, policy: ReadPolicy, deadline: Duration) -> JoinSet<Result<(), String>> {
    let mut reads = JoinSet::new();
    for _ in 0..count {
        let client = client.clone();
        reads.spawn(async move {
            let read =
                client.get_with("key", options(policy, deadline)).await.map_err(|error| error.to_string())?;
            match read.value {
                Some(found) if found.value == "value" => Ok(()),
                other => Err(format!("read {other:?}")),
            }
        });
    }
    reads
}

/// All of them; the texts of those that failed.
async fn failures(mut reads: JoinSet<Result<(), String>>) -> Vec<String> {
    let mut failed = Vec::new();
    while let Some(read) = within("all reads end", reads.join_next()).await {
        failed.extend(read.unwrap().err());
    }
    failed
}

async fn all_good(client: &Client, count: usize, policy: ReadPolicy, deadline: Duration) {
    let failed = failures(reads(client, count, policy, deadline)).await;
    assert!(failed.is_empty(), "{} of {count} failed, first: {}", failed.len(), failed[0]);
}

const NONE: [String; 0] = [];

#[tokio::test]
async fn two_empty_queues_answer_and_balance() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    for policy in [ReadPolicy::UNTIED, ReadPolicy::TIED2, ReadPolicy::TIED3] {
        for _ in 0..20 {
            all_good(&bed.client, 1, policy, PATIENCE).await;
        }
    }
    bed.until_at_rest(&bed.nodes()).await;
    let stats =
        until("the client balances", async || bed.client.stats(), |stats| stats.outstanding.total() == 0).await;
    assert!(stats.balanced(), "{stats:?}");
    assert_eq!((stats.reads, stats.reads_answered, stats.reads_failed), (60, 60, 0));
    let mut silent = 0;
    let mut received = 0;
    for node in bed.nodes() {
        let counters = bed.counters(node).await;
        silent += counters.silent();
        received += counters.received;
    }
    assert_eq!(received, stats.sent.total());
    assert_eq!(stats.unanswered.total(), silent, "unanswered copies are those that nodes ended silently");
}

#[tokio::test]
async fn a_winner_that_dies_after_cancelling_loses_no_read() {
    let mut bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    for node in bed.nodes() {
        bed.slow_down(node, 20.0).await;
    }
    let running = reads(&bed.client, 12, ReadPolicy::TIED2, PATIENCE);
    let first = NodeId(1);
    bed.until_counters(first, "it started copies", |now| now.started > 0 && now.cancels_sent > 0).await;
    bed.cluster.kill(first);
    assert_eq!(failures(running).await, NONE);
    all_good(&bed.client, 6, ReadPolicy::TIED3, PATIENCE).await;
}

#[tokio::test]
async fn a_winner_that_hangs_after_cancelling_costs_the_silence_rule_and_no_read() {
    let mut bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    for node in bed.nodes() {
        bed.slow_down(node, 10.0).await;
    }
    let running = reads(&bed.client, 12, ReadPolicy::TIED2, PATIENCE);
    let first = NodeId(1);
    bed.until_counters(first, "it started copies", |now| now.started > 0 && now.cancels_sent > 0).await;
    let began = Instant::now();
    bed.cluster.pause(first).unwrap();
    assert_eq!(failures(running).await, NONE);
    assert!(began.elapsed() < Duration::from_secs(5), "far below the deadline: {:?}", began.elapsed());
    // And while it hangs, reads with an everyday deadline go on.
    for node in [NodeId(2), NodeId(3)] {
        bed.slow_down(node, 1.0).await;
    }
    all_good(&bed.client, 20, ReadPolicy::TIED2, Duration::from_secs(2)).await;
    bed.cluster.resume(first).unwrap();
    bed.client.all_connected(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_node_that_fails_fast_wins_no_tie_for_long_and_fails_no_read() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    let broken = NodeId(2);
    bed.tell(broken, AdminOperation::FailReads { on: true }).await;
    for policy in [ReadPolicy::TIED2, ReadPolicy::TIED3, ReadPolicy::UNTIED] {
        for _ in 0..20 {
            all_good(&bed.client, 5, policy, PATIENCE).await;
        }
    }
    let counters = bed.counters(broken).await;
    assert!(counters.storage_errors > 0, "it was asked: {counters:?}");
    assert!(counters.storage_errors < 60, "most reads of 300 go elsewhere: {counters:?}");
    bed.tell(broken, AdminOperation::FailReads { on: false }).await;
    until(
        "it is asked again after it is mended",
        async || {
            all_good(&bed.client, 5, ReadPolicy::TIED3, PATIENCE).await;
            bed.counters(broken).await.answered_good
        },
        |good| *good > 0,
    )
    .await;
}

#[tokio::test]
async fn one_replica_left_is_read_untied() {
    let mut bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    all_good(&bed.client, 5, ReadPolicy::TIED3, PATIENCE).await;
    bed.cluster.kill(NodeId(1));
    bed.cluster.kill(NodeId(3));
    until("both links are lost", async || links(&bed.client), |up| *up == [false, true, false]).await;
    all_good(&bed.client, 30, ReadPolicy::TIED3, PATIENCE).await;
    let before = bed.client.stats();
    all_good(&bed.client, 10, ReadPolicy::TIED3, PATIENCE).await;
    let after = bed.client.stats();
    assert_eq!(after.sent.total() - before.sent.total(), 10, "one copy per read");
}

fn links(client: &Client) -> Vec<bool> {
    client.nodes().iter().map(|node| node.links > 0).collect()
}

#[tokio::test]
async fn two_of_five_die_and_no_read_is_lost() {
    let mut bed = Bed::new(5).await;
    bed.put_everywhere("key", "value").await;
    for node in bed.nodes() {
        bed.slow_down(node, 10.0).await;
    }
    let running = reads(&bed.client, 30, ReadPolicy::TIED3, PATIENCE);
    for node in [NodeId(2), NodeId(4)] {
        bed.until_counters(node, "it started copies", |now| now.started > 0).await;
        bed.cluster.kill(node);
    }
    assert_eq!(failures(running).await, NONE);
    all_good(&bed.client, 30, ReadPolicy::TIED2, PATIENCE).await;
}

#[tokio::test]
async fn a_node_restarts_with_its_old_identity_while_reads_go_on() {
    let mut bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    let node = NodeId(3);
    for round in 0..2 {
        let running = reads(&bed.client, 60, ReadPolicy::TIED3, PATIENCE);
        bed.until_counters(NodeId(1), "cancels fly", |now| now.cancels_received > 20 * round).await;
        bed.cluster.kill(node);
        bed.cluster.restart(node).unwrap();
        bed.cluster.wait_ready().await.unwrap();
        let failed = failures(running).await;
        // What it kept in memory is gone: it may say that the key is absent, but no read may end in an error.
        let errors: Vec<_> = failed.iter().filter(|text| *text != "read None").collect();
        assert!(errors.is_empty(), "{errors:?}");
        bed.client.all_connected(PATIENCE).await.unwrap();
        bed.put_everywhere("key", "value").await;
    }
    all_good(&bed.client, 30, ReadPolicy::TIED3, PATIENCE).await;
    until("it takes part again", async || bed.counters(node).await.received, |received| *received > 0).await;
    bed.until_at_rest(&bed.nodes()).await;
}

#[tokio::test]
async fn a_reader_that_gives_up_leaves_no_copy_behind() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    for node in bed.nodes() {
        bed.slow_down(node, 20.0).await;
    }
    let mut running = reads(&bed.client, 30, ReadPolicy::TIED3, PATIENCE);
    bed.until_counters(NodeId(1), "copies run and wait", |now| now.in_flight() > 2).await;
    running.abort_all();
    while running.join_next().await.is_some() {}
    bed.until_at_rest(&bed.nodes()).await;
    let stats = bed.client.stats();
    assert!(stats.reads_dropped > 0, "{stats:?}");
}

//! Many requests on one connection, and many reads of hot keys: nothing is left of them in a node, and its memory does not
//! grow.

use crate::bed::{Bed, PATIENCE, until};
use crate::wire::{Copy, Wire};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;

/// Entries of the tables of a node: registry, desks, connections, callers.
async fn tables(bed: &Bed, node: NodeId) -> [u64; 4] {
    let page = bed.tell(node, AdminOperation::Status).await;
    let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
    ["registry", "desks", "connections", "callers"].map(|name| page["path"]["tables"][name].as_u64().unwrap())
}

/// `count` copies on one connection, `window` of them out at a time; then nothing is left of them.
async fn one_connection_leaves_nothing(count: usize, window: usize) {
    let bed = Bed::with(1, |settings| settings.device = Device::Real).await;
    bed.put_everywhere("key", "value").await;
    let node = NodeId(1);
    let before = tables(&bed, node).await;
    let mut wire = Wire::connect(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await;
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && sent - answered < window {
            wire.copy(Copy::untied("key")).await;
            sent += 1;
        }
        for _ in 0..(sent - answered).min(window / 2).max(1) {
            assert!(wire.reply().await.0.outcome.is_ok());
            answered += 1;
        }
    }
    bed.until_at_rest(&[node]).await;
    let open = tables(&bed, node).await;
    assert_eq!(open[..2], [0, 0], "registry and desks are empty although the connection is open");
    wire.close();
    until("the connection is forgotten", async || tables(&bed, node).await, |now| now[..3] == before[..3]).await;
}

#[tokio::test]
async fn thousands_of_requests_on_one_connection_leave_nothing() {
    one_connection_leaves_nothing(20_000, 1_000).await;
}

#[tokio::test]
#[ignore = "long: a million requests"]
async fn a_million_requests_on_one_connection_leave_nothing() {
    one_connection_leaves_nothing(1_000_000, 2_000).await;
}

/// `count` reads of hot keys by 64 callers.
async fn reads(bed: &Bed, count: usize) {
    const CALLERS: usize = 64;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = bed.client.clone();
        callers.spawn(async move {
            for number in 0..count / CALLERS {
                let options = ReadOptions {
                    policy: Some(ReadPolicy::UNTIED),
                    level: Some(Level::Stale { bound: None }),
                    deadline: Some(PATIENCE),
                    ..ReadOptions::default()
                };
                let key = format!("hot {}", (caller + number) % 100);
                client.get_with(key, options).await.unwrap();
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
}

/// Resident memory of a node, KiB.
fn resident(bed: &Bed, index: usize) -> u64 {
    let pid = bed.cluster.nodes()[index].pid().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: over a million reads"]
async fn memory_of_a_node_does_not_grow_over_a_million_reads() {
    let bed = Bed::with(3, |settings| {
        settings.device = Device::Real;
        settings.storage = Storage::Disk;
    })
    .await;
    for number in 0..100 {
        bed.client.put(format!("hot {number}"), vec![7; 100]).await.unwrap();
    }
    reads(&bed, 200_000).await;
    let before = [0, 1, 2].map(|index| resident(&bed, index));
    reads(&bed, 1_000_000).await;
    bed.until_at_rest(&bed.nodes()).await;
    for (index, before) in before.into_iter().enumerate() {
        let after = resident(&bed, index);
        println!("node {}: {before} KiB before, {after} KiB after a million reads", index + 1);
        assert!(after * 100 < before * 105, "node {}: {before} KiB became {after} KiB", index + 1);
    }
}

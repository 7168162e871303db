//! The wall clock of a node jumps, forward and back, while tied reads go on: nothing is compared with it but the order
//! of writes' stamps, so no read fails, and no deadline comes early or late.

use crate::bed::{Bed, PATIENCE, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_client::Client;
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;

const HOUR: Duration = Duration::from_secs(3_600);

async fn step(bed: &Bed, node: NodeId, ahead: bool, by: Duration) {
    bed.tell(node, AdminOperation::StepClock { ahead, by_ms: by.as_millis() as u64 }).await;
}

async fn read(client: &Client, policy: ReadPolicy, deadline: Duration) -> Result<(), String> {
    let options = ReadOptions {
        policy: Some(policy),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(deadline),
        ..ReadOptions::default()
    };
    client.get_with("key", options).await.map(|_| ()).map_err(|error| error.to_string())
}

/// Callers that read one after another until told to stop; how many reads were good, and what failed.
fn readers(bed: &Bed, stop: &Arc<AtomicBool>) -> JoinSet<(u64, Vec<String>)> {
    let mut readers = JoinSet::new();
    for index in 0..12 {
        let (client, stop) = (bed.client.clone(), stop.clone());
        let policy = if index % 2 == 0 { ReadPolicy::TIED2 } else { ReadPolicy::TIED3 };
        readers.spawn(async move {
            let (mut good, mut failed) = (0, Vec::new());
            while !stop.load(Relaxed) {
                match read(&client, policy, PATIENCE).await {
                    Ok(()) => good += 1,
                    Err(error) => failed.push(error),
                }
            }
            (good, failed)
        });
    }
    readers
}

#[tokio::test]
async fn a_wall_clock_that_jumps_fails_no_read_and_moves_no_deadline() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "value").await;
    let nodes = bed.nodes();
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = readers(&bed, &stop);
    // Forward and back, one node after another, then all of them apart from each other.
    for (ahead, by) in [(true, HOUR), (false, 3 * HOUR), (true, 2 * HOUR), (true, Duration::from_millis(700))] {
        for node in &nodes {
            let before = bed.client.stats().reads_answered;
            step(&bed, *node, ahead, by).await;
            bed.put_everywhere("key", "value").await;
            crate::bed::until("reads go on", async || bed.client.stats().reads_answered, |now| *now > before + 20)
                .await;
        }
    }
    stop.store(true, Relaxed);
    let mut good = 0;
    while let Some(reader) = within("all readers end", running.join_next()).await {
        let (count, failed) = reader.unwrap();
        assert!(failed.is_empty(), "{} reads failed, first: {}", failed.len(), failed[0]);
        good += count;
    }
    println!("{good} reads, none failed, through {} jumps", 4 * nodes.len());
    bed.until_at_rest(&nodes).await;
    let mut expired = 0;
    for node in &nodes {
        expired += bed.counters(*node).await.answered_expired;
    }
    assert_eq!(expired, 0, "no node took a deadline for over");

    // Clocks hours apart: a deadline that is long enough is not cut, one that is too short comes when it is due.
    step(&bed, nodes[0], true, 5 * HOUR).await;
    step(&bed, nodes[1], false, 5 * HOUR).await;
    for node in &nodes {
        bed.slow_down(*node, 80.0).await;
    }
    read(&bed.client, ReadPolicy::TIED2, PATIENCE).await.expect("a slow read within its deadline");
    let (short, began) = (Duration::from_millis(60), Instant::now());
    let error = read(&bed.client, ReadPolicy::TIED2, short).await.expect_err("400 ms of service in 60 ms");
    assert!(began.elapsed() >= short - Duration::from_millis(1), "{error} after {:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE / 2, "{error} after {:?}", began.elapsed());
}

//! All cancels lost for good: duplicates rise, clients notice the sick pairs and stop tying them.

use crate::bed::{Bed, PATIENCE, SERVICE};
use std::time::Duration;
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Load of each node by useful work alone.
const LOAD: f64 = 0.6;
const LANES: u16 = 2;
const NODES: usize = 3;

/// Reads at `LOAD` for `span`, open loop; started copies per read, over all nodes.
async fn started_per_read(bed: &Bed, span: Duration) -> f64 {
    let before = started(bed).await;
    let per_second = LOAD * f64::from(LANES) * NODES as f64 / SERVICE.as_secs_f64();
    let count = (per_second * span.as_secs_f64()) as usize;
    let mut ticks = interval(span.div_f64(count as f64));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut reads = JoinSet::new();
    for _ in 0..count {
        ticks.tick().await;
        let client = bed.client.clone();
        reads.spawn(async move {
            let options = ReadOptions {
                policy: Some(ReadPolicy::TIED2),
                level: Some(Level::Stale { bound: None }),
                deadline: Some(PATIENCE),
                ..ReadOptions::default()
            };
            client.get_with("key", options).await.map_err(|error| error.to_string())
        });
    }
    while let Some(read) = reads.join_next().await {
        read.unwrap().unwrap();
    }
    bed.until_at_rest(&bed.nodes()).await;
    (started(bed).await - before) as f64 / count as f64
}

async fn started(bed: &Bed) -> u64 {
    let mut sum = 0;
    for node in bed.nodes() {
        sum += bed.counters(node).await.started;
    }
    sum
}

#[tokio::test]
async fn with_all_cancels_lost_clients_stop_tying_within_a_second() {
    let bed = Bed::with(NODES, |settings| settings.lanes = LANES).await;
    bed.put_everywhere("key", "value").await;
    let healthy = started_per_read(&bed, Duration::from_secs(1)).await;
    for node in bed.nodes() {
        bed.tell(node, AdminOperation::DropCancels { share: 1.0 }).await;
    }
    let first = started_per_read(&bed, Duration::from_secs(1)).await;
    let later = started_per_read(&bed, Duration::from_secs(2)).await;
    println!("copies started per read: healthy {healthy:.3}, first second {first:.3}, later {later:.3}");
    assert!(later < 1.05, "load rises by less than 5 % after 1 s: {later:.3} copies started per read");

    for node in bed.nodes() {
        bed.tell(node, AdminOperation::DropCancels { share: 0.0 }).await;
    }
    let ties = bed.client.stats().ties;
    crate::bed::until(
        "pairs are tied again once their channel is well",
        async || {
            started_per_read(&bed, Duration::from_millis(200)).await;
            bed.client.stats().ties
        },
        |now| *now > ties + 20,
    )
    .await;
}

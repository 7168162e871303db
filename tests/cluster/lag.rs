//! Replicas that lag, and queues that are full on one side: refusals keep the tie alive and fail no read.

use crate::bed::{Bed, PATIENCE};
use crate::wire::{Copy, Wire};
use std::time::{Duration, Instant};
use tiedkv_client::error::CopyFate;
use tiedkv_client::options::{Level, ReadOptions, WriteOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::report::Read;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;

async fn session_read(bed: &Bed, policy: ReadPolicy, deadline: Duration) -> Result<Read, tiedkv_client::Error> {
    let options = ReadOptions {
        policy: Some(policy),
        level: Some(Level::Session),
        deadline: Some(deadline),
        ..ReadOptions::default()
    };
    bed.client.get_with("key", options).await
}

async fn write_to(bed: &Bed, node: NodeId, value: &'static str) {
    let options = WriteOptions { node: Some(node), deadline: Some(PATIENCE), ..Default::default() };
    bed.client.put_with("key", value, options).await.unwrap();
}

#[tokio::test]
async fn a_lagging_replica_never_answers_a_session_too_early() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "old").await;
    let lagging = NodeId(2);
    bed.tell(lagging, AdminOperation::Lag { on: true }).await;
    for node in [NodeId(1), NodeId(3)] {
        write_to(&bed, node, "new").await;
    }
    for policy in [ReadPolicy::UNTIED, ReadPolicy::TIED2, ReadPolicy::TIED3] {
        for _ in 0..30 {
            let read = session_read(&bed, policy, PATIENCE).await.unwrap();
            assert_eq!(read.value.unwrap().value, "new", "{policy} from {}", read.report.node);
            assert_ne!(read.report.node, lagging);
        }
    }
    bed.tell(lagging, AdminOperation::Lag { on: false }).await;
}

#[tokio::test]
async fn when_all_lag_a_read_ends_in_time_and_says_so_and_works_when_one_catches_up() {
    let bed = Bed::new(3).await;
    bed.put_everywhere("key", "old").await;
    for node in bed.nodes() {
        bed.tell(node, AdminOperation::Lag { on: true }).await;
    }
    // Acknowledged by a node of its own, but not published: the session now asks for more than any view has.
    let mut token = bed.client.token();
    token.position.0 += 1;
    bed.client.observe(token).unwrap();
    let began = Instant::now();
    let error = session_read(&bed, ReadPolicy::TIED3, Duration::from_millis(500)).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let behind = |fate: &CopyFate| matches!(fate, CopyFate::Refused(failure) if failure.code == ErrorCode::Behind);
    assert!(error.copies().iter().any(|copy| behind(&copy.fate)), "{error}");

    let ahead = NodeId(3);
    bed.tell(ahead, AdminOperation::Lag { on: false }).await;
    write_to(&bed, ahead, "new").await;
    let read = session_read(&bed, ReadPolicy::TIED2, PATIENCE).await.unwrap();
    assert_eq!((read.report.node, &read.value.unwrap().value[..]), (ahead, &b"new"[..]));
}

#[tokio::test]
async fn a_queue_that_is_full_on_one_side_refuses_and_the_tie_goes_on_elsewhere() {
    let bed = Bed::with(3, |settings| settings.more.push_str("queue_max = 2\n")).await;
    bed.put_everywhere("key", "value").await;
    let full = NodeId(1);
    bed.slow_down(full, 60.0).await;
    let mut filler = Wire::connect(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await;
    for _ in 0..3 {
        filler.copy(Copy::untied("key")).await;
    }
    bed.until_counters(full, "one runs, two wait", |now| now.received == 3 && now.started == 1).await;
    // No more at once than the two others can hold.
    for _ in 0..10 {
        let mut reads = JoinSet::new();
        for _ in 0..4 {
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
            assert_eq!(read.unwrap().unwrap().value.unwrap().value, "value");
        }
    }
    let counters = bed.counters(full).await;
    assert!(counters.answered_refused > 0, "its queue was full: {counters:?}");
    bed.until_at_rest(&bed.nodes()).await;
}

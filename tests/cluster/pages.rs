//! The admin pages of a running node, and how it ends.

use crate::bed::{Bed, PATIENCE};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tiedkv_benches::cluster::admin_page::{Page, fetch};
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_protocol::ids::NodeId;

/// Most series of a node with eight lanes and two peers: no key and no caller may make more.
const SERIES_MAX: usize = 200;

async fn page(address: SocketAddr, path: &str) -> Page {
    fetch(address, path, PATIENCE).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of series as they are written, without labels.
fn series(text: &str) -> Vec<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.filter_map(|line| line.split([' ', '{']).next()).collect()
}

#[tokio::test]
async fn every_metric_is_documented_and_their_number_is_bounded() {
    let bed = Bed::with(3, |settings| settings.lanes = 8).await;
    bed.put_everywhere("key", "value").await;
    let admin = bed.cluster.nodes()[0].ports().admin();
    let before = page(admin, "/metrics").await.body;
    for number in 0..200 {
        let options = ReadOptions { level: Some(Level::Stale { bound: None }), ..ReadOptions::default() };
        bed.client.get_with(format!("key {number}"), options).await.unwrap();
    }
    let after = page(admin, "/metrics").await.body;
    assert_eq!(series(&before), series(&after), "reads add no series");
    assert!(series(&after).len() <= SERIES_MAX, "{} series", series(&after).len());

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let document = std::fs::read_to_string(document).unwrap();
    let names: BTreeSet<&str> = series(&after).into_iter().collect();
    let missing: Vec<_> = names.iter().filter(|name| !document.contains(&format!("| `{name}` |"))).collect();
    assert!(missing.is_empty(), "docs/operations.md lacks {missing:?}");
    let listed = document.split("| `").filter_map(|rest| rest.split('`').next());
    let stale: Vec<_> = listed.filter(|name| name.starts_with("tiedkv_") && !names.contains(name)).collect();
    assert!(stale.is_empty(), "docs/operations.md lists what no node exports: {stale:?}");
}

#[tokio::test]
async fn pages_say_who_and_how_and_a_drained_node_is_not_ready() {
    let mut bed = Bed::new(1).await;
    bed.put_everywhere("key", "value").await;
    let (node, admin) = (NodeId(1), bed.cluster.nodes()[0].ports().admin());
    for path in ["/livez", "/readyz", "/status", "/metrics"] {
        assert_eq!(page(admin, path).await.status, 200, "{path}");
    }
    assert_eq!(page(admin, "/nothing").await.status, 404);
    let status: serde_json::Value = serde_json::from_str(&page(admin, "/status").await.body).unwrap();
    assert_eq!((&status["node"], &status["ready"], &status["modelled"]), (&1.into(), &true.into(), &true.into()));

    // A copy that runs for long keeps the node in its drain: time to see it.
    bed.slow_down(node, 400.0).await;
    let client = bed.client.clone();
    let options = ReadOptions {
        level: Some(Level::Stale { bound: None }),
        deadline: Some(PATIENCE),
        ..ReadOptions::default()
    };
    let read = tokio::spawn(async move { client.get_with("key", options).await });
    bed.until_counters(node, "it runs", |now| now.started == 1).await;
    bed.cluster.signal(node, Signal::TERM).unwrap();
    crate::bed::until("not ready", async || page(admin, "/readyz").await.status, |status| *status == 503).await;
    assert_eq!(page(admin, "/livez").await.status, 200);
    let status = bed.cluster.wait_stopped(node, PATIENCE).await.unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(read.await.unwrap().unwrap().value.unwrap().value, "value", "what was in flight is finished");
}

#[tokio::test]
async fn a_second_signal_ends_a_node_at_once() {
    let mut bed = Bed::new(1).await;
    bed.put_everywhere("key", "value").await;
    let node = NodeId(1);
    bed.slow_down(node, 1000.0).await;
    let client = bed.client.clone();
    let options = ReadOptions {
        level: Some(Level::Stale { bound: None }),
        deadline: Some(PATIENCE),
        ..ReadOptions::default()
    };
    let read = tokio::spawn(async move { client.get_with("key", options).await });
    bed.until_counters(node, "it runs", |now| now.started == 1).await;
    let admin = bed.cluster.nodes()[0].ports().admin();
    bed.cluster.signal(node, Signal::TERM).unwrap();
    crate::bed::until("it drains", async || page(admin, "/readyz").await.status, |status| *status == 503).await;
    bed.cluster.signal(node, Signal::TERM).unwrap();
    bed.cluster.wait_stopped(node, Duration::from_secs(1)).await.unwrap();
    read.abort();
}

//! The operator's ceiling over real processes: a live client obeys it within a second, also in calls under way.

use crate::bed::{Bed, PATIENCE};
use crate::tool::{code, text, tool};
use std::time::{Duration, Instant};
use tiedkv_client::gate::NotTied;
use tiedkv_client::{Level, Operation, ReadOptions, ReadPolicy, Switch};
use tiedkv_protocol::hello::Mode;
use tiedkv_protocol::ids::NodeId;

fn options() -> ReadOptions {
    ReadOptions {
        policy: Some(ReadPolicy::TIED2),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(PATIENCE),
        ..ReadOptions::default()
    }
}

/// Waits until the client of the bed obeys; gives how long that took since the tool had ended.
async fn obeyed(bed: &Bed, mode: Mode) -> Duration {
    let began = Instant::now();
    while bed.client.policy().in_force(Operation::Get).mode != mode {
        assert!(began.elapsed() < PATIENCE, "never {mode:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

#[tokio::test]
async fn a_ceiling_is_obeyed_by_a_live_client_within_a_second() {
    let bed = Bed::new(3).await;
    let url = bed.cluster.url();
    let policy = |rest: &[&str]| {
        let mut arguments = vec!["policy", "--cluster", &url];
        arguments.extend(rest);
        tool(&arguments, b"")
    };
    let read = async || bed.client.get_with("key", options()).await.unwrap().report;
    assert_eq!(read().await.not_tied, None);
    let off = policy(&["set", "--mode", "off"]);
    assert_eq!(code(&off), Some(0), "{}", text(&off.stderr));
    let took = obeyed(&bed, Mode::Off).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let report = read().await;
    assert_eq!((report.copies.len(), report.not_tied), (1, Some(NotTied::SwitchedOff)));
    let shown = policy(&["show", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["mode"], "off");

    assert_eq!(code(&policy(&["set", "--mode", "on", "--copies", "1"])), Some(0));
    obeyed(&bed, Mode::On).await;
    assert_eq!(read().await.not_tied, Some(NotTied::TiesOff), "nodes say so by a flag too");
    assert_eq!(code(&policy(&["set", "--copies", "3"])), Some(0));
    bed.client.policy().set(Switch::OBSERVE).unwrap();
    assert_eq!(read().await.not_tied, Some(NotTied::Observing));
    bed.client.policy().set(Switch::ON).unwrap();

    assert_eq!(code(&policy(&["eject", "--node", "2"])), Some(0));
    let began = Instant::now();
    while bed.client.policy().ceiling().ejected.nodes().next() != Some(NodeId(2)) {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..20 {
        let report = read().await;
        assert!(report.copies.iter().all(|copy| copy.node != NodeId(2)), "{:?}", report.copies);
    }
    assert_eq!(code(&policy(&["restore", "--node", "2"])), Some(0));
    assert_eq!(code(&policy(&["restore", "--node", "2"])), Some(2), "it is not out");
    assert_eq!(code(&policy(&["eject", "--node", "9"])), Some(2), "no member");
    assert_eq!(code(&policy(&["set", "--mode", "off", "--share", "0.5"])), Some(2));
    assert_eq!(code(&policy(&["set"])), Some(2), "nothing to set");
}

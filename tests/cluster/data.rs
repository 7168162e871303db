//! Scans and counts over real processes: pages join over replicas, sessions see their own writes, a replica may die in
//! the middle of a scan.

use crate::bed::{Bed, PATIENCE, until, within};
use std::time::Duration;
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_client::{Client, Level, ReadOptions, ReadPolicy, ScanOptions, ScanRange, WriteOptions};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{ClusterId, PositionToken};

/// Three replicated nodes on disk, real device, and a client that waits as long as a busy machine needs.
pub async fn replicated() -> Bed {
    let mut bed = Bed::with(3, |settings| {
        settings.storage = Storage::Disk;
        settings.device = Device::Real;
    })
    .await;
    bed.client = Client::connect_url(&patient_url(&bed)).await.unwrap();
    bed.client.all_connected(PATIENCE).await.unwrap();
    bed
}

/// The cluster's URL with a deadline of [`PATIENCE`].
pub fn patient_url(bed: &Bed) -> String {
    format!("{}&deadline={}s", bed.cluster.url(), PATIENCE.as_secs())
}

/// Waits until every replica has what was written so far: each call of the tool is a session of its own.
pub async fn settle(bed: &Bed) {
    let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
    bed.client.delete_with("nothing", options).await.unwrap();
    bed.until_applied(&bed.nodes(), bed.client.token().position).await;
}

/// Puts rows many at a time.
pub async fn fill(client: &Client, rows: impl Iterator<Item = (String, Vec<u8>)>) {
    let mut out = tokio::task::JoinSet::new();
    for (key, value) in rows {
        if out.len() >= 64 {
            out.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        out.spawn(async move {
            let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
            client.put_with(key, value, options).await.unwrap();
        });
    }
    while let Some(done) = out.join_next().await {
        done.unwrap();
    }
}

fn tied(page_rows: u32) -> ScanOptions {
    let read = ReadOptions {
        policy: Some(ReadPolicy::TIED2),
        level: Some(Level::Session),
        deadline: Some(PATIENCE),
        ..ReadOptions::default()
    };
    ScanOptions { page_rows, read, ..ScanOptions::default() }
}

/// Stands still with its runtime for longer than a connection may be silent, in the middle of a scan.
fn stands_still(url: String) -> (u64, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect_url(&url).await.unwrap();
        client.all_connected(PATIENCE).await.unwrap();
        let mut scan = client.scan(&ScanRange::prefix("still-"), tied(100)).unwrap();
        assert!(scan.next().await.unwrap().is_some());
        let (_kept, never) = std::sync::mpsc::sync_channel::<()>(1);
        never.recv_timeout(Duration::from_secs(7)).unwrap_err();
        let mut rows = 1;
        while scan.next().await.unwrap().is_some() {
            rows += 1;
        }
        let losses = async || client.nodes().into_iter().filter_map(|node| node.last_loss).collect::<Vec<_>>();
        (rows, until("every node has given it up", losses, |losses| losses.len() == 3).await)
    })
}

#[tokio::test]
async fn a_client_that_stopped_reading_a_scan_is_cut_off_is_told_the_limit_and_goes_on() {
    let bed = replicated().await;
    fill(&bed.client, (0..2_000).map(|n| (format!("still-{n:04}"), vec![7; 100]))).await;
    settle(&bed).await;
    let url = patient_url(&bed);
    let (rows, losses) = tokio::task::spawn_blocking(|| stands_still(url)).await.unwrap();
    assert_eq!(rows, 2_000);
    for loss in losses {
        assert!(loss.starts_with("cut off: this client took nothing for ") && loss.contains("for 5s"), "{loss}");
    }
}

#[tokio::test]
async fn a_scan_sees_what_its_session_wrote_and_goes_on_when_a_replica_dies() {
    let mut bed = replicated().await;
    let row = |n: u32| (format!("row-{n:05}"), n.to_string().into_bytes());
    fill(&bed.client, (0..3_000).map(row)).await;
    assert_eq!(bed.client.count(&ScanRange::prefix("row-")).await.unwrap(), 3_000);
    assert!(bed.client.exists("row-00000").await.unwrap());

    let mut scan = bed.client.scan(&ScanRange::all(), tied(100)).unwrap();
    let mut token = None;
    for n in 0..3_000 {
        let found = within("a row", scan.next()).await.unwrap().unwrap();
        let (key, value) = row(n);
        assert_eq!((&found.key[..], &found.value[..]), (key.as_bytes(), &value[..]));
        if n == 500 {
            let dying = bed.nodes()[2];
            bed.cluster.kill(dying);
        }
        if n == 1_999 {
            token = Some(scan.token());
        }
    }
    assert_eq!(scan.next().await.unwrap(), None);

    let elsewhere = Client::connect_url(&patient_url(&bed)).await.unwrap();
    let mut rest = elsewhere.resume(token.unwrap(), tied(1_000)).unwrap();
    assert_eq!(&within("a row", rest.next()).await.unwrap().unwrap().key[..], b"row-02000");

    let greatest = ScanOptions { reverse: true, limit: Some(3), ..tied(2) };
    let mut scan = bed.client.scan(&ScanRange::before("row-01000"), greatest).unwrap();
    for n in [999, 998, 997] {
        assert_eq!(scan.next().await.unwrap().unwrap().key, row(n).0);
    }
    assert_eq!(scan.next().await.unwrap(), None);
}

#[tokio::test]
async fn existence_and_counts_are_asked_as_their_options_say() {
    let bed = replicated().await;
    fill(&bed.client, (0..300).map(|n| (format!("row-{n:03}"), b"v".to_vec()))).await;
    // A client that has seen nothing: level or token says how fresh.
    let other = Client::connect_url(&patient_url(&bed)).await.unwrap();
    let patient = || ReadOptions { deadline: Some(PATIENCE), ..ReadOptions::default() };
    let token = bed.client.token();
    for options in [
        ReadOptions { level: Some(Level::Linearizable), ..patient() },
        ReadOptions {
            level: Some(Level::Session),
            token: Some(token),
            policy: Some(ReadPolicy::TIED2),
            ..patient()
        },
    ] {
        assert!(other.exists_with("row-299", options.clone()).await.unwrap());
        assert!(!other.exists_with("row-300", options.clone()).await.unwrap());
        assert_eq!(other.count_with(&ScanRange::prefix("row-"), options).await.unwrap(), 300);
    }
    // Of another cluster: whoever looks at the token refuses it.
    let foreign = PositionToken { cluster: ClusterId(!token.cluster.0), ..token };
    let options = ReadOptions { level: Some(Level::Session), token: Some(foreign), ..patient() };
    let exists = other.exists_with("row-299", options.clone()).await.unwrap_err();
    let count = other.count_with(&ScanRange::all(), options).await.unwrap_err();
    assert_eq!((exists.code(), count.code()), (Some(ErrorCode::BadToken), Some(ErrorCode::BadToken)));
}

#[tokio::test]
async fn large_rows_travel_in_pages_of_their_own() {
    let bed = replicated().await;
    let row = |n: usize| (format!("large-{n}"), vec![n as u8; 300_000 * n]);
    fill(&bed.client, (0..6).map(row)).await;
    let mut scan = bed.client.scan(&ScanRange::prefix("large-"), tied(100)).unwrap();
    for n in 0..6 {
        let found = within("a row", scan.next()).await.unwrap().unwrap();
        assert_eq!((found.key, found.value.to_vec()), row(n).pair());
    }
}

trait Pair {
    fn pair(self) -> (bytes::Bytes, Vec<u8>);
}

impl Pair for (String, Vec<u8>) {
    fn pair(self) -> (bytes::Bytes, Vec<u8>) {
        (self.0.into(), self.1)
    }
}

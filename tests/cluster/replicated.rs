//! Three replicated processes on disk: what was acknowledged is there whoever is killed, and sessions read their
//! own writes on any replica.

use crate::bed::{Bed, PATIENCE};
use std::collections::BTreeMap;
use tiedkv_benches::cluster::Storage;
use tiedkv_client::Client;
use tiedkv_client::options::{Level, ReadOptions, WriteOptions};
use tiedkv_client::policy::ReadPolicy;

async fn replicated() -> Bed {
    Bed::with(3, |settings| settings.storage = Storage::Disk).await
}

async fn put(client: &Client, key: String, value: String) {
    let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
    let text = format!("put {key}");
    client.put_with(key, value, options).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

async fn get(client: &Client, key: &str, level: Level) -> Option<String> {
    let options = ReadOptions {
        policy: Some(ReadPolicy::TIED3),
        level: Some(level),
        deadline: Some(PATIENCE),
        ..ReadOptions::default()
    };
    let read = client.get_with(key.to_owned(), options).await.unwrap_or_else(|error| panic!("get {key}: {error}"));
    read.value.map(|value| String::from_utf8_lossy(&value.value).into_owned())
}

#[tokio::test]
async fn sessions_read_their_own_writes_and_hand_them_on() {
    let bed = replicated().await;
    let other = Client::connect_url(&bed.cluster.url()).await.unwrap();
    for round in 0..50 {
        put(&bed.client, "key".to_owned(), format!("value {round}")).await;
        assert_eq!(get(&bed.client, "key", Level::Session).await, Some(format!("value {round}")));
        other.observe(bed.client.token()).unwrap();
        assert_eq!(get(&other, "key", Level::Session).await, Some(format!("value {round}")));
        assert_eq!(get(&other, "key", Level::Linearizable).await, Some(format!("value {round}")));
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_leaders_are_killed_and_all_restart() {
    let mut bed = replicated().await;
    let mut written = BTreeMap::new();
    for round in 0..3 {
        let first = bed.leader().await;
        for number in 0..30 {
            let (key, value) = (format!("key {number}"), format!("value {number} of round {round}"));
            put(&bed.client, key.clone(), value.clone()).await;
            written.insert(key, value);
            if number == 10 {
                bed.cluster.kill(first);
            }
        }
        bed.cluster.restart(first).unwrap();
        bed.cluster.wait_ready().await.unwrap();
        bed.client.all_connected(PATIENCE).await.unwrap();
    }
    for node in bed.nodes() {
        bed.cluster.kill(node);
    }
    for node in bed.nodes() {
        bed.cluster.restart(node).unwrap();
    }
    bed.cluster.wait_ready().await.unwrap();
    let fresh = Client::connect_url(&bed.cluster.url()).await.unwrap();
    for (key, value) in written {
        assert_eq!(get(&fresh, &key, Level::Linearizable).await.as_ref(), Some(&value), "{key}");
    }
}

#[tokio::test]
async fn a_replica_that_hangs_delays_neither_writes_nor_reads() {
    let mut bed = replicated().await;
    let hung = bed.followers().await[0];
    bed.cluster.pause(hung).unwrap();
    for number in 0..20 {
        put(&bed.client, format!("key {number}"), "value".to_owned()).await;
        assert_eq!(get(&bed.client, &format!("key {number}"), Level::Session).await.as_deref(), Some("value"));
    }
    bed.cluster.resume(hung).unwrap();
    bed.client.all_connected(PATIENCE).await.unwrap();
}

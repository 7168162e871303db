//! What tests against scripted nodes share: a bounded run, a connected client, waiting for a condition.

use crate::fake_node::FakeCluster;
use crate::options::{Level, ReadOptions};
use crate::policy::ReadPolicy;
use crate::{Client, Config, clock};
use std::time::Duration;

/// Runs a test on a runtime of its own; fails if it hangs.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs");
    });
}

/// A client that is connected to every node.
pub(crate) async fn connect(cluster: &FakeCluster) -> Client {
    connect_with(cluster, |_| {}).await
}

/// The same with other settings.
pub(crate) async fn connect_with(cluster: &FakeCluster, change: impl FnOnce(&mut Config)) -> Client {
    let mut config = cluster.config();
    change(&mut config);
    let client = Client::connect(config).await.unwrap();
    client.all_connected(Duration::from_secs(10)).await.unwrap();
    client
}

/// Options of a stale read with this policy.
pub(crate) fn stale(policy: ReadPolicy) -> ReadOptions {
    ReadOptions { policy: Some(policy), level: Some(Level::Stale { bound: None }), ..ReadOptions::default() }
}

/// Waits for a condition that other tasks bring about.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let end = clock::now() + Duration::from_secs(10);
    while !holds() {
        assert!(clock::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

//! The bed of a test: a cluster of processes, a client of it, and waiting for conditions.

use bytes::Bytes;
use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};
use tiedkv_benches::cluster::admin_page::fetch;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster};
use tiedkv_benches::cluster::{Device, NodeSettings, Storage};
use tiedkv_client::Client;
use tiedkv_client::options::WriteOptions;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::request::{AdminOperation, Disturbance};
use tiedkv_server::request::counters::CountersSnapshot;

/// Longest wait for anything that must happen: far above what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Mean service time of the modelled device at normal speed.
pub const SERVICE: Duration = Duration::from_millis(5);

/// A cluster and a client of it.
pub struct Bed {
    pub cluster: LocalCluster,
    pub client: Client,
}

impl Bed {
    /// `nodes` nodes with a modelled device of one lane, whose faults are allowed, and one client.
    pub async fn new(nodes: usize) -> Self {
        Self::with(nodes, |_| {}).await
    }

    /// Three replicated nodes on disk, as fast as their store.
    pub async fn replicated() -> Self {
        Self::replicated_with(3, |_| {}).await
    }

    /// As [`Bed::replicated`], with another number and other settings.
    pub async fn replicated_with(nodes: usize, change: impl FnOnce(&mut NodeSettings)) -> Self {
        let bed = Self::with(nodes, |settings| {
            settings.storage = Storage::Disk;
            settings.device = Device::Real;
            change(settings);
        })
        .await;
        bed.leader().await;
        bed
    }

    /// A cluster as described, and a client of it.
    pub async fn of(spec: ClusterSpec) -> Self {
        let cluster = LocalCluster::start(spec).await.unwrap();
        let client = Client::connect_url(&cluster.url()).await.unwrap();
        client.all_connected(PATIENCE).await.unwrap();
        Self { cluster, client }
    }

    /// Who leads, as the client has heard; waits until it has.
    pub async fn leader(&self) -> NodeId {
        until("somebody leads", async || self.client.topology().leader, Option::is_some).await.unwrap()
    }

    /// The members but the leader.
    pub async fn followers(&self) -> Vec<NodeId> {
        let leader = self.leader().await;
        self.nodes().into_iter().filter(|node| *node != leader).collect()
    }

    /// The status page of a node, over its admin port.
    pub async fn status(&self, node: NodeId) -> Option<serde_json::Value> {
        let local = self.cluster.nodes().iter().find(|local| local.id() == node).unwrap();
        let page = fetch(local.ports().admin(), "/status", Duration::from_secs(1)).await.ok()?;
        serde_json::from_str(&page.body).ok()
    }

    /// Waits until every node of `nodes` has applied `position`.
    pub async fn until_applied(&self, nodes: &[NodeId], position: Position) {
        for node in nodes {
            until(
                &format!("{node} has applied {position}"),
                async || self.status(*node).await.and_then(|page| page["replica"]["applied"].as_u64()),
                |applied| applied.is_some_and(|applied| applied >= position.0),
            )
            .await;
        }
    }

    /// As [`Bed::new`], with other settings.
    pub async fn with(nodes: usize, change: impl FnOnce(&mut NodeSettings)) -> Self {
        let mut spec = ClusterSpec::of(env!("CARGO_BIN_EXE_tiedkv"));
        spec.nodes = nodes;
        spec.settings.lanes = 1;
        spec.settings.service_mean_us = SERVICE.as_micros() as u64;
        spec.settings.faults = true;
        change(&mut spec.settings);
        Self::of(spec).await
    }

    /// All members, running or not.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.cluster.nodes().iter().map(|node| node.id()).collect()
    }

    /// Writes one key to every node: the nodes of these tests keep their data in memory, each its own.
    pub async fn put_everywhere(&self, key: &'static str, value: &'static str) {
        for node in self.nodes() {
            let options = WriteOptions { node: Some(node), deadline: Some(PATIENCE), ..Default::default() };
            self.client
                .put_with(key, value, options)
                .await
                .unwrap_or_else(|error| panic!("put at {node}: {error}"));
        }
    }

    /// Tells one node to do something.
    pub async fn tell(&self, node: NodeId, operation: AdminOperation) -> Bytes {
        let text = format!("{operation:?}");
        self.client
            .admin_within(node, operation, PATIENCE)
            .await
            .unwrap_or_else(|error| panic!("{node} {text}: {error}"))
    }

    /// Makes every service of a node `factor` times longer.
    pub async fn slow_down(&self, node: NodeId, factor: f64) {
        let disturbance = Disturbance { slow_factor: factor, ..Disturbance::default() };
        self.tell(node, AdminOperation::Disturb(disturbance)).await;
    }

    /// The request-path counters of one node.
    pub async fn counters(&self, node: NodeId) -> CountersSnapshot {
        #[derive(serde::Deserialize)]
        struct Page {
            path: CountersSnapshot,
        }
        let page = self.tell(node, AdminOperation::Counters).await;
        match serde_json::from_slice::<Page>(&page) {
            Ok(page) => page.path,
            Err(error) => panic!("{node}: {error} in {}", String::from_utf8_lossy(&page)),
        }
    }

    /// Waits until a node's counters are as wanted.
    pub async fn until_counters(&self, node: NodeId, what: &str, wanted: impl Fn(&CountersSnapshot) -> bool) {
        until(what, async || self.counters(node).await, wanted).await;
    }

    /// Waits until no copy is left on any of `nodes`, and the counters of each balance.
    pub async fn until_at_rest(&self, nodes: &[NodeId]) {
        for node in nodes {
            self.until_counters(*node, "no copy is left", |counters| {
                counters.received == counters.answered() + counters.silent()
            })
            .await;
        }
    }
}

/// Asks again and again until the answer is as wanted; fails after [`PATIENCE`] with the last answer.
pub async fn until<T: Debug>(what: &str, mut ask: impl AsyncFnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < end, "after {PATIENCE:?} still not: {what}; last {answer:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a future, but not for ever.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

//! The cluster of a bed with its clients: started, loaded, and made whole again after a node was killed.

use super::policy::ClientKind;
use super::scene::BedKind;
use crate::cluster::local::{ClusterSpec, LocalCluster};
use crate::cluster::relay::Rules;
use crate::cluster::{Device, Storage};
use crate::load::nodes::Nodes;
use crate::load::preload::{Writes, preload};
use crate::load::tower_hedge::TowerHedge;
use crate::load::workload::Workload;
use crate::scenes::VIEWS;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tiedkv_client::{Client, Config, Level, ReadOptions, ReadPolicy, View};
use tiedkv_protocol::ids::NodeId;

/// Longest wait for a client to reach all nodes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for the servers to stop in order; then they are killed.
const STOP_DEADLINE: Duration = Duration::from_secs(3);

/// Reads by whose median the one-way latency is measured: about a second of modelled ones.
const CROSSINGS: u64 = 200;

/// Start records that a node keeps of one playing; memory is taken as they come, about 120 bytes each.
pub(super) const STARTS_MAX: u64 = 4 * 1024 * 1024;

/// A running bed.
#[derive(Debug)]
pub struct Bed {
    pub(super) kind: BedKind,
    service_us: u64,
    pub(super) cluster: LocalCluster,
    pub(super) nodes: Nodes,
    pub(super) clients: HashMap<ClientKind, Connected>,
    pub(super) workload: Workload,
    one_way: Option<Duration>,
}

/// A client and the views that send its reads; they live as long as the bed.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) views: Vec<View>,
    /// Of a client of kind tower; what it has learned lives as long as the bed, too.
    pub(super) hedge: Option<TowerHedge>,
}

impl Bed {
    /// Starts a cluster of `binary` with this mean service time (microseconds) and writes all keys of its kind; `progress` is told
    /// how many are written.
    ///
    /// # Errors
    /// When the cluster does not start or takes no writes.
    ///
    /// # Cancel safety
    /// Safe: what was started is killed and removed.
    pub async fn start(
        (kind, service_us): (BedKind, u64),
        binary: &Path,
        progress: impl FnMut(u64),
    ) -> Result<Self> {
        let cluster = LocalCluster::start(spec(kind, service_us, binary)).await?;
        let loader = Client::connect(Config::from_url(&cluster.url())?).await?;
        loader.all_connected(CONNECT_DEADLINE).await?;
        let workload = kind.workload();
        let writes = match kind {
            BedKind::Memory => Writes::ToEveryNode(cluster.nodes().iter().map(|node| node.id()).collect()),
            BedKind::Modelled | BedKind::Far | BedKind::Lossy | BedKind::Disk => Writes::Replicated,
        };
        preload(&loader, workload, &writes, progress).await?;
        let nodes = Nodes::of(&loader);
        Ok(Self { kind, service_us, cluster, nodes, clients: HashMap::new(), workload, one_way: None })
    }

    /// Which bed this is, and the mean service time of its devices in microseconds.
    pub fn kind(&self) -> (BedKind, u64) {
        (self.kind, self.service_us)
    }

    /// How fresh its reads are.
    pub fn level(&self) -> Level {
        match self.kind {
            BedKind::Memory => Level::Stale { bound: None },
            BedKind::Modelled | BedKind::Far | BedKind::Lossy | BedKind::Disk => Level::Session,
        }
    }

    /// Makes sure that a client of this kind is connected to every node.
    ///
    /// # Errors
    /// When a node cannot be reached.
    pub(super) async fn connect(&mut self, kind: ClientKind) -> Result<()> {
        if !self.clients.contains_key(&kind) {
            let one_way = if kind.needs_one_way() { self.one_way().await? } else { Duration::ZERO };
            let mut config = Config::from_url(&self.cluster.url())?;
            kind.set(&mut config, one_way);
            let client = Client::connect(config).await?;
            let views = (0..VIEWS).map(|index| client.view(VIEWS + index)).collect();
            let hedge = (kind == ClientKind::Tower).then(TowerHedge::new);
            self.clients.insert(kind, Connected { client, views, hedge });
        }
        let connected = self.clients.get(&kind).context("just made")?;
        Ok(connected.client.all_connected(CONNECT_DEADLINE).await?)
    }

    /// One network latency of this cluster at rest: half of the median of what reads of one copy, one after another, take
    /// beyond queue wait and service. Measured once.
    async fn one_way(&mut self) -> Result<Duration> {
        if let Some(known) = self.one_way {
            return Ok(known);
        }
        let client = Client::connect(Config::from_url(&self.cluster.url())?).await?;
        client.all_connected(CONNECT_DEADLINE).await?;
        let (policy, level) = (Some(ReadPolicy::UNTIED), Some(self.level()));
        let options = ReadOptions { policy, level, ..ReadOptions::default() };
        let mut crossings = Vec::new();
        for number in 0..CROSSINGS {
            let key = self.workload.key(number % self.workload.count.max(1));
            let report = client.get_with(key, options.clone()).await.context("measuring the latency")?.report;
            crossings.push(report.latency.saturating_sub(report.queue_wait + report.service_time));
        }
        client.close();
        crossings.sort_unstable();
        let one_way = crossings.get(crossings.len() / 2).copied().unwrap_or_default() / 2;
        self.one_way = Some(one_way);
        Ok(one_way)
    }

    /// The one-way latency in microseconds, if delays of clients of this kind are told in it.
    pub(super) fn one_way_us(&self, kind: ClientKind) -> Option<u64> {
        let one_way = self.one_way.filter(|_| kind.needs_one_way())?;
        u64::try_from(one_way.as_micros()).ok()
    }

    /// Starts again what was killed and waits until all are ready and reached.
    ///
    /// # Errors
    /// When a node does not come back.
    pub(super) async fn revive(&mut self, killed: &[NodeId]) -> Result<()> {
        for node in killed {
            self.cluster.restart(*node)?;
        }
        self.cluster.wait_ready().await?;
        for connected in self.clients.values() {
            connected.client.all_connected(CONNECT_DEADLINE).await?;
        }
        Ok(())
    }

    /// The process ids of the servers that run.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.cluster.nodes().iter().filter_map(|node| node.pid()).collect()
    }

    /// Checks that every server still runs.
    ///
    /// # Errors
    /// Names the first that ended and quotes its log.
    pub fn check(&mut self) -> Result<()> {
        Ok(self.cluster.check_all_run()?)
    }

    /// Stops the servers in order.
    pub async fn stop(mut self) {
        self.clients.values().for_each(|connected| connected.client.close());
        self.cluster.stop_all(STOP_DEADLINE).await;
    }
}

fn spec(kind: BedKind, service_us: u64, binary: &Path) -> ClusterSpec {
    let mut spec = ClusterSpec::of(binary);
    let settings = &mut spec.settings;
    settings.faults = true;
    settings.service_mean_us = service_us;
    settings.storage = Storage::Disk;
    match kind {
        BedKind::Modelled => {}
        BedKind::Memory => (settings.device, settings.storage) = (Device::Real, Storage::Memory),
        BedKind::Disk => {
            settings.device = Device::Real;
            // So that a few seconds have a snapshot, and the log stays small beside the data.
            settings.more = "snapshot_entries = 2000\nlog_keep_entries = 2000\n".to_owned();
        }
        BedKind::Far => {
            let mut rules = Rules::default();
            rules.slow(NodeId(3), Duration::from_millis(2));
            spec.relayed = Some(rules);
        }
        BedKind::Lossy => {
            let mut rules = Rules::default();
            rules.lose(0.01);
            spec.relayed = Some(rules);
        }
    }
    spec.settings.more += &format!("start_records_max = {STARTS_MAX}\n");
    spec
}

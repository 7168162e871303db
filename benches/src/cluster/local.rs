//! A cluster of server processes on loopback: folders, certificates, ports, start, ready, faults, clean-up.
//!
//! Everything lies in one temporary folder and is gone when the cluster is dropped: children first, then the
//! folder. That holds for a normal end, an error, a panic and a signal that its owner turns into an end. It sends
//! no request of its own but `/readyz`.

use super::admin_page::{Page, fetch};
use super::certs::{Authority, CertsError};
use super::node_file::{NodeFile, NodeSettings};
use super::ports::{Ports, Reserved, free_ports};
use super::process::ServerProcess;
use super::relay::{Network, Rules};
use crate::clock;
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tiedkv_protocol::ids::{ClusterId, NodeId};

/// How often readiness is asked for.
const READY_POLL: Duration = Duration::from_millis(20);
/// Longest wait for one page of an admin port.
const PAGE_DEADLINE: Duration = Duration::from_secs(1);
/// How often a cluster is tried on other ports when one was taken meanwhile.
const PORT_TRIES: usize = 3;

/// What to start.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The `tiedkv` binary. Default: the running program.
    pub binary: PathBuf,
    /// How many nodes. Default 3.
    pub nodes: usize,
    /// What every node is told.
    pub settings: NodeSettings,
    /// Longest wait for all nodes to be ready. Default 20 s.
    pub ready_deadline: Duration,
    /// Name in the certificate `client`, which is an operator's. Default `demo`.
    pub client_name: String,
    /// All nodes are reached through relays with these rules. Default none.
    pub relayed: Option<Rules>,
    /// Loopback address of all nodes. Default 127.0.0.1.
    pub host: IpAddr,
    /// All nodes are known by other ports than those they listen on, and the caller relays between them
    /// ([`LocalCluster::known`]). Not together with `relayed`. Default no.
    pub relayed_by_caller: bool,
    /// Further variables of every node's environment. Default none.
    pub environment: Vec<(String, String)>,
}

impl ClusterSpec {
    /// Three nodes of the running program with the default settings.
    ///
    /// # Errors
    /// When the running program's path is not known.
    pub fn of_this_program() -> std::io::Result<Self> {
        Ok(Self::of(std::env::current_exe()?))
    }

    /// Three nodes of `binary` with the default settings.
    pub fn of(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            nodes: 3,
            settings: NodeSettings::default(),
            ready_deadline: Duration::from_secs(20),
            client_name: "demo".to_owned(),
            relayed: None,
            host: Ipv4Addr::LOCALHOST.into(),
            relayed_by_caller: false,
            environment: Vec::new(),
        }
    }
}

/// Why a cluster, or one of its nodes, is not as asked. Quotes the end of the node's log.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Certificates could not be made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// The system refused.
    #[error("{what}: {error}")]
    System {
        /// What was asked of it.
        what: String,
        /// Why.
        error: std::io::Error,
    },
    /// No four free ports in a row.
    #[error("no free ports between 12000 and 32000 on {0}")]
    Ports(IpAddr),
    /// A node ended.
    #[error("{node} ended ({status}); the end of its log:\n{log}")]
    Ended {
        /// Which.
        node: NodeId,
        /// How.
        status: ExitStatus,
        /// Its last lines.
        log: String,
    },
    /// A node is not ready in time.
    #[error("{node} was not ready after {after:?} ({answer}); the end of its log:\n{log}")]
    NotReady {
        /// Which.
        node: NodeId,
        /// The deadline.
        after: Duration,
        /// What it said last.
        answer: String,
        /// Its last lines.
        log: String,
    },
    /// A node did not stop in time.
    #[error("{node} did not stop within {after:?}; the end of its log:\n{log}")]
    NotStopped {
        /// Which.
        node: NodeId,
        /// The deadline.
        after: Duration,
        /// Its last lines.
        log: String,
    },
    /// There is no such node, or it does not run.
    #[error("{0} does not run")]
    NotRunning(NodeId),
}

/// One node of a cluster, running or not.
#[derive(Debug)]
pub struct LocalNode {
    id: NodeId,
    ports: Ports,
    config: PathBuf,
    log: PathBuf,
    process: Option<ServerProcess>,
}

impl LocalNode {
    /// Its identity.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its ports.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Its folder: settings, log, data.
    pub fn folder(&self) -> &Path {
        self.config.parent().unwrap_or(&self.config)
    }

    /// Its settings file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(ServerProcess::pid)
    }

    fn spawn(&mut self, spec: &ClusterSpec) -> Result<(), ClusterError> {
        let binary = &spec.binary;
        let arguments =
            ["start", "--config", &self.config.to_string_lossy(), "--until-stdin-closes"].map(str::to_owned);
        let process = ServerProcess::spawn(binary, &arguments, &spec.environment, &self.log);
        self.process = Some(process.map_err(system(format!("starting {}", binary.display())))?);
        Ok(())
    }

    fn running(&mut self) -> Result<&mut ServerProcess, ClusterError> {
        self.process.as_mut().ok_or(ClusterError::NotRunning(self.id))
    }

    fn check_runs(&mut self) -> Result<(), ClusterError> {
        let node = self.id;
        let process = self.running()?;
        match process.ended().map_err(system(format!("asking about {node}")))? {
            Some(status) => Err(ClusterError::Ended { node, status, log: process.log_tail() }),
            None => Ok(()),
        }
    }
}

/// A running cluster. Dropping it kills all nodes and removes all files.
#[derive(Debug)]
pub struct LocalCluster {
    // In this order: the children are gone before their folder.
    nodes: Vec<LocalNode>,
    spec: ClusterSpec,
    cluster: ClusterId,
    /// Where each node is known.
    known: Vec<(NodeId, Ports)>,
    _network: Option<Network>,
    /// Ports of nodes that do not run belong to this cluster all the same.
    reserved: Vec<Reserved>,
    folder: TempDir,
}

impl LocalCluster {
    /// Makes certificates and folders, starts all nodes and waits until each is ready.
    ///
    /// # Errors
    /// When a node ends or is not ready in time; nothing is left then.
    ///
    /// # Cancel safety
    /// Safe: what was started is killed and removed.
    pub async fn start(spec: ClusterSpec) -> Result<Self, ClusterError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut cluster = match Self::spawn(spec.clone()) {
                Err(ClusterError::System { error, .. })
                    if tries < PORT_TRIES && error.kind() == std::io::ErrorKind::AddrInUse =>
                {
                    continue;
                }
                cluster => cluster?,
            };
            match cluster.wait_ready().await {
                Ok(()) => return Ok(cluster),
                // Another process took a port between the probe and the start.
                Err(ClusterError::Ended { log, .. }) if tries < PORT_TRIES && log.contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// As [`Self::start`], without waiting.
    ///
    /// # Errors
    /// When certificates, folders or processes cannot be made; nothing is left then.
    pub fn spawn(spec: ClusterSpec) -> Result<Self, ClusterError> {
        let folder = tempfile::Builder::new().prefix("tiedkv-").tempdir().map_err(system("temporary folder"))?;
        let authority = Authority::create(&folder.path().join("certs"))?;
        authority.issue_operator("client", &spec.client_name)?;
        let relayed = spec.relayed_by_caller || spec.relayed.is_some();
        let ports = free_ports(if relayed { 2 * spec.nodes } else { spec.nodes }, spec.host, &mut rand::rng());
        let ports = ports.ok_or(ClusterError::Ports(spec.host))?;
        let (real, before) = ports.split_at(spec.nodes);
        let dialled = if relayed { before } else { real };
        let known: Vec<(NodeId, Ports)> = (1..).map(NodeId).zip(dialled.iter().copied()).collect();
        let network = match &spec.relayed {
            None => None,
            Some(rules) => Some(Network::before(&known, real, rules).map_err(system("relays"))?),
        };
        let cluster = authority.cluster();
        let mut local = Self {
            nodes: Vec::new(),
            spec,
            cluster,
            known: known.clone(),
            _network: network,
            reserved: Vec::new(),
            folder,
        };
        for ((id, _), ports) in known.iter().zip(real) {
            authority.issue_node(*id)?;
            let node = local.place(*id, *ports, &known)?;
            local.nodes.push(node);
        }
        local.reserved.push(ports);
        for node in &mut local.nodes {
            node.spawn(&local.spec)?;
        }
        Ok(local)
    }

    fn place(&self, id: NodeId, ports: Ports, members: &[(NodeId, Ports)]) -> Result<LocalNode, ClusterError> {
        let folder = self.folder.path().join(format!("node-{}", id.0));
        std::fs::create_dir_all(&folder).map_err(system("node folder"))?;
        let config = folder.join("node.toml");
        let file = NodeFile {
            id,
            ports,
            members,
            certs: &self.certs(),
            data: &folder.join("data"),
            settings: &self.spec.settings,
        };
        std::fs::write(&config, file.text()).map_err(system("node.toml"))?;
        Ok(LocalNode { id, ports, config, log: folder.join("log"), process: None })
    }

    /// The cluster's identity.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The folder of `ca.pem`, `client.pem` and `client.key`.
    pub fn certs(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    /// The folder that everything lies in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The nodes, in the order of their identities (1, 2, ...).
    pub fn nodes(&self) -> &[LocalNode] {
        &self.nodes
    }

    /// A connection string that works as it is in every command and in the client crate.
    pub fn url(&self) -> String {
        let seeds: Vec<String> = self.known.iter().map(|(_, ports)| ports.client().to_string()).collect();
        format!("tiedkv://{}/?certs={}", seeds.join(","), percent_encoded(&self.certs().to_string_lossy()))
    }

    /// The ports by which each node is known to the others and to clients.
    pub fn known(&self) -> &[(NodeId, Ports)] {
        &self.known
    }

    /// Waits until every running node says that it is ready.
    ///
    /// # Errors
    /// When one ends or is not ready within the deadline of the spec.
    pub async fn wait_ready(&mut self) -> Result<(), ClusterError> {
        let end = clock::now() + self.spec.ready_deadline;
        for index in 0..self.nodes.len() {
            if self.nodes[index].process.is_some() {
                self.wait_node_ready(index, end).await?;
            }
        }
        Ok(())
    }

    async fn wait_node_ready(&mut self, index: usize, end: Instant) -> Result<(), ClusterError> {
        let after = self.spec.ready_deadline;
        let node = &mut self.nodes[index];
        loop {
            node.check_runs()?;
            let answer = match fetch(node.ports.admin(), "/readyz", PAGE_DEADLINE).await {
                Ok(Page { status: 200, .. }) => return Ok(()),
                Ok(page) => format!("/readyz says {}: {}", page.status, page.body.trim()),
                Err(error) => format!("/readyz: {error}"),
            };
            if clock::now() >= end {
                let log = node.running()?.log_tail();
                return Err(ClusterError::NotReady { node: node.id, after, answer, log });
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Checks that every node that was not stopped on purpose still runs.
    ///
    /// # Errors
    /// Names the first that ended and quotes its log.
    pub fn check_all_run(&mut self) -> Result<(), ClusterError> {
        self.nodes.iter_mut().filter(|node| node.process.is_some()).try_for_each(LocalNode::check_runs)
    }

    /// Kills a node at once (SIGKILL). One that does not run is left alone.
    pub fn kill(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.iter_mut().find(|local| local.id == node) {
            node.process = None;
        }
    }

    /// Freezes a node (SIGSTOP): no answer, no notice.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&mut self, node: NodeId) -> Result<(), ClusterError> {
        self.signal(node, Signal::STOP)
    }

    /// Lets a frozen node go on (SIGCONT).
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&mut self, node: NodeId) -> Result<(), ClusterError> {
        self.signal(node, Signal::CONT)
    }

    /// Sends any signal to a node.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&mut self, node: NodeId, signal: Signal) -> Result<(), ClusterError> {
        self.local(node)?.running()?.signal(signal).map_err(system(format!("signalling {node}")))
    }

    /// Asks a node to stop in order (SIGTERM) and waits for its end.
    ///
    /// # Errors
    /// When it does not run or does not end within `deadline`.
    pub async fn stop(&mut self, node: NodeId, deadline: Duration) -> Result<ExitStatus, ClusterError> {
        self.signal(node, Signal::TERM)?;
        self.wait_stopped(node, deadline).await
    }

    /// Waits until a node has ended by itself or by a signal.
    ///
    /// # Errors
    /// When it does not run or does not end within `deadline`.
    pub async fn wait_stopped(&mut self, node: NodeId, deadline: Duration) -> Result<ExitStatus, ClusterError> {
        let local = self.local(node)?;
        let process = local.running()?;
        match process.wait(deadline).await.map_err(system(format!("waiting for {node}")))? {
            Some(status) => {
                local.process = None;
                Ok(status)
            }
            None => Err(ClusterError::NotStopped { node, after: deadline, log: process.log_tail() }),
        }
    }

    /// Stops all nodes in order, each within `deadline`; those that do not stop are killed.
    pub async fn stop_all(&mut self, deadline: Duration) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                // One that cannot be signalled is killed below.
                let _ = process.signal(Signal::TERM);
            }
        }
        for node in &mut self.nodes {
            if let Some(mut process) = node.process.take() {
                let _ = process.wait(deadline).await;
            }
        }
    }

    /// Starts a node that was killed or stopped, with its old identity, ports and folder.
    ///
    /// # Errors
    /// When it cannot be started. Does not wait until it is ready: see [`Self::wait_ready`].
    pub fn restart(&mut self, node: NodeId) -> Result<(), ClusterError> {
        let spec = self.spec.clone();
        let local = self.local(node)?;
        local.process = None;
        local.spawn(&spec)
    }

    /// Makes one more node (certificate, folder, ports, settings that name all nodes and itself) and starts it. It is
    /// no member until it is added.
    ///
    /// # Errors
    /// When it cannot be made or started. Does not wait until it is ready.
    pub fn add_node(&mut self) -> Result<NodeId, ClusterError> {
        let id = NodeId(self.nodes.iter().map(|node| node.id.0).max().unwrap_or(0) + 1);
        Authority::open(&self.certs())?.issue_node(id)?;
        let host = self.spec.host;
        let count = if self.spec.relayed_by_caller { 2 } else { 1 };
        let found = free_ports(count, host, &mut rand::rng()).ok_or(ClusterError::Ports(host))?;
        let [ports, ..] = found[..] else { return Err(ClusterError::Ports(host)) };
        self.known.push((id, found.last().copied().unwrap_or(ports)));
        self.reserved.push(found);
        let mut node = self.place(id, ports, &self.known)?;
        node.spawn(&self.spec)?;
        self.nodes.push(node);
        Ok(id)
    }

    /// The end of a node's log.
    pub fn log_tail(&self, node: NodeId) -> String {
        let process = self.nodes.iter().find(|local| local.id == node).and_then(|local| local.process.as_ref());
        process.map_or_else(String::new, ServerProcess::log_tail)
    }

    fn local(&mut self, node: NodeId) -> Result<&mut LocalNode, ClusterError> {
        self.nodes.iter_mut().find(|local| local.id == node).ok_or(ClusterError::NotRunning(node))
    }
}

fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ClusterError {
    let what = what.into();
    move |error| ClusterError::System { what, error }
}

/// A path as it may stand in a query: everything but letters, digits and `/-_.~` as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
#[path = "local_test.rs"]
mod tests;

//! The status page of a node: one document for `/status`, the administrative operation and the command line.

use crate::clock;
use crate::peer::cancel_channel::{CancelChannel, CancelStatus};
use crate::peer::directory::Directory;
use crate::peer::hello::PEER_VERSION;
use crate::replica::{ReplicaControl, ReplicaStatus};
use crate::request::counters::CountersSnapshot;
use crate::request::path::{PathStatus, RequestPath};
use crate::shutdown::Phase;
use crate::transport::dispatch::SessionCounters;
use crate::transport::expiry::CertificateEnds;
use crate::transport::listen::ListenCounters;
use crate::transport::udp::{self, UdpBuffers};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tiedkv_protocol::hello::{Ceiling, Topology};
use tiedkv_protocol::ids::{ClusterId, NodeId};
use tiedkv_protocol::limits::PROTOCOL_VERSION;
use tiedkv_protocol::moment::Moment;
use tokio::sync::watch;

/// Where a node listens, as bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// Clients (QUIC).
    pub client: SocketAddr,
    /// Peers' Raft (QUIC), if it is spoken.
    pub peer: Option<SocketAddr>,
    /// Peers' cancels (QUIC).
    pub cancel: SocketAddr,
    /// HTTP.
    pub admin: SocketAddr,
}

/// What a node says about itself. Fields may be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusPage {
    /// Who.
    pub node: NodeId,
    /// Of which cluster, 32 hex digits.
    pub cluster: String,
    /// Version of the program.
    pub version: String,
    /// Version of the wire format.
    pub protocol_version: u16,
    /// Version of what peers say to each other.
    pub peer_version: u16,
    /// Process id.
    pub process: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// `running`, `draining` or `closing`.
    pub phase: String,
    /// Everything `/readyz` asks for holds.
    pub ready: bool,
    /// `real`, or `modelled`: service times are drawn.
    pub device: String,
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// Clients may disturb the device.
    pub allow_disturb: bool,
    /// Clients may cause faults.
    pub allow_faults: bool,
    /// Where it listens.
    pub addresses: Addresses,
    /// When its certificates end.
    pub certificates: CertificatesStatus,
    /// The smallest buffers that the system gave to any UDP socket of the process, bytes.
    pub udp_buffers: UdpBuffers,
    /// Store and order.
    pub replica: ReplicaStatus,
    /// Committed less applied.
    pub lag: u64,
    /// Queues and workers.
    pub path: PathStatus,
    /// Cancel channel.
    pub cancels: CancelStatus,
    /// Who is there.
    pub topology: Topology,
    /// What the operator allows.
    pub ceiling: Ceiling,
}

/// When the certificates of a node end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificatesStatus {
    /// The node's own: seconds since the Unix epoch.
    pub node_not_after_unix_s: u64,
    /// Seconds until then; negative once it is over.
    pub node_expires_in_s: i64,
    /// The authority's: seconds since the Unix epoch.
    pub authority_not_after_unix_s: u64,
    /// Seconds until then; negative once it is over.
    pub authority_expires_in_s: i64,
}

/// All counters of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountersPage {
    /// Who.
    pub node: NodeId,
    /// Of the request path.
    pub path: CountersSnapshot,
    /// Of the cancel channel.
    pub cancels: crate::peer::cancel_channel::CancelCountersSnapshot,
    /// Of the client port.
    pub clients: ClientPortCounters,
}

/// Counters of the client port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientPortCounters {
    /// Connections welcomed so far.
    pub connections: u64,
    /// Frames received.
    pub frames: u64,
    /// Frames not understood or not allowed.
    pub malformed: u64,
    /// Writes refused at the bound of a connection.
    pub writes_refused: u64,
    /// Handshakes begun.
    pub handshakes: u64,
    /// Addresses asked to prove themselves first.
    pub retried: u64,
    /// Connections refused at a bound.
    pub refused: u64,
    /// Handshakes failed.
    pub failed: u64,
}

/// One line of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub name: &'static str,
    /// What is missing, if anything.
    pub outcome: Result<(), String>,
}

/// Who can be asked for the state of a node. Cheap to share.
pub struct Observer {
    /// This node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Since when.
    pub started: Moment,
    /// Clients may disturb the device.
    pub allow_disturb: bool,
    /// Clients may cause faults.
    pub allow_faults: bool,
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// Where it listens.
    pub addresses: Addresses,
    /// When its certificates end.
    pub ends: CertificateEnds,
    /// The request path.
    pub path: RequestPath,
    /// The cancel channel.
    pub cancels: CancelChannel,
    /// Members.
    pub directory: Arc<Directory>,
    /// Store and order.
    pub replica: Arc<dyn ReplicaControl>,
    /// Where the node is on its way.
    pub phase: watch::Receiver<Phase>,
    /// Of all sessions.
    pub sessions: Arc<SessionCounters>,
    /// Of the accept loop.
    pub listener: Arc<ListenCounters>,
}

impl Observer {
    /// Everything `/readyz` asks for.
    pub fn checks(&self) -> Vec<Check> {
        let phase = *self.phase.borrow();
        let status = self.path.status();
        let unless = |bad: bool, text: &str| if bad { Err(text.to_owned()) } else { Ok(()) };
        vec![
            Check { name: "not-stopping", outcome: unless(phase != Phase::Running, "the node is on its way out") },
            Check { name: "replica", outcome: self.replica.ready() },
            Check {
                name: "certificate",
                outcome: unless(self.certificates().node_expires_in_s <= 0, "this node's certificate has expired"),
            },
            Check {
                name: "storage",
                outcome: unless(status.storage_latched, "reads are refused: storage failed repeatedly"),
            },
        ]
    }

    /// When the certificates end, from now.
    pub fn certificates(&self) -> CertificatesStatus {
        let now = i64::try_from(clock::unix_ns() / 1_000_000_000).unwrap_or(i64::MAX);
        let left = |end: u64| i64::try_from(end).unwrap_or(i64::MAX).saturating_sub(now);
        let CertificateEnds { node, authority } = self.ends;
        CertificatesStatus {
            node_not_after_unix_s: node,
            node_expires_in_s: left(node),
            authority_not_after_unix_s: authority,
            authority_expires_in_s: left(authority),
        }
    }

    /// Does every check hold?
    pub fn is_ready(&self) -> bool {
        self.checks().iter().all(|check| check.outcome.is_ok())
    }

    /// The status page now.
    pub fn status(&self) -> StatusPage {
        let replica = self.replica.status();
        let announced = self.directory.announcement();
        StatusPage {
            node: self.node,
            cluster: self.cluster.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: PROTOCOL_VERSION,
            peer_version: PEER_VERSION,
            process: std::process::id(),
            uptime_s: clock::now().since(self.started).as_secs(),
            phase: format!("{:?}", *self.phase.borrow()).to_lowercase(),
            ready: self.is_ready(),
            device: if self.modelled { "modelled" } else { "real" }.to_owned(),
            modelled: self.modelled,
            allow_disturb: self.allow_disturb,
            allow_faults: self.allow_faults,
            addresses: self.addresses,
            certificates: self.certificates(),
            udp_buffers: udp::least(),
            lag: replica.committed.0.saturating_sub(replica.applied.0),
            replica,
            path: self.path.status(),
            cancels: self.cancels.status(),
            topology: (*announced.topology).clone(),
            ceiling: announced.ceiling,
        }
    }

    /// All counters now.
    pub fn counters(&self) -> CountersPage {
        let (sessions, listener) = (&self.sessions, &self.listener);
        CountersPage {
            node: self.node,
            path: self.path.counters(),
            cancels: self.cancels.counters(),
            clients: ClientPortCounters {
                connections: sessions.connections.load(Relaxed),
                frames: sessions.frames.load(Relaxed),
                malformed: sessions.malformed.load(Relaxed),
                writes_refused: sessions.writes_refused.load(Relaxed),
                handshakes: listener.handshakes.load(Relaxed),
                retried: listener.retried.load(Relaxed),
                refused: listener.refused.load(Relaxed),
                failed: listener.failed.load(Relaxed),
            },
        }
    }
}

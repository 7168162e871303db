//! The side of a node that stores and orders: a store, who takes writes, who knows what a linearizable read waits
//! for, and a control. The seam between `node` and what `storage` says: in memory, or on disk and replicated.
//!
//! This room opens what the settings ask for; how it works inside is known to `storage` and `raft` alone.

use crate::config::{Config, Storage};
use crate::error::NodeError;
use crate::peer::directory::Directory;
use crate::request::barrier::{NoBarrier, ReadBarrier};
use crate::request::doors::Writer;
use crate::request::write::LocalWriter;
use crate::storage::memory::MemoryStore;
use crate::storage::state_store::StateStore;
use crate::transport::tls::Credentials;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::request::AdminOperation;
use tiedkv_protocol::response::Failure;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// What stores and orders, opened.
pub struct Replica {
    /// Where views come from.
    pub store: Arc<dyn StateStore>,
    /// Who takes writes.
    pub writer: Arc<dyn Writer>,
    /// Who knows what a linearizable read waits for.
    pub barrier: Arc<dyn ReadBarrier>,
    /// Everything else.
    pub control: Arc<dyn ReplicaControl>,
    /// Where peers are listened to for Raft, if they are.
    pub peer_address: Option<SocketAddr>,
}

/// What a replica is given to live with.
pub struct Surroundings {
    /// Certificates.
    pub credentials: Arc<Credentials>,
    /// Who is in the cluster; a replicated one keeps members and leader up to date here.
    pub directory: Arc<Directory>,
    /// The runtime for peers' Raft: one thread, shared with admin HTTP only.
    pub peers: Handle,
}

/// A future of the replica's control.
pub type ControlFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A replica at one moment, for `/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// `memory`, or what Raft says: `leader`, `follower`, `candidate`, `learner`.
    pub role: String,
    /// Raft's term; 0 where nothing is replicated.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<NodeId>,
    /// Position of the newest published view.
    pub applied: Position,
    /// Position known to be committed; the same as `applied` where nothing is replicated.
    pub committed: Position,
    /// The log and what follows from it; all 0 where nothing is replicated.
    #[serde(default)]
    pub log: LogStatus,
}

/// The log of a replica at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// Entries appended since the start.
    pub appended_total: u64,
    /// fsyncs of the log since the start.
    pub syncs_total: u64,
    /// Bytes of the log on disk.
    pub disk_bytes: u64,
    /// Bytes of the state on disk.
    pub state_bytes: u64,
    /// State is durable up to here, so that the log may be cut.
    pub snapshot: Position,
    /// The log is cut up to here.
    pub purged: Position,
    /// States hashed since the start, to be compared with those of the other replicas.
    #[serde(default)]
    pub checks_total: u64,
    /// Of these, not the same on all replicas: an alarm.
    #[serde(default)]
    pub checks_differed_total: u64,
}

/// What a node asks of its replica besides reads and writes.
pub trait ReplicaControl: Send + Sync {
    /// The state now; cheap.
    fn status(&self) -> ReplicaStatus;
    /// Can it serve? One line for `/readyz` if not.
    ///
    /// # Errors
    /// Says what is missing.
    fn ready(&self) -> Result<(), String>;
    /// Holds publication back, or catches up: for tests.
    ///
    /// # Errors
    /// `Unsupported` where the store cannot.
    fn lag(&self, on: bool) -> Result<(), Failure>;
    /// An operation on the cluster: members, leadership, ceiling.
    fn administer(&self, operation: AdminOperation) -> ControlFuture<Result<(), Failure>>;
    /// Why the replica can no longer go on, once it cannot: the process says so and exits. `None` where that cannot be.
    fn fatal(&self) -> Option<watch::Receiver<Option<String>>> {
        None
    }
    /// The node is about to stop: hands leadership on, if it can within `patience`.
    fn leave(&self, patience: Duration) -> ControlFuture<()>;
    /// Ends everything and closes files; blocks, at most about `patience`.
    fn stop(&self, patience: Duration);
}

/// Opens what `config` asks for.
///
/// # Errors
/// When storage or sockets cannot be opened.
pub fn open(config: &Config, surroundings: Surroundings) -> Result<Replica, NodeError> {
    match config.storage {
        Storage::Memory => Ok(open_memory(surroundings.directory)),
        Storage::Fjall => crate::raft::replica::open(config, surroundings),
    }
}

fn open_memory(directory: Arc<Directory>) -> Replica {
    let store = Arc::new(MemoryStore::new());
    Replica {
        writer: Arc::new(LocalWriter::new(directory.own(), store.clone())),
        barrier: Arc::new(NoBarrier),
        control: Arc::new(MemoryControl { store: store.clone(), directory }),
        store,
        peer_address: None,
    }
}

/// The control of a node that is not replicated.
struct MemoryControl {
    store: Arc<MemoryStore>,
    directory: Arc<Directory>,
}

impl ReplicaControl for MemoryControl {
    fn status(&self) -> ReplicaStatus {
        let applied = self.store.view().position();
        ReplicaStatus {
            role: "memory".to_owned(),
            term: 0,
            leader: None,
            applied,
            committed: applied,
            log: LogStatus::default(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn lag(&self, on: bool) -> Result<(), Failure> {
        self.store.lag(on);
        Ok(())
    }

    fn administer(&self, operation: AdminOperation) -> ControlFuture<Result<(), Failure>> {
        let outcome = match operation {
            // Not replicated: holds for this node, until it restarts.
            AdminOperation::SetCeiling(ceiling) => {
                self.directory.set_ceiling(ceiling);
                Ok(())
            }
            _ => Err(Failure::new(
                ErrorCode::Unsupported,
                "this node is not replicated (`storage` = `memory`): there is no membership to change",
            )),
        };
        Box::pin(async { outcome })
    }

    fn leave(&self, _patience: Duration) -> ControlFuture<()> {
        Box::pin(async {})
    }

    fn stop(&self, _patience: Duration) {}
}

//! What all handles of one client share: connections, counters, the sequence of idempotency keys. Ends the
//! connections when the last handle is dropped.

use crate::clock;
use crate::config::{Config, ConfigError};
use crate::connections::Connections;
use crate::dial::Dialler;
use crate::error::{Cause, CopyFate, CopyReport, Error};
use crate::options::deadline_of;
use crate::report::NodeView;
use crate::stats::Stats;
use crate::switch_file;
use crate::switchboard::{self, Switchboard};
use crate::timer::Timer;
use crate::tls;
use bytes::Bytes;
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::Topology;
use tiedkv_protocol::ids::{ClientId, ClusterId, NodeId, Position};
use tiedkv_protocol::request::{AdminOperation, CopyKind, IdempotencyKey};
use tiedkv_protocol::response::Failure;

/// One per client.
#[derive(Debug)]
pub(crate) struct Shared {
    connections: Arc<Connections>,
    client: ClientId,
    sequence: AtomicU64,
}

impl Shared {
    /// Loads the certificates, begins to dial, waits for the first node.
    pub(crate) async fn connect(config: Config) -> Result<Arc<Self>, Error> {
        let began = clock::now();
        config.check()?;
        let until = began + config.connect_deadline;
        let credentials = tls::load(&config)?;
        let client = ClientId(random_u128());
        let timer = Timer::new().map_err(|error| {
            let reason = format!(": the timer cannot be made: {error}");
            Error::new(Cause::NoReplica(reason), Vec::new(), Duration::ZERO)
        })?;
        let board = Arc::new(Switchboard::default());
        let variable = std::env::var(switchboard::VARIABLE).ok();
        board.set_environment(switchboard::from_environment(variable.as_deref())?);
        let switches = match config.tied_file.clone() {
            Some(path) => {
                let wrong = |reason: String| ConfigError::SwitchFile { path: path.display().to_string(), reason };
                let text = switch_file::read(&path).map_err(wrong)?;
                board.set_file(switch_file::parse(text.as_deref().unwrap_or("")).map_err(wrong)?);
                Some((Arc::from(path), text))
            }
            None => None,
        };
        let dialler = Dialler::new(credentials, client, config.udp_buffer_bytes);
        let connections = Connections::start(config, dialler, timer, board);
        if let Some((path, text)) = switches {
            connections.watch_switches(path, text);
        }
        let shared = Arc::new(Self { connections, client, sequence: AtomicU64::new(1) });
        if shared.connections.wait(until, Connections::any_link).await {
            return Ok(shared);
        }
        let mut reasons = shared.connections.dial_errors();
        if reasons.is_empty() {
            let config = shared.config();
            reasons = format!(" ({}: no answer within {:?})", config.seeds.join(", "), config.connect_deadline);
        }
        Err(Error::new(Cause::NoReplica(reasons), Vec::new(), clock::now().since(began)))
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    pub(crate) fn config(&self) -> &Config {
        self.connections.config()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.connections.counters.snapshot()
    }

    /// A fresh idempotency key for a write made now by a session that has seen `floor`.
    pub(crate) fn idempotency(&self, floor: Position) -> IdempotencyKey {
        IdempotencyKey { client: self.client, sequence: self.sequence.fetch_add(1, Relaxed), floor }
    }

    pub(crate) async fn all_connected(&self, deadline: Duration) -> Result<(), Error> {
        let began = clock::now();
        let wanted = self.config().connections_per_node;
        let all = |connections: &Connections| {
            let table = connections.table();
            !table.peers.is_empty() && table.peers.iter().all(|peer| peer.links() >= wanted)
        };
        if self.connections.wait(began + deadline, all).await {
            return Ok(());
        }
        let missing = |peer: &Arc<crate::peer::Peer>| {
            let reason = peer.dial_error().unwrap_or_else(|| "not dialled yet".to_owned());
            CopyReport { node: peer.node, kind: CopyKind::First, fate: CopyFate::NotSent(reason) }
        };
        let table = self.connections.table();
        let missing = table.peers.iter().filter(|peer| peer.links() < wanted).map(missing).collect();
        Err(Error::new(Cause::Deadline(deadline), missing, clock::now().since(began)))
    }

    pub(crate) async fn admin(
        &self,
        node: NodeId,
        operation: AdminOperation,
        deadline: Duration,
    ) -> Result<Bytes, Error> {
        let began = clock::now();
        let deadline = deadline_of(Some(deadline), deadline)?;
        let until = began + deadline;
        let connections = &self.connections;
        let fail = |cause, fate: Option<CopyFate>| {
            let copies = fate.map(|fate| CopyReport { node, kind: CopyKind::First, fate }).into_iter().collect();
            Error::new(cause, copies, clock::now().since(began))
        };
        let table = connections.table().clone();
        let Some(peer) = table.peer(node) else {
            let known: Vec<String> = table.peers.iter().map(|peer| peer.node.to_string()).collect();
            let message = format!("{node} is no member; members are {}", known.join(", "));
            return Err(fail(Cause::Call(Failure::new(ErrorCode::NotAllowed, message)), None));
        };
        connections.wait(until, |_| peer.links() > 0).await;
        let Some(link) = peer.link() else {
            let reason = peer.dial_error().unwrap_or_else(|| "not reached".to_owned());
            let cause = if connections.is_closed() { Cause::Closed } else { Cause::Deadline(deadline) };
            return Err(fail(cause, Some(CopyFate::NotSent(reason))));
        };
        let now = clock::now();
        let answer = match link.send_admin(operation, until.since(now), now) {
            Ok(answer) => answer,
            Err(reason) => return Err(fail(Cause::NoReplica(String::new()), Some(CopyFate::NotSent(reason)))),
        };
        match connections.timer.within(until, answer.answer()).await {
            Some(Ok((reply, payload))) => match reply.outcome {
                Ok(()) => Ok(payload),
                Err(failure) => Err(fail(Cause::Node(failure), None)),
            },
            Some(Err(lost)) => {
                let reason = format!("the link to {node} was lost: {}", lost.0);
                Err(fail(Cause::UnknownOutcome(reason), Some(CopyFate::LinkLost(lost.0.to_string()))))
            }
            None => Err(fail(Cause::Deadline(deadline), Some(CopyFate::Unanswered))),
        }
    }

    pub(crate) fn topology(&self) -> Topology {
        self.connections.table().topology.clone()
    }

    pub(crate) fn cluster(&self) -> ClusterId {
        self.connections.dialler().credentials().cluster
    }

    pub(crate) fn nodes(&self) -> Vec<NodeView> {
        let table = self.connections.table();
        let view = |peer: &Arc<crate::peer::Peer>| NodeView {
            member: peer.member(),
            links: peer.links(),
            leader: table.topology.leader == Some(peer.node),
            round_trip: peer.one_way().map(|one_way| one_way * 2),
            tie_delay: peer.tie_delay(),
            modelled: peer.modelled(),
            last_loss: peer.last_loss(),
        };
        table.peers.iter().map(view).collect()
    }

    pub(crate) fn close(&self) {
        self.connections.close();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connections.drop_all();
    }
}

/// 128 bits from the operating system's randomness (rule R5 of docs/tie-protocol.md).
pub(crate) fn random_u128() -> u128 {
    let mut bytes = [0u8; 16];
    if OsRng.try_fill_bytes(&mut bytes).is_err() {
        // Only on systems without a source of randomness; the generator below was seeded by it.
        rand::RngCore::fill_bytes(&mut rand::rng(), &mut bytes);
    }
    u128::from_le_bytes(bytes)
}

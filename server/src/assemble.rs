//! What a node is made from: its certificates, its threads, its sockets, its members, and the settings of each room
//! out of the settings of the node. Opens and translates; connects nothing (that is `node`).

use crate::admin::status::Addresses;
use crate::config::{Config, Device, Priority};
use crate::error::NodeError;
use crate::peer::cancel_channel::CancelSettings;
use crate::peer::priority;
use crate::request::config::RequestConfig;
use crate::shutdown::IoThread;
use crate::storage::device::{DeviceConfig, ModelledConfig};
use crate::transport::dispatch::SessionLimits;
use crate::transport::listen::{ConnectionBounds, endpoint};
use crate::transport::quic;
use crate::transport::tls::{CertificateError, CertificateFiles, Credentials, Port};
use quinn::Endpoint;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::NodeId;
use tokio::runtime::Handle;

/// The I/O threads of a node.
pub(crate) struct Threads {
    /// Sockets of clients.
    pub(crate) clients: IoThread,
    /// Raft of peers, and admin HTTP.
    pub(crate) peers: IoThread,
    /// The cancel channel.
    pub(crate) cancels: IoThread,
}

impl Threads {
    /// Starts them; true if the cancel channel's got real-time priority.
    pub(crate) fn start(wanted: Priority) -> Result<(Self, bool), NodeError> {
        let (clients, ()) = IoThread::start("tiedkv-clients", move || prompt(wanted))?;
        let (peers, ()) = IoThread::start("tiedkv-peers", || ())?;
        let (cancels, realtime) = IoThread::start("tiedkv-cancels", move || wanted == Priority::Auto && raised())?;
        Ok((Self { clients, peers, cancels }, realtime))
    }
}

/// Asks for a short slice, if priorities may be touched; without one wake-ups take longer on a busy machine.
pub(crate) fn prompt(wanted: Priority) {
    if wanted == Priority::Auto
        && let Err(error) = priority::shorten_slice()
    {
        tracing::debug!(%error, "the thread keeps its slice");
    }
}

/// The sockets of a node, but Raft's (the replica opens that one).
pub(crate) struct Sockets {
    pub(crate) clients: Endpoint,
    pub(crate) cancels: Endpoint,
    pub(crate) admin: TcpListener,
}

impl Sockets {
    /// Opens them, each on the runtime that shall drive it.
    pub(crate) fn open(config: &Config, credentials: &Credentials, threads: &Threads) -> Result<Self, NodeError> {
        Ok(Self {
            clients: listen(config, credentials, Port::Client, threads.clients.handle())?,
            cancels: listen(config, credentials, Port::Cancel, threads.cancels.handle())?,
            admin: bind_admin(config.admin_address)?,
        })
    }

    /// Where they listen, as bound.
    pub(crate) fn addresses(&self, config: &Config) -> Addresses {
        Addresses {
            client: self.clients.local_addr().unwrap_or(config.client_address),
            peer: None,
            cancel: self.cancels.local_addr().unwrap_or(config.cancel_address),
            admin: self.admin.local_addr().unwrap_or(config.admin_address),
        }
    }
}

/// Tries to make the calling thread real-time; says so once if the system does not allow it.
fn raised() -> bool {
    static SAID: std::sync::Once = std::sync::Once::new();
    let raised = priority::raise_this_thread();
    if let Err(error) = &raised {
        SAID.call_once(|| {
            tracing::info!(%error, "no real-time priority for cancels (CAP_SYS_NICE); workers run at nice +19 instead");
        });
    }
    raised.is_ok()
}

/// The node's certificates, by `node_id` or because only one node's lie in the folder.
pub(crate) fn credentials(config: &Config) -> Result<Credentials, NodeError> {
    let node = match config.node_id {
        Some(node) => node,
        None => only_node_in(&config.certs_dir)?,
    };
    Ok(Credentials::load(&CertificateFiles::of_node(&config.certs_dir, node), Some(node))?)
}

/// The node whose certificate lies in `folder`, if there is exactly one.
fn only_node_in(folder: &Path) -> Result<NodeId, NodeError> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| CertificateError::File { path: folder.to_owned(), reason: error.to_string() })?;
    let id = |name: &str| name.strip_prefix("node-")?.strip_suffix(".pem")?.parse().ok();
    let found: Vec<u64> = entries.flatten().filter_map(|entry| id(entry.file_name().to_str()?)).collect();
    match found[..] {
        [only] => Ok(NodeId(only)),
        _ => Err(NodeError::WhichNode { folder: folder.to_owned(), found: found.len() }),
    }
}

fn listen(config: &Config, credentials: &Credentials, port: Port, runtime: &Handle) -> Result<Endpoint, NodeError> {
    let (setting, address) = match port {
        Port::Client => ("client_address", config.client_address),
        Port::Peer => ("peer_address", config.peer_address),
        Port::Cancel => ("cancel_address", config.cancel_address),
    };
    let server = tls(port, quic::server(credentials, port))?;
    let _entered = runtime.enter();
    endpoint(address, config.udp_buffer_bytes, server).map_err(|source| NodeError::Bind {
        setting,
        address,
        source,
    })
}

/// Names the port that the TLS library complains about.
pub(crate) fn tls<T>(port: Port, made: Result<T, rustls::Error>) -> Result<T, NodeError> {
    made.map_err(|source| NodeError::Tls { port: port.name(), source })
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, NodeError> {
    let fault = |source| NodeError::Bind { setting: "admin_address", address, source };
    let listener = TcpListener::bind(address).map_err(fault)?;
    listener.set_nonblocking(true).map_err(fault)?;
    Ok(listener)
}

/// The configured members, or this node alone. Port 0 of this node's own entry becomes what was bound.
pub(crate) fn members(config: &Config, own: NodeId, addresses: &Addresses) -> Result<Vec<Member>, NodeError> {
    let mut members: Vec<Member> = config.members.iter().map(|member| member.0.clone()).collect();
    let alone = Member {
        node: own,
        zone: String::new(),
        client_address: addresses.client.to_string(),
        peer_address: config.peer_address.to_string(),
        cancel_address: addresses.cancel.to_string(),
        learner: false,
    };
    if members.is_empty() {
        return Ok(vec![alone]);
    }
    let Some(member) = members.iter_mut().find(|member| member.node == own) else {
        let members = config.members.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        return Err(NodeError::NotAMember { node: own.0, members });
    };
    for (known, bound) in
        [(&mut member.client_address, alone.client_address), (&mut member.cancel_address, alone.cancel_address)]
    {
        if known.ends_with(":0") {
            *known = bound;
        }
    }
    Ok(members)
}

/// Of the cancel channel.
pub(crate) fn cancel_settings(config: &Config) -> CancelSettings {
    CancelSettings {
        ping_pause: config.cancel_ping,
        queue_max: config.cancel_queue_max,
        handshake_limit: config.handshake_limit,
    }
}

/// Of client sessions.
pub(crate) fn session_limits(config: &Config) -> SessionLimits {
    SessionLimits {
        handshake_limit: config.handshake_limit,
        replies_waiting_max_bytes: config.replies_waiting_max_bytes,
        replies_stalled_max: config.replies_stalled_max,
        connection_writes_max: config.connection_writes_max,
    }
}

/// Of the accept loop.
pub(crate) fn connection_bounds(config: &Config) -> ConnectionBounds {
    ConnectionBounds {
        handshakes_max: config.handshakes_max,
        handshake_rate_max: config.handshake_rate_max,
        connections_max: config.connections_max,
    }
}

/// Of the request path. Workers are niced where the cancel thread is not real-time.
pub(crate) fn request(config: &Config, node: NodeId, realtime: bool) -> RequestConfig {
    let device = match config.device {
        Device::Real => DeviceConfig::Real,
        Device::Modelled => DeviceConfig::Modelled(ModelledConfig {
            mean_service: config.device_mean_service,
            seed: config.device_seed,
            disturbance_allowed: config.allow_disturb,
        }),
    };
    RequestConfig {
        node,
        lanes: config.lanes,
        workers_per_lane: config.workers_per_lane,
        device,
        queue_max: config.queue_max,
        aside_max: config.aside_max,
        aside_limit: config.aside_limit,
        barrier_limit: config.barrier_limit,
        recent_ties_max: config.recent_ties_max,
        time_left_max: config.time_left_max,
        caller_in_flight_max: config.caller_in_flight_max,
        connection_in_flight_max: config.connection_in_flight_max,
        caller_rate_max: config.caller_rate_max,
        chunk_max: config.chunk_max,
        start_records_max: config.start_records_max,
        slow_read: config.slow_read,
        nice_workers: config.thread_priority == Priority::Auto && !realtime,
        prompt_workers: config.thread_priority == Priority::Auto,
        ..RequestConfig::new(node)
    }
}

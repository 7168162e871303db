//! A whole node, from settings to stopped: the one room that knows all others, and the in-process door.
//!
//! Threads: `clients` (sockets of clients), `peers` (Raft and admin HTTP), `cancels` (the cancel channel, real-time
//! where allowed), the lanes' workers, and what the replica starts. Each I/O thread has a single-threaded runtime.
//! Here things are made in order and ended in the opposite one; nothing is decided.

use crate::admin::desk::Desk;
use crate::admin::http;
use crate::admin::status::{Addresses, Observer, StatusPage};
use crate::config::{Config, Device, Priority};
use crate::error::NodeError;
use crate::peer::cancel_channel::{CancelChannel, CancelSettings, CancelWire};
use crate::peer::directory::Directory;
use crate::peer::priority;
use crate::replica::{self, Replica, ReplicaControl, Surroundings};
use crate::request::config::RequestConfig;
use crate::request::path::{Neighbours, RequestPath};
use crate::shutdown::{IoThread, Phase, Shutdown};
use crate::storage::device::{DeviceConfig, ModelledConfig};
use crate::tend;
use crate::transport::dispatch::{Door, SessionLimits};
use crate::transport::listen::{ClientListener, ConnectionBounds, endpoint};
use crate::transport::quic::{self, CLOSE_SHUTDOWN};
use crate::transport::tls::{CertificateFiles, Credentials, Port};
use quinn::Endpoint;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::{ClusterId, NodeId, SHARD_ZERO};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Large frames that may arrive at the same time, over all clients: bounds their memory to about 256 MiB.
const LARGE_FRAMES_MAX: usize = 32;
/// Longest wait for connections and threads to end, each, after the answers are out.
const END_LIMIT: Duration = Duration::from_secs(1);

/// A running node. [`Node::stop`] ends it in order; dropping it ends it at once.
pub struct Node {
    observer: Arc<Observer>,
    shutdown: Shutdown,
    patience: Duration,
    replica: Arc<dyn ReplicaControl>,
    path: RequestPath,
    clients: Endpoint,
    cancels: Endpoint,
    // Dropped last.
    threads: Threads,
}

struct Threads {
    clients: IoThread,
    peers: IoThread,
    cancels: IoThread,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReport {
    /// Copies that were not answered within the patience; 0 is clean.
    pub in_flight_left: u64,
    /// Every thread ended in time.
    pub threads_ended: bool,
}

impl Node {
    /// Starts a node: everything is listening when this returns. Blocks for some milliseconds.
    ///
    /// # Errors
    /// When a setting, a certificate, a socket, a thread or the storage is not right; nothing is left running.
    pub fn start(config: Config) -> Result<Self, NodeError> {
        let credentials = Arc::new(load_credentials(&config)?);
        let auto = config.thread_priority == Priority::Auto;
        let (clients_thread, ()) = IoThread::start("tiedkv-clients", || ())?;
        let (peers_thread, ()) = IoThread::start("tiedkv-peers", || ())?;
        let (cancels_thread, realtime) = IoThread::start("tiedkv-cancels", move || auto && raised())?;
        let threads = Threads { clients: clients_thread, peers: peers_thread, cancels: cancels_thread };

        let client_socket = listen(&config, &credentials, Port::Client, threads.clients.handle())?;
        let cancel_socket = listen(&config, &credentials, Port::Cancel, threads.cancels.handle())?;
        let admin_socket = bind_admin(config.admin_address)?;
        let mut addresses = Addresses {
            client: bound(&client_socket, config.client_address),
            peer: None,
            cancel: bound(&cancel_socket, config.cancel_address),
            admin: admin_socket.local_addr().unwrap_or(config.admin_address),
        };
        let directory = Arc::new(Directory::new(
            credentials.node(),
            SHARD_ZERO,
            members(&config, credentials.node(), &addresses)?,
        )?);

        let surroundings = Surroundings {
            credentials: credentials.clone(),
            directory: directory.clone(),
            peers: threads.peers.handle().clone(),
        };
        let Replica { store, writer, barrier, control, peer_address } = replica::open(&config, surroundings)?;
        addresses.peer = peer_address;

        let channel = CancelChannel::new(cancel_settings(&config), directory.clone());
        channel.note_realtime(realtime);
        channel.expect_service(config.device_mean_service);
        let neighbours =
            Neighbours { store, cancels: Arc::new(channel.clone()), barrier, members: directory.nodes() };
        let path = RequestPath::start(request_config(&config, credentials.node(), auto && !realtime), neighbours)?;

        let shutdown = Shutdown::new();
        let sessions = Arc::default();
        let listener = Arc::default();
        let observer = Arc::new(Observer {
            node: credentials.node(),
            cluster: credentials.cluster(),
            started: Instant::now(),
            allow_disturb: config.allow_disturb,
            allow_faults: config.allow_faults,
            modelled: config.device == Device::Modelled,
            addresses,
            path: path.clone(),
            cancels: channel.clone(),
            directory: directory.clone(),
            replica: control.clone(),
            phase: shutdown.watch(),
            sessions: Arc::clone(&sessions),
            listener: Arc::clone(&listener),
        });
        let door = Arc::new(Door {
            node: credentials.node(),
            cluster: credentials.cluster(),
            modelled: observer.modelled,
            limits: session_limits(&config),
            path: path.clone(),
            writer,
            cancels: Arc::new(channel.clone()),
            directory: directory.clone(),
            desk: Arc::new(Desk::new(observer.clone())),
            large_frames: Arc::new(Semaphore::new(LARGE_FRAMES_MAX)),
            phase: shutdown.watch(),
            counters: sessions,
        });
        let node = Self {
            observer: observer.clone(),
            shutdown,
            patience: config.shutdown_patience,
            replica: control,
            path: path.clone(),
            clients: client_socket.clone(),
            cancels: cancel_socket.clone(),
            threads,
        };
        let wire = CancelWire {
            endpoint: cancel_socket,
            client: tls(Port::Cancel, quic::client(&credentials, Port::Cancel))?,
            credentials: credentials.clone(),
            resolver: node.threads.peers.handle().clone(),
        };
        let receiver = path.clone();
        let receive = Arc::new(move |from, cancel| receiver.cancel(from, cancel));
        node.threads.cancels.handle().spawn(channel.run(wire, receive));
        node.threads.peers.handle().spawn(tend::run(observer.clone()));
        node.threads.peers.handle().spawn(http::serve(admin_socket, observer));
        let bounds =
            ConnectionBounds { handshakes_max: config.handshakes_max, connections_max: config.connections_max };
        let accepting = ClientListener::new(client_socket, credentials, door, bounds, listener);
        node.threads.clients.handle().spawn(accepting.run());
        node.say_started();
        Ok(node)
    }

    /// Who this node is, by its certificate.
    pub fn id(&self) -> NodeId {
        self.observer.node
    }

    /// Its cluster, by its certificate.
    pub fn cluster(&self) -> ClusterId {
        self.observer.cluster
    }

    /// Where it listens, as bound.
    pub fn addresses(&self) -> Addresses {
        self.observer.addresses
    }

    /// The status page.
    pub fn status(&self) -> StatusPage {
        self.observer.status()
    }

    /// The members as this node knows them. Where nothing is replicated, whoever embeds nodes may set them.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.observer.directory
    }

    /// Waits until the node can no longer go on (a failed write or fsync, refused by its peers) and says why; for ever
    /// if that never happens. Whoever runs the node then stops it and exits with an error.
    ///
    /// # Cancel safety
    /// Safe: a failure stays.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let fatal = self.replica.fatal();
        async move {
            if let Some(mut fatal) = fatal
                && let Ok(why) = fatal.wait_for(Option::is_some).await
                && let Some(why) = why.clone()
            {
                return why;
            }
            std::future::pending().await
        }
    }

    /// The request path, for whoever embeds the node.
    pub fn path(&self) -> &RequestPath {
        &self.path
    }

    /// Ends the node in order: not ready, leadership handed on, what is in flight answered (at most the configured
    /// patience), answers flushed, connections closed with a reason, threads ended. Blocks; do not call it on a
    /// thread that drives other things.
    pub fn stop(self) -> StopReport {
        let deadline = Instant::now() + self.patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        tracing::info!(node = %self.id(), "stopping: not ready, answering what is in flight");
        self.shutdown.enter(Phase::Draining);
        self.path.drain();
        wait_on(self.threads.peers.handle(), left(), self.replica.leave(left()));
        self.path.stop(left());
        let in_flight_left = self.path.counters().in_flight();
        self.end(END_LIMIT, in_flight_left)
    }

    /// The second half: answers out, connections closed, threads ended, each within `limit`.
    fn end(mut self, limit: Duration, in_flight_left: u64) -> StopReport {
        self.shutdown.enter(Phase::Closing);
        let clients = self.clients.clone();
        wait_on(self.threads.clients.handle(), limit, async move { clients.wait_idle().await });
        self.close_sockets();
        let (clients, cancels) = (self.clients.clone(), self.cancels.clone());
        wait_on(self.threads.clients.handle(), limit, async move { clients.wait_idle().await });
        wait_on(self.threads.cancels.handle(), limit, async move { cancels.wait_idle().await });
        self.replica.stop(limit);
        let Threads { clients, peers, cancels } = &mut self.threads;
        let threads_ended = [clients, cancels, peers].map(|thread| thread.stop(limit)).iter().all(|ended| *ended);
        tracing::info!(node = %self.id(), in_flight_left, threads_ended, "stopped");
        StopReport { in_flight_left, threads_ended }
    }

    fn close_sockets(&self) {
        for socket in [&self.clients, &self.cancels] {
            socket.close(CLOSE_SHUTDOWN, b"the node is stopping");
        }
    }

    fn say_started(&self) {
        let Addresses { client, cancel, admin, peer } = self.addresses();
        tracing::info!(node = %self.id(), cluster = %self.cluster(), %client, ?peer, %cancel, %admin, "node started");
        if self.observer.modelled {
            tracing::warn!("the device is MODELLED: service times are drawn, not those of a disk");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.enter(Phase::Closing);
        self.close_sockets();
        self.path.stop(Duration::ZERO);
        self.replica.stop(Duration::ZERO);
    }
}

/// Runs `task` on another thread's runtime and waits for it, at most `limit`.
fn wait_on(runtime: &Handle, limit: Duration, task: impl Future<Output = ()> + Send + 'static) {
    let (done, end) = crossbeam::channel::bounded(1);
    runtime.spawn(async move {
        let _ = tokio::time::timeout(limit, task).await;
        let _ = done.send(());
    });
    let _ = end.recv_timeout(limit + Duration::from_millis(100));
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

fn load_credentials(config: &Config) -> Result<Credentials, NodeError> {
    let node = match config.node_id {
        Some(node) => node,
        None => only_node_in(&config.certs_dir)?,
    };
    Ok(Credentials::load(&CertificateFiles::of_node(&config.certs_dir, node), Some(node))?)
}

/// The node whose certificate lies in `folder`, if there is exactly one.
fn only_node_in(folder: &Path) -> Result<NodeId, NodeError> {
    let entries = std::fs::read_dir(folder).map_err(|error| crate::transport::tls::CertificateError::File {
        path: folder.to_owned(),
        reason: error.to_string(),
    })?;
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

fn tls<T>(port: Port, made: Result<T, rustls::Error>) -> Result<T, NodeError> {
    made.map_err(|source| NodeError::Tls { port: port.name(), source })
}

fn bound(endpoint: &Endpoint, asked: SocketAddr) -> SocketAddr {
    endpoint.local_addr().unwrap_or(asked)
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, NodeError> {
    let fault = |source| NodeError::Bind { setting: "admin_address", address, source };
    let listener = TcpListener::bind(address).map_err(fault)?;
    listener.set_nonblocking(true).map_err(fault)?;
    Ok(listener)
}

/// The configured members, or this node alone. Port 0 of this node's own entry becomes what was bound.
fn members(config: &Config, own: NodeId, addresses: &Addresses) -> Result<Vec<Member>, NodeError> {
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

fn cancel_settings(config: &Config) -> CancelSettings {
    CancelSettings {
        ping_pause: config.cancel_ping,
        queue_max: config.cancel_queue_max,
        handshake_limit: config.handshake_limit,
    }
}

fn session_limits(config: &Config) -> SessionLimits {
    SessionLimits {
        handshake_limit: config.handshake_limit,
        replies_waiting_max_bytes: config.replies_waiting_max_bytes,
        replies_stalled_max: config.replies_stalled_max,
        connection_writes_max: config.connection_writes_max,
    }
}

fn request_config(config: &Config, node: NodeId, nice_workers: bool) -> RequestConfig {
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
        recent_ties_max: config.recent_ties_max,
        time_left_max: config.time_left_max,
        caller_in_flight_max: config.caller_in_flight_max,
        connection_in_flight_max: config.connection_in_flight_max,
        caller_rate_max: config.caller_rate_max,
        chunk_max: config.chunk_max,
        start_records_max: config.start_records_max,
        nice_workers,
    }
}

#[cfg(test)]
#[path = "node_test.rs"]
mod tests;

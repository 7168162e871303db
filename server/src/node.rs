//! A whole node, from settings to stopped: the one room that knows all others, and the in-process door.
//!
//! Threads: `clients` (sockets of clients), `peers` (Raft and admin HTTP), `cancels` (the cancel channel, real-time
//! where allowed), the lanes' workers, and what the replica starts. Each I/O thread has a single-threaded runtime.
//! Here things are made in order and ended in the opposite one; nothing is decided.

use crate::admin::desk::Desk;
use crate::admin::http;
use crate::admin::status::{Addresses, Observer, StatusPage};
use crate::assemble::{self, Sockets, Threads};
use crate::clock;
use crate::config::{Config, Device};
use crate::error::NodeError;
use crate::peer::cancel_channel::{CancelChannel, CancelWire};
use crate::peer::directory::Directory;
use crate::replica::{self, Replica, ReplicaControl, Surroundings};
use crate::request::doors::CancelSender;
use crate::request::path::{Neighbours, RequestPath};
use crate::shutdown::{Phase, Shutdown};
use crate::tend;
use crate::transport::dispatch::Door;
use crate::transport::large::LargeRoom;
use crate::transport::listen::ClientListener;
use crate::transport::quic::{self, CLOSE_SHUTDOWN};
use crate::transport::tls::{Credentials, Port};
use quinn::Endpoint;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{ClusterId, NodeId, SHARD_ZERO};
use tokio::runtime::Handle;

/// A certificate that ends within this many seconds (30 days) is complained about at the start.
const EXPIRY_WARNING_S: i64 = 30 * 86_400;
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
        let credentials = Arc::new(assemble::credentials(&config)?);
        let (threads, realtime) = Threads::start(config.thread_priority)?;
        let sockets = Sockets::open(&config, &credentials, &threads)?;
        let mut addresses = sockets.addresses(&config);
        let members = assemble::members(&config, credentials.node(), &addresses)?;
        let directory = Arc::new(Directory::new(credentials.node(), SHARD_ZERO, members)?);

        let surroundings = Surroundings {
            credentials: credentials.clone(),
            directory: directory.clone(),
            peers: threads.peers.handle().clone(),
        };
        let replica = replica::open(&config, surroundings)?;
        addresses.peer = replica.peer_address;
        let control = replica.control.clone();
        let rooms = Rooms { config: &config, credentials, directory, addresses, realtime };
        rooms.connect(replica, sockets, threads).inspect_err(|_| control.stop(END_LIMIT))
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
        let deadline = clock::now() + self.patience;
        let left = || deadline.since(clock::now());
        tracing::info!(node = %self.id(), "stopping: not ready, answering what is in flight");
        self.shutdown.enter(Phase::Draining);
        self.path.drain();
        // Half of the patience stays for what is in flight, also when nobody takes leadership over.
        let for_leaving = left() / 2;
        wait_on(self.threads.peers.handle(), for_leaving, self.replica.leave(for_leaving));
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
        let left = self.observer.certificates().node_expires_in_s;
        if left < EXPIRY_WARNING_S {
            tracing::warn!(days = left / 86_400, "this node's certificate ends soon: issue a new one and restart");
        }
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

/// What is there before the rooms are connected.
struct Rooms<'a> {
    config: &'a Config,
    credentials: Arc<Credentials>,
    directory: Arc<Directory>,
    addresses: Addresses,
    realtime: bool,
}

impl Rooms<'_> {
    /// Makes the rooms, hands them to each other and sets everything going.
    fn connect(self, replica: Replica, sockets: Sockets, threads: Threads) -> Result<Node, NodeError> {
        let Self { config, credentials, directory, addresses, realtime } = self;
        let Replica { store, writer, barrier, control, .. } = replica;
        let channel = CancelChannel::new(assemble::cancel_settings(config), directory.clone());
        channel.note_realtime(realtime);
        if config.device == Device::Modelled {
            channel.expect_service(config.device_mean_service);
        }
        let cancels: Arc<dyn CancelSender> = Arc::new(channel.clone());
        let neighbours = Neighbours { store, cancels: cancels.clone(), barrier, members: directory.nodes() };
        let path = RequestPath::start(assemble::request(config, credentials.node(), realtime), neighbours)?;
        let shutdown = Shutdown::new();
        let (sessions, listener) = (Arc::default(), Arc::default());
        let observer = Arc::new(Observer {
            node: credentials.node(),
            cluster: credentials.cluster(),
            started: clock::now(),
            allow_disturb: config.allow_disturb,
            allow_faults: config.allow_faults,
            modelled: config.device == Device::Modelled,
            addresses,
            ends: credentials.ends(),
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
            limits: assemble::session_limits(config),
            path: path.clone(),
            writer,
            cancels,
            directory,
            desk: Arc::new(Desk::new(observer.clone())),
            large_frames: LargeRoom::new(),
            phase: shutdown.watch(),
            counters: sessions,
        });
        let wire = CancelWire {
            endpoint: sockets.cancels.clone(),
            client: assemble::tls(Port::Cancel, quic::client(&credentials, Port::Cancel))?,
            credentials: credentials.clone(),
            resolver: threads.peers.handle().clone(),
        };
        let receiver = path.clone();
        let receive = Arc::new(move |from, cancel| receiver.cancel(from, cancel));
        let bounds = assemble::connection_bounds(config);
        let accepting = ClientListener::new(sockets.clients.clone(), credentials, door, bounds, listener);
        threads.cancels.handle().spawn(channel.run(wire, receive));
        threads.peers.handle().spawn(tend::run(observer.clone()));
        threads.peers.handle().spawn(http::serve(sockets.admin, observer.clone()));
        threads.clients.handle().spawn(accepting.run());
        let Sockets { clients, cancels, .. } = sockets;
        let patience = config.shutdown_patience;
        let node = Node { observer, shutdown, patience, replica: control, path, clients, cancels, threads };
        node.say_started();
        Ok(node)
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

#[cfg(test)]
#[path = "node_test.rs"]
mod tests;

#[cfg(test)]
#[path = "node_bounds_test.rs"]
mod bounds_tests;

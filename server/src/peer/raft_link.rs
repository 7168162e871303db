//! Connections between nodes on the peer port: one that this node dialled per peer, shared by all streams to it,
//! and those that were dialled to it. Says hello, refuses strangers and nodes whose folder is another one than
//! before. What the streams carry is not known here.

use crate::peer::handshake::Entrance;
use crate::peer::hello::{HelloReply, Incarnations, NotAdmitted, PeerHello};
use crate::peer::stream::{StreamError, read_message, write_message};
use crate::transport::listen::endpoint;
use crate::transport::quic;
use crate::transport::tls::{Credentials, Port};
use parking_lot::Mutex;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::MEMBERS_MAX;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// A dial with its handshake and hello takes at most this long; who waits may wait less.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// After a failed dial, the same error is given for this long without dialling again.
const DIAL_PAUSE: Duration = Duration::from_millis(100);
/// Who dialled must say hello within this time.
const HELLO_MAX: Duration = Duration::from_secs(2);

/// Connections that peers may have dialled to this node at a time, half-open ones included: a peer that lost its old
/// one makes a new one before the old one has timed out.
const ACCEPTED_MAX: usize = 4 * MEMBERS_MAX;

/// What a stream is for: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StreamKind {
    /// The first stream of a connection.
    Hello = 1,
    /// Appends and heartbeats, answered in order.
    Append = 2,
    /// One request for a vote.
    Vote = 3,
    /// One request for a vote before the vote.
    PreVote = 4,
    /// One hand-over of leadership.
    Transfer = 5,
    /// Questions for the position that a linearizable read must wait for, each answered before the next.
    ReadIndex = 6,
    /// One snapshot.
    Snapshot = 7,
    /// One question whether the peer's log has begun.
    State = 8,
    /// One question for the peer's wall clock.
    Clock = 9,
    /// One question for the peer's sum at a position.
    Sum = 10,
    /// Questions of a leader whom the peer votes for, each answered before the next.
    Ballot = 11,
}

impl StreamKind {
    fn from_number(number: u8) -> Option<Self> {
        const ALL: [StreamKind; 11] = [
            StreamKind::Hello,
            StreamKind::Append,
            StreamKind::Vote,
            StreamKind::PreVote,
            StreamKind::Transfer,
            StreamKind::ReadIndex,
            StreamKind::Snapshot,
            StreamKind::State,
            StreamKind::Clock,
            StreamKind::Sum,
            StreamKind::Ballot,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Streams of higher priority are sent first: heartbeats and votes before entries before snapshots.
    fn priority(self) -> i32 {
        match self {
            Self::Append => 0,
            Self::Snapshot => -10,
            _ => 10,
        }
    }
}

/// Why there is no stream to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It cannot be reached (now).
    #[error("{0} cannot be reached at {1}: {2}")]
    Unreachable(NodeId, String, String),
    /// This node was removed from the cluster.
    #[error("{0} was removed from the cluster; its folder may be deleted")]
    Removed(NodeId),
    /// The state of this node is not that of the others.
    #[error("{0}: {1}")]
    Differs(NodeId, String),
    /// It refuses this node, for good.
    #[error("{0} refuses this node: {1}")]
    Refused(NodeId, String),
}

/// A future of a served stream.
pub type Served = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves the streams that peers open.
pub trait PeerService: Send + Sync + 'static {
    /// Serves one stream to its end. `from` is proven by its certificate.
    fn serve(self: Arc<Self>, from: NodeId, kind: StreamKind, send: SendStream, recv: RecvStream) -> Served;
}

enum Slot {
    Idle,
    Failed(Instant, LinkError),
    Dialing(watch::Receiver<bool>),
    Connected(Connection),
}

/// The peer port of a node.
pub struct RaftLink {
    endpoint: Endpoint,
    client: quinn::ClientConfig,
    credentials: Arc<Credentials>,
    hello: PeerHello,
    incarnations: Arc<dyn Incarnations>,
    slots: Mutex<HashMap<NodeId, Slot>>,
    refused: watch::Sender<Option<LinkError>>,
}

impl RaftLink {
    /// Takes the peer port. Must be called within the runtime that drives it.
    ///
    /// # Errors
    /// When the address is taken or the credentials cannot be used.
    pub fn bind(
        address: SocketAddr,
        buffer_bytes: usize,
        credentials: Arc<Credentials>,
        hello: PeerHello,
        incarnations: Arc<dyn Incarnations>,
    ) -> std::io::Result<Arc<Self>> {
        let server = quic::server(&credentials, Port::Peer).map_err(std::io::Error::other)?;
        let client = quic::client(&credentials, Port::Peer).map_err(std::io::Error::other)?;
        let endpoint = endpoint(address, buffer_bytes, server)
            .map_err(|error| std::io::Error::new(error.kind(), format!("peer port {address}: {error}")))?;
        Ok(Arc::new(Self {
            endpoint,
            client,
            credentials,
            hello,
            incarnations,
            slots: Mutex::new(HashMap::new()),
            refused: watch::channel(None).0,
        }))
    }

    /// The address taken.
    ///
    /// # Errors
    /// When the socket cannot tell.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The last refusal by a peer, for good.
    pub fn refusal(&self) -> watch::Receiver<Option<LinkError>> {
        self.refused.subscribe()
    }

    /// This node cannot go on because of what a peer says; seen by whoever watches [`refusal`](Self::refusal).
    pub fn stop_for(&self, error: LinkError) {
        tracing::error!(%error, "refused by a peer");
        self.refused.send_replace(Some(error));
    }

    /// Opens a stream to a peer, dialling it if need be; waits at most `wait`.
    ///
    /// # Errors
    /// When the peer cannot be reached in time or refuses this node.
    pub async fn open(
        self: &Arc<Self>,
        to: NodeId,
        address: &str,
        kind: StreamKind,
        wait: Duration,
    ) -> Result<(SendStream, RecvStream), LinkError> {
        let unreachable = |why: &str| LinkError::Unreachable(to, address.to_owned(), why.to_owned());
        let opened = timeout(wait, async {
            let connection = self.connection(to, address).await?;
            let (mut send, recv) = connection.open_bi().await.map_err(|error| unreachable(&error.to_string()))?;
            // Only a stream that is gone already refuses a priority; writing tells that as well.
            let _gone = send.set_priority(kind.priority());
            send.write_all(&[kind as u8]).await.map_err(|error| unreachable(&error.to_string()))?;
            Ok((send, recv))
        });
        opened.await.unwrap_or_else(|_| Err(unreachable("no connection in time")))
    }

    /// Serves what peers dial until [`close`](Self::close).
    pub async fn accept(self: Arc<Self>, service: Arc<dyn PeerService>) {
        let mut entrance = Entrance::new(ACCEPTED_MAX);
        while let Some(incoming) = self.endpoint.accept().await {
            let Ok((incoming, permit)) = entrance.admit(incoming) else { continue };
            let (link, service) = (self.clone(), service.clone());
            tokio::spawn(async move {
                if let Err(error) = link.welcome(incoming, service).await {
                    tracing::debug!(%error, "a connection on the peer port ended");
                }
                drop(permit);
            });
        }
    }

    /// Closes all connections and the port.
    pub async fn close(&self) {
        self.endpoint.close(quic::CLOSE_SHUTDOWN, b"the node stops");
        // What is not told within this time learns it from silence.
        let _silent = timeout(Duration::from_millis(200), self.endpoint.wait_idle()).await;
    }

    async fn connection(self: &Arc<Self>, to: NodeId, address: &str) -> Result<Connection, LinkError> {
        loop {
            let mut dialled = {
                let mut slots = self.slots.lock();
                let slot = slots.entry(to).or_insert(Slot::Idle);
                match slot {
                    Slot::Connected(connection) if connection.close_reason().is_none() => {
                        return Ok(connection.clone());
                    }
                    Slot::Failed(when, error) if when.elapsed() < DIAL_PAUSE => return Err(error.clone()),
                    Slot::Dialing(done) => done.clone(),
                    _ => {
                        let (sender, done) = watch::channel(false);
                        *slot = Slot::Dialing(done.clone());
                        let (link, address) = (self.clone(), address.to_owned());
                        tokio::spawn(async move {
                            let slot = match link.dial(to, &address).await {
                                Ok(connection) => Slot::Connected(connection),
                                Err(error) => {
                                    if matches!(error, LinkError::Refused(..)) {
                                        link.stop_for(error.clone());
                                    }
                                    Slot::Failed(crate::clock::instant(crate::clock::now()).into(), error)
                                }
                            };
                            link.slots.lock().insert(to, slot);
                            sender.send_replace(true);
                        });
                        done
                    }
                }
            };
            // An error means that the dialler is gone, which the next round sees.
            let _gone = dialled.wait_for(|done| *done).await;
        }
    }

    async fn dial(&self, to: NodeId, address: &str) -> Result<Connection, LinkError> {
        let unreachable = |why: String| LinkError::Unreachable(to, address.to_owned(), why);
        let dialled = timeout(DIAL_MAX, async {
            let mut last = "no address".to_owned();
            let resolved =
                tokio::net::lookup_host(address).await.map_err(|error| unreachable(error.to_string()))?;
            for resolved in resolved {
                let connecting = self.endpoint.connect_with(self.client.clone(), resolved, NODE_DNS_NAME);
                match connecting {
                    Err(error) => last = error.to_string(),
                    Ok(connecting) => match connecting.await {
                        Err(error) => last = error.to_string(),
                        Ok(connection) => return self.greet(to, address, connection).await,
                    },
                }
            }
            Err(unreachable(last))
        });
        dialled.await.unwrap_or_else(|_| Err(unreachable(format!("no answer in {DIAL_MAX:?}"))))
    }

    async fn greet(&self, to: NodeId, address: &str, connection: Connection) -> Result<Connection, LinkError> {
        let unreachable = |why: String| LinkError::Unreachable(to, address.to_owned(), why);
        if let Err(error) = self.credentials.check_node(&connection, Port::Peer, Some(to)) {
            connection.close(quic::CLOSE_STRANGER, error.to_string().as_bytes());
            return Err(unreachable(error.to_string()));
        }
        let greeted = async {
            let (mut send, mut recv) =
                connection.open_bi().await.map_err(|error| StreamError::Lost(error.to_string()))?;
            send.write_all(&[StreamKind::Hello as u8])
                .await
                .map_err(|error| StreamError::Lost(error.to_string()))?;
            write_message(&mut send, &self.hello).await?;
            read_message(&mut recv).await?.ok_or_else(|| StreamError::Lost("no answer to hello".to_owned()))
        };
        match greeted.await {
            Err(error) => Err(unreachable(error.to_string())),
            Ok(HelloReply::Refused(why)) => Err(LinkError::Refused(to, why)),
            Ok(HelloReply::Welcome(theirs)) => match self.judge(to, &theirs) {
                Ok(()) => Ok(connection),
                Err(why) => {
                    connection.close(quic::CLOSE_STRANGER, why.to_string().as_bytes());
                    Err(unreachable(why.to_string()))
                }
            },
        }
    }

    fn judge(&self, from: NodeId, theirs: &PeerHello) -> Result<(), NotAdmitted> {
        self.hello.check(from, theirs).map_err(NotAdmitted::Never)?;
        self.incarnations.admit(from, theirs.incarnation)
    }

    async fn welcome(
        self: Arc<Self>,
        incoming: quinn::Incoming,
        service: Arc<dyn PeerService>,
    ) -> Result<(), StreamError> {
        let lost = |error: &dyn std::fmt::Display| StreamError::Lost(error.to_string());
        let hello = timeout(HELLO_MAX, async {
            let connection = incoming.await.map_err(|error| lost(&error))?;
            let from = match self.credentials.check_node(&connection, Port::Peer, None) {
                Ok(from) => from,
                Err(error) => {
                    tracing::warn!(%error, from = %connection.remote_address(), "stranger on the peer port");
                    connection.close(quic::CLOSE_STRANGER, error.to_string().as_bytes());
                    return Err(lost(&error));
                }
            };
            let (mut send, mut recv) = connection.accept_bi().await.map_err(|error| lost(&error))?;
            let mut kind = [0];
            recv.read_exact(&mut kind).await.map_err(|error| lost(&error))?;
            let theirs: Option<PeerHello> = read_message(&mut recv).await?;
            let Some(theirs) = theirs.filter(|_| kind[0] == StreamKind::Hello as u8) else {
                connection.close(quic::CLOSE_PROTOCOL, b"want hello first");
                return Err(StreamError::Message("want hello first".to_owned()));
            };
            match self.judge(from, &theirs) {
                Ok(()) => write_message(&mut send, &HelloReply::Welcome(self.hello.clone())).await?,
                Err(NotAdmitted::NotNow(why)) => {
                    tracing::error!(%from, %why, "a peer is not admitted now");
                    connection.close(quic::CLOSE_OVER_LIMIT, why.as_bytes());
                    return Err(StreamError::Lost(why));
                }
                Err(NotAdmitted::Never(why)) => {
                    tracing::warn!(%from, %why, "refused a peer");
                    write_message(&mut send, &HelloReply::Refused(why.clone())).await?;
                    let _gone = send.finish();
                    // Leaves the answer time to arrive; the dialler closes.
                    let _closed = timeout(HELLO_MAX, connection.closed()).await;
                    return Err(StreamError::Lost(why));
                }
            }
            Ok((connection, from))
        });
        let (connection, from) = hello.await.map_err(|_| StreamError::Lost("no hello in time".to_owned()))??;
        loop {
            let (send, mut recv) = connection.accept_bi().await.map_err(|error| lost(&error))?;
            if self.incarnations.is_removed(from) {
                // It dials again and is told why.
                connection.close(quic::CLOSE_STRANGER, b"removed from the cluster");
                return Err(StreamError::Lost(format!("{from} was removed")));
            }
            let service = service.clone();
            tokio::spawn(async move {
                let mut kind = [0];
                match timeout(HELLO_MAX, recv.read_exact(&mut kind)).await {
                    Ok(Ok(())) => match StreamKind::from_number(kind[0]) {
                        Some(kind) if kind != StreamKind::Hello => service.serve(from, kind, send, recv).await,
                        _ => tracing::warn!(%from, kind = kind[0], "a stream of an unknown kind"),
                    },
                    _ => tracing::debug!(%from, "a stream without a kind"),
                }
            });
        }
    }
}

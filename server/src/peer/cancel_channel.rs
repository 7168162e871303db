//! The cancel channel: how a start tells the peers, past everything else that goes on between two nodes.
//!
//! An endpoint and a UDP socket of its own, on a thread of its own with real-time priority where allowed. Each node
//! dials each peer and sends cancels only on what it dialled, as datagrams (RFC 9221): never awaited, never
//! retransmitted, a lost one costs a duplicate. What waits for the socket is packed; nothing waits to be packed.
//!
//! | room | job |
//! |---|---|
//! | here | the door for workers ([`CancelSender`]): a queue per peer and one wake-up; figures |
//! | [`super::cancel_link`] | the thread's tasks: dial, ping, send, receive |
//! | [`super::health`] | pure: is a pair usable |

use crate::peer::cancel_link;
use crate::peer::directory::Directory;
use crate::request::doors::CancelSender;
use crate::transport::tls::Credentials;
use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam::queue::ArrayQueue;
use quinn::{ClientConfig, Connection, Endpoint};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::peer::Cancel;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Settings of the cancel channel.
#[derive(Clone, Copy, Debug)]
pub struct CancelSettings {
    /// Pause between pings, per peer.
    pub ping_pause: Duration,
    /// Most cancels that wait for one peer.
    pub queue_max: usize,
    /// Longest time for a dial or a handshake.
    pub handshake_limit: Duration,
}

/// Who takes received cancels: called on the channel's own thread with the sender by its certificate.
pub type CancelReceiver = Arc<dyn Fn(NodeId, Cancel) + Send + Sync>;

/// What the channel's tasks need; see [`CancelChannel::run`].
pub struct CancelWire {
    /// The socket, made within the channel's own runtime.
    pub endpoint: Endpoint,
    /// How to dial.
    pub client: ClientConfig,
    /// Who we are.
    pub credentials: Arc<Credentials>,
    /// Where names are resolved: not the channel's own runtime.
    pub resolver: Handle,
}

/// The cancel channel of one node. Cheap to clone; all clones are one channel.
#[derive(Clone)]
pub struct CancelChannel(Arc<Shared>);

/// What the door and the tasks share. No locks: a worker that is preempted while it hands over must not make the
/// real-time thread wait.
pub(super) struct Shared {
    pub(super) settings: CancelSettings,
    pub(super) directory: Arc<Directory>,
    /// Sorted by node.
    pub(super) peers: ArcSwap<Vec<Arc<Peer>>>,
    pub(super) wake: Notify,
    /// A wake-up is on its way: more hand-overs need no other.
    awake: AtomicBool,
    unhealthy: AtomicU64,
    drop_ppm: AtomicU32,
    service_us: AtomicU64,
    realtime: AtomicBool,
    pub(super) counters: CancelCounters,
}

/// One peer of the channel.
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) waiting: ArrayQueue<Cancel>,
    /// What this node dialled, while it lives.
    pub(super) link: ArcSwapOption<Connection>,
    pub(super) usable: AtomicBool,
    pub(super) flight: PublishedFlight,
}

/// Flight times as the ping task last saw them, nanoseconds; 0 while unknown.
#[derive(Debug, Default)]
pub(super) struct PublishedFlight {
    pub(super) usual: AtomicU64,
    pub(super) p50: AtomicU64,
    pub(super) p99: AtomicU64,
}

macro_rules! cancel_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts what the channel does.
        #[derive(Debug, Default)]
        pub(super) struct CancelCounters { $(pub(super) $name: AtomicU64,)* }

        /// The counters at one moment; each only grows.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CancelCountersSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl CancelCounters {
            fn snapshot(&self) -> CancelCountersSnapshot {
                CancelCountersSnapshot { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

cancel_counters! {
    /// Cancels sent.
    sent,
    /// Datagrams that carried them; less than `sent` where cancels were packed.
    datagrams_sent,
    /// Cancels received.
    received,
    /// Cancels dropped because too many waited for their peer.
    dropped_full,
    /// Cancels dropped because there was no connection to their peer, or QUIC refused them.
    dropped_unlinked,
    /// Cancels for a node that is no member.
    dropped_unknown,
    /// Cancels, pings and echoes dropped on purpose, for tests.
    dropped_for_test,
    /// Datagrams that were no message, or came the wrong way.
    undecodable,
    /// Pings sent.
    pings_sent,
    /// Echoes received.
    pongs_received,
    /// Connections dialled with success.
    dialled,
    /// Dials that failed, also by a stranger at the other end.
    dials_failed,
    /// Connections accepted.
    accepted,
    /// Handshakes refused or failed.
    accepts_failed,
}

/// One pair at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelPeerStatus {
    /// The peer.
    pub node: NodeId,
    /// What this node dialled lives.
    pub connected: bool,
    /// Clients may tie this pair.
    pub usable: bool,
    /// Cancels that wait.
    pub waiting: u64,
    /// Flight of a cancel, nanoseconds: tenth percentile of the last minute; 0 while unknown.
    pub flight_usual_ns: u64,
    /// Median of the last minute; 0 while unknown.
    pub flight_p50_ns: u64,
    /// 99th percentile of the last minute; 0 while unknown.
    pub flight_p99_ns: u64,
}

/// The channel at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CancelStatus {
    /// Its thread has real-time priority.
    pub realtime: bool,
    /// Bit i: the pair with member i (sorted by NodeId) is not usable.
    pub unhealthy_pairs: u64,
    /// Share of outgoing datagrams dropped on purpose, for tests.
    pub drop_share: f64,
    /// Per peer.
    pub peers: Vec<CancelPeerStatus>,
}

impl CancelChannel {
    /// A channel to the peers in `directory`, with no wire yet: what is handed over until [`CancelChannel::run`]
    /// connected is dropped and counted.
    pub fn new(settings: CancelSettings, directory: Arc<Directory>) -> Self {
        let shared = Shared {
            settings,
            directory,
            peers: ArcSwap::default(),
            wake: Notify::new(),
            awake: AtomicBool::new(false),
            unhealthy: AtomicU64::new(0),
            drop_ppm: AtomicU32::new(0),
            service_us: AtomicU64::new(0),
            realtime: AtomicBool::new(false),
            counters: CancelCounters::default(),
        };
        shared.follow_members();
        Self(Arc::new(shared))
    }

    /// The channel's tasks, to be spawned on its own thread's runtime; ends when dropped.
    pub async fn run(self, wire: CancelWire, receiver: CancelReceiver) {
        cancel_link::run(self.0, wire, receiver).await;
    }

    /// Drops this share (0.0 to 1.0) of outgoing cancels, pings and echoes: for tests.
    pub fn drop_share(&self, share: f64) {
        self.0.drop_ppm.store((share.clamp(0.0, 1.0) * 1e6) as u32, Relaxed);
    }

    /// Says how long operations take about: a pair slower than a tenth of it (and four times its usual) is not
    /// usable.
    pub fn expect_service(&self, service: Duration) {
        self.0.service_us.store(u64::try_from(service.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Says whether the thread got real-time priority.
    pub fn note_realtime(&self, realtime: bool) {
        self.0.realtime.store(realtime, Relaxed);
    }

    /// The counters.
    pub fn counters(&self) -> CancelCountersSnapshot {
        self.0.counters.snapshot()
    }

    /// The state of all pairs.
    pub fn status(&self) -> CancelStatus {
        let peers = self.0.peers.load();
        CancelStatus {
            realtime: self.0.realtime.load(Relaxed),
            unhealthy_pairs: self.unhealthy_pairs(),
            drop_share: f64::from(self.0.drop_ppm.load(Relaxed)) / 1e6,
            peers: peers
                .iter()
                .map(|peer| CancelPeerStatus {
                    node: peer.node,
                    connected: peer.link.load().is_some(),
                    usable: peer.usable.load(Relaxed),
                    waiting: peer.waiting.len() as u64,
                    flight_usual_ns: peer.flight.usual.load(Relaxed),
                    flight_p50_ns: peer.flight.p50.load(Relaxed),
                    flight_p99_ns: peer.flight.p99.load(Relaxed),
                })
                .collect(),
        }
    }
}

impl CancelSender for CancelChannel {
    fn cancel(&self, to: NodeId, cancel: Cancel) {
        let shared = &self.0;
        let peers = shared.peers.load();
        let Ok(index) = peers.binary_search_by_key(&to, |peer| peer.node) else {
            shared.counters.dropped_unknown.fetch_add(1, Relaxed);
            return;
        };
        if peers[index].waiting.push(cancel).is_err() {
            shared.counters.dropped_full.fetch_add(1, Relaxed);
        }
        if !shared.awake.swap(true, AcqRel) {
            shared.wake.notify_one();
        }
    }

    fn unhealthy_pairs(&self) -> u64 {
        self.0.unhealthy.load(Relaxed)
    }
}

impl Shared {
    /// The sender is about to look into all queues: a hand-over after this needs a new wake-up.
    pub(super) fn looking(&self) {
        self.awake.swap(false, AcqRel);
    }

    /// Draws whether to drop something on purpose.
    pub(super) fn drops(&self) -> bool {
        let ppm = self.drop_ppm.load(Relaxed);
        let drops = ppm > 0 && rand::random_range(0..1_000_000) < ppm;
        if drops {
            self.counters.dropped_for_test.fetch_add(1, Relaxed);
        }
        drops
    }

    /// How long operations take about.
    pub(super) fn service(&self) -> Duration {
        Duration::from_micros(self.service_us.load(Relaxed))
    }

    /// Makes peers of the members in force, keeping those that stay.
    pub(super) fn follow_members(&self) {
        let before = self.peers.load();
        let peers = self.directory.peers().into_iter().map(|member| {
            let kept = before.iter().find(|peer| peer.node == member.node).cloned();
            kept.unwrap_or_else(|| Arc::new(Peer::new(member.node, self.settings.queue_max)))
        });
        self.peers.store(Arc::new(peers.collect()));
        self.publish_pairs();
    }

    /// Recomputes the bits that replies carry.
    pub(super) fn publish_pairs(&self) {
        let peers = self.peers.load();
        let topology = self.directory.topology();
        let bits = topology.members.iter().take(64).enumerate().filter(|(_, member)| {
            let peer = peers.iter().find(|peer| peer.node == member.node);
            member.node != self.directory.own() && !peer.is_some_and(|peer| peer.usable.load(Relaxed))
        });
        self.unhealthy.store(bits.fold(0, |bits, (index, _)| bits | 1 << index), Relaxed);
    }
}

impl Peer {
    fn new(node: NodeId, queue_max: usize) -> Self {
        Self {
            node,
            waiting: ArrayQueue::new(queue_max.max(1)),
            link: ArcSwapOption::empty(),
            usable: AtomicBool::new(false),
            flight: PublishedFlight::default(),
        }
    }
}

#[cfg(test)]
#[path = "cancel_channel_test.rs"]
mod tests;

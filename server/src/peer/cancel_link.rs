//! The tasks of the cancel channel's thread: dial each peer and ping it, send what the workers handed over, receive
//! what peers send. Everything here runs on that one thread; it starts no other.

use super::cancel_channel::{CancelReceiver, CancelWire, Peer, Shared};
use super::handshake::{self, Backoff, Dialler, Entrance, NotIn};
use super::health::PairHealth;
use crate::clock;
use crate::transport::quic::CLOSE_DONE;
use crate::transport::tls::Port;
use quinn::{Connection, Incoming};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::codec;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::{CANCELS_PER_DATAGRAM_MAX, MEMBERS_MAX, PEER_DATAGRAM_BYTES_MAX};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::{Cancel, PeerDatagram};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;

/// Connections that peers may have dialled to this node at a time: a peer that lost its old one makes a new one
/// before the old one has timed out.
const ACCEPTED_MAX: usize = 4 * MEMBERS_MAX;
/// Pings after which the published quantiles are computed anew.
const PINGS_PER_REPORT: u32 = 5;

/// Runs all tasks until dropped.
pub(super) async fn run(shared: Arc<Shared>, wire: CancelWire, receiver: CancelReceiver) {
    let wire = Arc::new(wire);
    let mut tasks = JoinSet::new();
    tasks.spawn(send(shared.clone()));
    tasks.spawn(accept(shared.clone(), wire.clone(), receiver));
    tasks.spawn(follow(shared, wire));
    while tasks.join_next().await.is_some() {}
}

/// The sender: at each wake-up, everything that waits, packed per peer.
async fn send(shared: Arc<Shared>) {
    loop {
        shared.wake.notified().await;
        shared.looking();
        let peers = shared.peers.load_full();
        for peer in peers.iter() {
            send_waiting(&shared, peer);
        }
    }
}

fn send_waiting(shared: &Shared, peer: &Peer) {
    let link = peer.link.load();
    // Bounded by what waited at the beginning, so that one peer cannot keep the others waiting.
    let mut left = peer.waiting.len();
    while left > 0 {
        let mut packed = smallvec::SmallVec::<[Cancel; 4]>::new();
        while packed.len() < CANCELS_PER_DATAGRAM_MAX && left > 0 {
            let Some(cancel) = peer.waiting.pop() else { return };
            left -= 1;
            if !shared.drops() {
                packed.push(cancel);
            }
        }
        let count = packed.len() as u64;
        if count == 0 {
            continue;
        }
        let sent = link.as_ref().is_some_and(|link| send_datagram(link, &PeerDatagram::Cancels(packed)));
        if sent {
            shared.counters.sent.fetch_add(count, Relaxed);
            shared.counters.datagrams_sent.fetch_add(1, Relaxed);
        } else {
            shared.counters.dropped_unlinked.fetch_add(count, Relaxed);
        }
    }
}

fn send_datagram(link: &Connection, datagram: &PeerDatagram) -> bool {
    match codec::encode(datagram) {
        Ok(bytes) => link.send_datagram(bytes.into()).is_ok(),
        Err(error) => {
            tracing::error!(%error, "a datagram of the cancel channel could not be encoded");
            false
        }
    }
}

/// Keeps one dialling task per peer, as the membership says.
async fn follow(shared: Arc<Shared>, wire: Arc<CancelWire>) {
    let mut changes = shared.directory.watch();
    let mut tasks = JoinSet::new();
    let mut running: HashMap<NodeId, (String, AbortHandle)> = HashMap::new();
    loop {
        changes.borrow_and_update();
        shared.follow_members();
        let peers = shared.peers.load_full();
        running.retain(|node, (address, task)| {
            let stays = shared.directory.member(*node).is_some_and(|member| member.cancel_address == *address);
            if !stays {
                task.abort();
            }
            stays && !task.is_finished()
        });
        for peer in peers.iter() {
            let Some(member) = shared.directory.member(peer.node) else { continue };
            running.entry(peer.node).or_insert_with(|| {
                let address = member.cancel_address;
                let pair = Pair { shared: shared.clone(), wire: wire.clone(), peer: peer.clone() };
                let task = tasks.spawn(pair.run(address.clone()));
                (address, task)
            });
        }
        while tasks.try_join_next().is_some() {}
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// This node's side of the pair with one peer: dials, pings, judges.
struct Pair {
    shared: Arc<Shared>,
    wire: Arc<CancelWire>,
    peer: Arc<Peer>,
}

impl Pair {
    async fn run(self, address: String) {
        let mut backoff = Backoff::new();
        let mut health = PairHealth::new(self.shared.settings.ping_pause);
        let mut complained = false;
        loop {
            let dialler = Dialler {
                endpoint: &self.wire.endpoint,
                config: &self.wire.client,
                credentials: &self.wire.credentials,
                port: Port::Cancel,
                resolver: &self.wire.resolver,
                limit: self.shared.settings.handshake_limit,
            };
            match dialler.dial(self.peer.node, &address).await {
                Ok(link) => {
                    self.shared.counters.dialled.fetch_add(1, Relaxed);
                    tracing::info!(peer = %self.peer.node, %address, "cancel channel connected");
                    (complained, backoff) = (false, Backoff::new());
                    self.live(link, &mut health).await;
                    tracing::info!(peer = %self.peer.node, "cancel channel lost");
                }
                Err(error) => {
                    self.shared.counters.dials_failed.fetch_add(1, Relaxed);
                    // Once per outage: a node that is down for an hour is one line, not thousands.
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(peer = %self.peer.node, %address, %error, "cancel channel not connected");
                    }
                }
            }
            let pause = backoff.pause(&mut rand::rng());
            tokio::time::sleep(pause).await;
        }
    }

    /// From connected to lost. If this is dropped midway (the peer left), the guard cleans up.
    async fn live(&self, link: Connection, health: &mut PairHealth) {
        let _guard = Linked::new(self, link.clone());
        health.connected(clock::now());
        let pause = self.shared.settings.ping_pause;
        let mut ticks = tokio::time::interval_at(clock::instant(clock::now() + jitter(pause)).into(), pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pings = 0_u32;
        // The first ping goes at once: the pair is usable one flight after the handshake.
        self.ping(&link, health);
        loop {
            tokio::select! {
                biased;
                datagram = link.read_datagram() => match datagram {
                    Ok(bytes) => self.echo(&bytes, health),
                    Err(_) => break,
                },
                _ = ticks.tick() => {
                    self.ping(&link, health);
                    pings = pings.wrapping_add(1);
                    if pings.is_multiple_of(PINGS_PER_REPORT) {
                        self.report(health);
                    }
                }
            }
            self.judge(health);
            if health.is_silent(clock::now()) {
                break;
            }
        }
        health.disconnected();
    }

    fn ping(&self, link: &Connection, health: &mut PairHealth) {
        let nonce = health.ping(clock::now());
        if self.shared.drops() {
            return;
        }
        self.shared.counters.pings_sent.fetch_add(1, Relaxed);
        send_datagram(link, &PeerDatagram::Ping { nonce });
    }

    fn echo(&self, bytes: &[u8], health: &mut PairHealth) {
        let now = clock::now();
        match codec::decode(bytes) {
            Ok(PeerDatagram::Pong { nonce, held_us }) => {
                self.shared.counters.pongs_received.fetch_add(1, Relaxed);
                health.pong(nonce, Duration::from_micros(held_us.into()), now);
                if self.peer.flight.p50.load(Relaxed) == 0 {
                    self.report(health);
                }
            }
            // Cancels and pings come on what the peer dialled, nowhere else.
            _ => {
                self.shared.counters.undecodable.fetch_add(1, Relaxed);
            }
        }
    }

    fn judge(&self, health: &mut PairHealth) {
        let usable = health.usable(self.shared.service(), clock::now());
        self.say_usable(usable);
    }

    fn say_usable(&self, usable: bool) {
        if self.peer.usable.swap(usable, Relaxed) != usable {
            tracing::info!(peer = %self.peer.node, usable, "cancel pair");
            self.shared.publish_pairs();
        }
    }

    fn report(&self, health: &PairHealth) {
        let say = |slot: &AtomicU64, flight: Option<Duration>| {
            slot.store(flight.map_or(0, |flight| u64::try_from(flight.as_nanos()).unwrap_or(u64::MAX)), Relaxed);
        };
        say(&self.peer.flight.usual, health.usual_flight());
        say(&self.peer.flight.p50, health.flight_quantile(0.50));
        say(&self.peer.flight.p99, health.flight_quantile(0.99));
    }
}

/// The link stands in the peer's slot as long as this lives.
struct Linked<'a>(&'a Pair, Connection);

impl<'a> Linked<'a> {
    fn new(pair: &'a Pair, link: Connection) -> Self {
        pair.peer.link.store(Some(Arc::new(link.clone())));
        Self(pair, link)
    }
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        self.0.peer.link.store(None);
        self.0.say_usable(false);
        self.1.close(CLOSE_DONE, b"");
    }
}

fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.0..1.0))
}

/// Accepts what peers dial; at most [`ACCEPTED_MAX`] at a time.
async fn accept(shared: Arc<Shared>, wire: Arc<CancelWire>, receiver: CancelReceiver) {
    let mut entrance = Entrance::new(ACCEPTED_MAX);
    let mut tasks = JoinSet::new();
    while let Some(incoming) = wire.endpoint.accept().await {
        while tasks.try_join_next().is_some() {}
        let (incoming, permit) = match entrance.admit(incoming) {
            Ok(admitted) => admitted,
            Err(NotIn::ToProveItself) => continue,
            Err(NotIn::Refused) => {
                shared.counters.accepts_failed.fetch_add(1, Relaxed);
                continue;
            }
        };
        let (shared, wire, receiver) = (shared.clone(), wire.clone(), receiver.clone());
        tasks.spawn(async move {
            receive_from(incoming, &shared, &wire, &receiver).await;
            drop(permit);
        });
    }
}

async fn receive_from(incoming: Incoming, shared: &Shared, wire: &CancelWire, receiver: &CancelReceiver) {
    let limit = shared.settings.handshake_limit;
    let (from, link) = match handshake::accept(incoming, &wire.credentials, Port::Cancel, limit).await {
        Ok(accepted) => accepted,
        Err(error) => {
            shared.counters.accepts_failed.fetch_add(1, Relaxed);
            tracing::debug!(%error, "cancel channel: handshake failed");
            return;
        }
    };
    shared.counters.accepted.fetch_add(1, Relaxed);
    while let Ok(bytes) = link.read_datagram().await {
        receive(from, &bytes, clock::now(), &link, shared, receiver);
    }
}

/// One datagram from an authenticated peer: cancels go straight into the queues' structure, on this thread.
fn receive(
    from: NodeId,
    bytes: &[u8],
    received: Moment,
    link: &Connection,
    shared: &Shared,
    receiver: &CancelReceiver,
) {
    let message = if bytes.len() > PEER_DATAGRAM_BYTES_MAX { None } else { codec::decode(bytes).ok() };
    match message {
        Some(PeerDatagram::Cancels(cancels)) if cancels.len() <= CANCELS_PER_DATAGRAM_MAX => {
            shared.counters.received.fetch_add(cancels.len() as u64, Relaxed);
            for cancel in cancels {
                receiver(from, cancel);
            }
        }
        Some(PeerDatagram::Ping { nonce }) => {
            if !shared.drops() {
                let held = clock::now().since(received).as_micros();
                let held_us = u32::try_from(held).unwrap_or(u32::MAX);
                send_datagram(link, &PeerDatagram::Pong { nonce, held_us });
            }
        }
        _ => {
            shared.counters.undecodable.fetch_add(1, Relaxed);
        }
    }
}

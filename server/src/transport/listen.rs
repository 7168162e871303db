//! The client port: opens sockets, accepts connections, bounds what half-open ones may cost.
//!
//! A handshake costs signatures on the thread that serves established clients, so their number is bounded: from half the
//! bound on, an address is validated first (QUIC Retry, RFC 9000 section 8.1.2); at the bound, and at the bound of
//! connections, one more is refused. So is their rate: beyond it they wait in QUIC's own queue, and beyond that are refused.

use super::client_session::{greet, serve};
use super::dispatch::Door;
use super::quic::CLOSE_STRANGER;
use super::tls::Credentials;
use super::udp;
use crate::clock;
use crate::shutdown::{Phase, reached};
use quinn::{Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::moment::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Opens an endpoint on `address` whose socket has buffers of `buffer_bytes`, as far as the system gives them. Call
/// within the runtime that shall drive it.
///
/// # Errors
/// When the socket cannot be opened.
pub fn endpoint(address: SocketAddr, buffer_bytes: usize, config: ServerConfig) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(address)?;
    udp::grow(&socket, buffer_bytes);
    Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))
}

/// Counts what the accept loop does.
#[derive(Debug, Default)]
pub struct ListenCounters {
    /// Handshakes begun.
    pub handshakes: AtomicU64,
    /// Addresses asked to prove themselves first.
    pub retried: AtomicU64,
    /// Refused at a bound.
    pub refused: AtomicU64,
    /// Handshakes that failed or came from a stranger.
    pub failed: AtomicU64,
}

/// The accept loop of the client port.
pub struct ClientListener {
    endpoint: Endpoint,
    credentials: Arc<Credentials>,
    door: Arc<Door>,
    handshakes: Arc<Semaphore>,
    handshakes_max: usize,
    handshake_rate_max: u32,
    connections: Arc<Semaphore>,
    counters: Arc<ListenCounters>,
}

impl ClientListener {
    /// At most `handshakes_max` half-open and `connections_max` open connections.
    pub fn new(
        endpoint: Endpoint,
        credentials: Arc<Credentials>,
        door: Arc<Door>,
        bounds: ConnectionBounds,
        counters: Arc<ListenCounters>,
    ) -> Self {
        Self {
            endpoint,
            credentials,
            door,
            handshakes: Arc::new(Semaphore::new(bounds.handshakes_max)),
            handshakes_max: bounds.handshakes_max,
            handshake_rate_max: bounds.handshake_rate_max.max(1),
            connections: Arc::new(Semaphore::new(bounds.connections_max)),
            counters,
        }
    }

    /// Accepts until the node closes.
    pub async fn run(self) {
        let mut phase = self.door.phase.clone();
        let mut pace = Pace { gap: Duration::from_secs(1) / self.handshake_rate_max, paid_until: clock::now() };
        loop {
            let incoming = tokio::select! {
                incoming = self.endpoint.accept() => incoming,
                () = reached(&mut phase, Phase::Closing) => None,
            };
            match incoming {
                Some(incoming) => {
                    if self.judge(incoming)
                        && let Some(wait) = pace.next(clock::now())
                    {
                        sleep(wait).await;
                    }
                }
                None => return,
            }
        }
    }

    /// True if a handshake began.
    fn judge(&self, incoming: Incoming) -> bool {
        let handshake = self.handshakes.clone().try_acquire_owned();
        let connection = self.connections.clone().try_acquire_owned();
        let (Ok(handshake), Ok(connection)) = (handshake, connection) else {
            self.counters.refused.fetch_add(1, Relaxed);
            incoming.refuse();
            return false;
        };
        let crowded = self.handshakes.available_permits() < self.handshakes_max / 2;
        if crowded && !incoming.remote_address_validated() && incoming.may_retry() {
            self.counters.retried.fetch_add(1, Relaxed);
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, "retry not possible");
            }
            return false;
        }
        self.counters.handshakes.fetch_add(1, Relaxed);
        let visit = Visit {
            credentials: self.credentials.clone(),
            door: self.door.clone(),
            counters: self.counters.clone(),
        };
        tokio::spawn(visit.run(incoming, handshake, connection));
        true
    }
}

/// Handshakes that may begin at once before their rate counts.
const HANDSHAKE_BURST: u32 = 32;

/// The rate of handshakes: a bucket of [`HANDSHAKE_BURST`] tokens, one more per gap.
struct Pace {
    gap: Duration,
    paid_until: Moment,
}

impl Pace {
    /// One began; how long the next has to wait.
    fn next(&mut self, now: Moment) -> Option<Duration> {
        self.paid_until = self.paid_until.max(now) + self.gap;
        let ahead = self.paid_until.since(now);
        ahead.checked_sub(self.gap * HANDSHAKE_BURST).filter(|wait| !wait.is_zero())
    }
}

/// Bounds of the client port.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Half-open connections.
    pub handshakes_max: usize,
    /// Handshakes per second.
    pub handshake_rate_max: u32,
    /// Open connections, half-open ones included.
    pub connections_max: usize,
}

/// One connection from its first packet to its end.
struct Visit {
    credentials: Arc<Credentials>,
    door: Arc<Door>,
    counters: Arc<ListenCounters>,
}

impl Visit {
    async fn run(self, incoming: Incoming, handshake: OwnedSemaphorePermit, _connection: OwnedSemaphorePermit) {
        let from = incoming.remote_address();
        let limit = self.door.limits.handshake_limit;
        let connection: Connection = match timeout(limit, async { incoming.await }).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return self.failed(from, &error.to_string()),
            Err(_) => return self.failed(from, "too slow"),
        };
        let client = match self.credentials.check_client(&connection) {
            Ok(client) => {
                tracing::debug!(%from, name = client.name, caller = %client.caller, "client connected");
                client
            }
            Err(stranger) => {
                connection.close(CLOSE_STRANGER, stranger.to_string().as_bytes());
                return self.failed(from, &stranger.to_string());
            }
        };
        let greeted = greet(&self.door, connection, client).await;
        drop(handshake);
        if let Some(greeted) = greeted {
            serve(self.door, greeted).await;
        }
    }

    fn failed(&self, from: SocketAddr, reason: &str) {
        self.counters.failed.fetch_add(1, Relaxed);
        tracing::debug!(%from, reason, "client handshake failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_have_a_burst_and_then_a_rate() {
        let gap = Duration::from_millis(4);
        let (mut pace, now) = (Pace { gap, paid_until: Moment(0) }, Moment(1_000_000_000));
        assert!((0..HANDSHAKE_BURST).all(|_| pace.next(now).is_none()));
        assert_eq!(pace.next(now), Some(gap));
        assert_eq!(pace.next(now + gap), Some(gap), "one per gap from then on");
        assert_eq!(pace.next(now + gap * 10 * HANDSHAKE_BURST), None, "and a burst again after a while");
    }
}

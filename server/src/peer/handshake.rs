//! Connections between nodes of one cluster: dialled or accepted, authenticated by certificate, with a deadline.
//! Says who is there; keeps nothing, tries nothing twice ([`Backoff`] says when its caller may).

use crate::clock;
use crate::peer::address_rates::AddressRates;
use crate::transport::quic::CLOSE_STRANGER;
use crate::transport::tls::{Credentials, Port, StrangerError};
use quinn::{ClientConfig, Connection, Endpoint, Incoming};
use rand::Rng;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::NodeId;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The address is no `HOST:PORT`, or its name means nothing.
    #[error("{address}: {reason}")]
    Address {
        /// As configured.
        address: String,
        /// What the resolver said.
        reason: String,
    },
    /// QUIC or TLS failed.
    #[error("{0}")]
    Connection(String),
    /// Not done in time.
    #[error("no connection within {0:?}")]
    TooSlow(Duration),
    /// Somebody else is there.
    #[error(transparent)]
    Stranger(#[from] StrangerError),
}

/// Dials nodes on one port.
#[derive(Clone)]
pub struct Dialler<'a> {
    /// The socket.
    pub endpoint: &'a Endpoint,
    /// How to speak.
    pub config: &'a ClientConfig,
    /// Who we are.
    pub credentials: &'a Credentials,
    /// Which port.
    pub port: Port,
    /// Where names are resolved: a runtime whose threads may be many. Resolving starts threads, and threads of a
    /// real-time thread are real-time too.
    pub resolver: &'a Handle,
    /// Longest time for name, handshake and check together.
    pub limit: Duration,
}

impl Dialler<'_> {
    /// Dials `wanted` at `address` (a literal or a name, resolved anew each time).
    ///
    /// # Errors
    /// When nobody, too late or somebody else answers; a stranger's connection is closed with the reason.
    ///
    /// # Cancel safety
    /// Dropping it ends the attempt.
    pub async fn dial(&self, wanted: NodeId, address: &str) -> Result<Connection, HandshakeError> {
        let attempt = async {
            let target = self.resolve(address).await?;
            let lost = |reason: String| HandshakeError::Connection(format!("{address}: {reason}"));
            let connecting = self
                .endpoint
                .connect_with(self.config.clone(), target, NODE_DNS_NAME)
                .map_err(|error| lost(error.to_string()))?;
            let connection = connecting.await.map_err(|error| lost(error.to_string()))?;
            let found = self.credentials.check_node(&connection, self.port, Some(wanted));
            found.inspect_err(|stranger| refuse(&connection, stranger))?;
            Ok(connection)
        };
        timeout(self.limit, attempt).await.unwrap_or(Err(HandshakeError::TooSlow(self.limit)))
    }

    async fn resolve(&self, address: &str) -> Result<SocketAddr, HandshakeError> {
        if let Ok(literal) = address.parse() {
            return Ok(literal);
        }
        let fault = |reason: String| HandshakeError::Address { address: address.to_owned(), reason };
        let name = address.to_owned();
        let found = self.resolver.spawn(async move {
            tokio::net::lookup_host(name).await.map(|found| found.collect::<Vec<SocketAddr>>())
        });
        let found =
            found.await.map_err(|error| fault(error.to_string()))?.map_err(|error| fault(error.to_string()))?;
        // An IPv4 socket cannot reach an IPv6 address; the other way round works.
        let only_v4 = self.endpoint.local_addr().is_ok_and(|own| own.is_ipv4());
        let usable = found.into_iter().find(|candidate| candidate.is_ipv4() || !only_v4);
        usable.ok_or_else(|| fault("no address that this node's socket can reach".to_owned()))
    }
}

/// Who may begin a handshake on a port of the peers. A handshake costs signatures, on the cancel port at real-time
/// priority: so every address proves itself first (QUIC Retry, RFC 9000 section 8.1.2), which costs a round trip at each
/// dial, and begins a bounded number.
#[derive(Debug)]
pub struct Entrance {
    room: Arc<Semaphore>,
    rates: AddressRates,
}

impl Entrance {
    /// With room for `places` connections at a time, half-open ones included.
    pub fn new(places: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(places)), rates: AddressRates::default() }
    }

    /// A place for a connection that somebody dials.
    ///
    /// # Errors
    /// It has to prove its address first, or was refused.
    pub fn admit(&mut self, incoming: Incoming) -> Result<(Incoming, OwnedSemaphorePermit), NotIn> {
        if !incoming.remote_address_validated() && incoming.may_retry() {
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, "retry not possible");
            }
            return Err(NotIn::ToProveItself);
        }
        let permit = self.room.clone().try_acquire_owned();
        match permit {
            Ok(permit) if self.rates.take(incoming.remote_address().ip(), clock::now()) => Ok((incoming, permit)),
            _ => {
                incoming.refuse();
                Err(NotIn::Refused)
            }
        }
    }
}

/// Why a connection does not begin (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIn {
    /// The same dialler comes again with a proof of its address.
    ToProveItself,
    /// No place, or too many handshakes of this address.
    Refused,
}

/// Takes a connection that somebody dials to `port`.
///
/// # Errors
/// When the handshake fails, takes too long, or a stranger dials (closed with the reason).
///
/// # Cancel safety
/// Dropping it ends the connection.
pub async fn accept(
    incoming: Incoming,
    credentials: &Credentials,
    port: Port,
    limit: Duration,
) -> Result<(NodeId, Connection), HandshakeError> {
    let connection = timeout(limit, async { incoming.await })
        .await
        .map_err(|_| HandshakeError::TooSlow(limit))?
        .map_err(|error| HandshakeError::Connection(error.to_string()))?;
    let node = credentials.check_node(&connection, port, None);
    let node = node.inspect_err(|stranger| refuse(&connection, stranger))?;
    Ok((node, connection))
}

fn refuse(connection: &Connection, stranger: &StrangerError) {
    connection.close(CLOSE_STRANGER, stranger.to_string().as_bytes());
}

/// Pauses between attempts: doubled from 50 ms to 2 s, each drawn between half and whole so that nodes that lost
/// each other at the same time do not meet again and again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);

    /// Starts with the shortest pause.
    pub fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// The pause before the next attempt.
    pub fn pause(&mut self, rng: &mut impl Rng) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(Self::LONGEST);
        whole.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// An attempt succeeded.
    pub fn reset(&mut self) {
        self.next = Self::FIRST;
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_the_whole_same() {
        let mut rng = rand::rngs::StdRng::seed_from_u64(1);
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..10).map(|_| backoff.pause(&mut rng)).collect();
        assert!(pauses[0] <= Backoff::FIRST && pauses[0] >= Backoff::FIRST / 2);
        assert!(pauses.iter().all(|pause| *pause <= Backoff::LONGEST));
        assert!(pauses[8] >= Backoff::LONGEST / 2 && pauses[8] != pauses[9]);
        backoff.reset();
        assert!(backoff.pause(&mut rng) <= Backoff::FIRST);
    }
}

//! A handle with its own session, randomness, load estimates and budget over shared connections.

use crate::budget::{Budget, BudgetSettings};
use crate::clock;
use crate::error::Error;
use crate::latency::{Latency, LatencySettings};
use crate::options::{ReadOptions, WriteOptions};
use crate::report::{Read, Value, WriteReport};
use crate::select::Load;
use crate::shared::Shared;
use crate::tied_read::tied_read;
use crate::write;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position, PositionToken, SHARD_ZERO};
use tiedkv_protocol::request::WriteOperation;

/// A light handle over a client's connections; see [`Client::view`](crate::Client::view). Cheap to clone; clones
/// share everything.
#[derive(Clone, Debug)]
pub struct View {
    inner: Arc<ViewInner>,
}

/// What the clones of one view share.
#[derive(Debug)]
pub(crate) struct ViewInner {
    pub(crate) shared: Arc<Shared>,
    /// The position that the session has seen.
    seen: AtomicU64,
    pub(crate) own: Mutex<Own>,
}

/// A view's own randomness and estimates.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) rng: StdRng,
    pub(crate) budget: Budget,
    pub(crate) latency: Latency,
    loads: SmallVec<[(NodeId, Load); 4]>,
}

impl Own {
    fn new(rng: StdRng) -> Self {
        Self {
            rng,
            budget: Budget::new(BudgetSettings::default(), clock::now()),
            latency: Latency::new(LatencySettings::default()),
            loads: SmallVec::new(),
        }
    }

    /// What is known of the load of a replica.
    pub(crate) fn load(&self, node: NodeId) -> Load {
        self.loads.iter().find(|(other, _)| *other == node).map(|(_, load)| *load).unwrap_or_default()
    }

    /// The load of a replica, to be changed.
    pub(crate) fn load_mut(&mut self, node: NodeId) -> &mut Load {
        let index = self.loads.iter().position(|(other, _)| *other == node).unwrap_or_else(|| {
            self.loads.push((node, Load::default()));
            self.loads.len() - 1
        });
        &mut self.loads[index].1
    }

    /// Forgets replicas that are no members any more.
    pub(crate) fn keep_loads(&mut self, members: usize, is_member: impl Fn(NodeId) -> bool) {
        if self.loads.len() > members {
            self.loads.retain(|(node, load)| load.outstanding > 0 || is_member(*node));
        }
    }
}

impl ViewInner {
    /// The position that the session has seen.
    pub(crate) fn seen(&self) -> Position {
        Position(self.seen.load(Relaxed))
    }

    /// The session has seen this.
    pub(crate) fn saw(&self, position: Position) {
        self.seen.fetch_max(position.0, Relaxed);
    }

    /// The token of a position of our cluster and shard.
    pub(crate) fn token_of(&self, position: Position) -> PositionToken {
        PositionToken { cluster: self.shared.cluster(), shard: SHARD_ZERO, position }
    }

    /// Checks that a token speaks of our cluster and shard.
    ///
    /// # Errors
    /// Names what does not fit.
    pub(crate) fn check_token(&self, token: PositionToken) -> Result<Position, Error> {
        let cluster = self.shared.cluster();
        if token.cluster != cluster {
            let message = format!("the token is of cluster {}, this client of {cluster}", token.cluster);
            return Err(Error::call(ErrorCode::BadToken, message));
        }
        if token.shard != SHARD_ZERO {
            let message = format!("the token is of shard {}; only {SHARD_ZERO} exists", token.shard);
            return Err(Error::call(ErrorCode::BadToken, message));
        }
        Ok(token.position)
    }
}

impl View {
    /// The view of a new client: its randomness comes from the operating system.
    pub(crate) fn first(shared: Arc<Shared>) -> Self {
        Self::with(shared, StdRng::from_os_rng())
    }

    fn with(shared: Arc<Shared>, rng: StdRng) -> Self {
        Self { inner: Arc::new(ViewInner { shared, seen: AtomicU64::new(0), own: Mutex::new(Own::new(rng)) }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn sibling(&self, seed: u64) -> View {
        Self::with(self.inner.shared.clone(), StdRng::seed_from_u64(seed))
    }

    /// As [`Client::get`](crate::Client::get).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>, Error> {
        Ok(self.get_with(key, ReadOptions::default()).await?.value)
    }

    /// As [`Client::get_with`](crate::Client::get_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get_with(&self, key: impl Into<Bytes>, options: ReadOptions) -> Result<Read, Error> {
        tied_read(&self.inner, key.into(), options).await
    }

    /// As [`Client::put_with`](crate::Client::put_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<WriteReport, Error> {
        write::write(&self.inner, WriteOperation::Put { key: key.into() }, value.into(), options).await
    }

    /// As [`Client::delete_with`](crate::Client::delete_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn delete_with(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<WriteReport, Error> {
        write::write(&self.inner, WriteOperation::Delete { key: key.into() }, Bytes::new(), options).await
    }

    /// What this view's session has seen.
    pub fn token(&self) -> PositionToken {
        self.inner.token_of(self.inner.seen())
    }

    /// Makes this view's session not read before `token`.
    ///
    /// # Errors
    /// When the token is of another cluster or shard.
    pub fn observe(&self, token: PositionToken) -> Result<(), Error> {
        self.inner.saw(self.inner.check_token(token)?);
        Ok(())
    }
}

//! A handle with its own session, randomness, load estimates and budget over shared connections.

use crate::error::Error;
use crate::options::{ReadOptions, WriteOptions};
use crate::report::{Read, Value, WriteReport};
use crate::shared::Shared;
use bytes::Bytes;
use std::sync::Arc;
use tiedkv_protocol::ids::PositionToken;

/// A light handle over a client's connections; see [`Client::view`](crate::Client::view). Cheap to clone; clones
/// share everything.
#[derive(Clone, Debug)]
pub struct View {
    shared: Arc<Shared>,
}

impl View {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn sibling(&self, seed: u64) -> View {
        let _ = seed;
        todo!()
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
        let _ = (key.into(), options);
        todo!()
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
        let _ = (key.into(), value.into(), options);
        todo!()
    }

    /// As [`Client::delete_with`](crate::Client::delete_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn delete_with(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<WriteReport, Error> {
        let _ = (key.into(), options);
        todo!()
    }

    /// What this view's session has seen.
    pub fn token(&self) -> PositionToken {
        todo!()
    }

    /// Makes this view's session not read before `token`.
    ///
    /// # Errors
    /// When the token is of another cluster or shard.
    pub fn observe(&self, token: PositionToken) -> Result<(), Error> {
        let _ = token;
        todo!()
    }
}

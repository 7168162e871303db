//! Times to live: setting, changing and taking away when a key expires. They only hand on to [`crate::write`].
//!
//! Time is log time: it is the cluster's, goes on with the leader's clock, and no replica looks at its own.

use crate::client::Client;
use crate::conditional::{Batch, Conditional};
use crate::error::Error;
use crate::options::WriteOptions;
use crate::report::WriteReport;
use crate::view::View;
use crate::write::write_atomic;
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, Expect, Operation};

/// A time to live on the wire; what is no whole millisecond is rounded up.
fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Batch {
    /// Sets a key that expires after `ttl`.
    #[must_use]
    pub fn put_for(self, key: impl Into<Bytes>, value: impl Into<Bytes>, ttl: Duration) -> Self {
        self.add(Operation::PutFor { key: key.into(), value: value.into(), ttl_ms: milliseconds(ttl) })
    }

    /// Sets after what time a key expires, or that it does not; an absent key stays absent.
    #[must_use]
    pub fn expire(self, key: impl Into<Bytes>, ttl: Option<Duration>) -> Self {
        self.add(Operation::Expire { key: key.into(), ttl_ms: ttl.map(milliseconds) })
    }
}

impl View {
    /// Sets a key that expires after `ttl`, 1 ms to ten years, to the nearest second or so.
    ///
    /// # Errors
    /// See [`Error::caller_move`]; `OverLimit` for a time out of its range.
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn put_for(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Duration,
        options: WriteOptions,
    ) -> Result<WriteReport, Error> {
        match self.batch(Batch::new().put_for(key, value, ttl), options).await? {
            Conditional::Applied(applied) => Ok(applied.report),
            Conditional::Unmet(_) => Err(Error::internal("a put has no condition, but one did not hold")),
        }
    }

    /// Sets after what time from now a key expires; its value and version stay. False if it is absent.
    ///
    /// # Errors
    /// As [`put_for`](Self::put_for).
    ///
    /// # Cancel safety
    /// As [`put_for`](Self::put_for).
    pub async fn touch(&self, key: impl Into<Bytes>, ttl: Duration, options: WriteOptions) -> Result<bool, Error> {
        self.expire(key.into(), Some(ttl), options).await
    }

    /// Makes a key not expire; its value and version stay. False if it is absent.
    ///
    /// # Errors
    /// As [`put_for`](Self::put_for).
    ///
    /// # Cancel safety
    /// As [`put_for`](Self::put_for).
    pub async fn persist(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<bool, Error> {
        self.expire(key.into(), None, options).await
    }

    async fn expire(&self, key: Bytes, ttl: Option<Duration>, options: WriteOptions) -> Result<bool, Error> {
        let operation = Operation::Expire { key: key.clone(), ttl_ms: ttl.map(milliseconds) };
        let written =
            write_atomic(self.inner(), &Atomic::compare(key, Expect::Present, operation), options).await?;
        Ok(matches!(written, Conditional::Applied(_)))
    }
}

impl Client {
    /// [`View::put_for`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn put_for(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<WriteReport, Error> {
        self.own().put_for(key, value, ttl, WriteOptions::default()).await
    }

    /// [`Client::put_for`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn put_for_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Duration,
        options: WriteOptions,
    ) -> Result<WriteReport, Error> {
        self.own().put_for(key, value, ttl, options).await
    }

    /// [`View::touch`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn touch(&self, key: impl Into<Bytes>, ttl: Duration) -> Result<bool, Error> {
        self.own().touch(key, ttl, WriteOptions::default()).await
    }

    /// [`View::persist`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn persist(&self, key: impl Into<Bytes>) -> Result<bool, Error> {
        self.own().persist(key, WriteOptions::default()).await
    }

    /// [`Client::touch`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn touch_with(
        &self,
        key: impl Into<Bytes>,
        ttl: Duration,
        options: WriteOptions,
    ) -> Result<bool, Error> {
        self.own().touch(key, ttl, options).await
    }

    /// [`Client::persist`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn persist_with(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<bool, Error> {
        self.own().persist(key, options).await
    }
}

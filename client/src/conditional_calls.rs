//! The conditional and atomic calls of [`View`] and [`Client`]. They only hand on to [`crate::write`].

use crate::client::Client;
use crate::conditional::{Batch, Conditional, Counted};
use crate::error::Error;
use crate::options::WriteOptions;
use crate::view::View;
use crate::write::write_atomic;
use bytes::Bytes;
use tiedkv_protocol::atomic::{Atomic, Expect, Operation};

impl View {
    /// Sets a key if it is what `expect` says; else tells what it is.
    ///
    /// # Errors
    /// See [`Error::caller_move`]; an unmet condition is no error.
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn compare_and_set(
        &self,
        key: impl Into<Bytes>,
        expect: Expect,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        let key = key.into();
        let operation = Operation::Put { key: key.clone(), value: value.into() };
        write_atomic(self.inner(), &Atomic::compare(key, expect, operation), options).await
    }

    /// Sets a key if it is absent; else tells what it is.
    ///
    /// # Errors
    /// As [`compare_and_set`](Self::compare_and_set).
    ///
    /// # Cancel safety
    /// As [`compare_and_set`](Self::compare_and_set).
    pub async fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        self.compare_and_set(key, Expect::Absent, value, options).await
    }

    /// Removes a key if it is what `expect` says; else tells what it is.
    ///
    /// # Errors
    /// As [`compare_and_set`](Self::compare_and_set).
    ///
    /// # Cancel safety
    /// As [`compare_and_set`](Self::compare_and_set).
    pub async fn delete_if(
        &self,
        key: impl Into<Bytes>,
        expect: Expect,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        let key = key.into();
        let operation = Operation::Delete { key: key.clone() };
        write_atomic(self.inner(), &Atomic::compare(key, expect, operation), options).await
    }

    /// Applies a batch, whole or not at all.
    ///
    /// # Errors
    /// As [`compare_and_set`](Self::compare_and_set); a bound that the batch breaks, named before anything is sent;
    /// an increment of what is no number or beyond 64 bits.
    ///
    /// # Cancel safety
    /// As [`compare_and_set`](Self::compare_and_set).
    pub async fn batch(&self, batch: Batch, options: WriteOptions) -> Result<Conditional, Error> {
        write_atomic(self.inner(), &batch.into_atomic(), options).await
    }

    /// Adds to a number kept as decimal text; an absent key is 0.
    ///
    /// # Errors
    /// See [`Error::caller_move`]; code `NotANumber` or `NumberOverflow` if the value is no 64-bit number or would
    /// not be one (nothing is applied then).
    ///
    /// # Cancel safety
    /// As [`compare_and_set`](Self::compare_and_set). Sent again by hand under a fresh key it counts twice.
    pub async fn increment(&self, key: impl Into<Bytes>, by: i64, options: WriteOptions) -> Result<Counted, Error> {
        let operations = vec![Operation::Increment { key: key.into(), by }];
        let atomic = Atomic { conditions: Vec::new(), operations };
        match write_atomic(self.inner(), &atomic, options).await? {
            Conditional::Applied(applied) => {
                Ok(Counted { number: applied.numbers.first().copied().flatten(), report: applied.report })
            }
            Conditional::Unmet(_) => Err(Error::internal("an increment has no condition, but one did not hold")),
        }
    }
}

impl Client {
    /// [`View::compare_and_set`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn compare_and_set(
        &self,
        key: impl Into<Bytes>,
        expect: Expect,
        value: impl Into<Bytes>,
    ) -> Result<Conditional, Error> {
        self.own().compare_and_set(key, expect, value, WriteOptions::default()).await
    }

    /// [`Client::compare_and_set`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn compare_and_set_with(
        &self,
        key: impl Into<Bytes>,
        expect: Expect,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        self.own().compare_and_set(key, expect, value, options).await
    }

    /// [`Client::delete_if`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn delete_if_with(
        &self,
        key: impl Into<Bytes>,
        expect: Expect,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        self.own().delete_if(key, expect, options).await
    }

    /// [`View::put_if_absent`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Conditional, Error> {
        self.own().put_if_absent(key, value, WriteOptions::default()).await
    }

    /// [`Client::put_if_absent`] with choices of its own.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn put_if_absent_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<Conditional, Error> {
        self.own().put_if_absent(key, value, options).await
    }

    /// [`View::delete_if`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn delete_if(&self, key: impl Into<Bytes>, expect: Expect) -> Result<Conditional, Error> {
        self.own().delete_if(key, expect, WriteOptions::default()).await
    }

    /// [`View::batch`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn batch(&self, batch: Batch) -> Result<Conditional, Error> {
        self.own().batch(batch, WriteOptions::default()).await
    }

    /// [`Client::batch`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn batch_with(&self, batch: Batch, options: WriteOptions) -> Result<Conditional, Error> {
        self.own().batch(batch, options).await
    }

    /// [`View::increment`] in this client's own session.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn increment(&self, key: impl Into<Bytes>, by: i64) -> Result<Counted, Error> {
        self.own().increment(key, by, WriteOptions::default()).await
    }

    /// [`Client::increment`] with options.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn increment_with(
        &self,
        key: impl Into<Bytes>,
        by: i64,
        options: WriteOptions,
    ) -> Result<Counted, Error> {
        self.own().increment(key, by, options).await
    }
}

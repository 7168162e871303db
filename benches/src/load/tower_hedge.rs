//! The hedge layer of the crate `tower` around an untied client: what a Rust service would hedge with that knows
//! nothing of ties. For comparison only; the client crate does not depend on it.
//!
//! Its second request is a read of its own (a modelled device draws for it anew), to a random replica (the same one at
//! times), after the percentile of the latencies of the second before; whole milliseconds, no budget. The slower read
//! is dropped, which withdraws its copy.

use bytes::Bytes;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tiedkv_client::{Error, Read, ReadOptions, View};
use tower::Service;
use tower::hedge::{Hedge, Policy};

/// Latencies known before the first hedge.
const DATA_POINTS_MIN: u64 = 100;
/// When the second request goes.
const PERCENTILE: f32 = 0.95;
/// How long latencies are gathered before they are used; they are used as long. Shorter than the warm-up of a scene.
const PERIOD: Duration = Duration::from_secs(1);

/// The layer and what it has learned. Cheap to clone.
#[derive(Clone)]
pub struct TowerHedge(Arc<Mutex<Hedge<Views, Always>>>);

impl fmt::Debug for TowerHedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerHedge").finish_non_exhaustive()
    }
}

impl TowerHedge {
    /// One that knows nothing yet.
    #[expect(clippy::new_without_default, reason = "a layer is made on purpose")]
    pub fn new() -> Self {
        let hedge = Hedge::new::<Call>(Views, Always, DATA_POINTS_MIN, PERCENTILE, PERIOD);
        Self(Arc::new(Mutex::new(hedge)))
    }

    /// One read of `key`.
    ///
    /// # Errors
    /// As the read that ended first; a text for people.
    ///
    /// # Cancel safety
    /// Safe: both reads are withdrawn.
    pub async fn read(&self, view: View, key: Bytes, options: ReadOptions) -> Result<Read, String> {
        let reading = {
            let mut hedge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // What is below is always ready.
            hedge.call(Call { view, key, options })
        };
        reading.await.map_err(|error| error.to_string())
    }
}

/// One read.
#[derive(Clone)]
struct Call {
    view: View,
    key: Bytes,
    options: ReadOptions,
}

/// Every read may be sent twice.
#[derive(Clone)]
struct Always;

impl Policy<Call> for Always {
    /// What is sent second.
    fn clone_request(&self, call: &Call) -> Option<Call> {
        let mut second = call.clone();
        // The layer sends the clone later and the original at once: two reads have two identities.
        second.options.read = None;
        Some(second)
    }

    fn can_retry(&self, _: &Call) -> bool {
        true
    }
}

/// The views as a service that is always ready.
#[derive(Clone)]
struct Views;

impl Service<Call> for Views {
    type Response = Read;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Read, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        Box::pin(async move { call.view.get_with(call.key, call.options).await })
    }
}

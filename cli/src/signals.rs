//! Turns SIGINT, SIGTERM and SIGHUP into a future, so that a command ends in order and cleans up.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for an end. From its making on they do not kill the process.
pub struct Signals([Signal; 3]);

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("signal handler");
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    /// Waits for one of them.
    ///
    /// # Cancel safety
    /// Safe: a signal that came meanwhile is seen by the next wait.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

//! What `bench data`, `bench levels` and `bench writes` have in common: three servers of their own on this machine, on
//! disk and with the real device, and a table of figures beside their bounds. Measures nothing itself.

use crate::outcome::End;
use crate::signals::Signals;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster};
use tiedkv_benches::cluster::{Device, Storage};

/// Longest wait until every node of a cluster answers a new client.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Starts a cluster, with further `settings` of its nodes as in a configuration file, measures, and stops it, also when
/// interrupted.
///
/// # Errors
/// When a server does not start, and those of `measure`.
pub async fn of_own_cluster(settings: &str, measure: impl AsyncFnOnce(&LocalCluster) -> Result<()>) -> Result<End> {
    let mut signals = Signals::listen()?;
    let mut spec = ClusterSpec::of_this_program().context("the path of this program")?;
    spec.settings.device = Device::Real;
    spec.settings.storage = Storage::Disk;
    if !settings.is_empty() {
        spec.settings.more = format!("{settings}\n");
    }
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start(spec) => cluster?,
        () = signals.next() => return Ok(End::Interrupted),
    };
    let end = tokio::select! {
        measured = measure(&cluster) => measured.map(|()| End::Ok),
        () = signals.next() => Ok(End::Interrupted),
    };
    cluster.stop_all(STOP_DEADLINE).await;
    end
}

/// A table in Markdown: figure, its value here, its bound.
pub struct FigureTable<'a> {
    document: &'a Value,
    text: String,
}

impl<'a> FigureTable<'a> {
    /// An empty table of figures of a JSON document.
    pub fn of(document: &'a Value) -> Self {
        Self { document, text: String::from("| figure | here | bound |\n|---|---|---|\n") }
    }

    /// Adds the number of that name, with so many digits after the point.
    pub fn number(&mut self, figure: &str, name: &str, digits: usize, bound: &str) {
        let number = self.document[name].as_f64().unwrap_or(f64::NAN);
        self.row(figure, &format!("{number:.digits$}"), bound);
    }

    /// Adds a row as it is.
    pub fn row(&mut self, figure: &str, here: &str, bound: &str) {
        self.text.push_str(&format!("| {figure} | {here} | {bound} |\n"));
    }

    /// The table.
    pub fn text(self) -> String {
        self.text
    }
}

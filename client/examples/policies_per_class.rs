//! A policy per kind of work: callers who wait get ties, a nightly job goes untied and behind them.
//!
//!     cargo run -p tiedkv-client --example policies_per_class -- "$URL"

use std::error::Error;
use std::time::Duration;
use tiedkv_client::{Client, Level, ReadOptions, ReadPolicy};
use tiedkv_protocol::request::Class;

/// A caller waits: two copies race, a rescue may follow, and half a second is all there is.
fn for_callers() -> ReadOptions {
    ReadOptions {
        policy: Some(ReadPolicy { rescue: true, ..ReadPolicy::TIED2 }),
        class: Some(Class::Interactive),
        deadline: Some(Duration::from_millis(500)),
        ..ReadOptions::default()
    }
}

/// A job waits: one copy, behind all callers, from any replica, however far behind.
fn for_jobs() -> ReadOptions {
    ReadOptions {
        policy: Some(ReadPolicy::UNTIED),
        class: Some(Class::Batch),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(Duration::from_secs(10)),
        ..ReadOptions::default()
    }
}

/// Reads the same key both ways.
///
/// # Errors
/// When the cluster does not answer.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::connect_url(url).await?;
    client.put("example/page", "contents").await?;
    let mut lines = Vec::new();
    for (who, options) in [("caller", for_callers()), ("job", for_jobs())] {
        // A job may read from a replica that has not heard of the key yet.
        let read = client.get_with("example/page", options).await?;
        lines.push(format!("{who}: node {}, {} copies", read.report.node.0, read.report.copies.len()));
    }
    client.close();
    Ok(lines.join("; "))
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

//! Connect, write, read, and look at how the read went.
//!
//! ```text
//! cargo run --release -- demo --keep --scenes none          # prints a URL
//! cargo run --release -p tiedkv-client --example quick_start -- URL
//! ```

use std::time::Duration;
use tiedkv_client::{Client, Level, ReadOptions, ReadPolicy};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("usage: quick_start tiedkv://HOST:PORT,.../?certs=DIR")?;
    let client = Client::connect_url(&url).await?;
    client.all_connected(Duration::from_secs(5)).await?;

    // A write gives a position; whoever holds its token reads at least that.
    let written = client.put("greeting", "hello").await?;
    println!("wrote version {} on {}", written.version, written.node);

    // A plain read, by the settings of the URL.
    if let Some(found) = client.get("greeting").await? {
        println!("read {:?}, version {}", found.value, found.version);
    }

    // Two tied copies on different replicas, at most 200 ms, fresh enough for this session.
    let options = ReadOptions {
        policy: Some(ReadPolicy::TIED2),
        level: Some(Level::Session),
        deadline: Some(Duration::from_millis(200)),
        token: Some(written.token),
        ..ReadOptions::default()
    };
    let read = client.get_with("greeting", options).await?;
    let report = &read.report;
    println!(
        "{} answered the {} copy of {} after {:?} (queue wait {:?}, service time {:?}, tie delay {:?})",
        report.node,
        report.kind.name(),
        report.copies.len(),
        report.latency,
        report.queue_wait,
        report.service_time,
        report.tie_delay,
    );

    client.delete("greeting").await?;
    for node in client.nodes() {
        println!("{} at {}: round trip {:?}", node.member.node, node.member.client_address, node.round_trip);
    }
    Ok(())
}

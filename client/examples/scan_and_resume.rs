//! Scans: a prefix in order, the last few, a count; and going on from a token, as after a restart.
//!
//!     cargo run -p tiedkv-client --example scan_and_resume -- "$URL"

use std::error::Error;
use tiedkv_client::{Batch, Client, ScanOptions, ScanRange, ScanToken};

/// Writes a hundred rows, reads them in two goes, removes them.
///
/// # Errors
/// When the cluster does not answer.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::connect_url(url).await?;
    let rows = (0..100).fold(Batch::new(), |batch, n| batch.put(format!("example/row/{n:03}"), format!("row {n}")));
    client.batch(rows).await?;
    let range = ScanRange::prefix("example/row/");

    // The first forty; pages are fetched ahead while we work.
    let mut scan = client.scan(&range, ScanOptions::default())?;
    let mut rows = 0;
    while rows < 40 && scan.next().await?.is_some() {
        rows += 1;
    }
    // A token is text: keep it, go on elsewhere, later.
    let token = scan.token().to_string();
    drop(scan);

    let elsewhere = Client::connect_url(url).await?;
    let mut rest = elsewhere.resume(token.parse::<ScanToken>()?, ScanOptions::default())?;
    while rest.next().await?.is_some() {
        rows += 1;
    }

    // The greatest two, without their values.
    let options = ScanOptions { reverse: true, keys_only: true, limit: Some(2), ..ScanOptions::default() };
    let mut last = client.scan(&range, options)?;
    let greatest = last.next().await?.ok_or("no row")?;
    let greatest = String::from_utf8_lossy(&greatest.key).into_owned();

    let count = client.count(&range).await?;
    let removed = client.delete_range(&range, ScanOptions::default(), |_| {}).await?;
    elsewhere.close();
    client.close();
    Ok(format!("{rows} rows read, {count} counted, {removed} removed, greatest {greatest}"))
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

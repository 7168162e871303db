//! Quick start: connect, put, get, delete. Run it against a cluster: `tiedkv demo --scenes none --keep` prints a URL.
//!
//!     cargo run -p tiedkv-client --example quick_start -- "$URL"

use std::error::Error;
use tiedkv_client::Client;

/// Puts a greeting, reads it back, removes it.
///
/// # Errors
/// When the cluster does not answer.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::connect_url(url).await?;
    client.put("example/greeting", "hello").await?;

    // A read in the session of this client sees its own writes, whichever replica answers.
    let found = client.get("example/greeting").await?.ok_or("the greeting is gone")?;
    let greeting = String::from_utf8(found.value.to_vec())?;

    // Absent is not the same as empty.
    client.put("example/empty", "").await?;
    assert!(client.get("example/empty").await?.is_some_and(|found| found.value.is_empty()));
    client.delete("example/empty").await?;
    assert!(client.get("example/empty").await?.is_none());

    client.close();
    Ok(format!("{greeting} (version {})", found.version.0))
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

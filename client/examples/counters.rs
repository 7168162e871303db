//! Counters: by increment, and by compare-and-set where the change is not an addition.
//!
//!     cargo run -p tiedkv-client --example counters -- "$URL"

use std::error::Error;
use tiedkv_client::{Client, Conditional, Expect};

const VISITS: &str = "example/visits";
const LONGEST: &str = "example/longest";

/// Counts ten visits from two tasks; keeps the longest of some words.
///
/// # Errors
/// When the cluster does not answer, or a counter is no number.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::connect_url(url).await?;
    client.delete(VISITS).await?;
    client.delete(LONGEST).await?;

    let (one, other) = (client.clone(), client.clone());
    tokio::try_join!(visit(&one, 5), visit(&other, 5))?;
    let visits = client.increment(VISITS, 0).await?.number;

    let words = ["tie", "replica", "yield", "cancellation"];
    for word in words {
        keep_longest(&client, word).await?;
    }
    let longest = client.get(LONGEST).await?.ok_or("nothing was kept")?;
    client.close();
    Ok(format!("{} visits, longest word {}", visits.unwrap_or(0), String::from_utf8_lossy(&longest.value)))
}

async fn visit(client: &Client, times: u32) -> Result<(), tiedkv_client::Error> {
    for _ in 0..times {
        // Exact, and counted once however often it is sent again: the crate names each intent.
        client.increment(VISITS, 1).await?;
    }
    Ok(())
}

/// Read, decide, write only if nobody wrote in between; else look again.
async fn keep_longest(client: &Client, word: &'static str) -> Result<(), tiedkv_client::Error> {
    loop {
        let known = client.get(LONGEST).await?;
        if known.as_ref().is_some_and(|known| known.value.len() >= word.len()) {
            return Ok(());
        }
        let expect = known.map_or(Expect::Absent, |known| Expect::Version(known.version));
        match client.compare_and_set(LONGEST, expect, word).await? {
            Conditional::Applied(_) => return Ok(()),
            Conditional::Unmet(_) => {}
        }
    }
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

//! A session handed on: one client writes, another must see it, although any replica may answer.
//!
//!     cargo run -p tiedkv-client --example session_token -- "$URL"

use std::error::Error;
use tiedkv_client::{Client, ReadOptions};
use tiedkv_protocol::ids::PositionToken;

/// Writes with one client and reads with another.
///
/// # Errors
/// When the cluster does not answer.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let writer = Client::connect_url(url).await?;
    let reader = Client::connect_url(url).await?;
    let mut seen = 0;
    for order in 0..20 {
        let written = writer.put("example/order", order.to_string()).await?;
        // Travels as text: in a header, a queue, a cookie.
        let token: PositionToken = written.token.to_string().parse()?;
        let options = ReadOptions { token: Some(token), ..ReadOptions::default() };
        let read = reader.get_with("example/order", options).await?;
        let value = read.value.ok_or("the order is gone")?.value;
        assert_eq!(value, order.to_string(), "a read with the token is never older than the write");
        seen += 1;
    }
    // Or once for all reads of that client from now on.
    reader.observe(writer.token())?;
    assert!(reader.get("example/order").await?.is_some());
    writer.close();
    reader.close();
    Ok(format!("{seen} orders seen"))
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

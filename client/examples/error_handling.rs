//! Errors: five moves, each with something to do. The error says what was tried and whether trying again is safe.
//!
//!     cargo run -p tiedkv-client --example error_handling -- "$URL"

use std::error::Error;
use std::time::Duration;
use tiedkv_client::{Client, WriteOptions};
use tiedkv_protocol::error::Move;
use tiedkv_protocol::ids::{ClientId, Position};
use tiedkv_protocol::request::IdempotencyKey;

/// What a program does about an error.
fn advice(error: &tiedkv_client::Error) -> &'static str {
    match error.caller_move() {
        Move::RetryHere => "try again a little later",
        Move::TryElsewhere => "try again: another node may answer",
        Move::FixTheCall => "the call is wrong: trying again changes nothing",
        Move::UnknownOutcome => "it may have been applied: send it again with the same idempotency key",
        Move::GiveUp => "no time left: give up, or call again with more",
    }
}

/// Makes some errors on purpose, and one write that is applied once although it is sent twice.
///
/// # Errors
/// When the cluster does not answer.
pub async fn run(url: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::connect_url(url).await?;

    let Err(wrong) = client.get("").await else { return Err("an empty key was taken".into()) };
    let mut lines = vec![format!("{}: {}", wrong.code().map_or("-", |code| code.name()), advice(&wrong))];

    let hurried = WriteOptions { deadline: Some(Duration::from_nanos(1)), ..WriteOptions::default() };
    let Err(late) = client.put_with("example/late", "x", hurried).await else {
        return Err("a write without time was taken".into());
    };
    lines.push(format!("without time: {}", advice(&late)));

    // One intent, however often it is sent: a key of our own, the same for every try.
    let intent = IdempotencyKey { client: ClientId(rand_u128()), sequence: 1, floor: client.token().position };
    let options = || WriteOptions { idempotency: Some(intent), ..WriteOptions::default() };
    let first = client.put_with("example/payment", "paid", options()).await?;
    let again = client.put_with("example/payment", "paid", options()).await?;
    assert!(!first.repeated && again.repeated && first.version == again.version);
    assert!(first.token.position > Position(0));
    lines.push("sent twice, applied once".to_owned());
    client.close();
    Ok(lines.join("; "))
}

/// Enough for an example; a program takes its intents' names from where they are kept.
fn rand_u128() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    u128::from(RandomState::new().hash_one(0_u8)) << 64 | u128::from(RandomState::new().hash_one(1_u8))
}

#[allow(dead_code, reason = "the tests call `run` of this very file")]
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a cluster")?;
    println!("{}", run(&url).await?);
    Ok(())
}

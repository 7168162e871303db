//! Times to live through the crate and the tool: a lease that is set, read, prolonged, kept and lost.

use crate::bed::{PATIENCE, until};
use crate::data::{patient_url, replicated};
use crate::tool::{code, text, tool};
use std::time::Duration;
use tiedkv_client::{Level, ReadOptions, ScanOptions, ScanRange, WriteOptions};
use tiedkv_protocol::error::ErrorCode;

fn patient() -> WriteOptions {
    WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() }
}

#[tokio::test]
async fn a_lease_is_set_read_prolonged_kept_and_lost() {
    let bed = replicated().await;
    let client = &bed.client;
    let second = Duration::from_secs(1);
    client.put_for_with("lease", "me", 60 * second, patient()).await.unwrap();
    client.put_for_with("brief", "me", second, patient()).await.unwrap();
    let left = client.get("lease").await.unwrap().unwrap().remaining.unwrap();
    assert!(left > 50 * second && left <= 60 * second, "{left:?}");

    assert!(client.touch("lease", 600 * second).await.unwrap());
    let touched = client.get("lease").await.unwrap().unwrap();
    assert!(touched.remaining.unwrap() > 500 * second && touched.value == "me");
    assert!(client.persist("lease").await.unwrap());
    assert_eq!(client.get("lease").await.unwrap().unwrap().remaining, None);
    assert!(!client.touch("nothing", second).await.unwrap() && !client.persist("nothing").await.unwrap());

    let mut scan = client.scan(&ScanRange::prefix("brief"), ScanOptions::default()).unwrap();
    if let Some(row) = scan.next().await.unwrap() {
        assert!(row.remaining_ms.is_some_and(|left| left <= 1_000), "{row:?}");
    }
    // Nothing is written: the leader ticks. At every level it is gone, and stays gone.
    let read = |level| ReadOptions { level: Some(level), deadline: Some(PATIENCE), ..ReadOptions::default() };
    until("it expires", async || client.get("brief").await.unwrap(), Option::is_none).await;
    for level in [Level::Session, Level::Linearizable] {
        assert!(client.get_with("brief", read(level)).await.unwrap().value.is_none());
    }
    assert!(!client.exists("brief").await.unwrap());
    assert_eq!(client.count(&ScanRange::all()).await.unwrap(), 1);
    let error = client.put_for("key", "value", Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OverLimit));
    assert!(error.to_string().contains("0 ms"), "{error}");
}

#[tokio::test]
async fn the_tool_sets_and_shows_what_a_key_has_left() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let on = |arguments: &[&str]| {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        tool(&all, b"")
    };
    assert_eq!(code(&on(&["put", "lease", "me", "--ttl", "60s"])), Some(0));
    let json =
        |output: &std::process::Output| -> serde_json::Value { serde_json::from_slice(&output.stdout).unwrap() };
    let left = json(&on(&["ttl", "lease", "-o", "json"]))["ttl_ms"].as_u64().unwrap();
    assert!((30_000..=60_000).contains(&left), "{left}");
    assert!(json(&on(&["get", "lease", "-o", "json"]))["ttl_ms"].as_u64().is_some());
    let touched = json(&on(&["ttl", "lease", "--set", "600s", "-o", "json"]))["ttl_ms"].as_u64().unwrap();
    assert!(touched > 500_000, "{touched}");
    assert_eq!(text(&on(&["ttl", "lease", "--never", "-o", "raw"]).stdout), "never\n");
    assert_eq!(code(&on(&["ttl", "nothing"])), Some(1));
    assert_eq!(code(&on(&["ttl", "nothing", "--set", "1s"])), Some(1));
    let wrong = on(&["put", "lease", "me", "--ttl", "60"]);
    assert_eq!(code(&wrong), Some(2));
    assert!(text(&wrong.stderr).contains("60ms"), "{}", text(&wrong.stderr));
    // Export and import carry it.
    assert_eq!(code(&on(&["ttl", "lease", "--set", "600s"])), Some(0));
    let export = on(&["export"]).stdout;
    assert!(text(&export).contains("\"ttl_ms\":"), "{}", text(&export));
    on(&["del", "lease"]);
    assert_eq!(code(&tool(&["import", "--cluster", &url], &export)), Some(0));
    let left = json(&on(&["ttl", "lease", "-o", "json"]))["ttl_ms"].as_u64().unwrap();
    assert!((500_000..=600_000).contains(&left), "{left}");
}

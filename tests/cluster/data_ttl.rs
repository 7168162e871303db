//! Times to live through the crate and the tool: a lease that is set, read, prolonged, kept and lost; the longest value
//! with one.

use crate::bed::{PATIENCE, until};
use crate::data::{patient_url, replicated, settle};
use crate::tool::{code, text, tool};
use std::time::Duration;
use tiedkv_client::{Level, ReadOptions, ScanOptions, ScanRange, WriteOptions};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::limits::VALUE_BYTES_MAX;

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

#[tokio::test]
async fn the_longest_value_with_a_time_comes_back_from_an_export_and_one_byte_more_is_refused() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let on = |arguments: &[&str], input: &[u8]| {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        tool(&all, input)
    };
    let done = |output: &std::process::Output| assert_eq!(code(output), Some(0), "{}", text(&output.stderr));
    // All bytes, in no period of a buffer; no UTF-8.
    let longest: Vec<u8> = (0..VALUE_BYTES_MAX).map(|at| (at % 257 + at / 65_537) as u8).collect();
    done(&on(&["put", "longest", "--ttl", "3600s"], &longest));
    settle(&bed).await;
    let file = path("longest.jsonl");
    done(&on(&["export", &file], b""));
    done(&on(&["del", "longest"], b""));
    settle(&bed).await;
    assert_eq!(code(&on(&["get", "longest"], b"")), Some(1), "it is deleted");
    done(&on(&["import", &file], b""));
    settle(&bed).await;
    let got = on(&["get", "longest"], b"");
    done(&got);
    assert!(got.stdout == longest, "{} bytes came back, or others", got.stdout.len());
    let left = bed.client.get("longest").await.unwrap().unwrap().remaining;
    assert!(left.is_some_and(|left| left > Duration::from_secs(1_800)), "{left:?}");

    // One byte more, by each way in: the limit and the size are named, and nothing is changed.
    let named = |said: &str| {
        let (limit, size) = (VALUE_BYTES_MAX.to_string(), (VALUE_BYTES_MAX + 1).to_string());
        assert!(said.contains(&limit) && said.contains(&size), "{said}");
    };
    let over = vec![b'x'; VALUE_BYTES_MAX + 1];
    let put = bed.client.put_for_with("over", over.clone(), Duration::from_secs(60), patient()).await.unwrap_err();
    assert_eq!(put.code(), Some(ErrorCode::OverLimit));
    named(&put.to_string());
    let put = bed.client.put_with("over", over.clone(), patient()).await.unwrap_err();
    assert_eq!(put.code(), Some(ErrorCode::OverLimit));
    named(&put.to_string());
    let mut line = b"{\"key\":\"over\",\"ttl_ms\":60000,\"value\":\"".to_vec();
    line.extend_from_slice(&over);
    line.extend_from_slice(b"\"}\n{\"end\":1}\n");
    let import = on(&["import"], &line);
    assert_eq!(code(&import), Some(2), "{}", text(&import.stderr));
    named(&text(&import.stderr));
    settle(&bed).await;
    assert!(!bed.client.exists("over").await.unwrap());
}

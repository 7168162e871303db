//! The tool's commands for many keys against a running cluster; what they print is compared with files in
//! `tests/cluster/printed/` (set UPDATE_PRINTED to write them anew).

use crate::bed::{Bed, PATIENCE, until};
use crate::data::{fill, patient_url, replicated, settle};
use crate::tool::{code, text, tool};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tiedkv_benches::cluster::admin_page::fetch;
use tiedkv_client::ScanRange;

/// Compares with the file; a difference shows both.
pub fn assert_printed(name: &str, printed: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cluster/printed").join(name);
    if std::env::var_os("UPDATE_PRINTED").is_some() {
        std::fs::write(&path, printed).unwrap();
    }
    let expected = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(text(printed), text(&expected), "{}", path.display());
}

/// As printed by a cluster whose versions differ from run to run.
pub fn without_versions(printed: &[u8]) -> Vec<u8> {
    let mut out = String::new();
    let text = text(printed);
    let mut parts = text.split("\"version\":");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let number = part.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(if number { "\"version\":V" } else { "\"version\":" });
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    out.into_bytes()
}

#[tokio::test]
async fn scans_counts_and_deletes_print_what_they_are_known_to() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let rows = [("a/1", "one"), ("a/2", "zwei \u{e4}"), ("a/\u{1}", "tab\there"), ("b", ""), ("c", "last")];
    fill(&bed.client, rows.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))).await;
    tool(&["put", "--cluster", &url, r"a/\xff", r"\x00\xfe"], b"");
    settle(&bed).await;
    let on = |arguments: &[&str]| {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        let output = tool(&all, b"");
        assert_eq!(code(&output), Some(0), "{arguments:?}: {}", text(&output.stderr));
        output.stdout
    };
    assert_printed("scan.txt", &on(&["scan"]));
    assert_printed("scan-prefix.txt", &on(&["scan", "--prefix", "a/"]));
    assert_printed("scan-reverse.txt", &on(&["scan", "--reverse", "--limit", "3", "--keys-only"]));
    assert_printed("scan-range.txt", &on(&["scan", "--from", "a/2", "--to", "c"]));
    assert_printed("scan-json.txt", &without_versions(&on(&["scan", "-o", "json"])));
    assert_printed("scan-keys-json.txt", &without_versions(&on(&["scan", "--keys-only", "-o", "json"])));
    assert_eq!(on(&["scan", "--prefix", "b", "-o", "raw"]), b"\n");
    assert_eq!(on(&["scan", "--from", "z", "--to", "a"]), b"");
    assert_eq!(on(&["count", "--prefix", "a/"]), b"4\n");
    assert_printed("count-json.txt", &on(&["count", "-o", "json"]));
    assert_eq!(on(&["incr", "a/2x", "-o", "raw"]), b"1\n");
    assert_eq!(on(&["incr", "a/2x", "-43", "-o", "raw"]), b"-42\n");
    settle(&bed).await;
    assert_eq!(on(&["get", "a/2x"]), b"-42");
    on(&["del", "a/2x"]);
    settle(&bed).await;
    assert_eq!(on(&["del", "--prefix", "a/"]), b"4 keys removed\n");
    assert_printed("del-json.txt", &on(&["del", "--from", "b", "-o", "json"]));
    settle(&bed).await;
    assert_eq!(on(&["count"]), b"0\n");
}

/// What differs from run to run becomes an underscore.
pub fn without_runs(printed: &[u8]) -> String {
    let of_calls =
        ["node", "tries", "version", "token", "latency_us", "queue_wait_us", "service_time_us", "copies"];
    let of_members = ["client_address", "peer_address", "cancel_address", "leader"];
    let line = |line: &str| {
        let word = line.trim_start().trim_start_matches('"');
        let name = word.split(['"', ' ', ':']).next().unwrap_or_default();
        let value = line.trim_end_matches(',').rsplit(' ').next().unwrap_or_default();
        // A null is no number of a run.
        let differs = of_calls.contains(&name) || of_members.contains(&name);
        if differs && value != "null" { line.replacen(value, "_", 1) } else { line.to_owned() }
    };
    text(printed).lines().map(line).collect::<Vec<String>>().join("\n")
}

#[tokio::test]
async fn commands_of_one_key_and_errors_print_what_they_are_known_to() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let mut printed = Vec::new();
    for (arguments, exit) in [
        (&["put", "lock", "me", "-o", "json"][..], 0),
        (&["get", "lock", "-o", "json"], 0),
        (&["get", "nobody", "-o", "json"], 1),
        (&["cas", "lock", "you", "--absent"], 1),
        (&["cas", r"lo\x63k", "you", "--absent", "-o", "json"], 1),
        (&["incr", "count", "7", "-o", "json"], 0),
        (&["incr", r"count\x41\\", "-o", "json"], 0),
        (&["incr", "lock"], 2),
        (&["incr", "lock", "-o", "json"], 2),
        (&["ttl", "lock"], 0),
        (&["ttl", "lock", "-o", "json"], 0),
        (&["ttl", "nobody"], 1),
        (&["ttl", r"no\x62ody", "-o", "json"], 1),
        (&["del", "lock", "-o", "json"], 0),
        (&["gte", "lock"], 2),
        (&["scan", "--limit", "0", "-o", "json"], 2),
    ] {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        let output = tool(&all, b"");
        let (out, err) = (without_runs(&output.stdout), without_runs(&output.stderr));
        assert_eq!(code(&output), Some(exit), "{arguments:?}: {out}{err}");
        printed
            .extend(format!("$ tiedkv {}\n{}\n{}\n", arguments.join(" "), out.trim_end(), err.trim_end()).bytes());
    }
    assert_printed("one-key.txt", &printed);
}

#[tokio::test]
async fn a_conditional_put_has_a_time_to_live_and_one_that_is_not_applied_changes_none() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let on = |arguments: &[&str]| {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        tool(&all, b"")
    };
    assert_eq!(code(&on(&["cas", "lease", "me", "--absent", "--ttl", "600s"])), Some(0));
    assert_eq!(code(&on(&["cas", "lease", "you", "--absent", "--ttl", "6000s"])), Some(1), "it is held");
    let held = async || bed.client.get("lease").await.unwrap().unwrap();
    settle(&bed).await;
    let left = held().await.remaining.unwrap();
    assert!(left <= Duration::from_secs(600) && left > Duration::from_secs(300), "{left:?}");
    // Prolonged by its holder; without a time it does not expire any more.
    assert_eq!(code(&on(&["cas", "lease", "me", "--expect", "me", "--ttl", "6000s"])), Some(0));
    settle(&bed).await;
    assert!(held().await.remaining.unwrap() > Duration::from_secs(3_000));
    assert_eq!(code(&on(&["cas", "lease", "mine", "--expect", "me"])), Some(0));
    settle(&bed).await;
    let kept = held().await;
    assert_eq!((&kept.value[..], kept.remaining), (&b"mine"[..], None));
    for (arguments, named) in [
        (&["cas", "lease", "me", "--absent", "--ttl", "60"][..], "60ms"),
        (&["cas", "lease", "--expect", "mine", "--delete", "--ttl", "60s"], "--ttl"),
        (&["cas", "free", "me", "--absent", "--ttl", "0s"], "a time to live of 0 ms"),
    ] {
        let output = on(arguments);
        assert_eq!(code(&output), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(named), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[tokio::test]
async fn a_scan_goes_on_from_the_token_it_printed() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    fill(&bed.client, (0..30).map(|n| (format!("k{n:02}"), b"v".to_vec()))).await;
    let first = tool(&["scan", "--cluster", &url, "--limit", "10", "--keys-only", "--token"], b"");
    assert_eq!(text(&first.stdout).lines().count(), 10);
    let token = text(&first.stderr).trim().to_owned();
    // The limit was ten in all.
    let rest = tool(&["scan", "--cluster", &url, "--resume", &token], b"");
    assert_eq!((code(&rest), rest.stdout.len()), (Some(0), 0), "{}", text(&rest.stderr));
    let token = token.replace(".upk.0.", ".upk.3.");
    let rest = tool(&["scan", "--cluster", &url, "--resume", &token], b"");
    assert_eq!(text(&rest.stdout), "k10\nk11\nk12\n", "{}", text(&rest.stderr));
    // A limit of its own: page by page.
    let next = tool(&["scan", "--cluster", &url, "--resume", &token, "--limit", "12", "--token"], b"");
    assert_eq!(text(&next.stdout).lines().next_back(), Some("k21"), "{}", text(&next.stderr));
    let token = text(&next.stderr).trim().to_owned();
    let last = tool(&["scan", "--cluster", &url, "--resume", &token, "--limit", "12"], b"");
    assert_eq!((text(&last.stdout).lines().next(), text(&last.stdout).lines().count()), (Some("k22"), 8));
    let none = tool(&["scan", "--cluster", &url, "--resume", &token, "--limit", "0"], b"");
    assert_eq!(code(&none), Some(2), "{}", text(&none.stderr));
    let wrong = tool(&["scan", "--cluster", &url, "--resume", "scan1.x"], b"");
    assert_eq!(code(&wrong), Some(2));
    for (arguments, named) in [
        (&["scan", "--limit", "0"][..], "at least 1"),
        (&["scan", "--prefix", "a", "--from", "b"], "--prefix"),
        (&["scan", "--prefix", r"\q"], r"\q"),
        (&["del"], "KEY"),
        (&["del", "key", "--prefix", "k"], "--prefix"),
        (&["scan", "--prefx", "a"], "--prefix"),
    ] {
        let mut all = vec![arguments[0], "--cluster", &url];
        all.extend(&arguments[1..]);
        let output = tool(&all, b"");
        assert_eq!(code(&output), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(named), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// Of a cluster that does not answer, so that it is interrupted before its end, however fast the machine is.
async fn interrupted_export_goes_on(url: &str, file: &str, whole: &[u8]) {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (_, rest) = url.split_once('?').unwrap();
    let silent = format!("tiedkv://{}/?{rest}", nobody.local_addr().unwrap());
    let child = with_pipes(&["export", "--cluster", &silent, file], Stdio::null());
    until("the file is there", async || Path::new(file).exists(), |there| *there).await;
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    let interrupted = child.wait_with_output().unwrap();
    let said = text(&interrupted.stderr);
    assert_eq!(code(&interrupted), Some(130), "{said}");
    assert!(said.contains(&format!("interrupted: 0 rows are in {file}; go on with --resume")), "{said}");
    let resumed = tool(&["export", "--cluster", url, "--resume", file], b"");
    assert_eq!(
        (code(&resumed), std::fs::read(file).unwrap() == whole),
        (Some(0), true),
        "{}",
        text(&resumed.stderr)
    );
}

#[tokio::test]
async fn an_export_comes_back_byte_for_byte_and_goes_on_where_it_was_cut() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let row = |n: u32| {
        let bytes: Vec<u8> = (0..n % 300).map(|byte| (byte * n) as u8).collect();
        (format!("k{n:04}"), bytes)
    };
    fill(&bed.client, (0..1_000).map(row)).await;
    tool(&["put", "--cluster", &url, r"\x00\xff", r"\xff"], b"");
    settle(&bed).await;
    let export = |arguments: &[&str]| {
        let mut all = vec!["export", "--cluster", &url];
        all.extend(arguments);
        tool(&all, b"")
    };
    let whole = export(&[]);
    assert_eq!((code(&whole), text(&whole.stdout).lines().count()), (Some(0), 1_002), "{}", text(&whole.stderr));
    assert_eq!(text(&whole.stdout).lines().last(), Some("{\"end\":1001}"));

    let file = path("cut.jsonl");
    std::fs::write(&file, &whole.stdout[..whole.stdout.len() / 2]).unwrap();
    assert_eq!(code(&export(&[&file])), Some(2), "a file that is there is not overwritten");
    let resumed = export(&["--resume", &file]);
    assert_eq!(code(&resumed), Some(0), "{}", text(&resumed.stderr));
    assert_eq!(std::fs::read(&file).unwrap(), whole.stdout);
    assert!(text(&export(&["--resume", &file]).stderr).contains("whole already"));
    interrupted_export_goes_on(&url, &path("interrupted.jsonl"), &whole.stdout).await;

    assert_eq!(code(&tool(&["del", "--cluster", &url, "--prefix", ""], b"")), Some(0));
    let imported = tool(&["import", "--cluster", &url, &file], b"");
    assert_eq!((code(&imported), text(&imported.stdout)), (Some(0), "1001 rows\n".to_owned()));
    settle(&bed).await;
    assert_eq!(export(&[]).stdout, whole.stdout);
    let piped = tool(&["import", "--cluster", &url, "-o", "json"], &whole.stdout);
    let json: serde_json::Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!((&json["rows"], &json["whole"]), (&1001.into(), &true.into()));

    let mut damaged = whole.stdout.clone();
    let at = text(&damaged[..]).lines().take(500).map(|line| line.len() + 1).sum::<usize>();
    damaged.splice(at..at, b"{\"key\":1}\n".iter().copied());
    let refused = tool(&["import", "--cluster", &url], &damaged);
    assert_eq!(code(&refused), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("line 501"), "{}", text(&refused.stderr));
    // Every row before the wrong line is written, whatever batch it was in.
    let said = "the first 500 lines are written; go on with --skip 500: line 501: ";
    assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    let rest = tool(&["import", "--cluster", &url, "--skip", "990"], &whole.stdout);
    assert_eq!((code(&rest), text(&rest.stdout)), (Some(0), "11 rows\n".to_owned()));

    // Interrupted while it waits for more: two batches and a part of one were taken.
    assert_eq!(code(&tool(&["del", "--cluster", &url, "--prefix", ""], b"")), Some(0));
    settle(&bed).await;
    let mut child = with_pipes(&["import", "--cluster", &url], Stdio::piped());
    let lines: Vec<&[u8]> = whole.stdout.split_inclusive(|byte| *byte == b'\n').take(300).collect();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&lines.concat()).unwrap();
    let count = async || bed.client.count(&ScanRange::all()).await.ok();
    until("two batches are written", count, |count| count.is_some_and(|count| count == 256)).await;
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let interrupted = child.wait_with_output().unwrap();
    drop(stdin);
    let said = text(&interrupted.stderr);
    assert_eq!(code(&interrupted), Some(130), "{said}");
    let skip = said.trim_end().rsplit(' ').next().unwrap();
    // What was written a moment ago may not be known to be.
    assert!(["0", "128", "256"].contains(&skip), "{said}");
    let rest = tool(&["import", "--cluster", &url, "--skip", skip], &whole.stdout);
    assert_eq!(code(&rest), Some(0), "{}", text(&rest.stderr));
    settle(&bed).await;
    assert_eq!(export(&[]).stdout, whole.stdout);
}

/// Connections of clients that all nodes have welcomed so far.
async fn welcomed(bed: &Bed) -> u64 {
    let mut sum = 0;
    for node in bed.cluster.nodes() {
        let page = fetch(node.ports().admin(), "/metrics", PATIENCE).await.unwrap().body;
        let count = page.lines().find_map(|line| line.strip_prefix("tiedkv_clients_connections_total "));
        sum += count.unwrap().parse::<u64>().unwrap();
    }
    sum
}

/// A scan that writes into a pipe.
fn piped_scan(url: &str) -> Child {
    with_pipes(&["scan", "--cluster", url], Stdio::null())
}

/// A command that writes into a pipe.
fn with_pipes(arguments: &[&str], input: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tiedkv"))
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// One of which the first byte was read.
async fn begun(url: &str) -> Child {
    let mut child = piped_scan(url);
    tokio::task::spawn_blocking(move || {
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    })
    .await
    .unwrap()
}

/// Reads all that is left of it.
async fn ended(child: Child) -> Output {
    tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn a_reader_that_leaves_ends_a_scan_and_one_that_pauses_costs_no_connection() {
    let bed = replicated().await;
    // More than a pipe takes and a scan fetches ahead.
    fill(&bed.client, (0..2_500).map(|n| (format!("k{n:04}"), vec![b'v'; 1_000]))).await;
    settle(&bed).await;
    // Connections are counted: those of the tool alone shall come, and a busy machine take none away.
    bed.client.close();
    let url = format!("{}&silence=4s", patient_url(&bed));

    let mut left = begun(&url).await;
    drop(left.stdout.take());
    let left = ended(left).await;
    assert_eq!((code(&left), text(&left.stderr)), (Some(0), String::new()));

    let before = welcomed(&bed).await;
    let paused = begun(&url).await;
    until("the scan is connected", async || welcomed(&bed).await, |open| *open >= before + 3).await;
    // A seed that was slow may have been dialled beside the others.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let open = welcomed(&bed).await;
    // Both together are longer than a connection may be silent.
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    let paused = ended(paused).await;
    assert_eq!((code(&paused), text(&paused.stderr)), (Some(0), String::new()));
    assert_eq!(text(&paused.stdout).lines().count(), 2_500);
    assert_eq!(welcomed(&bed).await, open, "no connection was lost meanwhile");
}

//! The command line against a running cluster: bytes in and out, exit codes, errors as asked.

use crate::bed::Bed;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_protocol::ids::NodeId;

/// Runs the tool with `input` on its standard input.
pub fn tool(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tiedkv"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that refuses its flags does not read; that is its right.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Its exit code.
pub fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub async fn one_node() -> (Bed, String) {
    let bed = Bed::with(1, |settings| settings.device = Device::Real).await;
    let url = bed.cluster.url();
    (bed, url)
}

#[tokio::test]
async fn values_are_byte_exact_and_ends_have_their_codes() {
    let (_bed, url) = one_node().await;
    let on = |command: &'static str, rest: &[&str], input: &[u8]| {
        let mut arguments = vec![command, "--cluster", &url];
        arguments.extend(rest);
        tool(&arguments, input)
    };
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    assert_eq!(code(&on("put", &["photo"], &bytes)), Some(0));
    let got = on("get", &["photo"], b"");
    assert_eq!((code(&got), got.stdout == bytes), (Some(0), true));

    assert_eq!(code(&on("put", &["empty", ""], b"")), Some(0));
    let empty = on("get", &["empty"], b"");
    assert_eq!((code(&empty), empty.stdout.len()), (Some(0), 0));
    let absent = on("get", &["nothing"], b"");
    assert_eq!((code(&absent), absent.stdout.len()), (Some(1), 0));

    let escaped = on("put", &[r"a\x00b\n", r"v\xff"], b"");
    assert_eq!(code(&escaped), Some(0), "{}", text(&escaped.stderr));
    assert_eq!(on("get", &[r"a\x00b\n"], b"").stdout, b"v\xff");
    let json: serde_json::Value =
        serde_json::from_slice(&on("get", &[r"a\x00b\n", "-o", "json"], b"").stdout).unwrap();
    assert_eq!(json["value"], r"v\xff", "in the form that can be pasted back");

    assert_eq!(code(&on("del", &["photo"], b"")), Some(0));
    assert_eq!(code(&on("del", &["photo"], b"")), Some(0), "absent is no error");
    assert_eq!(code(&on("get", &["photo"], b"")), Some(1));
}

#[tokio::test]
async fn the_same_intent_is_applied_once() {
    let (_bed, url) = one_node().await;
    let put = |value: &str| {
        let intent = ["put", "--cluster", &url, "--idempotency-key", "ab.1.0", "-o", "json", "key", value];
        tool(&intent, b"")
    };
    let first: serde_json::Value = serde_json::from_slice(&put("one").stdout).unwrap();
    let again: serde_json::Value = serde_json::from_slice(&put("one").stdout).unwrap();
    assert_eq!((&first["repeated"], &again["repeated"]), (&false.into(), &true.into()));
    assert_eq!(first["version"], again["version"]);
    let other = put("two");
    assert_eq!(code(&other), Some(2), "{}", text(&other.stderr));
    let error: serde_json::Value = serde_json::from_slice(&other.stderr).unwrap();
    assert_eq!(error["error"]["code"], "key-reused");
}

#[tokio::test]
async fn what_is_wrong_is_named_and_the_nearest_right_one_too() {
    let (_bed, url) = one_node().await;
    let policy = format!("{url}&policy=tide2");
    let setting = format!("{url}&polcy=tied2");
    let long = "k".repeat(4097);
    for (arguments, named) in [
        (vec!["get", "--cluster", &policy, "key"], "tied2"),
        (vec!["get", "--cluster", &setting, "key"], "policy"),
        (vec!["get", "--cluster", "http://x", "key"], "tiedkv://"),
        (vec!["get", "--cluster", &url, ""], "1 to 4096"),
        (vec!["get", "--cluster", &url, r"a\q"], r"\"),
        (vec!["got", "--cluster", &url, "key"], "get"),
        (vec!["get", "--clustre", &url, "key"], "--cluster"),
        (vec!["demo", "--device", "real"], "--scenes none"),
        (vec!["get", "--cluster", "tiedkv://127.0.0.1:99999/?certs=x", "key"], "port"),
        (vec!["get", "--cluster", "tiedkv://::1:7400/?certs=x", "key"], "[ and ]"),
        (vec!["get", "--cluster", "tiedkv://a:1/?certs=x&deadline=0s", "key"], "deadline"),
        (vec!["get", "--cluster", "tiedkv://a:1/?certs=x&deadline=8760h", "key"], "deadline"),
        (vec!["get", "--cluster", &url, &long], "1 to 4096"),
        (vec!["put", "--cluster", &url, &long, "v"], "1 to 4096"),
        (vec!["put", "--cluster", &url, "key", "v", "--idempotency-key", "x"], "CLIENT.SEQUENCE.FLOOR"),
    ] {
        let output = tool(&arguments, b"");
        assert_eq!(code(&output), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(named), "{arguments:?}: {}", text(&output.stderr));
    }
    let over = tool(&["put", "--cluster", &url, "key"], &vec![0; (8 << 20) + 1]);
    assert_eq!(code(&over), Some(2));
    assert!(text(&over.stderr).contains("over 8388608 bytes"), "{}", text(&over.stderr));
    let usage = tool(&["get", "--clustre", &url, "key", "-o", "json"], b"");
    let usage: serde_json::Value = serde_json::from_slice(&usage.stderr).unwrap();
    assert_eq!((&usage["error"]["kind"], &usage["error"]["exit_code"]), (&"usage".into(), &2.into()));
    let output = Command::new(env!("CARGO_BIN_EXE_tiedkv"))
        .args(["get", "--cluster", &url, "key"])
        .env("TIEDKV_TIDE", "off")
        .output()
        .unwrap();
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains("TIEDKV_TIED"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_cluster_that_hangs_or_is_gone_ends_in_its_own_code() {
    let (mut bed, url) = one_node().await;
    bed.put_everywhere("key", "value").await;
    let short = format!("{url}&deadline=300ms&connect=300ms");
    let get = || tool(&["get", "--cluster", &short, "-o", "json", "key"], b"");
    assert_eq!(code(&get()), Some(0));
    bed.cluster.pause(NodeId(1)).unwrap();
    let hung = get();
    assert!(matches!(code(&hung), Some(3 | 4)), "{:?}: {}", hung.status, text(&hung.stderr));
    let error: serde_json::Value = serde_json::from_slice(&hung.stderr).unwrap();
    assert_eq!(error["error"]["exit_code"], code(&hung).unwrap());
    bed.cluster.kill(NodeId(1));
    let gone = get();
    assert_eq!(code(&gone), Some(3), "{}", text(&gone.stderr));
    assert_eq!(code(&tool(&["health", "--cluster", &short], b"")), Some(3));
}

#[tokio::test]
async fn a_node_that_cannot_start_says_why_and_ends() {
    let bed = Bed::new(1).await;
    let certs = bed.cluster.certs();
    let certs = certs.to_str().unwrap();
    let ports = bed.cluster.nodes()[0].ports();
    let (client, admin) = (ports.client().to_string(), ports.admin().to_string());
    for (arguments, named) in [
        (vec!["--certs-dir", "/nowhere"], "/nowhere"),
        (vec!["--certs-dir", certs, "--client-address", &client], "in use"),
        (vec!["--certs-dir", certs, "--client-address", "127.0.0.1:0", "--admin-address", &admin], "in use"),
        (vec!["--lanes", "0"], "1 to 256"),
        (vec!["--data-dir", ""], "data_dir"),
        (vec!["--certs-dir", certs, "--node-id", "2"], "node-2"),
        (vec!["--certs-dir", certs, "--data-dir", "/proc/nothing/here"], "/proc/nothing"),
    ] {
        let mut all = vec!["start", "--peer-address", "127.0.0.1:0", "--cancel-address", "127.0.0.1:0"];
        all.extend(&arguments);
        let output = tool(&all, b"");
        assert_ne!(code(&output), Some(0), "{arguments:?}");
        let said = text(&output.stderr) + &text(&output.stdout);
        assert!(said.contains(named), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn a_disk_that_is_full_at_the_start_is_named() {
    let bed = Bed::new(1).await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    // A disk of its own, of 64 KiB, in namespaces of its own: nothing of it is seen outside.
    let script = "mount -t tmpfs -o size=64k tmpfs \"$DATA\" && exec \"$TIEDKV\" start \"$@\"";
    let certs = bed.cluster.certs();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh", "--storage", "fjall", "--data-dir"])
        .arg(&data)
        .arg("--certs-dir")
        .arg(&certs)
        .args(["--client-address", "127.0.0.1:0", "--peer-address", "127.0.0.1:0"])
        .args(["--cancel-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
        .env("DATA", &data)
        .env("TIEDKV", env!("CARGO_BIN_EXE_tiedkv"))
        .output();
    let Ok(output) = output else {
        println!("skipped: no program `unshare` here");
        return;
    };
    let said = text(&output.stderr) + &text(&output.stdout);
    if said.contains("unshare failed") || said.contains("unshare: ") || said.contains("mount: ") {
        println!("skipped: no disk of its own can be made here: {said}");
        return;
    }
    assert_eq!(code(&output), Some(3), "{said}");
    assert!(said.to_lowercase().contains("no space left"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[tokio::test]
async fn several_seeds_of_all_kinds_are_tried_and_names_resolved() {
    let (bed, url) = one_node().await;
    bed.put_everywhere("key", "value").await;
    let port = bed.cluster.nodes()[0].ports().client().port();
    let query = url.split_once("/?").unwrap().1;
    for seeds in [
        format!("localhost:{port}"),
        format!("127.0.0.1:1,[::1]:1,localhost:{port}"),
        format!("no-such-name.invalid:7400,127.0.0.1:{port}"),
    ] {
        let url = format!("tiedkv://{seeds}/?{query}");
        let got = tool(&["get", "--cluster", &url, "key"], b"");
        assert_eq!(
            (code(&got), text(&got.stdout)),
            (Some(0), "value".to_owned()),
            "{seeds}: {}",
            text(&got.stderr)
        );
    }
}

#[tokio::test]
async fn settings_and_slow_reads_are_shown_with_their_sources() {
    let bed = Bed::with(2, |settings| settings.more = "slow_read_us = 1\n".to_owned()).await;
    bed.put_everywhere("key", "value").await;
    let url = format!("{}&read=stale", bed.cluster.url());
    let shown = tool(&["get", "--cluster", &url, "--print-config", "-o", "json", "key"], b"");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let row =
        |name: &str| shown["settings"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
    assert_eq!(
        (row("read")["value"].clone(), row("read")["source"].clone()),
        ("stale".into(), "flag --cluster".into())
    );
    assert_eq!(
        (row("deadline")["value"].clone(), row("deadline")["source"].clone()),
        ("1s".into(), "default".into())
    );

    let get = tool(&["get", "--cluster", &url, "--explain", "-o", "json", "key"], b"");
    let get: serde_json::Value = serde_json::from_slice(&get.stdout).unwrap();
    let winner = &get["explain"]["copies"][0];
    assert!(winner["queue_wait_us"].is_u64() && winner["service_time_us"].is_u64(), "{get:#}");
    let slow = tool(&["slow", "--cluster", &url, "-o", "json"], b"");
    assert_eq!(code(&slow), Some(0), "{}", text(&slow.stderr));
    let slow: serde_json::Value = serde_json::from_slice(&slow.stdout).unwrap();
    let found = slow["reads"].as_array().unwrap().iter().find(|read| read["read"] == get["explain"]["read"]);
    let found = found.unwrap_or_else(|| panic!("{} is not in {slow:#}", get["explain"]["read"]));
    assert_eq!(found["copies"][0]["copy"]["end"], "answered", "{found:#}");
}

#[tokio::test]
async fn a_write_whose_outcome_is_not_known_ends_with_five() {
    let mut bed = Bed::with(3, |settings| {
        settings.device = Device::Real;
        settings.storage = Storage::Disk;
    })
    .await;
    bed.client.put("key", "value").await.unwrap();
    let leader = bed.client.topology().leader.unwrap();
    // Only the leader is dialled: it takes the write, and nobody can acknowledge it.
    let at = bed.cluster.nodes().iter().find(|node| node.id() == leader).unwrap().ports().client();
    let url = format!("tiedkv://{at}/?{}&deadline=400ms&connect=5s", bed.cluster.url().split_once("/?").unwrap().1);
    for node in bed.nodes().into_iter().filter(|node| *node != leader) {
        bed.cluster.pause(node).unwrap();
    }
    let unknown = tool(&["put", "--cluster", &url, "-o", "json", "key", "other"], b"");
    let error: serde_json::Value = serde_json::from_slice(&unknown.stderr).unwrap();
    assert_eq!((code(&unknown), &error["error"]["kind"]), (Some(5), &"unknown-outcome".into()), "{error}");
}

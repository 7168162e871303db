//! The benchmark as a program: rows with their limits, a report, honest latencies, and what an interrupt leaves.

use crate::bed::{Bed, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tiedkv_benches::cluster::Device;
use tiedkv_protocol::ids::NodeId;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiedkv"));
    command.arg("bench").args(arguments).env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn busy_gives_rows_with_their_limits_and_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (rows, report, figures) = (path("run.json"), path("report.html"), path("figures"));
    let arguments =
        ["busy", "--scenes", "busy", "--policies", "tied2,hedged@p90", "--repeats", "1", "--seconds", "1"];
    let files = ["--json", &rows, "--report", &report, "--figures", &figures];
    let output = bench(&arguments).args(files).env("TMPDIR", place.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().collect();
    assert!(left.is_empty(), "folders are left: {left:?}");
    let document = json(folder.path().join("run.json").as_path());
    let row = &document["rows"][0];
    assert_eq!((row["scene"].as_str(), row["errors"].as_u64()), (Some("busy"), Some(0)), "{row:#}");
    // Hedges without a budget: on a machine that others keep busy they may end at their deadline, and at nothing else.
    let (hedged, late) = (&document["rows"][1], &document["rows"][1]["first_error"]);
    assert_eq!(hedged["policy"], "hedged@p90");
    assert!(late.is_null() || late.as_str().is_some_and(|text| text.contains("deadline")), "{hedged:#}");
    // Jobs, draws and lanes are drawn again by the same code: the limit is near what was measured, on any machine
    // that is not far behind with everything.
    let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row:#}"));
    let over = figure("p50_us") / figure("ideal_jsw2_p50_us");
    assert!((0.8..3.0).contains(&over), "p50 over its limit: {over}");
    assert!(figure("ideal_jsw2_p90_us") < figure("ideal_jsw1_p90_us"), "{row:#}");
    assert!(std::fs::read_to_string(&report).unwrap().contains("<svg"));
    assert!(std::fs::read_dir(&figures).unwrap().count() >= 2);
    // A report is made of files alone, and unknown names are usage errors.
    let again = bench(&["busy", "--scenes", "none", "--from", &rows]).output().unwrap();
    assert!(again.status.success() && text(&again).contains("busy   tied2"), "{}", text(&again));
    let wrong = bench(&["busy", "--scenes", "lazy"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    assert!(text(&wrong).contains("`lazy` is no scene"), "{}", text(&wrong));
}

#[tokio::test]
async fn a_server_that_stands_still_shows_in_the_open_loop() {
    let mut bed = Bed::with(3, |settings| settings.device = Device::Real).await;
    let folder = tempfile::tempdir().unwrap();
    let (file, hdr) = (folder.path().join("run.json"), folder.path().join("run.hlog"));
    let url = bed.cluster.url() + "&deadline=10s&silence=5s";
    // Over 10,000 calls, so that a p99.9 is told: a third of a second's calls is far more than a thousandth of them.
    let arguments = ["run", "--rate", "2600", "--duration", "4500ms", "--warm-up", "300ms", "--keys", "50"];
    let mut command = bench(&arguments);
    command.args(["--policies", "untied", "--cluster", &url]);
    command.arg("--json").arg(&file).arg("--hdr").arg(&hdr);
    let child = command.spawn().unwrap();
    // Calls arrive: the measured time has begun or is about to.
    let busy = Instant::now() + PATIENCE;
    while bed.counters(NodeId(2)).await.received < 500 {
        assert!(Instant::now() < busy, "no calls arrive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bed.cluster.pause(NodeId(2)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.cluster.resume(NodeId(2)).unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let document = json(&file);
    assert_eq!(document["errors"], 0, "{document:#}");
    // A third of the untied reads of that second waited for the node.
    let untied = &document["rows"][0];
    assert_eq!(untied["policy"], "untied");
    assert!(untied["p999_us"].as_u64().is_some_and(|p999| p999 > 700_000), "{document:#}");
    assert!(std::fs::read_to_string(&hdr).unwrap().contains("Tag=get-untied"));
}

#[tokio::test]
async fn an_interrupted_run_prints_what_it_has() {
    let bed = Bed::with(3, |settings| settings.device = Device::Real).await;
    let url = bed.cluster.url() + "&deadline=10s";
    let mix = "get=70,multi_get=10,put=15,scan=5";
    let arguments = ["run", "--concurrency", "4", "--mix", mix, "--spread", "zipf", "--duration", "60s"];
    let mut child = bench(&arguments)
        .args(["--warm-up", "0s", "-o", "json", "--value-bytes", "50..500", "--cluster", &url])
        .args(["--policies", "untied,tied2", "--block", "50ms"])
        .spawn()
        .unwrap();
    let busy = Instant::now() + PATIENCE;
    while bed.counters(NodeId(1)).await.received < 500 {
        assert!(Instant::now() < busy, "no calls arrive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let rows = document["rows"].as_array().unwrap();
    for policy in ["untied", "tied2"] {
        let ops: Vec<_> = rows.iter().filter(|row| row["policy"] == policy).map(|row| row["op"].clone()).collect();
        assert_eq!(ops, ["get", "multi_get", "put", "scan"], "{document:#}");
    }
    assert_eq!(document["errors"], 0, "{document:#}");
    assert_eq!(document["mix"], mix);
}

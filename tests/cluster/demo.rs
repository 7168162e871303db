//! The demo as a program: what it prints, and that it leaves no process and no folder however it ends.

use crate::bed::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A demo whose temporary files go to a folder of the test's own.
struct Demo {
    child: Child,
    place: TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiedkv"));
        command.arg("demo").args(arguments).env("TMPDIR", place.path()).env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), place }
    }

    /// The server processes, by their command lines; the demo's own arguments do not name the folder.
    fn servers(&self) -> Vec<u32> {
        servers_of(self.place.path())
    }

    fn until_servers_run(&self) {
        let end = Instant::now() + PATIENCE;
        while self.servers().len() < 3 {
            assert!(Instant::now() < end, "the servers do not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the end; nothing may be left of it.
    fn end(self) -> Output {
        let Self { child, place } = self;
        let output = child.wait_with_output().unwrap();
        assert_eq!(servers_of(place.path()), Vec::<u32>::new(), "processes are left");
        let left: Vec<PathBuf> =
            std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "folders are left: {left:?}");
        output
    }
}

fn servers_of(place: &Path) -> Vec<u32> {
    let place = place.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_ours = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&place)
    };
    pids.filter(is_ours).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn plays_scenes_and_writes_table_and_json() {
    let report = tempfile::NamedTempFile::new().unwrap();
    let path = report.path().to_str().unwrap();
    let output = Demo::start(&["--scenes", "idle-untied,busy-tied2", "--seconds", "2", "--json", path]).end();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("busy   tied2") && table.contains("through Raft"), "{table}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let scenes = report["scenes"].as_array().unwrap();
    assert_eq!(scenes.len(), 2);
    for (scene, least) in scenes.iter().zip([800, 1_600]) {
        assert!(scene["reads"].as_u64().unwrap() > least, "{report:#}");
        assert_eq!(scene["errors"], 0, "{report:#}");
        assert!(scene["p50_us"].as_u64().unwrap() > 2_000, "{report:#}");
    }
    assert!(scenes[1]["messages_per_read"].as_f64().unwrap() > 2.0, "{report:#}");
}

#[test]
fn keep_prints_a_url_that_works_as_it_is_and_ends_on_sigterm() {
    let mut demo = Demo::start(&["--keep", "--scenes", "none", "--device", "real"]);
    let mut url = String::new();
    BufReader::new(demo.child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    let url = url.trim_end();
    assert!(url.starts_with("tiedkv://") && url.contains("/?certs="), "{url}");
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiedkv"));
        command.args(arguments).args(["--cluster", url]).output().unwrap()
    };
    let put = tool(&["put", "greeting", "hello"]);
    assert_eq!(put.status.code(), Some(0), "{}", text(&put.stderr));
    let token = tool(&["get", "greeting"]);
    assert_eq!((token.status.code(), token.stdout), (Some(0), b"hello".to_vec()), "{}", text(&token.stderr));
    demo.signal(Signal::TERM);
    assert_eq!(demo.end().status.code(), Some(0));
}

#[test]
fn a_signal_in_a_scene_leaves_nothing() {
    let demo = Demo::start(&["--scenes", "busy-tied2", "--seconds", "60"]);
    demo.until_servers_run();
    demo.signal(Signal::INT);
    assert_eq!(demo.end().status.code(), Some(130));
}

#[test]
fn a_server_that_dies_fails_the_demo_and_leaves_nothing() {
    let demo = Demo::start(&["--scenes", "idle-untied", "--seconds", "3"]);
    demo.until_servers_run();
    kill_process(Pid::from_raw(demo.servers()[1] as i32).unwrap(), Signal::KILL).unwrap();
    let output = demo.end();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains(" ended ("), "{}", text(&output.stderr));
}

#[test]
fn servers_do_not_outlive_a_demo_that_was_killed() {
    let demo = Demo::start(&["--keep", "--scenes", "none"]);
    demo.until_servers_run();
    demo.signal(Signal::KILL);
    let end = Instant::now() + PATIENCE;
    while !demo.servers().is_empty() {
        assert!(Instant::now() < end, "servers outlive their parent");
        std::thread::sleep(Duration::from_millis(5));
    }
    let Demo { mut child, place } = demo;
    child.wait().unwrap();
    // Nobody was left to remove the folder; the test does.
    drop(place);
}

//! Tests of the local cluster with a shell script in the place of the server: failure texts and clean-up. The
//! real server is tested in `tests/cluster`.

use super::*;
use std::os::unix::fs::PermissionsExt;

/// A program that runs `script`, with the path of node.toml in `$3`.
fn program(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn spec(binary: PathBuf) -> ClusterSpec {
    ClusterSpec { ready_deadline: Duration::from_millis(200), ..ClusterSpec::of(binary) }
}

#[tokio::test]
async fn a_node_that_ends_is_named_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let binary = program(folder.path(), "echo 'the disk is gone' >&2; exit 1");
    let error = LocalCluster::start(spec(binary)).await.unwrap_err().to_string();
    assert!(error.contains("n1 ended") && error.contains("the disk is gone"), "{error}");
}

#[tokio::test]
async fn a_silent_node_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let binary = program(folder.path(), "echo up; read line");
    let mut cluster = LocalCluster::spawn(spec(binary)).unwrap();
    let pids: Vec<u32> = cluster.nodes().iter().filter_map(LocalNode::pid).collect();
    let place = cluster.folder().to_owned();
    let error = cluster.wait_ready().await.unwrap_err().to_string();
    assert!(error.contains("n1 was not ready after 200ms") && error.contains("/readyz"), "{error}");
    assert_eq!(pids.len(), 3);
    drop(cluster);
    assert!(!place.exists());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
}

#[tokio::test]
async fn stop_waits_for_the_end_and_restart_keeps_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let binary = program(folder.path(), "trap 'echo bye; exit 0' TERM; echo up; while :; do read line; done");
    let mut cluster = LocalCluster::spawn(spec(binary)).unwrap();
    let node = NodeId(2);
    let up = clock::now() + Duration::from_secs(10);
    while !cluster.log_tail(node).contains("up") && clock::now() < up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let status = cluster.stop(node, Duration::from_secs(10)).await.unwrap();
    assert!(status.success());
    assert!(matches!(cluster.pause(node), Err(ClusterError::NotRunning(_))));
    cluster.restart(node).unwrap();
    assert!(cluster.log_tail(node).contains("bye"), "the log goes on");
    cluster.check_all_run().unwrap();
}

#[tokio::test]
async fn a_panic_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let binary = program(folder.path(), "read line");
    let cluster = LocalCluster::spawn(spec(binary)).unwrap();
    let place = cluster.folder().to_owned();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = cluster;
        panic!("a defect");
    }));
    assert!(result.is_err());
    assert!(!place.exists());
}

#[test]
fn paths_are_escaped_in_urls() {
    assert_eq!(percent_encoded("/tmp/a b&c"), "/tmp/a%20b%26c");
}

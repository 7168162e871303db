//! Folders that are somebody else's, in use, wiped, or half made: refused with what to do, or simply started again.

use crate::bed::{Bed, PATIENCE, until};
use crate::tool::{code, text, tool};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster, LocalNode};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_protocol::ids::NodeId;

/// Exit code of a node that cannot go on: what runs it must look at its words, not start it again.
const UNAVAILABLE: Option<i32> = Some(3);

fn spec() -> ClusterSpec {
    let mut spec = ClusterSpec::of(env!("CARGO_BIN_EXE_tiedkv"));
    spec.settings.device = Device::Real;
    spec.settings.storage = Storage::Disk;
    spec
}

fn data(node: &LocalNode) -> PathBuf {
    node.folder().join("data")
}

/// Starts a node of `config` on free ports with another folder; what it said before it ended.
async fn start_on(config: &Path, folder: &Path) -> (Option<i32>, String) {
    let mut arguments = vec!["start", "--config", config.to_str().unwrap(), "--data-dir", folder.to_str().unwrap()];
    for port in ["--client-address", "--peer-address", "--cancel-address", "--admin-address"] {
        arguments.extend([port, "127.0.0.1:0"]);
    }
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let run = move || tool(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), b"");
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    (code(&output), text(&output.stderr))
}

#[tokio::test]
async fn a_folder_serves_one_process_of_one_node_of_one_cluster() {
    let mut bed = Bed::replicated().await;
    let config = |bed: &Bed, index: usize| bed.cluster.nodes()[index].config().to_owned();
    let first = data(&bed.cluster.nodes()[0]);
    let (exit, said) = start_on(&config(&bed, 0), &first).await;
    assert_eq!(exit, UNAVAILABLE, "{said}");
    assert!(said.contains("in use by another process; stop it first"), "{said}");

    bed.cluster.stop(NodeId(1), PATIENCE).await.unwrap();
    let (exit, said) = start_on(&config(&bed, 1), &first).await;
    assert_eq!(exit, UNAVAILABLE, "{said}");
    assert!(said.contains("is the folder of node 1") && said.contains("check `data_dir`"), "{said}");

    let mut elsewhere = spec();
    elsewhere.nodes = 1;
    let elsewhere = LocalCluster::start(elsewhere).await.unwrap();
    let (exit, said) = start_on(elsewhere.nodes()[0].config(), &first).await;
    assert_eq!(exit, UNAVAILABLE, "{said}");
    assert!(said.contains(&format!("of cluster {}", bed.cluster.cluster())), "{said}");
    assert!(said.contains(&format!("of cluster {}", elsewhere.cluster())), "{said}");

    // Nothing of this harmed the folder.
    bed.cluster.restart(NodeId(1)).unwrap();
    bed.cluster.wait_ready().await.unwrap();
}

#[tokio::test]
async fn a_wiped_node_under_its_old_identity_is_refused_and_told_what_to_do() {
    let mut bed = Bed::replicated().await;
    let wiped = bed.followers().await[0];
    bed.cluster.kill(wiped);
    let local = &bed.cluster.nodes()[wiped.0 as usize - 1];
    let log = local.log().to_owned();
    std::fs::remove_dir_all(data(local)).unwrap();
    bed.cluster.restart(wiped).unwrap();
    let status = bed.cluster.wait_stopped(wiped, PATIENCE).await.unwrap();
    let said = std::fs::read_to_string(log).unwrap();
    assert_eq!(status.code(), UNAVAILABLE, "{said}");
    assert!(said.contains("this node cannot go on"), "{said}");
    assert!(said.contains("another data folder than before"), "{said}");
    assert!(said.contains(&format!("`tiedkv member remove --node {}`", wiped.0)), "{said}");
    assert!(said.contains("under a node id that was never used"), "{said}");
    bed.client.put("still", "writable").await.unwrap();
}

#[tokio::test]
async fn a_first_start_that_dies_half_way_is_run_again() {
    let mut cluster = LocalCluster::spawn(spec()).unwrap();
    let nodes: Vec<NodeId> = cluster.nodes().iter().map(LocalNode::id).collect();
    for pause_ms in [0, 10, 20, 40, 80, 120, 160, 240] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        nodes.iter().for_each(|node| cluster.kill(*node));
        nodes.iter().for_each(|node| cluster.restart(*node).unwrap());
    }
    cluster.wait_ready().await.unwrap();
    let client = tiedkv_client::Client::connect_url(&cluster.url()).await.unwrap();
    client.put("key", "value").await.unwrap();
    assert_eq!(client.get("key").await.unwrap().unwrap().value, "value");
}

#[tokio::test]
async fn two_lists_of_first_members_begin_no_cluster_and_both_are_named() {
    let mut cluster = LocalCluster::spawn(spec()).unwrap();
    let nodes: Vec<NodeId> = cluster.nodes().iter().map(LocalNode::id).collect();
    nodes.iter().for_each(|node| cluster.kill(*node));
    for node in cluster.nodes() {
        // Absent if it was killed before it was made.
        let _ = std::fs::remove_dir_all(data(node));
    }
    let third = format!("3={}", cluster.nodes()[2].ports().client());
    let config = cluster.nodes()[1].config().to_owned();
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(&third));
    std::fs::write(&config, text.replace(&third, &format!("{third},cancel=127.0.0.1:9"))).unwrap();
    let logs: Vec<_> = cluster.nodes().iter().map(|node| node.log().to_owned()).collect();
    cluster.restart(NodeId(1)).unwrap();
    cluster.restart(NodeId(2)).unwrap();
    let said = until(
        "one of the two stops and says why",
        async || {
            let texts = logs[..2].iter().map(|log| std::fs::read_to_string(log).unwrap());
            texts.filter(|text| text.contains("this node cannot go on")).collect::<String>()
        },
        |said| !said.is_empty(),
    )
    .await;
    assert!(said.contains("the same list of members on all of them"), "{said}");
    assert!(said.contains("n1 was given") && said.contains("n2 was given"), "{said}");
    assert!(said.contains(&format!("{third},peer=")) && said.contains("cancel=127.0.0.1:9"), "{said}");
}

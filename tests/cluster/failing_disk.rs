//! A disk whose fsync or write fails: the node stops acknowledging, says why, and ends; the others go on. The calls of
//! a real process are made to fail (`tests/powercut/powercut.c`, preloaded), not a switch in the code that ships.

use crate::bed::{Bed, PATIENCE};
use crate::writers::Callers;
use std::path::Path;
use tiedkv_benches::cluster::local::ClusterSpec;
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_tests::powercut::library::{FAIL_FILE, wrap};

#[tokio::test]
async fn a_failed_fsync_or_write_ends_the_node_with_its_reason_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = ClusterSpec::of(wrap(folder.path(), Path::new(env!("CARGO_BIN_EXE_tiedkv"))).unwrap());
    spec.settings.device = Device::Real;
    spec.settings.storage = Storage::Disk;
    let mut bed = Bed::of(spec).await;
    let wishes = [
        ("fsync /data/log/", true),
        ("fsync /data/log/", false),
        ("write /data/log/", true),
        ("write /data/state/", true),
    ];
    for (wish, of_the_leader) in wishes {
        let node = if of_the_leader { bed.leader().await } else { bed.followers().await[0] };
        let callers = Callers::start(&bed.client, 3, 1, Some(PATIENCE));
        callers.go_on(50).await;
        let local = &bed.cluster.nodes()[node.0 as usize - 1];
        let (wishes, log) = (local.folder().join(FAIL_FILE), local.log().to_owned());
        std::fs::write(&wishes, wish).unwrap();
        let status = bed.cluster.wait_stopped(node, PATIENCE).await.unwrap();
        let said = std::fs::read_to_string(log).unwrap();
        assert_eq!(status.code(), Some(3), "{wish}: {said}");
        assert!(said.contains("this node stops acknowledging"), "{wish}: {said}");
        assert!(said.contains("this node cannot go on") && said.contains("Input/output error"), "{wish}: {said}");
        callers.go_on(50).await;
        // Mended, it comes back with all that it had acknowledged.
        std::fs::remove_file(&wishes).unwrap();
        bed.cluster.restart(node).unwrap();
        bed.cluster.wait_ready().await.unwrap();
        callers.go_on(50).await;
        let seen = callers.end().await;
        assert!(seen.failed.is_empty(), "{wish}: {:?}", seen.failed);
        bed.client.all_connected(PATIENCE).await.unwrap();
        seen.hold_against(&bed).await;
    }
}

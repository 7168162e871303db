//! A disk whose fsync or write fails: the node stops acknowledging, says why, and ends; the others go on. The calls of
//! a real process are made to fail (`failing_disk.c`, preloaded), not a switch in the code that ships.

use crate::bed::{Bed, PATIENCE};
use crate::writers::Callers;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tiedkv_benches::cluster::local::ClusterSpec;
use tiedkv_benches::cluster::{Device, Storage};

/// A program that starts nodes with the preloaded library; each looks for its wishes beside its settings file.
fn wrapped(folder: &Path) -> PathBuf {
    let library = folder.join("failing_disk.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cluster/failing_disk.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("a C compiler, as ring needs one").success());
    let program = folder.join("node");
    // $3 is the settings file: start --config FILE
    let script = format!(
        "#!/bin/sh\nFAIL_FILE=\"$(dirname \"$3\")/fail\" LD_PRELOAD={} exec {} \"$@\"\n",
        library.display(),
        env!("CARGO_BIN_EXE_tiedkv")
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[tokio::test]
async fn a_failed_fsync_or_write_ends_the_node_with_its_reason_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = ClusterSpec::of(wrapped(folder.path()));
    spec.settings.device = Device::Real;
    spec.settings.storage = Storage::Disk;
    let mut bed = Bed::of(spec).await;
    for (wish, of_the_leader) in [("sync", true), ("sync", false), ("write", true), ("state", true)] {
        let node = if of_the_leader { bed.leader().await } else { bed.followers().await[0] };
        let callers = Callers::start(&bed.client, 3, 1, Some(PATIENCE));
        callers.go_on(50).await;
        let local = &bed.cluster.nodes()[node.0 as usize - 1];
        let (wishes, log) = (local.folder().join("fail"), local.log().to_owned());
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

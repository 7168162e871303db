//! One process, one node, one cluster, one life.

use super::*;

const CLUSTER: ClusterId = ClusterId(0xabc);

#[test]
fn a_folder_keeps_its_life_over_restarts_and_half_done_starts() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("deep/data");
    let first = Folder::open(&path, CLUSTER, NodeId(3)).unwrap().incarnation();
    // A first start that died between writing and renaming.
    fs::write(path.join("identity.json.new"), "{").unwrap();
    fs::write(path.join("peers.json.new"), "").unwrap();
    assert_eq!(Folder::open(&path, CLUSTER, NodeId(3)).unwrap().incarnation(), first);
    fs::remove_dir_all(&path).unwrap();
    assert_ne!(Folder::open(&path, CLUSTER, NodeId(3)).unwrap().incarnation(), first);
}

#[test]
fn two_holders_another_node_and_another_cluster_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let held = Folder::open(parent.path(), CLUSTER, NodeId(3)).unwrap();
    assert!(matches!(Folder::open(parent.path(), CLUSTER, NodeId(3)), Err(FolderError::InUse(_))));
    drop(held);
    let error = Folder::open(parent.path(), CLUSTER, NodeId(4)).map(drop).unwrap_err().to_string();
    assert!(error.contains("folder of node 3") && error.contains("this is node 4"), "{error}");
    assert!(matches!(Folder::open(parent.path(), ClusterId(1), NodeId(3)), Err(FolderError::Foreign { .. })));
    fs::write(parent.path().join("identity.json"), "nonsense").unwrap();
    assert!(matches!(Folder::open(parent.path(), CLUSTER, NodeId(3)), Err(FolderError::Damaged { .. })));
}

#[test]
fn a_peer_in_another_life_is_refused_also_after_a_restart() {
    let parent = tempfile::tempdir().unwrap();
    {
        let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
        folder.admit(NodeId(2), 77).unwrap();
        folder.admit(NodeId(2), 77).unwrap();
    }
    let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
    folder.admit(NodeId(2), 77).unwrap();
    let refused = folder.admit(NodeId(2), 78).unwrap_err();
    assert!(matches!(&refused, NotAdmitted::Never(why) if why.contains("member remove --node 2")), "{refused}");
    folder.admit(NodeId(3), 78).unwrap();
}

#[test]
fn a_peer_that_cannot_be_remembered_is_not_refused_for_good() {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
    let in_the_way = parent.path().join("peers.json.new");
    std::fs::create_dir(&in_the_way).unwrap();
    assert!(matches!(folder.admit(NodeId(2), 77), Err(NotAdmitted::NotNow(_))));
    std::fs::remove_dir(&in_the_way).unwrap();
    // Nothing was remembered: another folder is as good as the first.
    folder.admit(NodeId(2), 78).unwrap();
}

#[test]
fn a_removed_member_is_refused_for_good_also_after_a_restart() {
    let parent = tempfile::tempdir().unwrap();
    {
        let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
        folder.admit(NodeId(2), 77).unwrap();
        folder.note_removed([2]).unwrap();
        assert!(folder.is_removed(NodeId(2)) && !folder.is_removed(NodeId(3)));
    }
    let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
    let refused = folder.admit(NodeId(2), 77).unwrap_err();
    assert!(matches!(&refused, NotAdmitted::Never(why) if why.contains("with a new id")), "{refused}");
}

#[test]
fn what_was_made_half_is_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = Folder::open(parent.path(), CLUSTER, NodeId(1)).unwrap();
    let cut = folder.inner("state", |path| {
        fs::write(path.join("half"), "").unwrap();
        Err(FolderError::InUse(path.to_owned()))
    });
    assert!(cut.is_err() && !parent.path().join("state").exists());
    let fill = |path: &Path| fs::write(path.join("whole"), "").map_err(at(path));
    let made = folder.inner("state", fill).unwrap();
    assert!(made.join("whole").exists() && !made.join("half").exists());
    folder.inner("state", |path| Err(FolderError::InUse(path.to_owned()))).unwrap();
}

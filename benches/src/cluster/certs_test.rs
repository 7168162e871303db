//! Tests of the certificate room: files, modes, names, and that a reopened authority signs for the same cluster.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn text(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn writes_all_files_and_keeps_keys_private() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    authority.issue_node(NodeId(7)).unwrap();
    authority.issue_client("client", "demo").unwrap();
    for file in ["ca.pem", "node-7.pem", "client.pem"] {
        assert!(text(folder.path(), file).starts_with("-----BEGIN CERTIFICATE-----"), "{file}");
    }
    for file in ["ca.key", "node-7.key", "client.key"] {
        let mode = std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[test]
fn opens_what_it_made_and_refuses_to_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let made = Authority::create(folder.path()).unwrap().cluster();
    assert_eq!(Authority::open(folder.path()).unwrap().cluster(), made);
    assert!(matches!(Authority::create(folder.path()), Err(CertsError::Exists(_))));
    let authority = Authority::open(folder.path()).unwrap();
    authority.issue_node(NodeId(9)).unwrap();
    authority.issue_operator("ops", "ops").unwrap();
    let before = text(folder.path(), "ops.key");
    for again in [authority.issue_node(NodeId(9)), authority.issue_client("ops", "app")] {
        assert!(matches!(again, Err(CertsError::Taken(_))), "{again:?}");
    }
    assert!(matches!(authority.issue_client("ca", "ca"), Err(CertsError::Taken(_))));
    assert_eq!(text(folder.path(), "ops.key"), before);
}

#[test]
fn refuses_a_name_that_would_change_the_identity() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(folder.path()).unwrap();
    for name in ["", "a/b", "a b", "ä"] {
        assert!(matches!(authority.issue_client("late", name), Err(CertsError::BadName(_))), "{name:?}");
    }
}

#[test]
fn names_the_folder_of_a_missing_authority() {
    let folder = tempfile::tempdir().unwrap();
    let error = Authority::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("cluster.id"), "{error}");
}

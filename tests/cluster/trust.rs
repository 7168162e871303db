//! Who may do what, by certificate, on every path: crate, wire and tool. What is refused is refused by name, and the next
//! good request works.

use crate::bed::Bed;
use crate::tool::{code, text, tool};
use std::path::Path;
use tiedkv_benches::cluster::certs::{Authority, Validity};
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::{Client, Config};
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::hello::Ceiling;
use tiedkv_protocol::identity::{Identity, Role};
use tiedkv_protocol::ids::{ClusterId, NodeId};
use tiedkv_protocol::request::AdminOperation;

/// The bed's seeds with another folder and certificate.
fn config(bed: &Bed, folder: &Path, certificate: &str) -> Config {
    let mut config = Config::from_url(&bed.cluster.url()).unwrap();
    config.certs = folder.to_owned();
    config.certificate_name = certificate.to_owned();
    config.connect_deadline = std::time::Duration::from_millis(1500);
    config
}

fn stale() -> ReadOptions {
    ReadOptions { level: Some(Level::Stale { bound: None }), ..ReadOptions::default() }
}

#[tokio::test]
async fn a_client_reads_and_writes_but_changes_no_cluster() {
    let bed = Bed::new(1).await;
    let certs = bed.cluster.certs();
    Authority::open(&certs).unwrap().issue_client("app", "app").unwrap();
    let client = Client::connect(config(&bed, &certs, "app")).await.unwrap();
    client.put("key", "value").await.unwrap();
    assert_eq!(client.get_with("key", stale()).await.unwrap().value.unwrap().value, "value");
    client.status(NodeId(1)).await.unwrap();
    for operation in [
        AdminOperation::SetCeiling(Ceiling::default()),
        AdminOperation::TransferLeader { to: None },
        AdminOperation::MemberRemove { node: NodeId(1) },
        AdminOperation::Disturb(Default::default()),
        AdminOperation::FailReads { on: true },
    ] {
        let error = client.admin(NodeId(1), operation).await.unwrap_err();
        assert_eq!((error.code(), error.caller_move()), (Some(ErrorCode::NotAllowed), Move::FixTheCall));
        assert!(error.to_string().contains("--operator"), "says what certificate is needed: {error}");
    }
    client.get_with("key", stale()).await.unwrap();
    // The bed's own client is an operator.
    bed.tell(NodeId(1), AdminOperation::SetCeiling(Ceiling::default())).await;
}

#[tokio::test]
async fn strangers_are_named_by_crate_and_tool() {
    let bed = Bed::new(1).await;
    bed.put_everywhere("key", "value").await;
    let certs = bed.cluster.certs();
    let authority = Authority::open(&certs).unwrap();
    let client = |cluster| Identity { cluster, role: Role::Client("late".to_owned()) };
    authority.issue("expired", &client(authority.cluster()), Validity::Expired).unwrap();
    authority.issue("elsewhere", &client(ClusterId(authority.cluster().0 ^ 1)), Validity::Current).unwrap();
    let other = tempfile::tempdir().unwrap();
    Authority::create(other.path()).unwrap().issue_client("client", "demo").unwrap();
    let forged = tempfile::tempdir().unwrap();
    Authority::create(forged.path()).unwrap().issue_client("client", "demo").unwrap();
    std::fs::copy(certs.join("ca.pem"), forged.path().join("ca.pem")).unwrap();

    for (name, folder, certificate, said, exit) in [
        ("expired", certs.as_path(), "expired", "expired", 3),
        ("another cluster", &certs, "elsewhere", "cluster", 3),
        ("a node's", &certs, "node-1", "certificate of node", 2),
        ("the node is a stranger to it", other.path(), "client", "", 3),
        ("it is a stranger to the node", forged.path(), "client", "", 3),
        ("none there", &certs, "nobody", "nobody.pem", 2),
    ] {
        let error = Client::connect(config(&bed, folder, certificate)).await.err();
        let error = error.unwrap_or_else(|| panic!("{name}: connected")).to_string();
        assert!(error.to_lowercase().contains(said), "{name}: {error}");
        let seeds = bed.cluster.url().split("/?").next().unwrap().to_owned();
        let url = format!("{seeds}/?certs={}&certificate={certificate}&connect=1500ms", folder.display());
        let output = tool(&["get", "--cluster", &url, "-o", "json", "key"], b"");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(
            (code(&output), error["error"]["exit_code"].as_i64()),
            (Some(exit), Some(exit.into())),
            "{name}"
        );
        assert!(error["error"]["message"].as_str().unwrap().to_lowercase().contains(said), "{name}: {error}");
    }
    assert_eq!(bed.client.get_with("key", stale()).await.unwrap().value.unwrap().value, "value");
}

#[tokio::test]
async fn the_tool_makes_roles_overwrites_nothing_and_says_who_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path().join("certs");
    let certs = certs.to_str().unwrap();
    let run = |rest: &[&str]| tool(&[&["certs", "--dir", certs], rest].concat(), b"");
    assert_eq!(code(&run(&[])), Some(2), "nothing to make");
    let made = run(&["--nodes", "1", "--client", "app", "--operator", "ops", "-o", "json"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made["made"], serde_json::json!(["node-1.pem", "client.pem", "operator.pem"]));
    let key = || std::fs::read_to_string(Path::new(certs).join("client.key")).unwrap();
    let before = key();
    assert_eq!(code(&run(&["--add", "--client", "web"])), Some(0));
    assert!(Path::new(certs).join("web.pem").exists());
    for taken in ["web", "client", "node-1", "ca"] {
        let again = run(&["--add", "--client", taken]);
        assert_eq!(code(&again), Some(2), "{taken}");
        assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
    }
    assert_eq!(key(), before);

    let bed = Bed::new(1).await;
    Authority::open(&bed.cluster.certs()).unwrap().issue_client("app", "app").unwrap();
    let url = format!("{}&certificate=app", bed.cluster.url());
    let refused = tool(&["member", "--cluster", &url, "lead", "-o", "json"], b"");
    // Nobody leads where nothing is replicated; as an operator or not.
    assert_eq!(code(&refused), Some(3), "{}", text(&refused.stderr));
}

//! Each wrong certificate is refused with an error that names its file, and each stranger by the handshake or
//! right after it.

use super::*;
use crate::transport::quic;
use crate::transport::test_certificates::{TestAuthority, client_identity, dialler, node_identity};
use quinn::Endpoint;
use std::time::Duration;
use tiedkv_protocol::identity::NODE_DNS_NAME;

fn refused(files: &CertificateFiles, wanted: Option<NodeId>) -> (CertificateError, String) {
    let error = Credentials::load(files, wanted).unwrap_err();
    let text = error.to_string();
    (error, text)
}

#[test]
fn a_good_certificate_says_who_the_node_is() {
    let authority = TestAuthority::new();
    let loaded = Credentials::load(&authority.node(3), Some(NodeId(3))).unwrap();
    assert_eq!((loaded.node(), loaded.cluster()), (NodeId(3), crate::transport::test_certificates::CLUSTER));
    assert_eq!(CertificateFiles::of_node(authority.folder(), NodeId(3)), authority.node(3));
}

#[test]
fn wrong_files_are_named() {
    let authority = TestAuthority::new();
    let good = authority.node(1);
    let other = authority.node(2);

    let missing = CertificateFiles { key: authority.folder().join("absent.key"), ..good.clone() };
    let (error, text) = refused(&missing, None);
    assert!(matches!(error, CertificateError::File { .. }) && text.contains("absent.key"), "{text}");

    let swapped = CertificateFiles { key: good.certificate.clone(), ..good.clone() };
    let (error, text) = refused(&swapped, None);
    assert!(matches!(error, CertificateError::Empty { .. }) && text.contains("no private key"), "{text}");

    let mixed = CertificateFiles { key: other.key.clone(), ..good.clone() };
    let (error, text) = refused(&mixed, None);
    assert!(matches!(error, CertificateError::KeyMismatch { .. }), "{text}");
    assert!(text.contains("node-1.pem") && text.contains("node-2.key"), "{text}");

    std::fs::write(&good.certificate, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    let (error, text) = refused(&good, None);
    assert!(matches!(error, CertificateError::File { .. }) && text.contains("node-1.pem"), "{text}");
}

#[test]
fn wrong_authority_time_usage_and_identity_are_told_apart() {
    let authority = TestAuthority::new();
    let stranger = TestAuthority::new();
    let mut files = authority.node(1);
    files.authority = stranger.folder().join("ca.pem");
    let (error, text) = refused(&files, None);
    assert!(matches!(error, CertificateError::WrongAuthority { .. }), "{text}");

    let old = authority.issue("old", &node_identity(1), |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    let (error, text) = refused(&old, None);
    assert!(matches!(error, CertificateError::Expired { ago_s, .. } if ago_s > 700_000_000), "{text}");

    let early = authority.issue("early", &node_identity(1), |params| {
        params.not_before = rcgen::date_time_ymd(2999, 1, 1);
        params.not_after = rcgen::date_time_ymd(3000, 1, 1);
    });
    let (error, text) = refused(&early, None);
    assert!(matches!(error, CertificateError::NotYet { .. }), "{text}");

    let half = authority.issue("half", &node_identity(1), |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let (error, text) = refused(&half, None);
    assert!(matches!(error, CertificateError::Usage { usage: "client authentication", .. }), "{text}");

    let nameless = authority.issue("nameless", &node_identity(1), |params| {
        params.subject_alt_names.truncate(1);
    });
    let (error, text) = refused(&nameless, None);
    assert!(matches!(error, CertificateError::Identity { .. }) && text.contains("no URI name"), "{text}");

    let (error, text) = refused(&authority.client("alice"), None);
    assert!(matches!(error, CertificateError::WrongRole { .. }) && text.contains("client/alice"), "{text}");
    let (error, text) = refused(&authority.node(1), Some(NodeId(2)));
    assert!(matches!(error, CertificateError::WrongRole { .. }) && text.contains("node 2"), "{text}");
}

#[test]
fn a_caller_is_the_same_on_all_nodes_and_differs_by_name_and_cluster() {
    let alice = client_identity("alice");
    assert_eq!(caller_id(&alice), caller_id(&alice.to_string().parse().unwrap()));
    assert_ne!(caller_id(&alice), caller_id(&client_identity("bob")));
    let elsewhere = Identity { cluster: ClusterId(9), ..alice.clone() };
    assert_ne!(caller_id(&alice), caller_id(&elsewhere));
}

/// Dials a listener of `listener` on `port` with `files`; what the listener thinks of it, `None` if the
/// handshake failed.
async fn judged<T>(
    listener: &Credentials,
    port: Port,
    files: &CertificateFiles,
    judge: impl FnOnce(&quinn::Connection) -> T,
) -> Option<T> {
    let server = Endpoint::server(quic::server(listener, port).unwrap(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr().unwrap();
    let client = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let dial = client.connect_with(dialler(files, port), address, NODE_DNS_NAME).unwrap();
    let both = async {
        let accept = async { server.accept().await.unwrap().await.ok() };
        let (dialled, accepted) = tokio::join!(dial, accept);
        let verdict = accepted.as_ref().map(judge);
        drop(dialled);
        verdict
    };
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("judged in time")
}

#[tokio::test]
async fn the_other_end_is_told_by_its_certificate() {
    let authority = TestAuthority::new();
    let node = authority.credentials(1);
    let (two, alice) = (authority.node(2), authority.client("alice"));
    let far = Identity { cluster: ClusterId(9), role: Role::Node(NodeId(2)) };
    let far = authority.issue("far", &far, |_| ());
    let stranger = TestAuthority::new();
    let mut forged = stranger.node(2);
    forged.authority = authority.folder().join("ca.pem");

    let peer = |wanted| {
        let node = &node;
        move |connection: &quinn::Connection| node.check_node(connection, Port::Cancel, wanted)
    };
    assert_eq!(judged(&node, Port::Cancel, &two, peer(None)).await, Some(Ok(NodeId(2))));
    assert_eq!(
        judged(&node, Port::Cancel, &two, peer(Some(NodeId(3)))).await,
        Some(Err(StrangerError::WrongNode { wanted: NodeId(3), found: NodeId(2) }))
    );
    assert!(matches!(
        judged(&node, Port::Cancel, &alice, peer(None)).await,
        Some(Err(StrangerError::WrongRole { port: Port::Cancel, .. }))
    ));
    assert!(matches!(
        judged(&node, Port::Cancel, &far, peer(None)).await,
        Some(Err(StrangerError::WrongCluster { found: ClusterId(9), .. }))
    ));
    assert_eq!(judged(&node, Port::Cancel, &forged, peer(None)).await, None);
    let judge = |connection: &quinn::Connection| node.check_client(connection);
    let found = judged(&node, Port::Client, &alice, judge).await.unwrap().unwrap();
    let caller = caller_id(&client_identity("alice"));
    assert_eq!(found, Client { caller, name: "alice".to_owned(), operator: false });
    let found = judged(&node, Port::Client, &authority.operator("ops"), judge).await.unwrap().unwrap();
    assert!(found.operator && found.name == "ops", "{found:?}");
    assert!(matches!(
        judged(&node, Port::Client, &two, |connection| node.check_client(connection)).await,
        Some(Err(StrangerError::WrongRole { port: Port::Client, .. }))
    ));
}

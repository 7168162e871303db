//! Certificates of a client and who is at the other end: loads `ca.pem`, `NAME.pem` and `NAME.key`, makes the QUIC
//! configuration, reads the node's identity off a connection. Opens no socket.
//!
//! TLS 1.3, mutual, `ring` by name; no session resumption and no 0-RTT, so that no copy is ever replayed (rule R5
//! of docs/tie-protocol.md).

use crate::config::{Config, ConfigError};
use crate::cut_off::IDLE_MAX;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::identity::{ALPN_CLIENT, Identity, Role};
use tiedkv_protocol::ids::{ClusterId, NodeId};
use tiedkv_protocol::limits::FRAME_BYTES_MAX;

/// What the certificates entitle to.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    /// The cluster that the client's certificate names.
    pub(crate) cluster: ClusterId,
    /// For every dial.
    pub(crate) quic: quinn::ClientConfig,
}

/// Loads the directory of certificates. Reads files: call it once, at the start.
pub(crate) fn load(config: &Config) -> Result<Credentials, ConfigError> {
    let authority = config.certs.join("ca.pem");
    let chain_path = config.certs.join(format!("{}.pem", config.certificate_name));
    let key_path = config.certs.join(format!("{}.key", config.certificate_name));

    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(&authority)? {
        roots.add(certificate).map_err(|error| unusable(&authority, format!("no usable authority: {error}")))?;
    }
    let chain = certificates(&chain_path)?;
    let identity = chain.first().map(identity_of).transpose().map_err(|reason| unusable(&chain_path, reason))?;
    let Some(identity) = identity else { return Err(unusable(&chain_path, "holds no certificate")) };
    if let Role::Node(node) = identity.role {
        return Err(unusable(&chain_path, format!("is the certificate of node {node}; a client's is wanted")));
    }
    let key = PrivateKeyDer::from_pem_file(&key_path).map_err(|error| unusable(&key_path, error))?;
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| unusable(&authority, error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&key_path, format!("does not go with {}: {error}", chain_path.display())))?;
    tls.alpn_protocols = vec![ALPN_CLIENT.to_vec()];
    tls.resumption = Resumption::disabled();
    tls.enable_early_data = false;
    let crypto = QuicClientConfig::try_from(tls).map_err(|error| unusable(&authority, error))?;
    let mut quic = quinn::ClientConfig::new(Arc::new(crypto));
    quic.transport_config(Arc::new(transport()));
    Ok(Credentials { cluster: identity.cluster, quic })
}

fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    // A lost first packet is sent again after a few of these, not after the default's second.
    transport.initial_rtt(Duration::from_millis(5));
    transport.keep_alive_interval(Some(Duration::from_millis(500)));
    transport.max_idle_timeout(quinn::IdleTimeout::try_from(IDLE_MAX).ok());
    // Nodes open a stream per large value, and nothing else.
    transport.max_concurrent_uni_streams(quinn::VarInt::from_u32(LARGE_VALUES_MAX));
    transport.max_concurrent_bidi_streams(quinn::VarInt::from_u32(0));
    transport.stream_receive_window(quinn::VarInt::from_u32(FRAME_BYTES_MAX as u32 + 64));
    transport.receive_window(quinn::VarInt::from_u32(4 * FRAME_BYTES_MAX as u32));
    transport.datagram_receive_buffer_size(None);
    transport.send_fairness(false);
    let mut acknowledgements = quinn::AckFrequencyConfig::default();
    acknowledgements.ack_eliciting_threshold(quinn::VarInt::from_u32(UNACKNOWLEDGED_MAX));
    transport.ack_frequency_config(Some(acknowledgements));
    transport
}

/// Packets that a node may receive before it acknowledges without having an answer to send; QUIC's default, every
/// other one, costs a packet and a wake-up for each read.
const UNACKNOWLEDGED_MAX: u32 = 16;

/// Large values that one connection receives at a time.
pub(crate) const LARGE_VALUES_MAX: u32 = 64;

/// Which node is at the other end of a connection, if it is one of the cluster.
pub(crate) fn peer_node(connection: &quinn::Connection, cluster: ClusterId) -> Result<NodeId, String> {
    let identity = connection.peer_identity().ok_or("the node showed no certificate")?;
    let chain =
        identity.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| "the node's certificate is no X.509")?;
    let identity = identity_of(chain.first().ok_or("the node showed no certificate")?)?;
    if identity.cluster != cluster {
        return Err(format!("it is of cluster {}, our certificate is of {cluster}", identity.cluster));
    }
    match identity.role {
        Role::Node(node) => Ok(node),
        Role::Client(name) | Role::Operator(name) => {
            Err(format!("its certificate is that of client `{name}`, not of a node"))
        }
    }
}

/// The one tiedkv identity among a certificate's URI names.
fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let leaf =
        webpki::EndEntityCert::try_from(certificate).map_err(|error| format!("no usable certificate: {error}"))?;
    let mut identities = leaf.valid_uri_names().filter_map(|name| name.parse::<Identity>().ok());
    let identity = identities.next().ok_or("carries no tiedkv identity (a URI name tiedkv://CLUSTER/ROLE/NAME)")?;
    if identities.next().is_some() {
        return Err("carries several tiedkv identities".to_owned());
    }
    Ok(identity)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, error))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| unusable(path, error))?;
    if all.is_empty() {
        return Err(unusable(path, "holds no certificate"));
    }
    Ok(all)
}

fn unusable(path: &Path, reason: impl ToString) -> ConfigError {
    ConfigError::Certificate { path: path.display().to_string(), reason: reason.to_string() }
}

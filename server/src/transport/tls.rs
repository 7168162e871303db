//! Certificates of a node: loads them, checks them against each other before they are used, makes the TLS
//! configurations of the three ports, and tells from a connection who is at its other end.
//!
//! TLS 1.3, mutual, one certificate authority per cluster, `ring` by name, no session resumption and no 0-RTT
//! (a resumed session would skip the check of the certificate, and copies must never be replayed). This room
//! opens no socket; [`super::quic`] turns its configurations into QUIC ones.

use super::expiry::{self, CertificateEnds};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiedkv_protocol::identity::{ALPN_CANCEL, ALPN_CLIENT, ALPN_PEER, Identity, Role};
use tiedkv_protocol::ids::{CallerId, ClusterId, NodeId};

/// One of the three QUIC ports of a node: decides the application protocol and who may speak on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Clients: reads, writes, administration.
    Client,
    /// Peers: Raft.
    Peer,
    /// Peers: cancels.
    Cancel,
}

impl Port {
    /// The TLS application protocol of the port.
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::Client => ALPN_CLIENT,
            Self::Peer => ALPN_PEER,
            Self::Cancel => ALPN_CANCEL,
        }
    }

    /// The name used in logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Peer => "peer",
            Self::Cancel => "cancel",
        }
    }
}

/// Where the certificate, the key and the authority of a node lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate authority of the cluster (PEM).
    pub authority: PathBuf,
    /// The node's certificate, leaf first (PEM).
    pub certificate: PathBuf,
    /// The node's private key (PEM).
    pub key: PathBuf,
}

impl CertificateFiles {
    /// `ca.pem`, `node-ID.pem` and `node-ID.key` of a folder.
    pub fn of_node(folder: &Path, node: NodeId) -> Self {
        Self {
            authority: folder.join("ca.pem"),
            certificate: folder.join(format!("node-{}.pem", node.0)),
            key: folder.join(format!("node-{}.key", node.0)),
        }
    }
}

/// Why certificates on disk cannot be used; names the file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read or is no PEM.
    #[error("{}: {reason}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system or the parser said.
        reason: String,
    },
    /// The file holds no such section.
    #[error("{}: holds no {wanted}", .path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// The certificate cannot be parsed or used.
    #[error("{}: not a usable certificate: {reason}", .path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// The verifier's reason.
        reason: String,
    },
    /// The certificate was issued by somebody else.
    #[error("{}: not issued by the authority in {}", .path.display(), .authority.display())]
    WrongAuthority {
        /// Which certificate.
        path: PathBuf,
        /// The authority it was checked against.
        authority: PathBuf,
    },
    /// The certificate's time is over.
    #[error("{}: expired {ago_s} s ago", .path.display())]
    Expired {
        /// Which certificate.
        path: PathBuf,
        /// Seconds since its end.
        ago_s: u64,
    },
    /// The certificate's time has not begun.
    #[error("{}: not valid for another {in_s} s; is the clock of this machine right?", .path.display())]
    NotYet {
        /// Which certificate.
        path: PathBuf,
        /// Seconds until its beginning.
        in_s: u64,
    },
    /// The certificate lacks a usage.
    #[error("{}: does not allow {usage}; a node needs both server and client authentication", .path.display())]
    Usage {
        /// Which certificate.
        path: PathBuf,
        /// What it does not allow.
        usage: &'static str,
    },
    /// Certificate and key do not belong together.
    #[error("{}: is not the key of {}", .key.display(), .path.display())]
    KeyMismatch {
        /// Which certificate.
        path: PathBuf,
        /// Which key.
        key: PathBuf,
    },
    /// The certificate carries no identity of tiedkv, or several.
    #[error("{}: {reason}", .path.display())]
    Identity {
        /// Which certificate.
        path: PathBuf,
        /// What its URI names say.
        reason: String,
    },
    /// The certificate belongs to a client or to another node.
    #[error("{}: is the certificate of {found}, a certificate of {wanted} is wanted", .path.display())]
    WrongRole {
        /// Which certificate.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
}

/// Why the other end of a connection is not accepted. Closes the connection with this text as the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrangerError {
    /// No certificate came with the handshake.
    #[error("no certificate presented")]
    NoCertificate,
    /// The certificate carries no identity.
    #[error("certificate without tiedkv identity: {0}")]
    NoIdentity(String),
    /// Another cluster.
    #[error("certificate of cluster {found}, this is cluster {own}")]
    WrongCluster {
        /// Theirs.
        found: ClusterId,
        /// Ours.
        own: ClusterId,
    },
    /// A client on a peer port, or a node on the client port.
    #[error("{found} may not speak on the {port} port", port = .port.name())]
    WrongRole {
        /// Who it is.
        found: String,
        /// Which port.
        port: Port,
    },
    /// Another node answers at the address of the one dialled.
    #[error("dialled {wanted}, {found} answered")]
    WrongNode {
        /// Who was dialled.
        wanted: NodeId,
        /// Who answered.
        found: NodeId,
    },
}

/// Certificate, key and authority of a node, checked against each other.
pub struct Credentials {
    identity: Identity,
    node: NodeId,
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    /// Seconds since the Unix epoch; 0 if it could not be read.
    authority_ends: u64,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Loads the files of a node and checks them: readable, issued by the authority, in time, both usages, key
    /// and certificate belong together, identity of a node (of `wanted`, if given).
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load(files: &CertificateFiles, wanted: Option<NodeId>) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (roots, authority_ends) = load_authority(&files.authority)?;
        let chain = load_certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| pem_error(&files.key, "private key (PEM `PRIVATE KEY`)", error))?;
        let identity = check_leaf(files, &provider, &roots, &chain)?;
        let node = match (&identity.role, wanted) {
            (Role::Node(node), None) => *node,
            (Role::Node(node), Some(wanted)) if *node == wanted => *node,
            (_, wanted) => {
                return Err(CertificateError::WrongRole {
                    path: files.certificate.clone(),
                    found: identity.to_string(),
                    wanted: wanted.map_or_else(|| "a node".to_owned(), |node| format!("node {}", node.0)),
                });
            }
        };
        check_key(files, &provider, &chain, &key)?;
        Ok(Self { identity, node, provider, roots: Arc::new(roots), authority_ends, chain, key })
    }

    /// Who this node is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Which cluster it belongs to.
    pub fn cluster(&self) -> ClusterId {
        self.identity.cluster
    }

    /// When the node's certificate and its authority's end.
    pub fn ends(&self) -> CertificateEnds {
        let node = self.chain.first().and_then(|leaf| expiry::not_after(leaf));
        CertificateEnds { node: node.unwrap_or(0), authority: self.authority_ends }
    }

    /// TLS of a listener: demands a certificate of the cluster's authority.
    ///
    /// # Errors
    /// When the certificates are refused by the TLS library although [`Credentials::load`] took them.
    pub fn server_tls(&self, port: Port) -> Result<rustls::ServerConfig, rustls::Error> {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), self.provider.clone())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![port.alpn().to_vec()];
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(config)
    }

    /// TLS of a dialler: the other end must be a node of the cluster's authority. Dial with
    /// [`tiedkv_protocol::identity::NODE_DNS_NAME`] as the server name, then check [`Credentials::check_node`].
    ///
    /// # Errors
    /// As [`Credentials::server_tls`].
    pub fn client_tls(&self, port: Port) -> Result<rustls::ClientConfig, rustls::Error> {
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![port.alpn().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(config)
    }

    /// The peer at the other end, if it is a node of this cluster (and `wanted`, if given).
    ///
    /// # Errors
    /// Says who it is instead; close the connection with that.
    pub fn check_node(
        &self,
        connection: &quinn::Connection,
        port: Port,
        wanted: Option<NodeId>,
    ) -> Result<NodeId, StrangerError> {
        let identity = self.check_cluster(connection)?;
        match (&identity.role, wanted) {
            (Role::Node(found), Some(wanted)) if *found != wanted => {
                Err(StrangerError::WrongNode { wanted, found: *found })
            }
            (Role::Node(found), _) => Ok(*found),
            (Role::Client(_) | Role::Operator(_), _) => {
                Err(StrangerError::WrongRole { found: identity.to_string(), port })
            }
        }
    }

    /// The client at the other end, if it is one of this cluster.
    ///
    /// # Errors
    /// Says who it is instead; close the connection with that.
    pub fn check_client(&self, connection: &quinn::Connection) -> Result<Client, StrangerError> {
        let identity = self.check_cluster(connection)?;
        let caller = caller_id(&identity);
        match &identity.role {
            Role::Client(name) => Ok(Client { caller, name: name.clone(), operator: false }),
            Role::Operator(name) => Ok(Client { caller, name: name.clone(), operator: true }),
            Role::Node(_) => Err(StrangerError::WrongRole { found: identity.to_string(), port: Port::Client }),
        }
    }

    fn check_cluster(&self, connection: &quinn::Connection) -> Result<Identity, StrangerError> {
        let identity = identity_of(connection)?;
        if identity.cluster == self.identity.cluster {
            return Ok(identity);
        }
        Err(StrangerError::WrongCluster { found: identity.cluster, own: self.identity.cluster })
    }
}

/// Who speaks on the client port, by certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// What its ties, cancels and bounds are scoped by.
    pub caller: CallerId,
    /// The name in its certificate.
    pub name: String,
    /// It may change the cluster.
    pub operator: bool,
}

/// The caller of a client identity: the first 16 bytes of the SHA-256 of its text, the same on all nodes.
pub fn caller_id(identity: &Identity) -> CallerId {
    let digest = ring::digest::digest(&ring::digest::SHA256, identity.to_string().as_bytes());
    let mut first = [0; 16];
    first.copy_from_slice(&digest.as_ref()[..16]);
    CallerId(u128::from_be_bytes(first))
}

/// The identity in the certificate that the other end of a connection presented.
///
/// # Errors
/// When there is none; cluster and role are not checked here.
pub fn identity_of(connection: &quinn::Connection) -> Result<Identity, StrangerError> {
    let chain = connection
        .peer_identity()
        .and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok())
        .ok_or(StrangerError::NoCertificate)?;
    let leaf = chain.first().ok_or(StrangerError::NoCertificate)?;
    identity_in(leaf).map_err(StrangerError::NoIdentity)
}

fn identity_in(leaf: &CertificateDer<'_>) -> Result<Identity, String> {
    let leaf = webpki::EndEntityCert::try_from(leaf).map_err(|error| error.to_string())?;
    let mut found = leaf.valid_uri_names().filter(|name| name.starts_with("tiedkv://"));
    let text = found.next().ok_or("no URI name `tiedkv://...`")?;
    if found.next().is_some() {
        return Err("several URI names `tiedkv://...`".to_owned());
    }
    text.parse().map_err(|error: tiedkv_protocol::identity::BadIdentity| error.to_string())
}

/// The authority, and when the first of its certificates to do so ends.
fn load_authority(path: &Path) -> Result<(RootCertStore, u64), CertificateError> {
    let mut roots = RootCertStore::empty();
    let certificates = load_certificates(path)?;
    let ends = certificates.iter().filter_map(|certificate| expiry::not_after(certificate)).min();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| CertificateError::Unusable { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok((roots, ends.unwrap_or(0)))
}

fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    const WANTED: &str = "certificate (PEM `CERTIFICATE`)";
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|error| pem_error(path, WANTED, error))?;
    if certificates.is_empty() {
        return Err(CertificateError::Empty { path: path.to_owned(), wanted: WANTED });
    }
    Ok(certificates)
}

fn pem_error(path: &Path, wanted: &'static str, error: pem::Error) -> CertificateError {
    match error {
        pem::Error::NoItemsFound => CertificateError::Empty { path: path.to_owned(), wanted },
        pem::Error::Io(error) => CertificateError::File { path: path.to_owned(), reason: error.to_string() },
        error => CertificateError::File { path: path.to_owned(), reason: format!("not PEM: {error}") },
    }
}

fn check_leaf(
    files: &CertificateFiles,
    provider: &CryptoProvider,
    roots: &RootCertStore,
    chain: &[CertificateDer<'static>],
) -> Result<Identity, CertificateError> {
    let path = &files.certificate;
    let unusable =
        |error: webpki::Error| CertificateError::Unusable { path: path.clone(), reason: error.to_string() };
    let (first, rest) =
        chain.split_first().ok_or(CertificateError::Empty { path: path.clone(), wanted: "leaf" })?;
    let leaf = webpki::EndEntityCert::try_from(first).map_err(unusable)?;
    let now = UnixTime::now();
    for (usage, name) in [
        (webpki::KeyUsage::server_auth(), "server authentication"),
        (webpki::KeyUsage::client_auth(), "client authentication"),
    ] {
        let algorithms = provider.signature_verification_algorithms.all;
        leaf.verify_for_usage(algorithms, &roots.roots, rest, now, usage, None, None).map_err(|error| {
            use webpki::Error as E;
            let path = path.clone();
            match error {
                E::UnknownIssuer | E::InvalidSignatureForPublicKey => {
                    CertificateError::WrongAuthority { path, authority: files.authority.clone() }
                }
                E::CertExpired { time, not_after } => {
                    let ago_s = time.as_secs().saturating_sub(not_after.as_secs());
                    CertificateError::Expired { path, ago_s }
                }
                E::CertNotValidYet { time, not_before } => {
                    CertificateError::NotYet { path, in_s: not_before.as_secs().saturating_sub(time.as_secs()) }
                }
                E::RequiredEkuNotFoundContext(_) => CertificateError::Usage { path, usage: name },
                error => CertificateError::Unusable { path, reason: error.to_string() },
            }
        })?;
    }
    identity_in(first).map_err(|reason| CertificateError::Identity { path: path.clone(), reason })
}

fn check_key(
    files: &CertificateFiles,
    provider: &CryptoProvider,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(), CertificateError> {
    match rustls::sign::CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(CertificateError::KeyMismatch { path: files.certificate.clone(), key: files.key.clone() })
        }
        Err(error) => Err(CertificateError::File { path: files.key.clone(), reason: error.to_string() }),
    }
}

#[cfg(test)]
#[path = "tls_test.rs"]
mod tests;

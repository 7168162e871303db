//! Throw-away certificates for the tests of this crate: an authority, nodes, clients, and wrong ones.

use super::tls::{CertificateFiles, Credentials};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use std::path::{Path, PathBuf};
use tiedkv_protocol::identity::{Identity, Role};
use tiedkv_protocol::ids::{ClusterId, NodeId};

/// The cluster of all test certificates that do not say otherwise.
pub const CLUSTER: ClusterId = ClusterId(0x7e57);

/// An authority whose files lie in a temporary folder.
pub struct TestAuthority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    /// A fresh authority; writes `ca.pem`.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, "tiedkv test authority");
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    /// Where the files lie.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes certificate and key of `identity` as `NAME.pem` and `NAME.key`; `change` may spoil it.
    pub fn issue(
        &self,
        name: &str,
        identity: &Identity,
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertificateFiles {
        let mut params = CertificateParams::new(vec![identity.role.dns_name().to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(identity.to_string().try_into().unwrap()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = CertificateFiles {
            authority: self.path("ca.pem"),
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// Certificate of node `id` of [`CLUSTER`], under its usual file names.
    pub fn node(&self, id: u64) -> CertificateFiles {
        self.issue(&format!("node-{id}"), &node_identity(id), |_| ())
    }

    /// Loaded certificate of node `id`.
    pub fn credentials(&self, id: u64) -> Credentials {
        Credentials::load(&self.node(id), Some(NodeId(id))).unwrap()
    }

    /// Certificate of a client of [`CLUSTER`].
    pub fn client(&self, name: &str) -> CertificateFiles {
        self.issue(name, &client_identity(name), |_| ())
    }

    /// Certificate of an operator of [`CLUSTER`].
    pub fn operator(&self, name: &str) -> CertificateFiles {
        let identity = Identity { cluster: CLUSTER, role: Role::Operator(name.to_owned()) };
        self.issue(&format!("operator-{name}"), &identity, |_| ())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// The identity of a node of [`CLUSTER`].
pub fn node_identity(id: u64) -> Identity {
    Identity { cluster: CLUSTER, role: Role::Node(NodeId(id)) }
}

/// The identity of a client of [`CLUSTER`].
pub fn client_identity(name: &str) -> Identity {
    Identity { cluster: CLUSTER, role: Role::Client(name.to_owned()) }
}

/// A QUIC client configuration from any files: tests also dial with certificates that a node would refuse.
pub fn dialler(files: &CertificateFiles, port: super::tls::Port) -> quinn::ClientConfig {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls::pki_types::CertificateDer::pem_file_iter(&files.authority).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let chain = rustls::pki_types::CertificateDer::pem_file_iter(&files.certificate)
        .unwrap()
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![port.alpn().to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut config = quinn::ClientConfig::new(std::sync::Arc::new(tls));
    config.transport_config(std::sync::Arc::new(super::quic::transport(port)));
    config
}

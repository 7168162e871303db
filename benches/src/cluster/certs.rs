//! Certificates of a cluster: one authority per cluster, leaves that carry cluster, role and name.
//!
//! Every leaf has a DNS name (`node.tiedkv` or `client.tiedkv`) for TLS and a URI with the identity of
//! [`tiedkv_protocol::identity`]. Used by [`super::local::LocalCluster`] and `tiedkv certs`. The authority's
//! key lies beside the leaves (mode 0600), so that a node or a client can be added later: keep it elsewhere
//! for a cluster that matters. It renews and revokes nothing.

use crate::clock;
use rand::TryRngCore;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use std::path::{Path, PathBuf};
use tiedkv_protocol::identity::{Identity, Role};
use tiedkv_protocol::ids::{ClusterId, NodeId};

const AUTHORITY_CERTIFICATE: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca.key";
const CLUSTER_FILE: &str = "cluster.id";
/// Years that a certificate is valid.
const VALID_YEARS: i32 = 10;

/// Why certificates could not be made or kept.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The folder holds an authority already.
    #[error("{0} holds the certificates of a cluster already; add to it, or name an empty folder")]
    Exists(PathBuf),
    /// The cluster's id file holds something else.
    #[error("{0} does not hold a cluster id (32 hex digits)")]
    BadClusterId(PathBuf),
    /// A client's name is not one.
    #[error("`{0}` is no client name: letters, digits, `-`, `_` and `.` only")]
    BadName(String),
    /// A certificate or key of that file name is there already; none is ever overwritten.
    #[error("{0} exists already: choose another name, or take it away first")]
    Taken(PathBuf),
    /// The system's randomness failed.
    #[error("no randomness: {0}")]
    Randomness(String),
    /// Making a key or a certificate failed.
    #[error("certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// How long a leaf is valid; all but [`Validity::Current`] are for tests of refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday's year to ten years from now.
    #[default]
    Current,
    /// Ended in 2020.
    Expired,
}

/// The authority of one cluster and the folder that its leaves go to.
pub struct Authority {
    cluster: ClusterId,
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority for a new cluster in `folder` (made if absent) and writes its certificate and key.
    ///
    /// # Errors
    /// When the folder holds an authority already or cannot be written.
    pub fn create(folder: &Path) -> Result<Self, CertsError> {
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        if folder.join(AUTHORITY_CERTIFICATE).exists() {
            return Err(CertsError::Exists(folder.to_owned()));
        }
        let mut id = [0u8; 16];
        rand::rngs::OsRng.try_fill_bytes(&mut id).map_err(|error| CertsError::Randomness(error.to_string()))?;
        let cluster = ClusterId(u128::from_be_bytes(id));
        let key = KeyPair::generate()?;
        let params = authority_params(cluster)?;
        write_public(&folder.join(AUTHORITY_CERTIFICATE), &params.self_signed(&key)?.pem())?;
        write_secret(&folder.join(AUTHORITY_KEY), &key.serialize_pem())?;
        write_public(&folder.join(CLUSTER_FILE), &format!("{:032x}\n", cluster.0))?;
        Ok(Self { cluster, folder: folder.to_owned(), issuer: Issuer::new(params, key) })
    }

    /// Opens the authority that [`Self::create`] left in `folder`, to add leaves.
    ///
    /// # Errors
    /// When a file is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, CertsError> {
        let cluster = cluster_of(folder)?;
        let path = folder.join(AUTHORITY_KEY);
        let key = KeyPair::from_pem(&std::fs::read_to_string(&path).map_err(at(&path))?)?;
        Ok(Self { cluster, folder: folder.to_owned(), issuer: Issuer::new(authority_params(cluster)?, key) })
    }

    /// The cluster that all leaves name.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes `node-<id>.pem` and `node-<id>.key`.
    ///
    /// # Errors
    /// When a file is there already or cannot be written.
    pub fn issue_node(&self, node: NodeId) -> Result<(), CertsError> {
        let identity = Identity { cluster: self.cluster, role: Role::Node(node) };
        self.issue(&format!("node-{}", node.0), &identity, Validity::Current)
    }

    /// Writes `<file>.pem` and `<file>.key` for a client of that name.
    ///
    /// # Errors
    /// When the name is not one, or a file is there already or cannot be written.
    pub fn issue_client(&self, file: &str, name: &str) -> Result<(), CertsError> {
        self.issue_named(file, name, Role::Client(name.to_owned()))
    }

    /// Writes `<file>.pem` and `<file>.key` for an operator of that name: a client that may change the cluster.
    ///
    /// # Errors
    /// As [`Self::issue_client`].
    pub fn issue_operator(&self, file: &str, name: &str) -> Result<(), CertsError> {
        self.issue_named(file, name, Role::Operator(name.to_owned()))
    }

    fn issue_named(&self, file: &str, name: &str, role: Role) -> Result<(), CertsError> {
        let identity = Identity { cluster: self.cluster, role };
        match identity.to_string().parse::<Identity>() {
            Ok(parsed) if parsed == identity => self.issue(file, &identity, Validity::Current),
            _ => Err(CertsError::BadName(name.to_owned())),
        }
    }

    /// Writes `<file>.pem` and `<file>.key` for any identity: what tests of refusal need.
    ///
    /// # Errors
    /// When a file is there already or cannot be written.
    pub fn issue(&self, file: &str, identity: &Identity, validity: Validity) -> Result<(), CertsError> {
        let common_name = match &identity.role {
            Role::Node(node) => format!("node {}", node.0),
            Role::Client(name) => format!("client {name}"),
            Role::Operator(name) => format!("operator {name}"),
        };
        let certificate_path = self.folder.join(format!("{file}.pem"));
        let key_path = self.folder.join(format!("{file}.key"));
        if let Some(taken) = [&certificate_path, &key_path].into_iter().find(|path| path.exists()) {
            return Err(CertsError::Taken(taken.clone()));
        }
        let mut params = CertificateParams::new(vec![identity.role.dns_name().to_owned()])?;
        params.subject_alt_names.push(SanType::URI(Ia5String::try_from(identity.to_string())?));
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, validity);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        write_secret(&key_path, &key.serialize_pem())?;
        write_public(&certificate_path, &certificate.pem())
    }
}

/// The cluster whose certificates lie in `folder`.
///
/// # Errors
/// When the id file is missing or damaged.
pub fn cluster_of(folder: &Path) -> Result<ClusterId, CertsError> {
    let path = folder.join(CLUSTER_FILE);
    let text = std::fs::read_to_string(&path).map_err(at(&path))?;
    match u128::from_str_radix(text.trim(), 16) {
        Ok(id) if text.trim().len() == 32 => Ok(ClusterId(id)),
        _ => Err(CertsError::BadClusterId(path)),
    }
}

// The same for create and open: leaves name their issuer by this name and by the key's hash only.
fn authority_params(cluster: ClusterId) -> Result<CertificateParams, CertsError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, format!("tiedkv cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, Validity::Current);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, validity: Validity) {
    let (from, to) = match validity {
        Validity::Current => (this_year() - 1, this_year() + VALID_YEARS),
        Validity::Expired => (2019, 2020),
    };
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
}

fn this_year() -> i32 {
    1970 + i32::try_from(clock::since_epoch().as_secs() / 31_556_952).unwrap_or(0)
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> CertsError + use<> {
    let path = path.to_owned();
    move |error| CertsError::File { path, error }
}

fn write_public(path: &Path, text: &str) -> Result<(), CertsError> {
    std::fs::write(path, text).map_err(at(path))
}

fn write_secret(path: &Path, text: &str) -> Result<(), CertsError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(at(path))
}

#[cfg(test)]
#[path = "certs_test.rs"]
mod tests;

//! Why a node does not start or does not stop cleanly: for the operator, naming file, address or thread.

use crate::config::ConfigError;
use crate::peer::directory::DirectoryError;
use crate::request::path::StartError;
use crate::transport::tls::CertificateError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate or key is wrong.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No certificate of a node, or several, lie in the folder and no setting says which.
    #[error("{}: {found} node certificates (node-ID.pem); set `node_id` to say whose to use", .folder.display())]
    WhichNode {
        /// The folder.
        folder: PathBuf,
        /// How many were found.
        found: usize,
    },
    /// This node is not among the configured members.
    #[error("node {node} (by its certificate) is not among `members`: {members}")]
    NotAMember {
        /// By the certificate.
        node: u64,
        /// As configured.
        members: String,
    },
    /// The membership is none.
    #[error("`members`: {0}")]
    Members(#[from] DirectoryError),
    /// A socket cannot be opened.
    #[error("cannot listen on {setting} = {address}: {source}")]
    Bind {
        /// Which setting.
        setting: &'static str,
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The TLS library refuses the credentials.
    #[error("TLS of the {port} port: {source}")]
    Tls {
        /// Which port.
        port: &'static str,
        /// Why.
        source: rustls::Error,
    },
    /// A thread or its runtime cannot be made.
    #[error("cannot start thread `{name}`: {source}")]
    Thread {
        /// Which.
        name: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The request path does not start.
    #[error(transparent)]
    Path(#[from] StartError),
    /// Storage cannot be opened.
    #[error("storage: {0}")]
    Storage(String),
}

//! The identity that a certificate carries, as the text of its URI name. Extracting the text from the
//! certificate is the job of whoever holds the connection.
//!
//! Form: `tiedkv://CLUSTER/node/ID`, `tiedkv://CLUSTER/client/NAME` or `tiedkv://CLUSTER/operator/NAME` (CLUSTER: 32
//! lower-case hex digits; ID: decimal; NAME: 1 to 255 of `A-Z a-z 0-9 - _ .`). Only this form is read: no signs, no leading zeros.

use crate::ids::{ClusterId, NodeId};
use crate::limits::NAME_BYTES_MAX;
use std::fmt;
use std::str::FromStr;

/// DNS name that every node certificate carries: what a dialler asks TLS to verify.
pub const NODE_DNS_NAME: &str = "node.tiedkv";
/// DNS name that every client and operator certificate carries.
pub const CLIENT_DNS_NAME: &str = "client.tiedkv";

/// TLS application protocol of the client port.
pub const ALPN_CLIENT: &[u8] = b"tiedkv-client/1";
/// TLS application protocol of the peer (Raft) port.
pub const ALPN_PEER: &[u8] = b"tiedkv-peer/1";
/// TLS application protocol of the cancel port.
pub const ALPN_CANCEL: &[u8] = b"tiedkv-cancel/1";

/// What a certificate entitles to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A node of the cluster.
    Node(NodeId),
    /// A client, by name: reads, writes, looks at figures.
    Client(String),
    /// A client, by name, that may also change the cluster: members, leadership, ceiling, disturbances.
    Operator(String),
}

impl Role {
    /// The DNS name that TLS verifies for this role.
    pub fn dns_name(&self) -> &'static str {
        match self {
            Self::Node(_) => NODE_DNS_NAME,
            Self::Client(_) | Self::Operator(_) => CLIENT_DNS_NAME,
        }
    }
}

/// Cluster and role of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Which role.
    pub role: Role,
}

/// Why a text is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no tiedkv identity: want tiedkv://CLUSTER/node/ID, tiedkv://CLUSTER/client/NAME or tiedkv://CLUSTER/operator/NAME"
)]
pub struct BadIdentity(pub String);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::Node(node) => write!(f, "tiedkv://{:032x}/node/{}", self.cluster.0, node.0),
            Role::Client(name) => write!(f, "tiedkv://{:032x}/client/{name}", self.cluster.0),
            Role::Operator(name) => write!(f, "tiedkv://{:032x}/operator/{name}", self.cluster.0),
        }
    }
}

impl FromStr for Identity {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadIdentity(text.chars().take(NAME_BYTES_MAX).collect());
        let rest = text.strip_prefix("tiedkv://").ok_or_else(bad)?;
        let mut parts = rest.splitn(3, '/');
        let (Some(cluster), Some(kind), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad());
        };
        if cluster.len() != 32 {
            return Err(bad());
        }
        let cluster = ClusterId(u128::from_str_radix(cluster, 16).map_err(|_| bad())?);
        let role = match kind {
            "node" => Role::Node(NodeId(name.parse().map_err(|_| bad())?)),
            "client" if is_name(name) => Role::Client(name.to_owned()),
            "operator" if is_name(name) => Role::Operator(name.to_owned()),
            _ => return Err(bad()),
        };
        let identity = Self { cluster, role };
        // One identity, one text: callers are told apart by a digest of it.
        if identity.to_string() == text { Ok(identity) } else { Err(bad()) }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_roles_survive_the_text_form() {
        for role in [
            Role::Node(NodeId(7)),
            Role::Node(NodeId(u64::MAX)),
            Role::Client("app-1.eu_west".into()),
            Role::Operator("ops".into()),
        ] {
            let identity = Identity { cluster: ClusterId(0xfeed), role };
            assert_eq!(identity.to_string().parse::<Identity>(), Ok(identity));
        }
    }

    #[test]
    fn any_other_form_is_refused_and_quoted_within_bounds() {
        let cluster = format!("{:032x}", 7);
        for text in [
            String::new(),
            "tiedkv://".into(),
            "http://x".into(),
            format!("tiedkv://{cluster}/node/"),
            format!("tiedkv://{cluster}/node/+1"),
            format!("tiedkv://{cluster}/node/01"),
            format!("tiedkv://{cluster}/node/1/2"),
            format!("tiedkv://{cluster}/node/18446744073709551616"),
            format!("tiedkv://+{}/node/1", &cluster[1..]),
            format!("tiedkv://{}/node/1", "ABCDEF0123456789ABCDEF0123456789"),
            format!("tiedkv://{cluster}/client/"),
            format!("tiedkv://{cluster}/client/a b"),
            format!("tiedkv://{cluster}/client/{}", "x".repeat(NAME_BYTES_MAX + 1)),
            format!("tiedkv://{cluster}/admin/x"),
            format!("tiedkv://{cluster}/operator/"),
            "\u{e9}".repeat(5000),
        ] {
            let BadIdentity(quoted) = text.parse::<Identity>().expect_err(&text);
            assert!(quoted.chars().count() <= NAME_BYTES_MAX);
        }
    }
}

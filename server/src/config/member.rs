//! The text form of one member of the cluster, the same in files, environment and flags:
//! `ID=HOST:PORT[,peer=HOST:PORT][,cancel=HOST:PORT][,zone=NAME][,learner]`.
//!
//! HOST is a name, an IPv4 address or an IPv6 address in brackets. PORT is the client port N; the peer port is
//! N+1 and the cancel port N+2 unless given. Names are kept as they are: whoever dials resolves them.

use std::fmt;
use std::str::FromStr;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::NAME_BYTES_MAX;

/// One member as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSetting(pub Member);

impl FromStr for MemberSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "want ID=HOST:PORT[,peer=HOST:PORT][,cancel=HOST:PORT][,zone=NAME][,learner]";
        let mut parts = text.split(',').map(str::trim);
        let (id, client) = parts.next().and_then(|first| first.split_once('=')).ok_or(FORM)?;
        let node = NodeId(id.trim().parse().map_err(|_| format!("`{id}` is no node id; {FORM}"))?);
        let (host, port) = host_port(client.trim())?;
        let mut member = Member {
            node,
            zone: String::new(),
            client_address: join(host, port),
            peer_address: next_port(host, port, 1)?,
            cancel_address: next_port(host, port, 2)?,
            learner: false,
        };
        for part in parts {
            match part.split_once('=') {
                Some(("peer", value)) => member.peer_address = checked(value)?,
                Some(("cancel", value)) => member.cancel_address = checked(value)?,
                Some(("zone", value)) if value.len() <= NAME_BYTES_MAX => member.zone = value.to_owned(),
                None if part == "learner" => member.learner = true,
                _ => return Err(format!("`{part}` is not understood; {FORM}")),
            }
        }
        Ok(Self(member))
    }
}

impl fmt::Display for MemberSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Member { node, zone, client_address, peer_address, cancel_address, learner } = &self.0;
        write!(f, "{}={client_address},peer={peer_address},cancel={cancel_address}", node.0)?;
        if !zone.is_empty() {
            write!(f, ",zone={zone}")?;
        }
        if *learner { f.write_str(",learner") } else { Ok(()) }
    }
}

/// Splits `HOST:PORT`; an IPv6 host keeps its brackets.
fn host_port(text: &str) -> Result<(&str, u16), String> {
    let wrong = || format!("`{text}`: want HOST:PORT or [IPv6]:PORT");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let plain = !host.is_empty() && host.len() <= NAME_BYTES_MAX && !host.contains([':', '[', ']', ' ', '/']);
    if bracketed && host[1..host.len() - 1].parse::<std::net::Ipv6Addr>().is_ok() || plain {
        return Ok((host, port.parse().map_err(|_| wrong())?));
    }
    Err(wrong())
}

fn checked(text: &str) -> Result<String, String> {
    host_port(text).map(|(host, port)| join(host, port))
}

fn join(host: &str, port: u16) -> String {
    format!("{host}:{port}")
}

fn next_port(host: &str, port: u16, step: u16) -> Result<String, String> {
    // Port 0 stands for "not known yet": the peers learn the real one at run time.
    let next = if port == 0 { Some(0) } else { port.checked_add(step) };
    next.map(|next| join(host, next)).ok_or_else(|| format!("port {port} leaves no room for port {port} + {step}"))
}

//! Finds free ports on the loopback address: four in a row per node (client, peer, cancel: UDP; admin: TCP).
//!
//! A probe binds and lets go, so another process may take a port before the node does; a cluster that fails to
//! start for that reason is started again on other ports by its caller. Who looks for ports here never finds those of
//! another cluster, also while a node of it is stopped.

use rand::Rng;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Deref;

/// Lowest first port tried; the range ends below the ephemeral ports of Linux (32768).
const BASE_MIN: u16 = 12_000;
const BASE_MAX: u16 = 32_000;
/// Ports of one node.
const PORTS: u16 = 4;
/// How many places are probed for each node.
const TRIES: usize = 200;

/// The ports of one node, in a row: client N, peer N + 1, cancel N + 2, admin N + 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    host: IpAddr,
    first: u16,
}

impl Ports {
    /// Of a node on 127.0.0.1 whose client port is `first`.
    pub fn from_first(first: u16) -> Self {
        Self { host: Ipv4Addr::LOCALHOST.into(), first }
    }

    /// Where clients dial (UDP).
    pub fn client(self) -> SocketAddr {
        self.nth(0)
    }

    /// Where peers dial for Raft (UDP).
    pub fn peer(self) -> SocketAddr {
        self.nth(1)
    }

    /// Where peers dial for cancels (UDP).
    pub fn cancel(self) -> SocketAddr {
        self.nth(2)
    }

    /// The admin pages (TCP).
    pub fn admin(self) -> SocketAddr {
        self.nth(3)
    }

    fn nth(self, offset: u16) -> SocketAddr {
        SocketAddr::from((self.host, self.first + offset))
    }
}

/// Ports of nodes, kept from others who look for some until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    ports: Vec<Ports>,
    /// Of each node: TCP on the port where it serves clients by UDP, so that it stands in nobody's way.
    _marks: Vec<TcpListener>,
}

impl Deref for Reserved {
    type Target = [Ports];

    fn deref(&self) -> &[Ports] {
        &self.ports
    }
}

/// Sockets that keep a node's ports taken while the others are looked for.
struct Held {
    ports: Ports,
    mark: TcpListener,
    _udp: [UdpSocket; 3],
    _tcp: TcpListener,
}

/// Free ports for `nodes` nodes on `host`; `None` if the machine has none left, or no such address.
pub fn free_ports(nodes: usize, host: IpAddr, rng: &mut impl Rng) -> Option<Reserved> {
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..nodes {
        let found = (0..TRIES).find_map(|_| {
            let slots = (BASE_MAX - BASE_MIN) / PORTS;
            hold(Ports { host, first: BASE_MIN + rng.random_range(0..slots) * PORTS })
        });
        held.push(found?);
    }
    let (ports, _marks) = held.into_iter().map(|held| (held.ports, held.mark)).unzip();
    Some(Reserved { ports, _marks })
}

fn hold(ports: Ports) -> Option<Held> {
    let udp = |address| UdpSocket::bind(address).ok();
    Some(Held {
        ports,
        mark: TcpListener::bind(ports.client()).ok()?,
        _udp: [udp(ports.client())?, udp(ports.peer())?, udp(ports.cancel())?],
        _tcp: TcpListener::bind(ports.admin()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_taken_port_is_not_given_out() {
        // The same seed looks at the same places first; one of its ports is taken now.
        let first = free_ports(1, LOCALHOST, &mut StdRng::seed_from_u64(5)).unwrap()[0];
        let _taken = UdpSocket::bind(first.cancel()).unwrap();
        assert_ne!(free_ports(1, LOCALHOST, &mut StdRng::seed_from_u64(5)).unwrap()[0], first);
    }

    #[test]
    fn the_ports_of_a_cluster_are_its_own_while_no_node_listens() {
        let seed = || StdRng::seed_from_u64(6);
        let reserved = free_ports(3, LOCALHOST, &mut seed()).unwrap();
        let others = free_ports(3, LOCALHOST, &mut seed()).unwrap();
        assert!(others.iter().all(|ports| !reserved.contains(ports)), "{reserved:?} {others:?}");
        let first = reserved[0];
        drop(reserved);
        assert_eq!(free_ports(3, LOCALHOST, &mut seed()).unwrap()[0], first);
    }

    #[test]
    fn nodes_share_no_port() {
        let mut ports: Vec<u16> =
            free_ports(5, LOCALHOST, &mut rand::rng()).unwrap().iter().map(|ports| ports.first).collect();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[1] - pair[0] >= PORTS), "{ports:?}");
    }
}

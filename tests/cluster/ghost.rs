//! A member of the cluster that is played by the test: hears the cancels that nodes send it, sends what it wants.

use crate::bed::{Bed, until, within};
use quinn::{Connection, Endpoint};
use std::collections::BTreeMap;
use tiedkv_benches::cluster::ports::Ports;
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::{CallerId, ClusterId, NodeId, TieId};
use tiedkv_protocol::peer::{Cancel, PeerDatagram};
use tiedkv_protocol::tie::CopyNumber;
use tiedkv_server::transport::quic;
use tiedkv_server::transport::tls::{CertificateFiles, Credentials, Port, caller_id};
use tokio::sync::mpsc;

/// The ghost of a node that does not run.
pub struct Ghost {
    caller: CallerId,
    heard: mpsc::Receiver<(NodeId, Cancel)>,
    dialled: BTreeMap<NodeId, Connection>,
    _endpoint: Endpoint,
}

impl Ghost {
    /// Kills the last node of the cluster and takes its place on the cancel channel: certificate, port and all.
    /// Returns when every other node has dialled it and it has dialled them.
    pub async fn of_last_node(bed: &mut Bed) -> (NodeId, Self) {
        let node = *bed.nodes().last().unwrap();
        bed.cluster.kill(node);
        let files = CertificateFiles::of_node(&bed.cluster.certs(), node);
        let credentials = Credentials::load(&files, Some(node)).unwrap();
        let place = bed.cluster.nodes().last().unwrap().ports().cancel();
        let server = quic::server(&credentials, Port::Cancel).unwrap();
        let mut endpoint = Endpoint::server(server, place).unwrap();
        endpoint.set_default_client_config(quic::client(&credentials, Port::Cancel).unwrap());

        let others: Vec<(NodeId, Ports)> =
            bed.cluster.nodes().iter().map(|one| (one.id(), one.ports())).filter(|(id, _)| *id != node).collect();
        let (tell, heard) = mpsc::channel(1024);
        let mut heard_from = 0;
        while heard_from < others.len() {
            let incoming = within("a node dials the ghost", endpoint.accept()).await.unwrap();
            // What was on its way to the killed node cannot be read by its successor; who sent it dials again.
            let Ok(accepted) = incoming.accept() else { continue };
            let Ok(connection) = within("its handshake", accepted).await else { continue };
            heard_from += 1;
            let from = credentials.check_node(&connection, Port::Cancel, None).unwrap();
            tokio::spawn(listen(from, connection, tell.clone()));
        }
        let mut dialled = BTreeMap::new();
        for (other, ports) in others {
            let connecting = endpoint.connect(ports.cancel(), NODE_DNS_NAME).unwrap();
            dialled.insert(other, within("dial a node", connecting).await.unwrap());
        }
        let caller = caller_of(bed.cluster.cluster());
        (node, Self { caller, heard, dialled, _endpoint: endpoint })
    }

    /// A cancel as this ghost would send it for the test's client.
    pub fn cancel_of(&self, tie: TieId, number: u8) -> Cancel {
        Cancel { caller: self.caller, tie, number: CopyNumber(number) }
    }

    /// Says to `node`: copy `number` of `tie` started here.
    pub fn cancel(&self, node: NodeId, tie: TieId, number: u8) {
        self.send(node, PeerDatagram::Cancels([self.cancel_of(tie, number)].into_iter().collect()));
    }

    /// Sends any datagram.
    pub fn send(&self, node: NodeId, datagram: PeerDatagram) {
        self.bytes(node, datagram.encode().unwrap());
    }

    /// Sends bytes that may be no datagram of the protocol.
    pub fn bytes(&self, node: NodeId, bytes: Vec<u8>) {
        self.dialled[&node].send_datagram(bytes.into()).unwrap();
    }

    /// The next cancel that a node sends to the ghost.
    pub async fn next_cancel(&mut self) -> (NodeId, Cancel) {
        within("a cancel to the ghost", self.heard.recv()).await.unwrap()
    }

    /// Cancels that were sent to the ghost and not yet taken.
    pub fn unheard(&mut self) -> Vec<(NodeId, Cancel)> {
        std::iter::from_fn(|| self.heard.try_recv().ok()).collect()
    }

    /// Sends a cancel and waits until the node has counted it.
    pub async fn cancel_and_wait(&self, bed: &Bed, node: NodeId, tie: TieId, number: u8) {
        let before = bed.counters(node).await.cancels_received;
        self.cancel(node, tie, number);
        until("the cancel is received", async || bed.counters(node).await.cancels_received, |now| *now > before)
            .await;
    }
}

/// The caller that the client certificate of a local cluster stands for.
fn caller_of(cluster: ClusterId) -> CallerId {
    caller_id(&format!("tiedkv://{:032x}/operator/demo", cluster.0).parse().unwrap())
}

/// Echoes pings and hands cancels on until the connection ends.
async fn listen(from: NodeId, connection: Connection, tell: mpsc::Sender<(NodeId, Cancel)>) {
    while let Ok(bytes) = connection.read_datagram().await {
        match PeerDatagram::decode(&bytes).unwrap() {
            PeerDatagram::Cancels(cancels) => {
                for cancel in cancels {
                    tell.send((from, cancel)).await.unwrap();
                }
            }
            PeerDatagram::Ping { nonce } => {
                let pong = PeerDatagram::Pong { nonce, held_us: 0 };
                let _ = connection.send_datagram(pong.encode().unwrap().into());
            }
            PeerDatagram::Pong { .. } => {}
        }
    }
}

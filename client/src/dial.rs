//! One dial: resolve the name, connect, check who answers, greet. Keeps nothing.

use crate::link_task::Streams;
use crate::tls::{self, Credentials};
use crate::udp;
use parking_lot::Mutex;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tiedkv_protocol::frame::{self, Frame, FrameDecoder, FrameKind};
use tiedkv_protocol::hello::{Hello, Notice, Welcome};
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::{ClientId, NodeId};
use tiedkv_protocol::limits::PROTOCOL_VERSION;

/// Longest dial of one address, handshake and greeting included.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Makes connections; one socket per address family, made when first needed.
#[derive(Debug)]
pub(crate) struct Dialler {
    credentials: Credentials,
    client: ClientId,
    udp_buffer_bytes: usize,
    v4: Mutex<Option<quinn::Endpoint>>,
    v6: Mutex<Option<quinn::Endpoint>>,
}

/// A connection whose node has greeted.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) connection: quinn::Connection,
    pub(crate) streams: Streams,
    pub(crate) welcome: Welcome,
}

impl Dialler {
    pub(crate) fn new(credentials: Credentials, client: ClientId, udp_buffer_bytes: usize) -> Self {
        Self { credentials, client, udp_buffer_bytes, v4: Mutex::new(None), v6: Mutex::new(None) }
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Connects to `address` (`host:port`, resolved now). Whoever answers must be a node of our cluster, and
    /// `expected` if that is known.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) async fn dial(&self, address: &str, expected: Option<NodeId>) -> Result<Dialled, String> {
        let resolved = tokio::time::timeout(DIAL_MAX, tokio::net::lookup_host(address)).await;
        let addresses = resolved
            .map_err(|_| format!("{address}: the name was not resolved within {DIAL_MAX:?}"))?
            .map_err(|error| format!("{address}: {error}"))?;
        let mut last = format!("{address}: the name has no address");
        for target in addresses.take(ADDRESSES_MAX) {
            match tokio::time::timeout(DIAL_MAX, self.connect(target, expected)).await {
                Ok(Ok(dialled)) => return Ok(dialled),
                Ok(Err(reason)) => last = format!("{address}: {reason}"),
                Err(_) => last = format!("{address}: no answer within {DIAL_MAX:?}"),
            }
        }
        Err(last)
    }

    async fn connect(&self, target: SocketAddr, expected: Option<NodeId>) -> Result<Dialled, String> {
        let endpoint = self.endpoint(target).map_err(|error| format!("no socket: {error}"))?;
        let connecting = endpoint
            .connect_with(self.credentials.quic.clone(), target, NODE_DNS_NAME)
            .map_err(|error| error.to_string())?;
        let connection = connecting.await.map_err(|error| error.to_string())?;
        // Closed when the greeting fails or this future is dropped.
        let guard = CloseOnDrop(Some(connection));
        let connection = guard.0.as_ref().ok_or("no connection")?;
        let node = tls::peer_node(connection, self.credentials.cluster)?;
        if let Some(expected) = expected.filter(|expected| *expected != node) {
            return Err(format!("node {node} answers where {expected} was expected"));
        }
        let (streams, welcome) = self.greet(connection, node).await?;
        Ok(Dialled { connection: guard.keep().ok_or("no connection")?, streams, welcome })
    }

    async fn greet(&self, connection: &quinn::Connection, node: NodeId) -> Result<(Streams, Welcome), String> {
        let (mut send, mut receive) = connection.open_bi().await.map_err(|error| error.to_string())?;
        let hello = Hello { version_min: PROTOCOL_VERSION, version_max: PROTOCOL_VERSION, client: self.client };
        let mut bytes = Vec::new();
        frame::encode(FrameKind::Hello, &hello, &[], &mut bytes).map_err(|error| error.to_string())?;
        send.write_all(&bytes).await.map_err(|error| error.to_string())?;
        let mut decoder = FrameDecoder::default();
        let first =
            first_frame(&mut receive, &mut decoder).await.map_err(|error| closed_reason(connection, error))?;
        let welcome: Welcome = match first.kind {
            FrameKind::Welcome => first.message().map_err(|error| format!("its welcome {error}"))?,
            FrameKind::Notice => match first.message() {
                Ok(Notice::Refused(failure)) => {
                    return Err(format!("refused: {}: {}", failure.code, failure.message));
                }
                _ => return Err("it answered the greeting with a notice".to_owned()),
            },
            other => return Err(format!("it answered the greeting with a {other:?} frame")),
        };
        if welcome.version != PROTOCOL_VERSION {
            return Err(format!("it speaks protocol version {}, we {PROTOCOL_VERSION}", welcome.version));
        }
        if welcome.node != node || welcome.cluster != self.credentials.cluster {
            return Err(format!(
                "its welcome names {} of {}, its certificate {node}",
                welcome.node, welcome.cluster
            ));
        }
        Ok((Streams { send, receive, decoder }, welcome))
    }

    fn endpoint(&self, target: SocketAddr) -> std::io::Result<quinn::Endpoint> {
        let (slot, any): (_, SocketAddr) = if target.is_ipv4() {
            (&self.v4, (Ipv4Addr::UNSPECIFIED, 0).into())
        } else {
            (&self.v6, (Ipv6Addr::UNSPECIFIED, 0).into())
        };
        let mut slot = slot.lock();
        match &*slot {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Ok(slot.insert(udp::endpoint(any, self.udp_buffer_bytes)?).clone()),
        }
    }
}

async fn first_frame(stream: &mut quinn::RecvStream, decoder: &mut FrameDecoder) -> Result<Frame, String> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
            return Ok(frame);
        }
        match stream.read_chunk(16 * 1024, true).await.map_err(|error| error.to_string())? {
            Some(chunk) => decoder.feed(&chunk.bytes),
            None => return Err("it ended the stream before it greeted".to_owned()),
        }
    }
}

fn closed_reason(connection: &quinn::Connection, error: String) -> String {
    match connection.close_reason() {
        Some(quinn::ConnectionError::ApplicationClosed(close)) => {
            format!("closed: {}", String::from_utf8_lossy(&close.reason))
        }
        Some(reason) => reason.to_string(),
        None => error,
    }
}

struct CloseOnDrop(Option<quinn::Connection>);

impl CloseOnDrop {
    fn keep(mut self) -> Option<quinn::Connection> {
        self.0.take()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close(quinn::VarInt::from_u32(0), b"greeting failed");
        }
    }
}

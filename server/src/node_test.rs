//! A whole node in this process, spoken to over real QUIC on loopback.

use super::*;
use crate::config::ConfigBuilder;
use crate::transport::test_certificates::{TestAuthority, dialler};
use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, Frame, FrameDecoder, FrameKind};
use tiedkv_protocol::hello::{Ceiling, Hello, Mode, Notice, Welcome};
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::{ClientId, Position, ReadId, RequestId};
use tiedkv_protocol::limits::{FRAME_BYTES_MAX, INLINE_VALUE_BYTES_MAX, PROTOCOL_VERSION};
use tiedkv_protocol::request::{
    AdminOperation, AdminRequest, Class, CopyKind, IdempotencyKey, Ping, ReadLevel, ReadOperation, ReadRequest,
    WriteOperation, WriteRequest,
};
use tiedkv_protocol::response::{AdminReply, Pong, ReadReply, WriteReply, flags};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

/// A node alone on free ports.
fn alone(authority: &TestAuthority, settings: &[(&str, &str)]) -> Node {
    authority.node(1);
    Node::start(config(authority, settings)).unwrap()
}

fn config(authority: &TestAuthority, settings: &[(&str, &str)]) -> Config {
    let mut builder = ConfigBuilder::new().flag("certs_dir", authority.folder().to_str().unwrap()).unwrap();
    for setting in ["client_address", "peer_address", "cancel_address", "admin_address"] {
        if !settings.iter().any(|(name, _)| *name == setting) {
            builder = builder.flag(setting, "127.0.0.1:0").unwrap();
        }
    }
    for (name, value) in settings {
        builder = builder.flag(name, value).unwrap();
    }
    builder.build().unwrap()
}

/// A client that speaks frames, and nothing of what the client crate adds.
struct Probe {
    // Keeps the socket open.
    _endpoint: Endpoint,
    connection: Connection,
    send: SendStream,
    recv: RecvStream,
    decoder: FrameDecoder,
    welcome: Option<Welcome>,
    /// Frames that came while another was waited for.
    put_by: VecDeque<Frame>,
}

impl Probe {
    async fn dial(node: &Node, authority: &TestAuthority) -> Self {
        Self::dial_with(node, dialler(&authority.client("probe"), Port::Client)).await
    }

    async fn dial_with(node: &Node, config: quinn::ClientConfig) -> Self {
        let own = if node.addresses().client.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
        let endpoint = Endpoint::client(own.parse().unwrap()).unwrap();
        let connection =
            endpoint.connect_with(config, node.addresses().client, NODE_DNS_NAME).unwrap().await.unwrap();
        let (send, recv) = connection.open_bi().await.unwrap();
        let decoder = FrameDecoder::default();
        Self { _endpoint: endpoint, connection, send, recv, decoder, welcome: None, put_by: VecDeque::new() }
    }

    async fn greeted(node: &Node, authority: &TestAuthority) -> Self {
        let mut probe = Self::dial(node, authority).await;
        probe.say(FrameKind::Hello, &hello(PROTOCOL_VERSION, PROTOCOL_VERSION), &[]).await;
        probe.welcome = Some(probe.message(FrameKind::Welcome).await);
        probe
    }

    async fn say<T: Serialize>(&mut self, kind: FrameKind, message: &T, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(kind, message, payload, &mut bytes).unwrap();
        self.raw(&bytes).await;
    }

    async fn raw(&mut self, bytes: &[u8]) {
        self.send.write_all(bytes).await.unwrap();
    }

    /// The next frame of a kind, wherever it travels.
    async fn frame(&mut self, kind: FrameKind) -> Frame {
        if let Some(index) = self.put_by.iter().position(|frame| frame.kind == kind) {
            return self.put_by.remove(index).unwrap();
        }
        loop {
            let frame = timeout(10 * SECOND, self.any_frame()).await.expect("a frame in time");
            if frame.kind == kind {
                return frame;
            }
            self.put_by.push_back(frame);
        }
    }

    async fn any_frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            tokio::select! {
                chunk = self.recv.read_chunk(1 << 20, true) => {
                    let chunk = chunk.expect("the connection lives").expect("the stream goes on");
                    self.decoder.feed(&chunk.bytes);
                }
                stream = self.connection.accept_uni() => {
                    let bytes = stream.unwrap().read_to_end(FRAME_BYTES_MAX + 4).await.unwrap();
                    let mut decoder = FrameDecoder::default();
                    decoder.feed(&bytes);
                    let frame = decoder.next_frame().unwrap().unwrap();
                    assert!(frame.payload.len() > INLINE_VALUE_BYTES_MAX);
                    return frame;
                }
            }
        }
    }

    async fn message<T: DeserializeOwned>(&mut self, kind: FrameKind) -> T {
        self.frame(kind).await.message().unwrap()
    }

    async fn read(&mut self, request: u64, key: &'static str) -> (ReadReply, Bytes) {
        self.say(FrameKind::Read, &read(request, key), &[]).await;
        let frame = self.frame(FrameKind::ReadReply).await;
        (frame.message().unwrap(), frame.payload)
    }

    async fn admin(&mut self, operation: AdminOperation) -> (AdminReply, Bytes) {
        let request = AdminRequest { request: RequestId(900), time_left_us: 5_000_000, operation };
        self.say(FrameKind::Admin, &request, &[]).await;
        let frame = self.frame(FrameKind::AdminReply).await;
        (frame.message().unwrap(), frame.payload)
    }

    /// Still answers a ping.
    async fn assert_open(&mut self, request: u64) {
        self.say(FrameKind::Ping, &Ping { request: RequestId(request) }, &[]).await;
        assert_eq!(self.message::<Pong>(FrameKind::Pong).await.request, RequestId(request));
    }

    /// The close code and reason that the node gives.
    async fn closed(&self) -> (VarInt, String) {
        match timeout(10 * SECOND, self.connection.closed()).await.expect("closed in time") {
            ConnectionError::ApplicationClosed(close) => {
                (close.error_code, String::from_utf8_lossy(&close.reason).into_owned())
            }
            other => panic!("not closed by the node: {other}"),
        }
    }
}

fn hello(version_min: u16, version_max: u16) -> Hello {
    Hello { version_min, version_max, client: ClientId(7) }
}

fn read(request: u64, key: &'static str) -> ReadRequest {
    ReadRequest {
        request: RequestId(request),
        shard: SHARD_ZERO,
        read: ReadId(request.into()),
        kind: CopyKind::First,
        tie: None,
        level: ReadLevel::Session { seen: Position(0) },
        class: Class::Interactive,
        time_left_us: 5_000_000,
        operation: ReadOperation::Get { key: Bytes::from_static(key.as_bytes()) },
    }
}

#[tokio::test]
async fn a_copy_is_answered_over_quic() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    let welcome = probe.welcome.clone().unwrap();
    assert_eq!((welcome.node, welcome.modelled), (NodeId(1), false));
    assert_eq!(welcome.topology.members[0].client_address, node.addresses().client.to_string());
    let (reply, value) = probe.read(1, "absent").await;
    assert_eq!((reply.request, reply.service.node), (RequestId(1), NodeId(1)));
    assert!(value.is_empty());
    probe.assert_open(2).await;
    assert!(node.stop().threads_ended);
}

//! A client for the tests of this crate: it speaks frames, and nothing of what the client crate adds.

use super::quic;
use super::test_certificates::{TestAuthority, dialler};
use super::tls::Port;
use crate::node::Node;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::frame::{self, Frame, FrameDecoder, FrameKind};
use tiedkv_protocol::hello::{Hello, Welcome};
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::{ClientId, Position, ReadId, RequestId, SHARD_ZERO};
use tiedkv_protocol::limits::{FRAME_BYTES_MAX, INLINE_VALUE_BYTES_MAX, PROTOCOL_VERSION};
use tiedkv_protocol::request::{
    AdminOperation, AdminRequest, Class, CopyKind, IdempotencyKey, Ping, ReadLevel, ReadOperation, ReadRequest,
    WriteOperation, WriteRequest,
};
use tiedkv_protocol::response::{AdminReply, Pong, ReadReply, WriteReply};
use tokio::time::timeout;

/// Longest wait for anything a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// One connection to a node.
pub struct Probe {
    // Keeps the socket open.
    _endpoint: Endpoint,
    /// The connection.
    pub connection: Connection,
    /// The one ordered stream to the node.
    pub send: SendStream,
    recv: RecvStream,
    decoder: FrameDecoder,
    /// What the node said at first.
    pub welcome: Option<Welcome>,
    /// Frames that came while another was waited for.
    put_by: VecDeque<Frame>,
    writes: u64,
}

impl Probe {
    /// Connected as an operator, no hello said.
    pub async fn dial(node: &Node, authority: &TestAuthority) -> Self {
        Self::dial_with(node, dialler(&authority.operator("probe"), Port::Client)).await
    }

    /// Connected with certificates or transport settings of its own.
    pub async fn dial_with(node: &Node, config: quinn::ClientConfig) -> Self {
        let own = if node.addresses().client.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" };
        let endpoint = Endpoint::client(own.parse().unwrap()).unwrap();
        let connection =
            endpoint.connect_with(config, node.addresses().client, NODE_DNS_NAME).unwrap().await.unwrap();
        let (send, recv) = connection.open_bi().await.unwrap();
        let decoder = FrameDecoder::default();
        let put_by = VecDeque::new();
        Self { _endpoint: endpoint, connection, send, recv, decoder, welcome: None, put_by, writes: 0 }
    }

    /// Connected as an operator and welcomed.
    pub async fn greeted(node: &Node, authority: &TestAuthority) -> Self {
        Self::dial(node, authority).await.welcomed().await
    }

    /// Connected as a client that is no operator, and welcomed.
    pub async fn greeted_as_client(node: &Node, authority: &TestAuthority) -> Self {
        let config = dialler(&authority.client("app"), Port::Client);
        Self::dial_with(node, config).await.welcomed().await
    }

    /// Says hello and waits for the welcome.
    pub async fn welcomed(self) -> Self {
        let mut probe = self;
        probe.say(FrameKind::Hello, &hello(PROTOCOL_VERSION, PROTOCOL_VERSION), &[]).await;
        probe.welcome = Some(probe.message(FrameKind::Welcome).await);
        probe
    }

    /// Sends one frame in the ordered stream.
    pub async fn say<T: Serialize>(&mut self, kind: FrameKind, message: &T, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(kind, message, payload, &mut bytes).unwrap();
        self.raw(&bytes).await;
    }

    /// Sends bytes in the ordered stream.
    pub async fn raw(&mut self, bytes: &[u8]) {
        self.send.write_all(bytes).await.unwrap();
    }

    /// Sends one frame on a stream of its own.
    pub async fn say_apart<T: Serialize>(&mut self, kind: FrameKind, message: &T, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::encode(kind, message, payload, &mut bytes).unwrap();
        let mut stream = self.connection.open_uni().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.finish().unwrap();
    }

    /// The next frame of a kind, wherever it travels.
    pub async fn frame(&mut self, kind: FrameKind) -> Frame {
        if let Some(index) = self.put_by.iter().position(|frame| frame.kind == kind) {
            return self.put_by.remove(index).unwrap();
        }
        loop {
            let frame = timeout(PATIENCE, self.any_frame()).await.expect("a frame in time");
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

    /// The next message of a kind.
    pub async fn message<T: DeserializeOwned>(&mut self, kind: FrameKind) -> T {
        self.frame(kind).await.message().unwrap()
    }

    /// Reads a key untied.
    pub async fn read(&mut self, request: u64, key: &'static str) -> (ReadReply, Bytes) {
        self.say(FrameKind::Read, &read(request, key), &[]).await;
        self.read_reply().await
    }

    /// The next answer to a read.
    pub async fn read_reply(&mut self) -> (ReadReply, Bytes) {
        let frame = self.frame(FrameKind::ReadReply).await;
        (frame.message().unwrap(), frame.payload)
    }

    /// A put with a fresh idempotency key; `apart` on a stream of its own.
    pub async fn put(&mut self, key: &'static str, value: &[u8], apart: bool) -> WriteReply {
        self.writes += 1;
        let request = put(1000 + self.writes, self.writes, key);
        match apart {
            true => self.say_apart(FrameKind::Write, &request, value).await,
            false => self.say(FrameKind::Write, &request, value).await,
        }
        self.message(FrameKind::WriteReply).await
    }

    /// One administrative operation.
    pub async fn admin(&mut self, operation: AdminOperation) -> (AdminReply, Bytes) {
        let request = AdminRequest { request: RequestId(900), time_left_us: 5_000_000, operation };
        self.say(FrameKind::Admin, &request, &[]).await;
        let frame = self.frame(FrameKind::AdminReply).await;
        (frame.message().unwrap(), frame.payload)
    }

    /// Still answers a ping.
    pub async fn assert_open(&mut self, request: u64) {
        self.say(FrameKind::Ping, &Ping { request: RequestId(request) }, &[]).await;
        assert_eq!(self.message::<Pong>(FrameKind::Pong).await.request, RequestId(request));
    }

    /// The close code and reason that the node gives.
    pub async fn closed(&self) -> (VarInt, String) {
        match timeout(PATIENCE, self.connection.closed()).await.expect("closed in time") {
            ConnectionError::ApplicationClosed(close) => {
                (close.error_code, String::from_utf8_lossy(&close.reason).into_owned())
            }
            other => panic!("not closed by the node: {other}"),
        }
    }
}

/// The first frame of a client.
pub fn hello(version_min: u16, version_max: u16) -> Hello {
    Hello { version_min, version_max, client: ClientId(7) }
}

/// An untied first copy.
pub fn read(request: u64, key: &'static str) -> ReadRequest {
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

/// A put of the payload.
pub fn put(request: u64, sequence: u64, key: &'static str) -> WriteRequest {
    WriteRequest {
        request: RequestId(request),
        shard: SHARD_ZERO,
        idempotency: IdempotencyKey { client: ClientId(7), sequence, floor: Position(0) },
        time_left_us: 5_000_000,
        operation: WriteOperation::Put { key: Bytes::from_static(key.as_bytes()) },
    }
}

/// A client that takes at most `bytes` of a stream that it does not read.
pub fn narrow(authority: &TestAuthority, bytes: u32) -> quinn::ClientConfig {
    let mut transport = quic::transport(Port::Client);
    transport.stream_receive_window(VarInt::from_u32(bytes));
    let mut config = dialler(&authority.client("probe"), Port::Client);
    config.transport_config(Arc::new(transport));
    config
}

//! A client played byte by byte: sends exactly the frames that a test wants, also wrong ones.

use crate::bed::within;
use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, Frame, FrameDecoder, FrameKind};
use tiedkv_protocol::hello::{Hello, Welcome};
use tiedkv_protocol::identity::{ALPN_CLIENT, NODE_DNS_NAME};
use tiedkv_protocol::ids::{ClientId, NodeId, Position, ReadId, RequestId, SHARD_ZERO, TieId};
use tiedkv_protocol::limits::PROTOCOL_VERSION;
use tiedkv_protocol::request::{
    Class, CopyKind, IdempotencyKey, Ping, ReadLevel, ReadOperation, ReadRequest, Withdraw, WriteOperation,
    WriteRequest,
};
use tiedkv_protocol::response::{Pong, ReadReply};
use tiedkv_protocol::scan::{Columns, Page, PageRequest, Row};
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// A connection to the client port of one node.
pub struct Wire {
    connection: Connection,
    send: SendStream,
    receive: RecvStream,
    decoder: FrameDecoder,
    last_request: u64,
    _endpoint: Endpoint,
}

/// A QUIC endpoint that presents a certificate of `folder` and speaks one application protocol.
pub fn endpoint(folder: &Path, certificate: &str, alpn: &[u8]) -> Endpoint {
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(folder.join("ca.pem")).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    let chain: Vec<_> = CertificateDer::pem_file_iter(folder.join(format!("{certificate}.pem")))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join(format!("{certificate}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let mut transport = quinn::TransportConfig::default();
    transport.initial_rtt(Duration::from_millis(3)).keep_alive_interval(Some(Duration::from_millis(500)));
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport));
    let mut endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    endpoint.set_default_client_config(config);
    endpoint
}

impl Wire {
    /// Connects as the client of `certs` and says hello.
    pub async fn connect(certs: &Path, address: SocketAddr) -> Self {
        let mut wire = Self::connect_silently(certs, address).await;
        let hello =
            Hello { version_min: PROTOCOL_VERSION, version_max: PROTOCOL_VERSION, client: ClientId(rand_u128()) };
        wire.frame(FrameKind::Hello, &hello).await;
        let welcome = wire.next().await;
        assert_eq!(welcome.kind, FrameKind::Welcome);
        welcome.message::<Welcome>().unwrap();
        wire
    }

    /// Connects and opens the stream, but says nothing.
    pub async fn connect_silently(certs: &Path, address: SocketAddr) -> Self {
        let endpoint = endpoint(certs, "client", ALPN_CLIENT);
        let connecting = endpoint.connect(address, NODE_DNS_NAME).unwrap();
        let connection = within("connect", connecting).await.unwrap();
        let (send, receive) = within("open a stream", connection.open_bi()).await.unwrap();
        let decoder = FrameDecoder::default();
        Self { connection, send, receive, decoder, last_request: 0, _endpoint: endpoint }
    }

    /// Sends bytes as they are.
    pub async fn bytes(&mut self, bytes: &[u8]) {
        within("write", self.send.write_all(bytes)).await.unwrap();
    }

    /// Sends one frame without a payload.
    pub async fn frame(&mut self, kind: FrameKind, message: &impl Serialize) {
        let mut bytes = Vec::new();
        frame::encode(kind, message, b"", &mut bytes).unwrap();
        self.bytes(&bytes).await;
    }

    /// Sends one copy; its request id.
    pub async fn copy(&mut self, read: Copy) -> RequestId {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        self.frame(FrameKind::Read, &read.request(request)).await;
        request
    }

    /// Sends one write under a fresh idempotency key; its request id.
    pub async fn write(&mut self, operation: WriteOperation, payload: &[u8]) -> RequestId {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        let idempotency =
            IdempotencyKey { client: ClientId(rand_u128()), sequence: self.last_request, floor: Position(0) };
        let write = WriteRequest { request, shard: SHARD_ZERO, idempotency, time_left_us: 20_000_000, operation };
        let mut bytes = Vec::new();
        frame::encode(FrameKind::Write, &write, payload, &mut bytes).unwrap();
        self.bytes(&bytes).await;
        request
    }

    /// The next frame of one kind; notices are skipped.
    pub async fn next_of(&mut self, kind: FrameKind) -> Frame {
        loop {
            let frame = self.next().await;
            if frame.kind == kind {
                return frame;
            }
            assert_eq!(frame.kind, FrameKind::Notice, "instead of {kind:?}");
        }
    }

    /// Withdraws a copy.
    pub async fn withdraw(&mut self, request: RequestId) {
        self.frame(FrameKind::Withdraw, &Withdraw { requests: [request].into_iter().collect() }).await;
    }

    /// The next frame of the node.
    pub async fn next(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let chunk = within("a frame", self.receive.read_chunk(64 * 1024, true)).await;
            match chunk {
                Ok(Some(chunk)) => self.decoder.feed(&chunk.bytes),
                ended => panic!("the node ended the stream: {ended:?}, {:?}", self.connection.close_reason()),
            }
        }
    }

    /// The next answer to a copy, with its value; notices are skipped.
    pub async fn reply(&mut self) -> (ReadReply, Bytes) {
        loop {
            let frame = self.next().await;
            match frame.kind {
                FrameKind::ReadReply => return (frame.message().unwrap(), frame.payload),
                FrameKind::Notice => {}
                other => panic!("{other:?} instead of an answer to a copy"),
            }
        }
    }

    /// All rows of this node, page by page, once it has applied what `level` asks for.
    pub async fn rows(&mut self, level: ReadLevel) -> Vec<Row> {
        let mut rest = Some(PageRequest {
            lo: Bytes::new(),
            hi: None,
            reverse: false,
            columns: Columns::All,
            rows_max: 1_000,
            bytes_max: 32 * 1024,
        });
        let mut rows = Vec::new();
        while let Some(page) = rest {
            self.last_request += 1;
            let operation = ReadOperation::Scan(Box::new(page.clone()));
            let request = RequestId(self.last_request);
            let copy = Copy::untied("").request(request);
            self.frame(FrameKind::Read, &ReadRequest { level, operation, ..copy }).await;
            let (reply, payload) = self.reply().await;
            if reply.outcome.as_ref().is_err_and(|failure| failure.code == ErrorCode::Behind) {
                rest = Some(page);
                continue;
            }
            reply.outcome.unwrap();
            let mut found = Page::decode(payload, Columns::All).unwrap();
            rest = found.last().filter(|_| found.more()).map(|last| page.after(last));
            rows.extend(std::iter::from_fn(|| found.next_row().unwrap()));
        }
        rows
    }

    /// Pings and takes all answers to copies that come before the pong: what was answered before the ping was
    /// read stands on the stream before it.
    pub async fn replies_until_pong(&mut self) -> Vec<ReadReply> {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        self.frame(FrameKind::Ping, &Ping { request }).await;
        let mut replies = Vec::new();
        loop {
            let frame = self.next().await;
            match frame.kind {
                FrameKind::ReadReply => replies.push(frame.message().unwrap()),
                FrameKind::Pong => {
                    assert_eq!(frame.message::<Pong>().unwrap().request, request);
                    return replies;
                }
                FrameKind::Notice => {}
                other => panic!("{other:?} instead of a pong"),
            }
        }
    }

    /// Waits until the node closes the connection; its reason.
    pub async fn closed(&self) -> String {
        within("the node closes the connection", self.connection.closed()).await.to_string()
    }

    /// Closes without a word.
    pub fn close(self) {
        self.connection.close(0u32.into(), b"");
    }
}

/// A copy to be sent.
#[derive(Clone)]
pub struct Copy {
    pub key: &'static str,
    pub kind: CopyKind,
    pub tie: Option<Tie>,
    pub time_left: Duration,
    pub level: ReadLevel,
}

impl Copy {
    /// An untied copy.
    pub fn untied(key: &'static str) -> Self {
        let level = ReadLevel::Stale { bound_us: None };
        Self { key, kind: CopyKind::First, tie: None, time_left: Duration::from_secs(20), level }
    }

    /// Copy `number` of a tie over `members`.
    pub fn tied(key: &'static str, id: TieId, members: &[NodeId], number: u8) -> Self {
        let width = members.len() as u8;
        let tie = Tie { id, number: CopyNumber(number), members: members.iter().copied().collect(), width };
        let kind = if number == 0 { CopyKind::First } else { CopyKind::Tied };
        Self { kind, tie: Some(tie), ..Self::untied(key) }
    }

    /// The same copy at another level.
    pub fn at(self, level: ReadLevel) -> Self {
        Self { level, ..self }
    }

    /// The same copy with another time left.
    pub fn within(self, time_left: Duration) -> Self {
        Self { time_left, ..self }
    }

    fn request(&self, request: RequestId) -> ReadRequest {
        ReadRequest {
            request,
            shard: SHARD_ZERO,
            read: ReadId(rand_u128()),
            kind: self.kind,
            tie: self.tie.clone(),
            level: self.level,
            class: Class::Interactive,
            time_left_us: u64::try_from(self.time_left.as_micros()).unwrap_or(u64::MAX),
            operation: ReadOperation::Get { key: Bytes::from_static(self.key.as_bytes()) },
        }
    }
}

/// A fresh tie id.
pub fn fresh_tie() -> TieId {
    TieId(rand_u128())
}

/// Randomness of the standard library's hasher keys: enough for ids of a test.
fn rand_u128() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(0u8));
    half() << 64 | half()
}

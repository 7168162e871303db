//! A node for tests: real QUIC and TLS, the real greeting and frames, but answers as a test scripts them.

use bytes::Bytes;
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicServerConfig;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, Frame, FrameDecoder, FrameKind};
use tiedkv_protocol::hello::{Ceiling, Hello, Member, Notice, Topology, Welcome};
use tiedkv_protocol::identity::{ALPN_CLIENT, Identity, NODE_DNS_NAME, Role};
use tiedkv_protocol::ids::{ClusterId, NodeId, Position, RequestId, SHARD_ZERO, Version};
use tiedkv_protocol::limits::{INLINE_VALUE_BYTES_MAX, PROTOCOL_VERSION};
use tiedkv_protocol::multi_get::AnswersWriter;
use tiedkv_protocol::request::{
    AdminRequest, Ping, ReadOperation, ReadRequest, Withdraw, WriteOperation, WriteRequest,
};
use tiedkv_protocol::response::{AdminReply, Failure, Found, Pong, ReadReply, Service, WriteReply, Written};
use tiedkv_protocol::scan::{PageRequest, PageWriter};
use tokio::sync::{mpsc, watch};

/// The cluster of all fake nodes.
pub(crate) const CLUSTER: ClusterId = ClusterId(0xfa4e);

/// What a node does with one copy.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// A good answer after a while.
    Answer(Duration),
    /// Refused at once, not started.
    Refuse(ErrorCode),
    /// Fails after its start.
    Fail(ErrorCode),
    /// Nothing is ever said of it.
    Silence,
    /// The connection is closed.
    HangUp,
}

type Script = Arc<dyn Fn(&ReadRequest) -> Deed + Send + Sync>;

/// What a node was sent, and what it does.
pub(crate) struct State {
    pub(crate) reads: Vec<ReadRequest>,
    pub(crate) withdrawn: Vec<RequestId>,
    pub(crate) writes: Vec<WriteRequest>,
    pub(crate) pings: usize,
    pub(crate) script: Script,
    /// What it says it speaks.
    pub(crate) version: u16,
    /// Answers neither pings nor anything else.
    pub(crate) mute: bool,
    /// How it ends the next writes; when used up, they succeed.
    pub(crate) write_failures: Vec<Failure>,
    pub(crate) values: BTreeMap<Bytes, Bytes>,
    pub(crate) position: u64,
    /// Keys of one copy that it answers.
    pub(crate) keys_answered: usize,
    topology: Topology,
}

/// One running node.
pub(crate) struct FakeNode {
    pub(crate) id: NodeId,
    pub(crate) address: String,
    pub(crate) state: Arc<Mutex<State>>,
    endpoint: quinn::Endpoint,
    hang_up: watch::Sender<u64>,
    notices: watch::Sender<Option<Notice>>,
}

/// Certificates in a temporary folder and some nodes.
pub(crate) struct FakeCluster {
    pub(crate) folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) nodes: Vec<FakeNode>,
}

impl FakeCluster {
    /// Starts nodes 1 to `count`; the first one leads.
    pub(crate) async fn start(count: u64) -> Self {
        Self::start_on("127.0.0.1:0", count).await
    }

    /// [`FakeCluster::start`] with all sockets on `address`.
    pub(crate) async fn start_on(address: &str, count: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let authority = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let mut cluster = Self { folder, issuer: Issuer::new(params, key), nodes: Vec::new() };
        cluster.issue("client", Role::Client("test".into()));
        for id in 1..=count {
            cluster.issue(&format!("node-{id}"), Role::Node(NodeId(id)));
            let endpoint = cluster.endpoint(id, address);
            cluster.nodes.push(FakeNode::new(NodeId(id), endpoint));
        }
        let members: Vec<Member> = cluster.nodes.iter().map(FakeNode::member).collect();
        for node in &cluster.nodes {
            let topology =
                Topology { version: 1, shard: SHARD_ZERO, members: members.clone(), leader: Some(NodeId(1)) };
            node.state.lock().topology = topology;
            node.serve();
        }
        cluster
    }

    /// Settings of a client that knows all nodes as seeds.
    pub(crate) fn config(&self) -> crate::Config {
        crate::Config::new(self.nodes.iter().map(|node| node.address.clone()), self.folder.path())
    }

    pub(crate) fn issue(&self, name: &str, role: Role) {
        let dns = NODE_DNS_NAME.to_owned();
        let mut params = CertificateParams::new(vec![dns]).unwrap();
        let identity = Identity { cluster: CLUSTER, role };
        params.subject_alt_names.push(SanType::URI(identity.to_string().try_into().unwrap()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.folder.path().join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn endpoint(&self, id: u64, address: &str) -> quinn::Endpoint {
        let path = |name: String| self.folder.path().join(name);
        let chain = vec![CertificateDer::from_pem_file(path(format!("node-{id}.pem"))).unwrap()];
        let key = PrivateKeyDer::from_pem_file(path(format!("node-{id}.key"))).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(path("ca.pem".into())).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        tls.alpn_protocols = vec![ALPN_CLIENT.to_vec()];
        let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        quinn::Endpoint::server(config, address.parse().unwrap()).unwrap()
    }

    /// Starts a node anew at its old address, as after a restart.
    pub(crate) fn restart(&mut self, index: usize) {
        let old = &self.nodes[index];
        let (id, address, topology) = (old.id, old.address.clone(), old.state.lock().topology.clone());
        old.stop();
        let mut node = FakeNode::new(id, self.endpoint(id.0, "127.0.0.1:0"));
        // The port of a socket that is being closed cannot be taken at once: the members learn the new one.
        let mut topology = topology;
        topology.version += 1;
        topology.members.iter_mut().filter(|member| member.node == id).for_each(|member| {
            member.client_address.clone_from(&node.address);
        });
        node.state.lock().topology = topology.clone();
        node.serve();
        std::mem::swap(&mut self.nodes[index], &mut node);
        assert_ne!(address, self.nodes[index].address);
        for node in &self.nodes {
            node.state.lock().topology = topology.clone();
            node.notices.send_replace(Some(Notice::Topology(topology.clone())));
        }
    }

    pub(crate) fn script(&self, script: impl Fn(NodeId, &ReadRequest) -> Deed + Send + Sync + 'static) {
        let script = Arc::new(script);
        for node in &self.nodes {
            let (script, id) = (script.clone(), node.id);
            node.state.lock().script = Arc::new(move |request| script(id, request));
        }
    }

    /// Reads received by all nodes.
    pub(crate) fn reads(&self) -> Vec<(NodeId, ReadRequest)> {
        let of = |node: &FakeNode| {
            node.state.lock().reads.iter().map(|read| (node.id, read.clone())).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Withdraws received by all nodes.
    pub(crate) fn withdrawn(&self) -> usize {
        self.nodes.iter().map(|node| node.state.lock().withdrawn.len()).sum()
    }
}

impl FakeNode {
    fn new(id: NodeId, endpoint: quinn::Endpoint) -> Self {
        let state = State {
            reads: Vec::new(),
            withdrawn: Vec::new(),
            writes: Vec::new(),
            pings: 0,
            script: Arc::new(|_| Deed::Answer(Duration::ZERO)),
            mute: false,
            version: PROTOCOL_VERSION,
            write_failures: Vec::new(),
            values: BTreeMap::new(),
            position: 1,
            keys_answered: usize::MAX,
            topology: Topology { version: 0, shard: SHARD_ZERO, members: Vec::new(), leader: None },
        };
        Self {
            id,
            address: endpoint.local_addr().unwrap().to_string(),
            state: Arc::new(Mutex::new(state)),
            endpoint,
            hang_up: watch::Sender::new(0),
            notices: watch::Sender::new(None),
        }
    }

    fn member(&self) -> Member {
        Member {
            node: self.id,
            zone: String::new(),
            client_address: self.address.clone(),
            peer_address: String::new(),
            cancel_address: String::new(),
            learner: false,
        }
    }

    /// Closes all its connections and takes no more.
    pub(crate) fn stop(&self) {
        self.endpoint.close(0u32.into(), b"stopped by the test");
    }

    /// Closes all its connections; takes new ones.
    pub(crate) fn hang_up(&self) {
        self.hang_up.send_modify(|times| *times += 1);
    }

    fn serve(&self) {
        let (endpoint, state, id) = (self.endpoint.clone(), self.state.clone(), self.id);
        let (hang_up, notices) = (self.hang_up.clone(), self.notices.clone());
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let (state, hang_up, notices) = (state.clone(), hang_up.subscribe(), notices.subscribe());
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        session(id, connection, state, hang_up, notices).await;
                    }
                });
            }
        });
    }
}

async fn session(
    id: NodeId,
    connection: quinn::Connection,
    state: Arc<Mutex<State>>,
    mut hang_up: watch::Receiver<u64>,
    mut notices: watch::Receiver<Option<Notice>>,
) {
    let Ok((mut send, mut receive)) = connection.accept_bi().await else { return };
    let (out, mut to_write) = mpsc::channel::<Vec<u8>>(100_000);
    let mut decoder = FrameDecoder::default();
    loop {
        tokio::select! {
            chunk = receive.read_chunk(65_536, true) => {
                let Ok(Some(chunk)) = chunk else { return };
                decoder.feed(&chunk.bytes);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    on_frame(id, &frame, &state, &out, &connection);
                }
            }
            stream = connection.accept_uni() => {
                let Ok(mut stream) = stream else { return };
                let bytes = stream.read_to_end(16 << 20).await.unwrap();
                let mut alone = FrameDecoder::default();
                alone.feed(&bytes);
                let frame = alone.next_frame().unwrap().unwrap();
                on_frame(id, &frame, &state, &out, &connection);
            }
            bytes = to_write.recv() => {
                let Some(bytes) = bytes else { return };
                if send.write_all(&bytes).await.is_err() { return }
            }
            _ = hang_up.changed() => {
                connection.close(0u32.into(), b"hung up by the test");
                return;
            }
            _ = notices.changed() => {
                if let Some(notice) = &*notices.borrow() {
                    out.try_send(encode(FrameKind::Notice, notice, &[])).unwrap();
                }
            }
        }
    }
}

fn encode<T: serde::Serialize>(kind: FrameKind, message: &T, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(kind, message, payload, &mut bytes).unwrap();
    bytes
}

fn on_frame(
    id: NodeId,
    frame: &Frame,
    shared: &Arc<Mutex<State>>,
    out: &mpsc::Sender<Vec<u8>>,
    connection: &quinn::Connection,
) {
    let mut state = shared.lock();
    let say = |bytes| drop(out.try_send(bytes));
    match frame.kind {
        FrameKind::Hello => {
            let hello: Hello = frame.message().unwrap();
            assert!(hello.version_max >= PROTOCOL_VERSION);
            let welcome = Welcome {
                version: state.version,
                node: id,
                cluster: CLUSTER,
                modelled: true,
                topology: state.topology.clone(),
                ceiling: Ceiling::default(),
            };
            say(encode(FrameKind::Welcome, &welcome, &[]));
        }
        FrameKind::Read => {
            let request: ReadRequest = frame.message().unwrap();
            state.reads.push(request.clone());
            let deed = (state.script)(&request);
            let value = match &request.operation {
                ReadOperation::Get { key } => state.values.get(key).cloned(),
                ReadOperation::Scan(page) => Some(page_of(&state.values, page)),
                ReadOperation::MultiGet { keys } => Some(answers_of(&state.values, keys, state.keys_answered)),
            };
            let position = Position(state.position);
            if !state.mute {
                drop(state);
                act(id, deed, request.request, value, position, out.clone(), connection.clone());
            }
        }
        FrameKind::Withdraw => state.withdrawn.extend(frame.message::<Withdraw>().unwrap().requests),
        FrameKind::Write => {
            let request: WriteRequest = frame.message().unwrap();
            let (number, leader) = (request.request, state.topology.leader);
            state.writes.push(request.clone());
            let outcome = if leader != Some(id) {
                let mut failure = Failure::new(ErrorCode::NotLeader, "another node leads");
                failure.leader = leader;
                Err(failure)
            } else if let Some(failure) = state.write_failures.pop() {
                Err(failure)
            } else {
                state.position += 1;
                let position = state.position;
                match request.operation {
                    WriteOperation::Put { key } => drop(state.values.insert(key, frame.payload.clone())),
                    WriteOperation::Delete { key } => drop(state.values.remove(&key)),
                    WriteOperation::Atomic => {
                        for operation in Atomic::decode(&frame.payload).unwrap().operations {
                            match operation {
                                Operation::Put { key, value } | Operation::PutFor { key, value, .. } => {
                                    drop(state.values.insert(key, value))
                                }
                                Operation::Delete { key } => drop(state.values.remove(&key)),
                                Operation::Increment { .. } | Operation::Expire { .. } => {}
                            }
                        }
                    }
                }
                Ok(Written { version: Version(position), position: Position(position), repeated: false })
            };
            if !state.mute {
                say(encode(FrameKind::WriteReply, &WriteReply { request: number, node: id, outcome }, &[]));
            }
        }
        FrameKind::Ping => {
            state.pings += 1;
            let ping: Ping = frame.message().unwrap();
            let pong = Pong { request: ping.request, held_us: 0, flags: 0, unhealthy_pairs: 0 };
            if !state.mute {
                say(encode(FrameKind::Pong, &pong, &[]));
            }
        }
        FrameKind::Admin => {
            let request: AdminRequest = frame.message().unwrap();
            let reply = AdminReply { request: request.request, outcome: Ok(()) };
            say(encode(FrameKind::AdminReply, &reply, b"{}"));
        }
        other => panic!("a client does not send {other:?}"),
    }
}

/// What a node answers for keys that travel together, the first `most` of them.
fn answers_of(values: &BTreeMap<Bytes, Bytes>, keys: &[Bytes], most: usize) -> Bytes {
    let mut writer = AnswersWriter::default();
    for key in keys.iter().take(most) {
        if !writer.push(values.get(key).map(|value| (&value[..], Version(1), None))) {
            break;
        }
    }
    writer.finish()
}

/// A page as a node would make it, without chunks.
fn page_of(values: &BTreeMap<Bytes, Bytes>, page: &PageRequest) -> Bytes {
    let inside = |key: &Bytes| *key >= page.lo && page.hi.as_ref().is_none_or(|hi| key < hi);
    let mut rows: Vec<_> = values.iter().filter(|(key, _)| inside(key)).collect();
    if page.reverse {
        rows.reverse();
    }
    let (mut writer, mut last, total) = (PageWriter::new(page.columns), None, rows.len());
    for (key, value) in rows {
        let over = writer.len() + writer.row_bytes(key, value) > page.bytes_max as usize;
        if writer.rows() == page.rows_max || (over && !writer.is_empty()) {
            break;
        }
        writer.push(key, value, Version(1), None);
        last = Some(key);
    }
    let more = (writer.rows() as usize) < total;
    writer.finish(last.map(|key| &key[..]), more)
}

fn act(
    id: NodeId,
    deed: Deed,
    request: RequestId,
    value: Option<Bytes>,
    position: Position,
    out: mpsc::Sender<Vec<u8>>,
    connection: quinn::Connection,
) {
    let service = |started| Service {
        node: id,
        started,
        queue_wait_us: 0,
        service_time_us: 0,
        queue_depth: 0,
        flags: 0,
        unhealthy_pairs: 0,
    };
    let bad = |code, started| {
        let outcome = Err(Failure::new(code, "as scripted"));
        let reply = ReadReply { request, service: service(started), outcome };
        let _ = out.try_send(encode(FrameKind::ReadReply, &reply, &[]));
    };
    match deed {
        Deed::Refuse(code) => bad(code, false),
        Deed::Fail(code) => bad(code, true),
        Deed::Silence => {}
        Deed::HangUp => connection.close(0u32.into(), b"hung up by the script"),
        Deed::Answer(after) => {
            let level = tiedkv_protocol::request::ReadLevel::Stale { bound_us: None };
            let found = Found { version: value.as_ref().map(|_| Version(1)), level, position, remaining_ms: None };
            let mut reply = ReadReply { request, service: service(true), outcome: Ok(found) };
            reply.service.service_time_us = after.as_micros() as u32;
            let payload = value.unwrap_or_default();
            // A tick of the timer would be in every read.
            if after.is_zero() && payload.len() <= INLINE_VALUE_BYTES_MAX {
                let _ = out.try_send(encode(FrameKind::ReadReply, &reply, &payload));
                return;
            }
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let bytes = encode(FrameKind::ReadReply, &reply, &payload);
                if payload.len() > INLINE_VALUE_BYTES_MAX {
                    let mut stream = connection.open_uni().await.unwrap();
                    stream.write_all(&bytes).await.unwrap();
                    stream.finish().unwrap();
                } else {
                    let _ = out.try_send(bytes);
                }
            });
        }
    }
}

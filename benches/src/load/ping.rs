//! The bare link: pings, or gets of one key, on one QUIC stream to one node, with nothing of the client crate in between.
//! The floor that gets are compared with.

use super::cpu;
use crate::clock;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tiedkv_protocol::codec;
use tiedkv_protocol::frame::{Frame, FrameDecoder, FrameKind, encode};
use tiedkv_protocol::hello::Hello;
use tiedkv_protocol::identity::{ALPN_CLIENT, NODE_DNS_NAME};
use tiedkv_protocol::ids::{ClientId, ReadId, RequestId, SHARD_ZERO};
use tiedkv_protocol::limits::PROTOCOL_VERSION;
use tiedkv_protocol::request::{Class, CopyKind, Ping, ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::{Pong, ReadReply};

/// Longest wait for the connection and for one answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest round trip that is told apart, microseconds.
const ROUND_TRIP_MAX_US: u64 = 10_000_000;
/// Most bytes taken from the stream at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Answers per second.
    pub ops_per_s: f64,
    /// Median round trip, microseconds.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Gets that were refused.
    pub errors: u64,
    /// Processor time of this process per answer, microseconds.
    pub cpu_us_per_op: f64,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct PingLoop<'a> {
    /// The node's client port.
    pub address: SocketAddr,
    /// Folder of `ca.pem`, `client.pem` and `client.key`.
    pub certs: &'a Path,
    /// What to get, at level `stale`; `None` pings.
    pub key: Option<Bytes>,
    /// Requests that are out at the same time, at least 1.
    pub concurrency: usize,
    /// How long.
    pub duration: Duration,
}

/// Runs the loop on the current runtime.
///
/// # Errors
/// When the node cannot be reached, refuses, or stops answering.
///
/// # Cancel safety
/// Safe: the connection is closed.
pub async fn run(plan: &PingLoop<'_>) -> Result<Figures> {
    let endpoint = quinn::Endpoint::client(local_address(plan.address)).context("socket")?;
    let connecting = endpoint.connect_with(configuration(plan.certs)?, plan.address, NODE_DNS_NAME)?;
    let connection = tokio::time::timeout(DEADLINE, connecting).await.context("no answer to the handshake")??;
    let (mut send, mut receive) = connection.open_bi().await?;
    let mut stream = Stream { send: &mut send, receive: &mut receive, decoder: FrameDecoder::default() };
    stream.greet().await?;
    let figures = stream.ping(plan).await;
    connection.close(0u32.into(), b"done");
    figures
}

struct Stream<'a> {
    send: &'a mut quinn::SendStream,
    receive: &'a mut quinn::RecvStream,
    decoder: FrameDecoder,
}

impl Stream<'_> {
    async fn greet(&mut self) -> Result<()> {
        let client = ClientId(rand::random());
        let hello = Hello { version_min: PROTOCOL_VERSION, version_max: PROTOCOL_VERSION, client };
        let mut bytes = Vec::new();
        encode(FrameKind::Hello, &hello, &[], &mut bytes)?;
        self.send.write_all(&bytes).await?;
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                match frame.kind {
                    FrameKind::Welcome => return Ok(()),
                    other => bail!("the node answered the greeting with a {other:?} frame"),
                }
            }
            self.receive().await?;
        }
    }

    async fn ping(&mut self, plan: &PingLoop<'_>) -> Result<Figures> {
        let mut round_trip: Histogram<u64> = Histogram::new_with_bounds(1, ROUND_TRIP_MAX_US, 3)?;
        // A request is named by its place here: lanes answer in any order.
        let mut sent: Vec<Option<Instant>> = vec![None; plan.concurrency.max(1)];
        let mut free: Vec<usize> = (0..sent.len()).rev().collect();
        let (begun, cpu_before) = (clock::now(), cpu::own());
        let end = begun + plan.duration;
        let (mut reads, mut errors) = (0u64, 0u64);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let now = clock::now();
            while now < end
                && let Some(place) = free.pop()
            {
                request(place, plan.key.as_ref(), &mut reads, &mut bytes)?;
                sent[place] = Some(now);
            }
            self.send.write_all(&bytes).await?;
            if free.len() == sent.len() {
                break;
            }
            self.receive().await?;
            let now = clock::now();
            while let Some(frame) = self.decoder.next_frame()? {
                let Some((place, good)) = answer(&frame)? else { continue };
                if let Some(at) = sent.get_mut(place).and_then(Option::take) {
                    free.push(place);
                    errors += u64::from(!good);
                    let took = u64::try_from((now - at).as_micros()).unwrap_or(u64::MAX);
                    round_trip.saturating_record(took.max(1));
                }
            }
        }
        let (took, cpu_used) = (begun.elapsed(), cpu::own().saturating_sub(cpu_before));
        Ok(Figures {
            ops_per_s: round_trip.len() as f64 / took.as_secs_f64(),
            p50_us: round_trip.value_at_quantile(0.5),
            p99_us: round_trip.value_at_quantile(0.99),
            errors,
            cpu_us_per_op: cpu_used.as_secs_f64() * 1e6 / round_trip.len().max(1) as f64,
        })
    }

    async fn receive(&mut self) -> Result<()> {
        let chunk = tokio::time::timeout(DEADLINE, self.receive.read_chunk(CHUNK_BYTES, true));
        match chunk.await.context("the node stopped answering")?? {
            Some(chunk) => self.decoder.feed(&chunk.bytes),
            None => bail!("the node ended the stream"),
        }
        Ok(())
    }
}

/// Appends one request.
fn request(place: usize, key: Option<&Bytes>, reads: &mut u64, out: &mut Vec<u8>) -> Result<()> {
    let request = RequestId(place as u64);
    let Some(key) = key else { return Ok(encode(FrameKind::Ping, &Ping { request }, &[], out)?) };
    *reads += 1;
    let read = ReadRequest {
        request,
        shard: SHARD_ZERO,
        read: ReadId(u128::from(*reads)),
        kind: CopyKind::First,
        tie: None,
        level: ReadLevel::Stale { bound_us: None },
        class: Class::Interactive,
        time_left_us: u64::try_from(DEADLINE.as_micros()).unwrap_or(u64::MAX),
        operation: ReadOperation::Get { key: key.clone() },
    };
    Ok(encode(FrameKind::Read, &read, &[], out)?)
}

/// Which request is answered, and whether well; `None` for what nobody asked for.
fn answer(frame: &Frame) -> Result<Option<(usize, bool)>> {
    let (request, good) = match frame.kind {
        FrameKind::Pong => (codec::decode::<Pong>(&frame.header)?.request, true),
        FrameKind::ReadReply => {
            let reply: ReadReply = codec::decode(&frame.header)?;
            (reply.request, reply.outcome.is_ok())
        }
        _ => return Ok(None),
    };
    Ok(Some((usize::try_from(request.0)?, good)))
}

fn local_address(target: SocketAddr) -> SocketAddr {
    if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() }
}

fn configuration(certs: &Path) -> Result<quinn::ClientConfig> {
    let read = |name: &str| certs.join(name);
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(read("ca.pem")).context("ca.pem")? {
        roots.add(certificate.context("ca.pem")?)?;
    }
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(read("client.pem")).context("client.pem")?.collect();
    let key = PrivateKeyDer::from_pem_file(read("client.key")).context("client.key")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.context("client.pem")?, key)?;
    tls.alpn_protocols = vec![ALPN_CLIENT.to_vec()];
    Ok(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

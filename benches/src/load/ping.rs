//! The bare link: ping frames on one QUIC stream to one node, with nothing of the client crate in between. The
//! floor that gets are compared with.

use super::cpu;
use crate::clock;
use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tiedkv_protocol::frame::{FrameDecoder, FrameKind, encode};
use tiedkv_protocol::hello::Hello;
use tiedkv_protocol::identity::{ALPN_CLIENT, NODE_DNS_NAME};
use tiedkv_protocol::ids::{ClientId, RequestId};
use tiedkv_protocol::limits::PROTOCOL_VERSION;
use tiedkv_protocol::request::Ping;

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
    /// Pings that failed.
    pub errors: u64,
    /// Processor time of this process per ping, microseconds.
    pub cpu_us_per_op: f64,
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct PingLoop<'a> {
    /// The node's client port.
    pub address: SocketAddr,
    /// Folder of `ca.pem`, `client.pem` and `client.key`.
    pub certs: &'a Path,
    /// Pings that are out at the same time, at least 1.
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
        // Pings are answered in order, so the oldest send time belongs to the next answer.
        let mut sent: VecDeque<Instant> = VecDeque::new();
        let (begun, cpu_before) = (clock::now(), cpu::own());
        let end = begun + plan.duration;
        let mut next = 0u64;
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let now = clock::now();
            while now < end && sent.len() < plan.concurrency.max(1) {
                encode(FrameKind::Ping, &Ping { request: RequestId(next) }, &[], &mut bytes)?;
                next += 1;
                sent.push_back(now);
            }
            self.send.write_all(&bytes).await?;
            if sent.is_empty() {
                break;
            }
            self.receive().await?;
            let now = clock::now();
            while let Some(frame) = self.decoder.next_frame()? {
                if frame.kind == FrameKind::Pong
                    && let Some(sent) = sent.pop_front()
                {
                    let took = u64::try_from((now - sent).as_micros()).unwrap_or(u64::MAX);
                    round_trip.saturating_record(took.max(1));
                }
            }
        }
        let (took, cpu_used) = (begun.elapsed(), cpu::own().saturating_sub(cpu_before));
        Ok(Figures {
            ops_per_s: round_trip.len() as f64 / took.as_secs_f64(),
            p50_us: round_trip.value_at_quantile(0.5),
            p99_us: round_trip.value_at_quantile(0.99),
            errors: 0,
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

//! Whatever one client sends, another one is served as if it were alone: its p99 stays below twice of what it is without,
//! measured in alternating blocks.

use crate::bed::{Bed, PATIENCE};
use crate::wire::{Copy, Wire, endpoint, fresh_tie};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::frame::FrameKind;
use tiedkv_protocol::identity::{ALPN_CLIENT, NODE_DNS_NAME};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::KEY_BYTES_MAX;

/// Comparisons before a p99 of twice as much counts as the node's doing.
const TRIES: usize = 3;

/// Latencies of `count` reads, one after the other.
async fn block(bed: &Bed, count: usize) -> Vec<Duration> {
    let mut latencies = Vec::with_capacity(count);
    for number in 0..count {
        let options = ReadOptions {
            policy: Some(ReadPolicy::UNTIED),
            level: Some(Level::Stale { bound: None }),
            deadline: Some(PATIENCE),
            ..ReadOptions::default()
        };
        let began = Instant::now();
        let read = bed.client.get_with("key", options).await;
        latencies.push(began.elapsed());
        assert!(read.is_ok(), "read {number}: {}", read.unwrap_err());
    }
    latencies
}

fn p99(latencies: &mut [Duration]) -> Duration {
    latencies.sort_unstable();
    latencies[latencies.len() * 99 / 100]
}

/// What a bad client does; each turn is a handful of bad requests, as fast as they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// Wrong ties, keys and headers on one connection, each of them answered.
    Requests,
    /// Bytes that are no frames, on a connection each time.
    Garbage,
    /// Handshakes that are begun and left.
    Handshakes,
}

struct Offender {
    certs: PathBuf,
    address: SocketAddr,
    kind: Bad,
    /// Off in the blocks without.
    on: Arc<AtomicBool>,
}

impl Offender {
    /// Offends until dropped; bad requests sent so far.
    async fn run(self, sent: Arc<std::sync::atomic::AtomicU64>) {
        let socket = endpoint(&self.certs, "client", ALPN_CLIENT);
        let mut wire = Wire::connect(&self.certs, self.address).await;
        let long: &'static str = "x".repeat(KEY_BYTES_MAX + 1).leak();
        loop {
            if !self.on.load(Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            match self.kind {
                Bad::Requests => {
                    let stranger = [NodeId(1), NodeId(77)];
                    for copy in [Copy::untied(""), Copy::untied(long), Copy::tied("key", fresh_tie(), &stranger, 0)]
                    {
                        wire.copy(copy).await;
                        assert!(wire.reply().await.0.outcome.is_err());
                    }
                    wire.bytes(&[8, 0, 0, 0, FrameKind::Read as u8, 0, 4, 0, 0xff, 0xff, 0xff, 0xff]).await;
                    wire.next().await;
                    sent.fetch_add(4, Relaxed);
                }
                Bad::Garbage => {
                    let mut wire = Wire::connect(&self.certs, self.address).await;
                    wire.bytes(&[0xff; 100]).await;
                    wire.closed().await;
                    sent.fetch_add(1, Relaxed);
                }
                Bad::Handshakes => {
                    let begun = socket.connect(self.address, NODE_DNS_NAME);
                    // The first packet leaves, then nobody is there any more.
                    let _ = tokio::time::timeout(Duration::from_millis(1), begun.unwrap()).await;
                    sent.fetch_add(1, Relaxed);
                }
            }
            // A rate that one core has to spare: how much a flood takes is bounded by the machine, not by the node.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// p99 without and with, over `rounds` pairs of blocks of `count` reads.
async fn compare(bed: &Bed, kind: Bad, rounds: usize, count: usize) -> (Duration, Duration, u64) {
    let (on, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let offender = Offender {
        certs: bed.cluster.certs(),
        address: bed.cluster.nodes()[0].ports().client(),
        kind,
        on: Arc::clone(&on),
    };
    let offending = tokio::spawn(offender.run(Arc::clone(&sent)));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        on.store(false, Relaxed);
        // The reads of the turn that still runs belong to neither.
        block(bed, count / 10).await;
        without.extend(block(bed, count).await);
        on.store(true, Relaxed);
        block(bed, count / 10).await;
        with.extend(block(bed, count).await);
    }
    assert!(!offending.is_finished(), "the offender goes on");
    offending.abort();
    (p99(&mut without), p99(&mut with), sent.load(Relaxed))
}

async fn bystander_is_served(rounds: usize, count: usize) {
    // Reads of some milliseconds: what is asked for is a share of what a read takes, not of the machine's own noise.
    let bed = Bed::with(1, |settings| settings.lanes = 4).await;
    bed.put_everywhere("key", "value").await;
    for kind in [Bad::Requests, Bad::Garbage, Bad::Handshakes] {
        // What else runs on the machine strikes some blocks and not others: what the node does strikes all.
        let mut tries = Vec::new();
        while tries.len() < TRIES && tries.iter().all(|(without, with)| *with >= *without * 2) {
            let (without, with, sent) = compare(&bed, kind, rounds, count).await;
            println!("{kind:?}: p99 {without:?} without, {with:?} with {sent} of them");
            assert!(sent > 0);
            tries.push((without, with));
        }
        let kept = tries.iter().any(|(without, with)| *with < *without * 2);
        assert!(kept, "{kind:?}: p99 of a bystander without and with, each time: {tries:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bystander_of_bad_input_keeps_its_p99() {
    bystander_is_served(3, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: thousands of reads per kind of bad input"]
async fn a_bystander_of_bad_input_keeps_its_p99_over_thousands_of_reads() {
    bystander_is_served(10, 300).await;
}

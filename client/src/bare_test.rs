//! What an untied read costs in CPU beside a bare request on the same link: the client's thread alone, and client and
//! nodes together. Long; prints the ratios.

use crate::fake_node::FakeCluster;
use crate::mailbox::Mailbox;
use crate::operation::Operation;
use crate::options::{Level, ReadOptions};
use crate::policy::ReadPolicy;
use crate::tally::Slot;
use crate::{Client, View, clock};
use bytes::Bytes;
use rustix::time::ClockId;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{ReadId, RequestId, SHARD_ZERO};
use tiedkv_protocol::request::{Class, CopyKind, ReadLevel, ReadOperation, ReadRequest};

/// Per turn: short turns, so that a machine that changes its pace spoils few pairs.
const READS: usize = 512;
const PAIRS: usize = 101;

/// CPU of this thread (the client's), and of all: nodes that serve nothing, and idle ones.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    client: Duration,
    all: Duration,
}

fn cpu() -> Cpu {
    let spent = |clock| {
        let spent = rustix::time::clock_gettime(clock);
        Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
    };
    Cpu { client: spent(ClockId::ThreadCPUTime), all: spent(ClockId::ProcessCPUTime) }
}

/// The median of what is taken from each pair, over the pairs.
fn median(pairs: &[(Cpu, Cpu)], take: impl Fn(Cpu) -> Duration) -> f64 {
    let ratio = |(bare, engine): &(Cpu, Cpu)| take(*engine).as_secs_f64() / take(*bare).as_secs_f64();
    let mut ratios: Vec<f64> = pairs.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

async fn bare(client: &Client, number: usize) {
    let now = clock::now();
    let table = client.view.shared().connections().table().clone();
    // Spread as the engine's choice is: whom the last one went to changes what the kernel does.
    let spread = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let link = table.peers[(spread >> 32) as usize % table.peers.len()].link().unwrap();
    let mailbox: Arc<Mailbox> = Arc::default();
    let request = ReadRequest {
        request: RequestId(0),
        shard: SHARD_ZERO,
        read: ReadId(u128::from(spread)),
        kind: CopyKind::First,
        tie: None,
        level: ReadLevel::Stale { bound_us: None },
        class: Class::Interactive,
        time_left_us: 1_000_000,
        operation: ReadOperation::Get { key: Bytes::from_static(b"k") },
    };
    let slot = Slot::new(Operation::Get, ReadPolicy::UNTIED);
    link.send_copy(request, slot, &mailbox, 0, now).unwrap();
    poll_fn(|context| mailbox.poll_take(context)).await;
}

async fn through_the_engine(view: &View) {
    let level = Some(Level::Stale { bound: None });
    let options = ReadOptions { policy: Some(ReadPolicy::UNTIED), level, ..ReadOptions::default() };
    view.get_with(Bytes::from_static(b"k"), options).await.unwrap();
}

/// CPU per read, `at_once` under way.
async fn measure(client: &Client, at_once: usize, engine: bool) -> Cpu {
    let before = cpu();
    let local = tokio::task::LocalSet::new();
    let work = async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..at_once {
            let client = client.clone();
            tasks.spawn_local(async move {
                for number in 0..READS / at_once {
                    if engine { through_the_engine(&client.view).await } else { bare(&client, task + number).await }
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    };
    local.run_until(work).await;
    let Cpu { client, all } = cpu();
    Cpu { client: (client - before.client) / READS as u32, all: (all - before.all) / READS as u32 }
}

#[test]
#[ignore = "long: measures CPU, wants a quiet machine"]
fn what_an_untied_read_costs_beside_a_bare_request() {
    let (told, config) = std::sync::mpsc::sync_channel(1);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let nodes = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = FakeCluster::start(3).await;
            told.send(cluster.config()).unwrap();
            drop(stopped.await);
        });
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cases = runtime.block_on(async {
        let client = Client::connect(config.recv().unwrap()).await.unwrap();
        client.all_connected(Duration::from_secs(10)).await.unwrap();
        let mut cases = Vec::new();
        for at_once in [1, 16, 64] {
            measure(&client, at_once, false).await;
            let mut pairs = Vec::new();
            for _ in 0..PAIRS {
                pairs.push((measure(&client, at_once, false).await, measure(&client, at_once, true).await));
            }
            cases.push((at_once, pairs));
        }
        cases
    });
    drop(stop);
    nodes.join().unwrap();
    for (at_once, pairs) in cases {
        let (client, all) = (median(&pairs, |cpu| cpu.client), median(&pairs, |cpu| cpu.all));
        let us = |take: fn(&(Cpu, Cpu)) -> Cpu| {
            let mut sorted: Vec<f64> = pairs.iter().map(|pair| take(pair).client.as_secs_f64() * 1e6).collect();
            sorted.sort_by(f64::total_cmp);
            sorted[sorted.len() / 2]
        };
        let (bare, untied) = (us(|pair| pair.0), us(|pair| pair.1));
        println!("{at_once} at once, medians: client, bare {bare:.1} us, untied {untied:.1} us a read");
        println!(
            "{at_once} at once, untied over bare, median of {PAIRS}: client {client:.3} x, and nodes {all:.3} x"
        );
        // The aim is 1.05 for one alone; this only tells when it becomes worse than it was by far.
        assert!(client < if at_once == 1 { 1.3 } else { 3.0 }, "{client} x with {at_once} at once");
    }
}

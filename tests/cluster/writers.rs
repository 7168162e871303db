//! Callers that write and read without end while a test does things to the nodes, and what they saw.
//!
//! Each writer owns one key, which it overwrites with 1, 2, 3, ..., and every number also goes to a key of its own;
//! each reader sees that no key goes back. What a writer knows is held against the cluster afterwards.

use crate::bed::{Bed, PATIENCE};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_client::Client;
use tiedkv_client::options::{Level, ReadOptions, WriteOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause of a caller between two calls: the load must be there, not fill the machine.
const PAUSE: Duration = Duration::from_millis(3);

/// Running callers.
pub struct Callers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writers: JoinSet<Writer>,
    readers: JoinSet<Reader>,
}

/// What one writer saw.
#[derive(Debug)]
struct Writer {
    key: String,
    /// Number, version of the write to the key of its own.
    written: Vec<(u64, u64)>,
    when: Vec<Instant>,
    longest: Duration,
    failed: Vec<String>,
}

#[derive(Debug, Default)]
struct Reader {
    reads: u64,
    longest: Duration,
    failed: Vec<String>,
    went_back: Vec<String>,
}

/// What all callers saw.
#[derive(Debug)]
pub struct Seen {
    /// Writes acknowledged.
    pub writes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Longest time between two acknowledgements, of whichever writer.
    pub gap: Duration,
    /// Longest time of one write, and of one read.
    pub longest: [Duration; 2],
    /// Errors of calls.
    pub failed: Vec<String>,
    writers: Vec<Writer>,
}

impl Callers {
    /// Starts `writers` writers and `readers` readers through `client`; `deadline` of each call, or the client's own.
    pub fn start(client: &Client, writers: usize, readers: usize, deadline: Option<Duration>) -> Self {
        // Keys of their own, so that callers of an earlier round are not read back.
        static ROUNDS: AtomicU64 = AtomicU64::new(0);
        let round = ROUNDS.fetch_add(1, Relaxed);
        let mut callers = Self {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            writers: JoinSet::new(),
            readers: JoinSet::new(),
        };
        for number in 0..writers {
            let (stop, count) = (callers.stop.clone(), callers.acknowledged.clone());
            callers.writers.spawn(write(client.clone(), format!("r{round}w{number}"), deadline, stop, count));
        }
        for number in 0..readers {
            let key = format!("r{round}w{}", number % writers.max(1));
            callers.readers.spawn(read(client.clone(), key, deadline, callers.stop.clone()));
        }
        callers
    }

    /// Waits until `count` more writes are acknowledged.
    pub async fn go_on(&self, count: u64) {
        let until = self.acknowledged.load(Relaxed) + count;
        let wanted = |now: &u64| *now >= until;
        crate::bed::until("writes go on", async || self.acknowledged.load(Relaxed), wanted).await;
    }

    /// Ends all callers.
    pub async fn end(mut self) -> Seen {
        self.stop.store(true, Relaxed);
        let mut seen = Seen {
            writes: 0,
            reads: 0,
            gap: Duration::ZERO,
            longest: [Duration::ZERO; 2],
            failed: Vec::new(),
            writers: Vec::new(),
        };
        let mut when = Vec::new();
        while let Some(writer) = self.writers.join_next().await {
            let mut writer = writer.unwrap();
            seen.writes += writer.when.len() as u64;
            seen.longest[0] = seen.longest[0].max(writer.longest);
            seen.failed.append(&mut writer.failed);
            when.append(&mut writer.when);
            seen.writers.push(writer);
        }
        while let Some(reader) = self.readers.join_next().await {
            let mut reader = reader.unwrap();
            assert!(reader.went_back.is_empty(), "a session read an older value: {:?}", reader.went_back);
            seen.reads += reader.reads;
            seen.longest[1] = seen.longest[1].max(reader.longest);
            seen.failed.append(&mut reader.failed);
        }
        when.sort_unstable();
        seen.gap = when.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        println!(
            "{} writes, {} reads, {} errors; longest gap between acknowledgements {:?}, longest write {:?}, read {:?}",
            seen.writes,
            seen.reads,
            seen.failed.len(),
            seen.gap,
            seen.longest[0],
            seen.longest[1]
        );
        seen
    }
}

impl Seen {
    /// Every acknowledged write is there in the version that was acknowledged, and nothing of it came later again.
    pub async fn hold_against(&self, bed: &Bed) {
        let fresh = Client::connect_url(&bed.cluster.url()).await.unwrap();
        for writer in &self.writers {
            let (last, _) = *writer.written.last().unwrap();
            let (value, _) = get(&fresh, &writer.key).await.unwrap();
            assert_eq!(value, last.to_string(), "{}: the last acknowledged write is the last applied", writer.key);
            let mut reads = JoinSet::new();
            for (number, version) in writer.written.iter().copied() {
                let (client, key) = (fresh.clone(), format!("{}/{number}", writer.key));
                reads.spawn(async move {
                    let found = get(&client, &key).await;
                    assert_eq!(found, Some((number.to_string(), version)), "{key}");
                });
                if reads.len() >= 64 {
                    reads.join_next().await.unwrap().unwrap();
                }
            }
            while let Some(read) = reads.join_next().await {
                read.unwrap();
            }
        }
    }
}

/// A linearizable read. A read barrier that takes longer than a copy may be set aside is `behind` on a busy machine: asked
/// again.
async fn get(client: &Client, key: &str) -> Option<(String, u64)> {
    let end = Instant::now() + PATIENCE;
    loop {
        let options =
            ReadOptions { level: Some(Level::Linearizable), deadline: Some(PATIENCE), ..ReadOptions::default() };
        match client.get_with(key.to_owned(), options).await {
            Ok(read) => {
                return read
                    .value
                    .map(|value| (String::from_utf8_lossy(&value.value).into_owned(), value.version.0));
            }
            Err(error) => assert!(Instant::now() < end, "get {key}: {error}"),
        }
        sleep(PAUSE).await;
    }
}

async fn write(
    client: Client,
    key: String,
    deadline: Option<Duration>,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
) -> Writer {
    let options = || WriteOptions { deadline, ..WriteOptions::default() };
    let mut writer =
        Writer { key, written: Vec::new(), when: Vec::new(), longest: Duration::ZERO, failed: Vec::new() };
    let mut number = 0;
    while !stop.load(Relaxed) {
        number += 1;
        for key in [format!("{}/{number}", writer.key), writer.key.clone()] {
            let apart = key != writer.key;
            let sent = Instant::now();
            match client.put_with(key.clone(), number.to_string(), options()).await {
                Ok(report) => {
                    if apart {
                        writer.written.push((number, report.version.0));
                    }
                    writer.when.push(Instant::now());
                    count.fetch_add(1, Relaxed);
                }
                Err(error) => writer.failed.push(format!("put {key}: {error} ({:?})", error.copies())),
            }
            writer.longest = writer.longest.max(sent.elapsed());
        }
        sleep(PAUSE).await;
    }
    writer
}

async fn read(client: Client, key: String, deadline: Option<Duration>, stop: Arc<AtomicBool>) -> Reader {
    let options = || ReadOptions { deadline, ..ReadOptions::default() };
    let mut reader = Reader::default();
    let mut last = 0;
    while !stop.load(Relaxed) {
        let sent = Instant::now();
        match client.get_with(key.clone(), options()).await {
            Ok(read) => {
                let text = read.value.map_or("0".into(), |value| value.value);
                let now: u64 = String::from_utf8_lossy(&text).parse().unwrap();
                if now < last {
                    reader.went_back.push(format!("{key}: {now} after {last}"));
                }
                last = now;
                reader.reads += 1;
            }
            Err(error) => reader.failed.push(format!("get {key}: {error} ({:?})", error.copies())),
        }
        reader.longest = reader.longest.max(sent.elapsed());
        sleep(PAUSE).await;
    }
    reader
}

//! The process whose power is cut: one replicated group of a single voter that writes, says what was acknowledged, and
//! is stopped and started again; and what must be found on its disk afterwards.
//!
//! Values only grow, so one number per key says what may be there.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, Operation};
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::{CallerId, ClientId, NodeId, Position, RequestId, SHARD_ZERO};
use tiedkv_protocol::request::{IdempotencyKey, WriteOperation, WriteRequest};
use tiedkv_server::raft::group::{Group, GroupConfig, SnapshotSettings, Timing};
use tiedkv_server::request::doors::Writer;
use tiedkv_server::storage::fjall_store::StoreSettings;
use tiedkv_server::storage::state_store::View as _;
use tiedkv_server::transport::tls::{CertificateFiles, Credentials};

/// Writers; each has a key of its own, a pair of keys that it writes in one batch, and one write out at a time.
pub const WRITERS: u64 = 6;
const NODE: NodeId = NodeId(1);
/// The variable that tells the preloaded library which call is to fail.
pub const FAIL: &str = "POWERCUT_FAIL";

/// What the victim said, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is about to write this number to this key.
    Asks(String, u64),
    /// That was acknowledged when the journal had so many bytes.
    Acknowledged(u64, String, u64),
    /// It led this term when the journal had so many bytes.
    Leads(u64, u64),
    /// A write failed with this code.
    Failed(String),
    /// The group has stopped for this reason.
    Latched(String),
}

impl Said {
    /// The line that says it.
    pub fn line(&self) -> String {
        match self {
            Self::Asks(key, number) => format!("SAID asks {key} {number}"),
            Self::Acknowledged(bytes, key, number) => format!("SAID acknowledged {bytes} {key} {number}"),
            Self::Leads(bytes, term) => format!("SAID leads {bytes} {term}"),
            Self::Failed(code) => format!("SAID failed {code}"),
            Self::Latched(why) => format!("SAID latched {}", why.replace('\n', " ")),
        }
    }

    /// What a line says, if it is one.
    pub fn of(line: &str) -> Option<Self> {
        let line = line.split_once("SAID ")?.1;
        let (verb, rest) = line.split_once(' ')?;
        let words: Vec<&str> = rest.split(' ').collect();
        match (verb, &words[..]) {
            ("asks", [key, number]) => Some(Self::Asks((*key).to_owned(), number.parse().ok()?)),
            ("acknowledged", [bytes, key, number]) => {
                Some(Self::Acknowledged(bytes.parse().ok()?, (*key).to_owned(), number.parse().ok()?))
            }
            ("leads", [bytes, term]) => Some(Self::Leads(bytes.parse().ok()?, term.parse().ok()?)),
            ("failed", _) => Some(Self::Failed(rest.to_owned())),
            ("latched", _) => Some(Self::Latched(rest.to_owned())),
            _ => None,
        }
    }

    /// The key and number that it asks for.
    pub fn asked(&self) -> Option<(&str, u64)> {
        match self {
            Self::Asks(key, number) => Some((key, *number)),
            _ => None,
        }
    }

    /// Says it on standard output.
    pub fn say(&self) {
        let mut out = std::io::stdout().lock();
        // A parent that is gone ends this process soon.
        let _ = writeln!(out, "{}", self.line());
        let _ = out.flush();
    }
}

/// Opens the group in `data`. Another process may take its port between choice and use: then on another one.
///
/// # Errors
/// When it does not start.
pub fn open(certs: &Path, data: &Path) -> Result<Group, String> {
    let mut opened = open_once(certs, data);
    for _ in 0..4 {
        match &opened {
            Err(why) if why.contains("Address already in use") => opened = open_once(certs, data),
            _ => break,
        }
    }
    opened
}

fn open_once(certs: &Path, data: &Path) -> Result<Group, String> {
    let credentials = Credentials::load(&CertificateFiles::of_node(certs, NODE), Some(NODE));
    let credentials = credentials.map_err(|error| error.to_string())?;
    let listen = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let listen = listen.map_err(|error| error.to_string())?;
    let nowhere = "127.0.0.1:1".to_owned();
    let member = Member {
        node: NODE,
        zone: String::new(),
        client_address: nowhere.clone(),
        peer_address: listen.to_string(),
        cancel_address: nowhere,
        learner: false,
    };
    let mut config = GroupConfig::new(Arc::new(credentials), data.to_owned(), listen, vec![member]);
    let ms = Duration::from_millis;
    config.timing = Timing { heartbeat: ms(20), election_min: ms(60), election_max: ms(100) };
    config.snapshots = SnapshotSettings { entries: 150, bytes: 256 << 10, keep_entries: 40, keep_bytes: 256 << 10 };
    config.store = StoreSettings { memtable_bytes: 64 << 10, ..StoreSettings::default() };
    Group::start(config).map_err(|error| error.to_string())
}

/// Writes one number to one key or, atomically, to a pair of keys.
///
/// # Errors
/// The failure's code.
pub async fn write(group: &Group, writer: u64, sequence: u64, keys: &[String], number: u64) -> Result<(), String> {
    // Long enough that logs and memtables are turned over.
    let value = Bytes::from(format!("{number} {}", "x".repeat(700)));
    let (operation, payload) = match keys {
        [key] => (WriteOperation::Put { key: Bytes::from(key.clone()) }, value),
        keys => {
            let put = |key: &String| Operation::Put { key: Bytes::from(key.clone()), value: value.clone() };
            let atomic = Atomic { conditions: Vec::new(), operations: keys.iter().map(put).collect() };
            (WriteOperation::Atomic, atomic.encode().map_err(|error| error.to_string())?)
        }
    };
    let request = WriteRequest {
        request: RequestId(sequence),
        shard: SHARD_ZERO,
        idempotency: IdempotencyKey {
            client: ClientId(u128::from(writer)),
            sequence,
            floor: Position(u64::MAX >> 1),
        },
        time_left_us: 3_000_000,
        operation,
    };
    let (reply, _) = group.write(CallerId(1), request, payload).await;
    reply.outcome.map(drop).map_err(|failure| failure.code.name().to_owned())
}

/// The numbers that a group's state has.
///
/// # Errors
/// When a value cannot be read or is none of the victim's.
pub fn numbers(group: &Group) -> Result<BTreeMap<String, u64>, String> {
    let view = group.store().current();
    let mut found = BTreeMap::new();
    for key in (0..WRITERS).flat_map(keys_of) {
        let Some(stored) = view.get(key.as_bytes()).map_err(|error| error.to_string())? else { continue };
        let text = String::from_utf8_lossy(&stored.value).into_owned();
        let number = text.split(' ').next().and_then(|number| number.parse().ok());
        found.insert(key, number.ok_or_else(|| format!("a value of nobody: {text:.40}"))?);
    }
    Ok(found)
}

/// The keys of a writer: one of its own, two of its pair.
pub fn keys_of(writer: u64) -> [String; 3] {
    [format!("key-{writer}"), format!("pair-{writer}-a"), format!("pair-{writer}-b")]
}

/// Waits until the group leads.
///
/// # Errors
/// When it does not in time.
pub async fn leads(group: &Group) -> Result<u64, String> {
    for _ in 0..2_000 {
        if group.leader() == Some(NODE) && write(group, 99, u64::MAX >> 2, &["opened".to_owned()], 0).await.is_ok()
        {
            return Ok(group.status().term);
        }
        if let Some(why) = group.fatal().borrow().clone() {
            return Err(why);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("it does not lead: {:?}", group.status()))
}

/// The life of the victim: lives times opened, written by all writers, closed. Over a disk that fails it ends where
/// that shows, perhaps while it opens again.
///
/// # Errors
/// When the group does not start or lead although the disk does not fail.
pub async fn live(certs: &Path, data: &Path, journal: &Path, lives: u64, writes: u64) -> Result<(), String> {
    let length = || std::fs::metadata(journal).map_or(0, |meta| meta.len());
    let failing = std::env::var_os(FAIL).is_some();
    for life in 0..lives {
        let begun = async {
            let group = Arc::new(open(certs, data)?);
            let term = leads(&group).await?;
            Ok((group, term))
        };
        let (group, term) = match begun.await {
            Err(why) if failing && life > 0 => {
                Said::Failed("start".to_owned()).say();
                Said::Latched(why).say();
                return Ok(());
            }
            begun => begun?,
        };
        Said::Leads(length(), term).say();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (group, journal) = (group.clone(), journal.to_owned());
            writers.spawn(async move {
                for step in 0..writes {
                    let number = life * writes + step + 1;
                    let [own, one, other] = keys_of(writer);
                    let keys = if step % 3 == 2 { vec![one, other] } else { vec![own] };
                    Said::Asks(keys[0].clone(), number).say();
                    match write(&group, writer, number, &keys, number).await {
                        Ok(()) => {
                            let length = std::fs::metadata(&journal).map_or(0, |meta| meta.len());
                            keys.into_iter().for_each(|key| Said::Acknowledged(length, key, number).say());
                        }
                        Err(code) => {
                            Said::Failed(code).say();
                            return false;
                        }
                    }
                }
                true
            });
        }
        let mut fatal = group.fatal();
        while let Some(well) = writers.join_next().await {
            if !well.map_err(|error| error.to_string())? {
                // The one who tells of it may be later than the one who is told.
                let told = tokio::time::timeout(Duration::from_secs(5), fatal.wait_for(Option::is_some)).await;
                drop(told);
            }
        }
        if let Some(why) = group.fatal().borrow().clone() {
            Said::Latched(why).say();
            return Ok(());
        }
        // Dropped without ceremony: the power may go at any time, also while it opens again.
        drop(group);
    }
    Ok(())
}

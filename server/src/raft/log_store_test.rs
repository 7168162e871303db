//! The log against openraft's own suite, its bytes, a cut tail, and a disk that fails.

use super::*;
use crate::raft::outcomes::OutcomeLimits;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{Change, Command, MemberRecord, WriteKey, decode_payload, digest, encode_payload};
use crate::storage::fjall_store::{FjallStore, StoreSettings};
use bytes::Bytes;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{Membership, StorageError};
use raft_log::codeq::Encode;
use std::collections::BTreeSet;
use tiedkv_protocol::atomic::{Atomic, Expect, Operation};
use tiedkv_protocol::ids::{CallerId, ClientId, Position};

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let log = LogStore::open(&folder.path().join("log")).unwrap();
        let store = FjallStore::open(&folder.path().join("state"), StoreSettings::default()).unwrap();
        let machine = StateMachine::start(Arc::new(store), OutcomeLimits::default(), None).unwrap();
        Ok((folder, log, machine))
    }
}

#[test]
fn passes_the_suite_of_openraft() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Suite::test_all(Builder)).unwrap();
}

fn id(term: u64, index: u64) -> LogId {
    LogId { leader_id: LeaderId { term, node_id: 3 }, index }
}

pub(crate) fn command(key: &str, value: &str, sequence: u64) -> Command {
    let change = Change::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    let key = WriteKey { caller: CallerId(1), client: ClientId(2), sequence };
    Command { stamp_ms: 1_000 + sequence, key, floor: Position(0), digest: digest(&change), change }
}

fn entry(index: u64) -> Entry {
    Entry::new(id(1, index), Payload::Normal(command(&format!("k{index}"), "v", index)))
}

/// Appends and waits for the fsync.
async fn append(log: &mut LogStore, entries: Vec<Entry>) -> io::Result<()> {
    let (sender, done) = <TypeConfig as openraft::type_config::TypeConfigExt>::oneshot();
    log.append(entries, IOFlushed::signal(sender)).await?;
    done.await.unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn entries_votes_and_position_survive_and_the_end_is_cut_back() {
    let folder = tempfile::tempdir().unwrap();
    let vote = Vote { leader_id: LeaderId { term: 7, node_id: 3 }, committed: true };
    run(async {
        let mut log = LogStore::open(folder.path()).unwrap();
        append(&mut log, (0..10).map(entry).collect()).await.unwrap();
        log.save_vote(&vote).await.unwrap();
        log.save_committed(Some(id(1, 4))).await.unwrap();
        // Beyond the end: an error of raft-log, nothing to do for openraft.
        log.save_committed(Some(id(1, 99))).await.unwrap();
        log.truncate_after(Some(id(1, 50))).await.unwrap();
        log.truncate_after(Some(id(1, 7))).await.unwrap();
        append(&mut log, vec![]).await.unwrap();
    });
    let mut log = LogStore::open(folder.path()).unwrap();
    run(async {
        assert_eq!(log.read_vote().await.unwrap(), Some(vote));
        assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 4)));
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 7)));
        let entries = log.try_get_log_entries(3..6).await.unwrap();
        assert_eq!(entries, (3..6).map(entry).collect::<Vec<_>>());
    });
}

#[test]
fn an_append_to_a_follower_is_bounded_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    run(async {
        let large = "x".repeat(READ_BYTES_MAX / 2 - 100);
        let entries =
            (0..8).map(|index| Entry::new(id(1, index), Payload::Normal(command("k", &large, index)))).collect();
        append(&mut log, entries).await.unwrap();
        assert_eq!(log.limited_get_log_entries(0, 8).await.unwrap().len(), 2);
        assert_eq!(log.try_get_log_entries(0..8).await.unwrap().len(), 8);
    });
}

#[test]
fn a_torn_tail_is_dropped_and_a_damaged_middle_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    run(async {
        let mut log = LogStore::open(folder.path()).unwrap();
        append(&mut log, (0..100).map(entry).collect()).await.unwrap();
    });
    let chunk = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .unwrap();
    let whole = std::fs::read(&chunk).unwrap();
    std::fs::write(&chunk, &whole[..whole.len() - 5]).unwrap();
    {
        let mut log = LogStore::open(folder.path()).unwrap();
        let last = run(log.get_log_state()).unwrap().last_log_id;
        assert_eq!(last, Some(id(1, 98)));
    }
    let mut damaged = whole;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    std::fs::write(&chunk, &damaged).unwrap();
    assert!(LogStore::open(folder.path()).is_err());
}

#[test]
fn a_vote_is_on_disk_before_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    run(async {
        let before = log.counters().syncs;
        log.save_vote(&Vote { leader_id: LeaderId { term: 9, node_id: 3 }, committed: false }).await.unwrap();
        assert!(log.counters().syncs > before);
    });
}

#[test]
fn nothing_is_acknowledged_after_a_failed_write() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogStore::open(folder.path()).unwrap();
    run(async {
        append(&mut log, vec![entry(0)]).await.unwrap();
        log.break_for_test();
        assert!(append(&mut log, vec![entry(1)]).await.is_err());
        assert!(
            log.save_vote(&Vote { leader_id: LeaderId { term: 9, node_id: 3 }, committed: false }).await.is_err()
        );
        assert!(log.failure().is_some());
    });
}

#[test]
fn what_is_purged_leaves_disk_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    run(async {
        let mut log = LogStore::open(folder.path()).unwrap();
        let large = |index: u64| {
            let command = command("key", &"x".repeat(4_000), index);
            Entry::new(id(1, index), Payload::Normal(command))
        };
        let (last, each) = (12_000, 500);
        for first in (1..=last).step_by(each) {
            append(&mut log, (first..first + each as u64).map(large).collect()).await.unwrap();
        }
        let full = log.counters();
        assert!(full.disk_bytes > 40 << 20, "{full:?}");
        // The newest two chunks, the one being written, and the cache.
        let bound = 3 * CHUNK_BYTES + CACHE_BYTES + 4 * 1024 * 1024;
        assert!(full.cache_bytes <= bound as u64, "{full:?}");
        log.purge(id(1, last - 1_000)).await.unwrap();
        // The files go on the flush thread.
        let gone = async {
            while log.counters().disk_bytes > 16 << 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
    });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_of_entries_ids_and_votes_are_golden() {
    let mut bytes = Vec::new();
    LoggedId(id(5, 258)).encode(&mut bytes).unwrap();
    assert_eq!(hex(&bytes), "000000000000000500000000000000030000000000000102");
    let mut bytes = Vec::new();
    let vote = Vote { leader_id: LeaderId { term: 5, node_id: 3 }, committed: true };
    LoggedVote(vote).encode(&mut bytes).unwrap();
    assert_eq!(hex(&bytes), "0000000000000005000000000000000301");

    assert_eq!(hex(&encode_payload(&Payload::Blank).unwrap()), "0100");
    let put = encode_payload(&Payload::Normal(command("k", "v", 9))).unwrap();
    assert_eq!(hex(&put), GOLDEN_PUT);
    let nodes = std::collections::BTreeMap::from([(1, MemberRecord::default())]);
    let membership = Payload::Membership(Membership::new(vec![BTreeSet::from([1])], nodes).unwrap());
    assert_eq!(hex(&encode_payload(&membership).unwrap()), "0102010101010100000000");
    let operation = Operation::Put { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v") };
    let change = Change::Atomic(Atomic::compare(Bytes::from_static(b"k"), Expect::Absent, operation));
    let atomic = Command { digest: digest(&change), change, ..command("k", "v", 9) };
    let atomic = Payload::Normal(atomic);
    assert_eq!(hex(&encode_payload(&atomic).unwrap()), GOLDEN_ATOMIC);
    for payload in [Payload::Blank, Payload::Normal(command("k", "v", 9)), membership, atomic] {
        assert_eq!(decode_payload(&encode_payload(&payload).unwrap()).unwrap(), payload);
    }
}

const GOLDEN_ATOMIC: &str = "0201fbf10301020900fd469b0a2ba15e76c30301016b000100016b0176";
const GOLDEN_PUT: &str = "0101fbf10301020900fd5804a666cd9a8c8300016b0176";

#[test]
fn payloads_of_other_formats_are_refused_with_a_hint() {
    let newer = crate::raft::types::ENTRY_FORMAT + 1;
    let error = decode_payload(&[newer, 0]).unwrap_err().to_string();
    assert!(error.contains(&format!("format {newer}")) && error.contains("newer version"), "{error}");
    assert!(decode_payload(&[]).is_err());
    let whole = encode_payload(&Payload::Normal(command("key", "value", 1))).unwrap();
    for length in 0..whole.len() {
        assert!(decode_payload(&whole[..length]).is_err(), "{length} bytes");
    }
}

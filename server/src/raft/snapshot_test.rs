//! A snapshot travels whole or not at all.

use super::*;
use crate::storage::fjall_store::{Commit, StoreSettings};
use crate::storage::state_store::Mutation;
use tiedkv_protocol::ids::Version;

fn store(keys: u64) -> (tempfile::TempDir, Arc<FjallStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
    let note = Note::default().encode().unwrap();
    let put = |key: u64| Mutation::Put {
        key: format!("key-{key:08}").into(),
        value: vec![key as u8; if key == 1 { BLOCK_BYTES + 9 } else { 100 }].into(),
    };
    let mutations: Vec<_> = (0..keys).map(|key| (Version(key + 1), put(key))).collect();
    let outcomes: Vec<_> = (1..=keys).map(|position| (Position(position), vec![1, 2, 3])).collect();
    let commit = Commit {
        mutations: &mutations,
        swept: &[],
        outcomes: &outcomes,
        forgotten: Position(2),
        position: Position(keys),
        stamp_ms: 77,
        note,
    };
    store.commit(&commit).unwrap();
    (folder, store)
}

fn blocks(store: &FjallStore) -> Vec<Bytes> {
    let mut blocks = Vec::new();
    let view = store.current();
    write_blocks(&view, &SnapshotMeta::default(), |block| {
        blocks.push(block);
        true
    })
    .unwrap();
    blocks
}

fn staged(to: &Arc<FjallStore>, blocks: &[Bytes]) -> Result<Staged, StorageError> {
    // The transport strips the length.
    let mut blocks = blocks.iter().map(|block| block.slice(4..));
    stage(to, || blocks.next())
}

#[test]
fn what_is_sent_is_what_arrives() {
    let ((_from_folder, from), (_to_folder, to)) = (store(5_000), store(3));
    let blocks = blocks(&from);
    assert!(blocks.len() > 4 && blocks.iter().all(|block| block.len() <= BLOCK_BYTES_MAX));
    let arrived = staged(&to, &blocks).unwrap();
    assert_eq!((arrived.stamp_ms, arrived.forgotten), (77, Position(2)));
    let meta = crate::storage::fjall_store::Meta {
        position: Position(5_000),
        forgotten: arrived.forgotten,
        ..Default::default()
    };
    arrived.install.flip(meta).unwrap();
    let (sent, got) = (from.current(), to.current());
    let all = |view: &FjallView| view.values().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(all(&sent), all(&got));
    let all = |view: &FjallView| view.kept_outcomes().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(all(&got).len(), 4_998);
    assert_eq!(all(&sent), all(&got));
}

#[test]
fn a_cut_damaged_or_reordered_stream_changes_nothing() {
    let ((_from_folder, from), (_to_folder, to)) = (store(5_000), store(3));
    let whole = blocks(&from);
    let refused = |blocks: &[Bytes], what: &str| {
        assert!(matches!(staged(&to, blocks), Err(StorageError::Corrupt(_))), "{what}");
        assert_eq!(to.current().values().count(), 3);
    };
    for length in 0..whole.len() {
        refused(&whole[..length], &format!("cut after {length} blocks"));
    }
    for index in 0..whole.len() {
        let mut damaged = whole.clone();
        let mut block = damaged[index].to_vec();
        let at = block.len() - 1;
        block[at] ^= 1;
        damaged[index] = block.into();
        refused(&damaged, &format!("block {index} damaged"));
    }
    let mut reordered = whole.clone();
    reordered.swap(1, 2);
    assert!(staged(&to, &reordered).is_err());
    let mut newer = whole[0].to_vec();
    newer[5] = 9;
    let mut other = whole;
    other[0] = newer.into();
    refused(&other, "another format");
}

#[test]
fn bytes_of_a_snapshot_are_golden() {
    let (_folder, store) = store(3);
    let blocks = blocks(&store);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&blocks[0]), GOLDEN_HEADER);
    assert_eq!(hex(&blocks[3]), GOLDEN_OUTCOMES);
    assert_eq!(hex(&blocks[4][..21]), GOLDEN_END);
}

const GOLDEN_HEADER: &str = "16000000010100000000004d020002fc40420f00030000000000";
const GOLDEN_OUTCOMES: &str = "140000000308000000030000000000000000000003010203";
const GOLDEN_END: &str = "310000000403000000000000000100000000000000";

//! Pages against a plain sorted map, in memory and on disk; bounds of rows, bytes and chunks.

use super::*;
use crate::storage::fjall_store::{FjallStore, StoreSettings};
use crate::storage::memory::MemoryStore;
use crate::storage::state_store::Mutation;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tiedkv_protocol::scan::{Page, Row};

fn put(key: &[u8], value: &[u8]) -> Mutation {
    Mutation::Put { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value) }
}

fn request(lo: &[u8], hi: Option<&[u8]>) -> PageRequest {
    PageRequest {
        lo: Bytes::copy_from_slice(lo),
        hi: hi.map(Bytes::copy_from_slice),
        reverse: false,
        columns: Columns::All,
        rows_max: 10_000,
        bytes_max: 1 << 20,
    }
}

/// One page, how many chunks it took.
fn page(store: &dyn StateStore, request: &PageRequest) -> (Page, u32) {
    let mut progress = PageProgress::new(request.clone());
    loop {
        if let Some(done) = progress.chunk(store).unwrap() {
            assert_eq!(done.position, store.view().position());
            return (Page::decode(done.payload, request.columns).unwrap(), progress.chunks());
        }
    }
}

fn rows(mut page: Page) -> Vec<Row> {
    std::iter::from_fn(|| page.next_row().unwrap()).collect()
}

fn keys(rows: &[Row]) -> Vec<&[u8]> {
    rows.iter().map(|row| &row.key[..]).collect()
}

fn numbered(count: u32, value: &[u8]) -> MemoryStore {
    let store = MemoryStore::new();
    let batch: Vec<Mutation> = (0..count).map(|n| put(format!("k{n:06}").as_bytes(), value)).collect();
    store.apply(&batch, Position(1), 0).unwrap();
    store
}

#[test]
fn a_page_is_bounded_by_rows_and_by_bytes() {
    let store = numbered(100, &[7; 82]);
    let ten = PageRequest { rows_max: 10, ..request(b"", None) };
    let (by_rows, _) = page(&store, &ten);
    assert_eq!((by_rows.rows(), by_rows.more(), by_rows.last().unwrap()), (10, true, &Bytes::from("k000009")));
    // A row takes 22 bytes, its key and its value: 111.
    let (by_bytes, _) = page(&store, &PageRequest { bytes_max: 400, ..request(b"", None) });
    assert_eq!((by_bytes.rows(), by_bytes.more()), (3, true));
    let (alone, _) = page(&store, &PageRequest { bytes_max: 1, ..request(b"", None) });
    assert_eq!((alone.rows(), alone.more()), (1, true), "one larger row travels alone");
    let (all, _) = page(&store, &PageRequest { rows_max: 100, ..request(b"", None) });
    assert_eq!((all.rows(), all.more()), (100, false), "a page that ends with the range says so");
}

#[test]
fn reverse_with_a_limit_returns_the_greatest() {
    let store = numbered(100, b"v");
    let two = PageRequest { rows_max: 2, reverse: true, ..request(b"k000010", Some(b"k000050")) };
    assert_eq!(keys(&rows(page(&store, &two).0)), [b"k000049", b"k000048"]);
    let rest = two.after(&Bytes::from("k000048"));
    assert_eq!(keys(&rows(page(&store, &rest).0)), [b"k000047", b"k000046"]);
}

#[test]
fn an_empty_range_is_an_empty_page() {
    let store = numbered(10, b"v");
    for (lo, hi) in [(&b"k000005"[..], &b"k000005"[..]), (b"z", b"a"), (b"", b"")] {
        for reverse in [false, true] {
            let (empty, chunks) = page(&store, &PageRequest { reverse, ..request(lo, Some(hi)) });
            assert_eq!((empty.rows(), empty.more(), empty.last(), chunks), (0, false, None, 1));
        }
    }
}

#[test]
fn a_page_is_cut_into_chunks_of_rows_and_of_bytes() {
    let (whole, chunks) = page(&numbered(1_000, b"v"), &request(b"", None));
    assert_eq!((whole.rows(), whole.more(), chunks), (1_000, false, 4), "256 rows each");
    let (whole, chunks) = page(&numbered(20, &[1; 40_000]), &request(b"", None));
    assert_eq!((whole.rows(), whole.more(), chunks), (20, false, 10), "64 KiB each, two rows");
    let exact = PageRequest { rows_max: 256, ..request(b"", None) };
    assert_eq!(page(&numbered(256, b"v"), &exact).1, 1);
}

#[test]
fn what_is_written_between_two_chunks_is_not_in_the_page() {
    let store = numbered(600, b"old");
    let request = request(b"", None);
    let mut progress = PageProgress::new(request.clone());
    assert_eq!(progress.chunk(&store), Ok(None));
    let changes = [put(b"k000300", b"new"), put(b"k0003000", b"new"), Mutation::Delete { key: "k000599".into() }];
    store.apply(&changes, Position(2), 0).unwrap();
    let done = std::iter::from_fn(|| Some(progress.chunk(&store).unwrap())).flatten().next().unwrap();
    assert_eq!(done.position, Position(1));
    let rows = rows(Page::decode(done.payload, Columns::All).unwrap());
    assert_eq!(rows.len(), 600);
    assert!(rows.iter().all(|row| row.value == "old"));
}

#[test]
fn keys_only_and_counts_carry_no_values() {
    let store = numbered(300, &[1; 1000]);
    let keys_only = PageRequest { columns: Columns::Keys, ..request(b"", None) };
    let (found, _) = page(&store, &keys_only);
    assert!(found.len() < 300 * 40 && found.rows() == 300);
    assert!(rows(found).iter().all(|row| row.value.is_empty() && row.version == Version(1)));
    let (counted, _) = page(&store, &PageRequest { columns: Columns::Count, ..request(b"k00001", None) });
    assert_eq!((counted.rows(), counted.len()), (290, 0));
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a', 0xfe, 0xff]), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn pages_joined_are_what_a_sorted_map_says(
        puts in prop::collection::vec((bytes(), prop::collection::vec(any::<u8>(), 0..30)), 0..120),
        deletes in prop::collection::vec(bytes(), 0..20),
        ranges in prop::collection::vec((bytes(), prop::option::of(bytes()), any::<bool>(), 1_u32..20, 1_u32..200), 1..12),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (memory, disk) = (MemoryStore::new(), FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
        let mut model = BTreeMap::new();
        let puts: BTreeMap<_, _> = puts.into_iter().collect();
        model.extend(puts.clone());
        deletes.iter().for_each(|key| drop(model.remove(key)));
        let batch: Vec<Mutation> = puts.iter().map(|(key, value)| put(key, value)).collect();
        let removes: Vec<Mutation> =
            deletes.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter()
                .map(|key| Mutation::Delete { key: key.into() }).collect();
        for store in [&memory as &dyn StateStore, &disk] {
            store.apply(&batch, Position(1), 0).unwrap();
            store.apply(&removes, Position(2), 0).unwrap();
            for (lo, hi, reverse, rows_max, bytes_max) in &ranges {
                let inside = |key: &Vec<u8>| key >= lo && hi.as_ref().is_none_or(|hi| key < hi);
                let mut expected: Vec<_> = model.iter().filter(|(key, _)| inside(key)).collect();
                if *reverse {
                    expected.reverse();
                }
                let whole = PageRequest {
                    reverse: *reverse, rows_max: *rows_max, bytes_max: *bytes_max, ..request(lo, hi.as_deref())
                };
                let (mut found, mut rest) = (Vec::new(), Some(whole.clone()));
                while let Some(request) = rest {
                    let (page, _) = page(store, &request);
                    prop_assert!(page.rows() <= *rows_max && (page.len() <= *bytes_max as usize || page.rows() == 1));
                    rest = page.more().then(|| request.after(page.last().unwrap()));
                    found.extend(rows(page));
                }
                let found: Vec<_> = found.iter().map(|row| (row.key.to_vec(), row.value.to_vec())).collect();
                let expected: Vec<_> = expected.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}

//! Large values, which the engine keeps apart from their keys: what was written comes back, what was damaged is an error.

use super::*;

#[test]
fn large_values_kept_apart_are_what_was_written_through_merges_restarts_and_deletions() {
    const KEYS: u64 = 23;
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings { memtable_bytes: 256 << 10, ..StoreSettings::default() };
    let mut store = Arc::new(FjallStore::open(folder.path(), settings).unwrap());
    let mut model = std::collections::BTreeMap::new();
    for position in 1..=800 {
        let draw = crate::storage::key::mix(position);
        let key = format!("key-{:02}", draw % KEYS);
        if draw.is_multiple_of(11) {
            commit(&store, position, &[Mutation::Delete { key: bytes(&key) }]);
            model.remove(&key);
        } else {
            // From a few bytes to 100 KiB: some lie with their keys, most apart.
            let text = format!("{position} {}", "v".repeat(8 + (draw >> 8) as usize % (100 << 10)));
            commit(&store, position, &[put(&key, &text)]);
            model.insert(key, text);
        }
        if position.is_multiple_of(40) {
            if position.is_multiple_of(200) {
                store.persist().unwrap();
                drop(store);
                store = Arc::new(FjallStore::open(folder.path(), settings).unwrap());
            }
            let view = store.current();
            // Under its lock and beside it, whatever the engine does now.
            let beside = {
                let writing = store.writing.lock();
                let mut view = publishable(&store.database, &writing.spaces, &store.rows, &writing.meta);
                let (seqno, until) = (view.snapshot.seqno(), Moment(u64::MAX));
                view.unlocked = Some(Unlocked::pin(&store.database, &writing.spaces.data, seqno, until));
                Arc::new(view)
            };
            let wanted: Vec<_> = model.iter().map(|(key, text)| (bytes(key), bytes(text))).collect();
            for view in [view, beside] {
                let mut rows = Vec::new();
                view.scan(KeyRange { lo: b"", hi: None, reverse: false }, &mut |row| {
                    rows.push((bytes(std::str::from_utf8(row.key).unwrap()), Bytes::copy_from_slice(row.value)));
                    true
                })
                .unwrap();
                assert!(rows == wanted, "at {position}");
                for (key, text) in &wanted {
                    let stored = view.stored(key).unwrap();
                    assert!(stored.is_some_and(|stored| stored.value == *text), "{key:?} at {position}");
                }
            }
        }
    }
    let apart = files(folder.path(), "blobs");
    assert!(!apart.is_empty(), "no value was kept apart");
    let taken: u64 = apart.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    let written = 800 * (50 << 10);
    println!("{} files of {taken} bytes for about {written} written", apart.len());
    assert!(taken < written / 2, "{} files of {taken} bytes: what is stale stays", apart.len());
}

#[test]
fn a_byte_flipped_in_a_value_kept_apart_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings { memtable_bytes: 64 << 10, ..StoreSettings::default() };
    let text = |number: u64| format!("{number} {}", "v".repeat(200 << 10));
    let mut last = 0;
    {
        let store = FjallStore::open(folder.path(), settings).unwrap();
        let until = clock::now() + Duration::from_secs(20);
        while store.writing.lock().spaces.data.tree.blob_file_count() == 0 {
            assert!(clock::now() < until, "no value was kept apart");
            last += 1;
            commit(&store, last, &[put(&format!("key {last}"), &text(last))]);
        }
        store.persist().unwrap();
    }
    let apart = files(folder.path(), "blobs");
    for file in &apart {
        let mut bytes = std::fs::read(file).unwrap();
        let place = bytes.len() / 2;
        bytes[place] ^= 0x10;
        std::fs::write(file, &bytes).unwrap();
    }
    let store = FjallStore::open(folder.path(), settings).unwrap();
    let (view, mut errors) = (store.current(), 0);
    for number in 1..=last {
        // Of the newest ones there may only be the journal's copy, which is whole.
        match view.stored(format!("key {number}").as_bytes()) {
            Ok(found) => assert!(found.is_some_and(|stored| stored.value == text(number)), "another value"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 0, "no value of {} files was missed", apart.len());
}

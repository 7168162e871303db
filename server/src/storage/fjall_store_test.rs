//! The store on disk: atomic commits, views, restarts, installs that finish or do not, bytes.

use super::*;
use crate::storage::scan::KeyRange;
use crate::storage::state_store::Stored;
use std::sync::atomic::AtomicU64;

#[path = "fjall_apart_test.rs"]
mod apart;

fn open(folder: &Path) -> Arc<FjallStore> {
    Arc::new(FjallStore::open(folder, StoreSettings::default()).unwrap())
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Mutation {
    Mutation::Put { key: bytes(key), value: bytes(value) }
}

fn commit(store: &FjallStore, position: u64, mutations: &[Mutation]) {
    let mutations: Vec<_> = mutations.iter().map(|mutation| (Version(position), mutation.clone())).collect();
    let outcomes = [(Position(position), vec![position as u8; 3])];
    let commit = Commit {
        mutations: &mutations,
        swept: &[],
        outcomes: &outcomes,
        forgotten: Position(0),
        position: Position(position),
        stamp_ms: position * 10,
        note: bytes("note"),
    };
    store.commit(&commit).unwrap();
}

fn value(store: &FjallStore, key: &str) -> Option<(String, u64)> {
    let stored = store.current().get(key.as_bytes()).unwrap()?;
    Some((String::from_utf8(stored.value.to_vec()).unwrap(), stored.version.0))
}

#[test]
fn a_view_stays_what_it_was_and_a_restart_finds_everything() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = open(folder.path());
        commit(&store, 1, &[put("a", "1"), put("b", "")]);
        let before = store.current();
        commit(&store, 2, &[put("a", "2"), Mutation::Delete { key: bytes("b") }]);
        assert_eq!(before.position(), Position(1));
        assert_eq!(before.get(b"a").unwrap().unwrap().value, "1");
        // An empty value is not an absent one.
        assert_eq!(before.get(b"b").unwrap().unwrap().value.len(), 0);
        assert_eq!(value(&store, "b"), None);
        store.persist().unwrap();
    }
    let store = open(folder.path());
    let view = store.current();
    assert_eq!((view.position(), view.stamp_ms(), view.note().clone()), (Position(2), 20, bytes("note")));
    assert_eq!(value(&store, "a"), Some(("2".to_owned(), 2)));
    assert_eq!(view.kept_outcomes().count(), 2);
}

#[test]
fn forgotten_outcomes_leave_the_disk_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for position in 1..=2_000 {
        commit(&store, position, &[]);
    }
    for position in 2_001..=2_005 {
        let commit = Commit { forgotten: Position(1_500), position: Position(position), ..Commit::default() };
        store.commit(&commit).unwrap();
    }
    let view = store.current();
    assert_eq!(view.kept_outcomes().count(), 500);
    let left = fjall::Readable::iter(&view.snapshot, &view.spaces.outcomes).count();
    assert_eq!(left, 500, "1,500 forgotten ones go in steps of {FORGET_PER_BATCH}");
}

#[test]
fn readers_never_see_half_a_batch_nor_another_position() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let last = 400;
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let view = store.current();
                    let position = view.position();
                    for key in 0..20 {
                        let stored = view.get(format!("k{key}").as_bytes()).unwrap();
                        let version = stored.as_ref().map_or(0, |stored| stored.version.0);
                        assert_eq!(version, position.0, "k{key}");
                        assert_eq!(stored.map_or(0, |stored| stored.value[0]), position.0 as u8);
                    }
                    read.fetch_add(1, Ordering::Relaxed);
                    if position.0 == last {
                        return;
                    }
                }
            });
        }
        let deadline = crate::clock::now() + std::time::Duration::from_secs(20);
        for position in 1..=last {
            // On a busy machine all may be written before a reader has run.
            while position == last && read.load(Ordering::Relaxed) <= 2 && crate::clock::now() < deadline {
                std::thread::yield_now();
            }
            let batch: Vec<_> = (0..20)
                .map(|key| Mutation::Put { key: bytes(&format!("k{key}")), value: vec![position as u8].into() })
                .collect();
            commit(&store, position, &batch);
        }
    });
    assert!(read.load(Ordering::Relaxed) > 2);
}

#[test]
fn rows_read_lately_never_disagree_with_the_position_of_the_view() {
    const KEYS: u64 = 3;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let last = 3_000;
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let store = &store;
            scope.spawn(move || {
                // One of them goes on from a view for long, so that what it reads is old news to the other.
                let every = if reader == 0 { 1 } else { 40 };
                loop {
                    let view = store.current();
                    let position = view.position().0;
                    for round in 0..every * KEYS {
                        let key = round % KEYS;
                        // Each write changes one key: at this position it was changed last then.
                        let behind = (position + KEYS - key) % KEYS;
                        let want = position.checked_sub(behind).filter(|version| *version > 0);
                        let stored = view.get(format!("k{key}").as_bytes()).unwrap();
                        assert_eq!(stored.map(|stored| stored.version.0), want, "k{key} at {position}");
                    }
                    if position == last {
                        return;
                    }
                }
            });
        }
        for position in 1..=last {
            commit(&store, position, &[put(&format!("k{}", position % KEYS), "v")]);
        }
    });
}

#[test]
fn an_install_replaces_everything_at_once_and_old_views_go_on() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = open(folder.path());
        commit(&store, 1, &[put("old", "1")]);
        let before = store.current();
        let install = store.begin_install().unwrap();
        let values = ["a", "b"].map(|key| Ok((bytes(key), Bytes::from(encode_value(Version(7), b"new")))));
        assert_eq!(install.write_values(values.into_iter()).unwrap(), 2);
        install.write_outcomes(std::iter::empty()).unwrap();
        assert_eq!(value(&store, "a"), None, "not visible before the flip");
        commit(&store, 2, &[put("old", "2")]);
        install.flip(Meta { position: Position(9), stamp_ms: 90, ..Meta::default() }).unwrap();
        assert_eq!(value(&store, "a"), Some(("new".to_owned(), 7)));
        assert_eq!(value(&store, "old"), None);
        assert_eq!(before.get(b"old").unwrap().unwrap().value, "1");
        assert!(store.current().generation() > before.generation());
        commit(&store, 10, &[put("a", "later")]);
    }
    let store = open(folder.path());
    assert_eq!(value(&store, "a"), Some(("later".to_owned(), 10)));
    assert_eq!(value(&store, "b"), Some(("new".to_owned(), 7)));
    assert_eq!(store.current().position(), Position(10));
}

#[test]
fn an_install_that_was_cut_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = open(folder.path());
        commit(&store, 1, &[put("a", "1")]);
        let install = store.begin_install().unwrap();
        let values = std::iter::once(Ok((bytes("a"), Bytes::from(encode_value(Version(7), b"new")))));
        install.write_values(values).unwrap();
        // As a crash: neither flipped nor dropped.
        std::mem::forget(install);
        // The leaked install keeps the engine open, so the folder is copied as a crash would leave it.
        copy(folder.path(), &folder.path().with_extension("copy"));
    }
    let after = folder.path().with_extension("copy");
    {
        let store = open(&after);
        assert_eq!(value(&store, "a"), Some(("1".to_owned(), 1)));
        let left: Vec<_> =
            store.database.list_keyspace_names().iter().filter_map(|name| generation_of(name)).collect();
        assert_eq!(left, [0, 0, 0]);
    }
    std::fs::remove_dir_all(after).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if let Err(error) = std::fs::copy(entry.path(), target) {
            // The engine may remove a file that it has written anew just now.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}

#[test]
fn listeners_hear_each_publication_and_none_while_it_is_held_back() {
    struct Heard(Mutex<Vec<u64>>);
    impl PositionListener for Heard {
        fn published(&self, position: Position) {
            self.0.lock().push(position.0);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let heard = Arc::new(Heard(Mutex::default()));
    store.watch(heard.clone());
    store.apply(&[put("a", "1")], Position(1), 5).unwrap();
    store.set_lag(true);
    store.apply(&[put("a", "2")], Position(2), 5).unwrap();
    assert_eq!(value(&store, "a"), Some(("1".to_owned(), 1)));
    store.set_lag(false);
    assert_eq!(value(&store, "a"), Some(("2".to_owned(), 2)));
    assert_eq!(*heard.0.lock(), [1, 2]);
}

#[test]
fn bytes_of_values_and_of_the_position_are_golden() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&encode_value(Version(258), b"v")), "01020100000000000076");
    let expiring = Stored { value: Bytes::from_static(b"v"), version: Version(258), expires_ms: Some(3) };
    assert_eq!(hex(&encode_stored(&expiring)), "020201000000000000030000000000000076");
    let meta = Meta {
        generation: 1,
        position: Position(2),
        stamp_ms: 3,
        forgotten: Position(4),
        note: Bytes::from_static(b"n"),
    };
    let written = meta.encode();
    assert_eq!(hex(&written), "0101000000000000000200000000000000030000000000000004000000000000006e");
    assert_eq!(Meta::decode(&written).unwrap(), meta);
    let mut newer = written.clone();
    newer[0] = 2;
    assert!(matches!(Meta::decode(&newer), Err(StorageError::Corrupt(_))));
    assert!(Meta::decode(&written[..20]).is_err());
    assert!(crate::storage::view::decode_value(&[2, 0]).is_err());
    assert!(crate::storage::view::decode_value(&[1, 0]).is_err());
    assert!(crate::storage::view::decode_value(&[]).is_err());
}

/// Files in the folders called `name` below a folder: `tables`, or `blobs` of values kept apart.
fn files(folder: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, name));
        } else if path.parent().is_some_and(|parent| parent.ends_with(name)) {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_byte_flipped_on_disk_is_an_error_and_never_another_value() {
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings { memtable_bytes: 64 << 10, ..StoreSettings::default() };
    let text = |number: u64| format!("{number} {}", "v".repeat(1_000));
    {
        let store = FjallStore::open(folder.path(), settings).unwrap();
        for number in 1..=400 {
            commit(&store, number, &[put(&format!("key {number}"), &text(number))]);
        }
        store.persist().unwrap();
        // The engine writes its tables when it comes to it.
        let (until, space) = (clock::now() + Duration::from_secs(20), store.writing.lock().spaces.data.clone());
        while space.disk_space() <= 64 << 10 {
            assert!(clock::now() < until, "only {} bytes were flushed", space.disk_space());
            std::thread::yield_now();
        }
    }
    let tables = files(&folder.path().join("keyspaces"), "tables");
    let (mut errors, mut tries) = (0, 0);
    for file in &tables {
        for part in 1..6 {
            tries += 1;
            let copied = tempfile::tempdir().unwrap();
            copy(folder.path(), copied.path());
            let bad = copied.path().join(file.strip_prefix(folder.path()).unwrap());
            let mut bytes = std::fs::read(&bad).unwrap();
            let place = bytes.len() * part / 6;
            bytes[place] ^= 0x10;
            std::fs::write(&bad, &bytes).unwrap();
            // A damaged index or filter may stop it from opening at all.
            let Ok(store) = FjallStore::open(copied.path(), settings) else {
                errors += 1;
                continue;
            };
            let view = store.current();
            let mut failed = 0;
            for number in 1..=400 {
                match view.get(format!("key {number}").as_bytes()) {
                    Ok(found) => {
                        let found = found.map(|stored| String::from_utf8_lossy(&stored.value).into_owned());
                        assert_eq!(found, Some(text(number)), "byte {place} of {}", file.display());
                    }
                    Err(_) => failed += 1,
                }
            }
            errors += u64::from(failed > 0);
        }
    }
    assert!(
        2 * errors > tries,
        "{errors} of {tries} flipped bytes were noticed; the others lie in what is not read"
    );
}

#[test]
fn reads_go_on_while_the_engine_makes_its_tables_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    commit(&store, 1, &[put("small", "1")]);
    assert!(store.current().unlocked.is_none(), "an engine at rest is read the fast way");
    // Fills the memtable, so that it is written; by values that stay with their keys.
    let count = StoreSettings::default().memtable_bytes / (60 << 10) + 1;
    let fill: Vec<_> = (0..count).map(|n| put(&format!("fill-{n}"), &"v".repeat(60 << 10))).collect();
    commit(&store, 2, &fill);
    assert!(store.current().unlocked.is_some(), "an engine at work is read beside its lock");
    let (view, data) = {
        let writing = store.writing.lock();
        let pin = |until| {
            let mut view = publishable(&store.database, &writing.spaces, &store.rows, &writing.meta);
            view.unlocked =
                Some(Unlocked::pin(&store.database, &writing.spaces.data, view.snapshot.seqno(), until));
            view
        };
        let over = pin(Moment(0)).unlocked.is_some_and(|unlocked| unlocked.pays());
        assert!(
            !over || store.database.active_compactions() > 0,
            "the time is over, and yet it is read the slow way"
        );
        (pin(Moment(u64::MAX)), writing.spaces.data.clone())
    };
    // As lsm-tree does at the end of a flush or compaction, for as long as its fsyncs take.
    let _held = data.tree.get_version_history_lock();
    let (sender, read) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut rows = 0;
        let small = view.get(b"small").unwrap().map(|stored| stored.value);
        view.scan(KeyRange { lo: b"", hi: None, reverse: true }, &mut |_| {
            rows += 1;
            true
        })
        .unwrap();
        sender.send((small, view.get(b"absent").unwrap(), rows)).unwrap();
    });
    let read = read.recv_timeout(Duration::from_secs(20)).expect("a read waits for the engine's fsyncs");
    assert_eq!(read, (Some(bytes("1")), None, 1 + count));
}

#[test]
fn a_view_beside_the_lock_shows_what_its_snapshot_shows() {
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings { memtable_bytes: 16 * 1024, ..StoreSettings::default() };
    let store = Arc::new(FjallStore::open(folder.path(), settings).unwrap());
    let mut pinned = 0;
    for round in 1..=400_u64 {
        let key = |n: u64| format!("key-{:03}", n.wrapping_mul(0x9e37_79b9) % 97);
        let gone = Mutation::Delete { key: bytes(&key(round + 50)) };
        commit(&store, round, &[put(&key(round), &format!("{round}-{}", "x".repeat(900))), gone]);
        let view = store.current();
        if view.unlocked.is_none() {
            continue;
        }
        pinned += 1;
        let plain = |key: &str| fjall::Readable::get(&view.snapshot, &view.spaces.data, key).unwrap();
        for n in 0..97 {
            let key = format!("key-{n:03}");
            let beside = view.unlocked.as_ref().and_then(|unlocked| unlocked.get(key.as_bytes()).unwrap());
            assert_eq!(beside, plain(&key), "{key} in round {round}");
        }
        let all = fjall::Readable::iter(&view.snapshot, &view.spaces.data);
        let plain: Vec<_> = all.map(|row| row.into_inner().unwrap().0.to_vec()).collect();
        let mut beside = Vec::new();
        view.scan(KeyRange { lo: b"", hi: None, reverse: false }, &mut |row| {
            beside.push(row.key.to_vec());
            true
        })
        .unwrap();
        assert_eq!(beside, plain, "round {round}");
    }
    assert!(pinned > 20, "{pinned} of 400 views were pinned");
}

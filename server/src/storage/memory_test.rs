//! The in-memory store: views are whole, frozen, in order, and cheap to publish.

use super::*;
use crate::clock;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

fn put(key: &str, value: &str) -> Mutation {
    Mutation::Put { key: Bytes::copy_from_slice(key.as_bytes()), value: Bytes::copy_from_slice(value.as_bytes()) }
}

fn read(view: &Arc<dyn View>, key: &str) -> Option<(String, u64)> {
    let stored = view.get(key.as_bytes()).expect("memory does not fail")?;
    Some((String::from_utf8_lossy(&stored.value).into_owned(), stored.version.0))
}

#[derive(Default)]
struct Newest(AtomicU64);

impl PositionListener for Newest {
    fn published(&self, position: Position) {
        let before = self.0.swap(position.0, SeqCst);
        assert!(before < position.0, "published {position} after {before}");
    }
}

#[test]
fn a_view_stays_as_it_was() {
    let store = MemoryStore::new();
    store.apply(&[put("a", "1"), put("b", "1")], Position(1), 10).expect("applies");
    let before = store.view();
    store.apply(&[put("a", "2"), Mutation::Delete { key: "b".into() }], Position(5), 20).expect("applies");
    let after = store.view();
    assert_eq!((read(&before, "a"), read(&before, "b")), (Some(("1".into(), 1)), Some(("1".into(), 1))));
    assert_eq!((read(&after, "a"), read(&after, "b")), (Some(("2".into(), 5)), None));
    assert_eq!((before.position(), after.position(), after.stamp_ms()), (Position(1), Position(5), 20));
}

#[test]
fn positions_only_grow() {
    let store = MemoryStore::new();
    store.apply(&[put("a", "1")], Position(3), 0).expect("applies");
    assert!(store.apply(&[put("a", "2")], Position(3), 0).is_err());
    assert_eq!(read(&store.view(), "a"), Some(("1".into(), 3)));
}

#[test]
fn a_lagging_store_applies_but_does_not_publish() {
    let (store, newest) = (MemoryStore::new(), Arc::new(Newest::default()));
    store.watch(newest.clone());
    store.apply(&[put("a", "1")], Position(1), 0).expect("applies");
    store.lag(true);
    store.apply(&[put("a", "2")], Position(2), 0).expect("applies");
    assert_eq!((store.view().position(), read(&store.view(), "a")), (Position(1), Some(("1".into(), 1))));
    assert_eq!(newest.0.load(SeqCst), 1);
    store.lag(false);
    assert_eq!((store.view().position(), read(&store.view(), "a")), (Position(2), Some(("2".into(), 2))));
    assert_eq!(newest.0.load(SeqCst), 2);
}

#[test]
fn a_reader_never_sees_half_a_batch() {
    let store = Arc::new(MemoryStore::new());
    store.apply(&[put("a", "0"), put("z", "0")], Position(1), 0).expect("applies");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = Position(0);
            while last < Position(5_000) {
                let view = store.view();
                let (a, z) = (read(&view, "a").expect("there"), read(&view, "z").expect("there"));
                assert_eq!(a, z);
                assert_eq!(a.1, view.position().0);
                assert!(view.position() >= last);
                last = view.position();
            }
        });
        for position in 2..=5_000_u64 {
            let text = position.to_string();
            store.apply(&[put("a", &text), put("z", &text)], Position(position), 0).expect("applies");
        }
        reader.join().expect("the reader saw whole batches");
    });
}

#[test]
fn publishing_a_put_does_not_grow_with_the_keys() {
    let cost = |keys: u64| {
        let store = MemoryStore::new();
        let load: Vec<_> = (0..keys).map(|key| put(&format!("key-{key:09}"), "value")).collect();
        store.apply(&load, Position(1), 0).expect("applies");
        // The least of many rounds: free of whoever else uses the machine.
        (0..20_u64)
            .map(|round| {
                let began = clock::now();
                for step in 0..50 {
                    let key = format!("key-{:09}", (round * 50 + step) * 7_919 % keys);
                    store.apply(&[put(&key, "other")], Position(2 + round * 50 + step), 0).expect("applies");
                }
                clock::now().since(began) / 50
            })
            .min()
            .unwrap_or(Duration::MAX)
    };
    let (small, large) = (cost(2_000), cost(200_000));
    assert!(large < small * 8, "a put costs {small:?} with 2,000 keys and {large:?} with 200,000");
}

//! Applying in batches: the last of a key wins, versions are positions, the note's bytes.

use super::*;
use crate::raft::outcomes::{RECENT, Record};
use crate::raft::types::{WriteKey, digest};
use crate::storage::fjall_store::StoreSettings;
use futures_util::stream;
use openraft::entry::RaftEntry;
use openraft::impls::leader_id_adv::LeaderId;
use tiedkv_protocol::atomic::{Atomic, Condition, Expect, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, ClientId};

fn entry(index: u64, change: Change) -> Result<EntryResponder<TypeConfig>, io::Error> {
    repeated(index, index, change)
}

/// An entry with the idempotency key of an earlier one.
fn repeated(index: u64, sequence: u64, change: Change) -> Result<EntryResponder<TypeConfig>, io::Error> {
    let key = WriteKey { caller: CallerId(1), client: ClientId(1), sequence };
    let command = Command {
        stamp_ms: 1_000_u64.saturating_sub(index),
        key,
        floor: Position(0),
        digest: digest(&change),
        change,
    };
    let log_id = LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index };
    Ok((Entry::new(log_id, Payload::Normal(command)), None))
}

fn put(key: &'static str, value: &'static str) -> Change {
    Change::Put { key: Bytes::from_static(key.as_bytes()), value: Bytes::from_static(value.as_bytes()) }
}

#[test]
fn within_one_batch_the_last_change_of_a_key_wins() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = || Arc::new(FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
    {
        let store = open();
        let mut machine = StateMachine::start(store.clone(), OutcomeLimits::default(), None).unwrap();
        let entries = [
            entry(1, put("a", "1")),
            entry(2, put("b", "1")),
            entry(3, Change::Delete { key: Bytes::from_static(b"a") }),
            entry(4, put("a", "4")),
            entry(5, Change::Delete { key: Bytes::from_static(b"b") }),
            entry(6, Change::Ceiling(Ceiling { copies_max: 1, version: 40, ..Ceiling::default() })),
        ];
        runtime.block_on(machine.apply(stream::iter(entries))).unwrap();
        let view = store.current();
        // Log time never goes back.
        assert_eq!((view.position(), view.stamp_ms()), (Position(6), 999));
        let stored = view.get(b"a").unwrap().unwrap();
        assert_eq!((stored.value.as_ref(), stored.version), (&b"4"[..], Version(4)));
        assert_eq!(view.get(b"b").unwrap(), None);
        let ceiling = *machine.ceiling().borrow();
        assert_eq!((ceiling.copies_max, ceiling.version), (1, 1));
    }
    let store = loop {
        // The apply thread lets go of the store when it sees that the handles are gone.
        match FjallStore::open(folder.path(), StoreSettings::default()) {
            Ok(store) => break Arc::new(store),
            Err(_) => std::thread::yield_now(),
        }
    };
    let mut machine = StateMachine::start(store, OutcomeLimits::default(), None).unwrap();
    let (applied, _) = runtime.block_on(machine.applied_state()).unwrap();
    assert_eq!(applied.unwrap().index, 6);
    assert_eq!(machine.ceiling().borrow().copies_max, 1);
}

fn cas(key: &'static str, expect: Expect, value: &'static str) -> Change {
    let key = Bytes::from_static(key.as_bytes());
    Change::Atomic(Atomic::compare(key.clone(), expect, Operation::Put { key, value: value.into() }))
}

#[test]
fn a_condition_sees_what_came_before_it_also_within_one_commit_and_while_nothing_is_published() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Arc::new(FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
    let mut machine = StateMachine::start(store.clone(), OutcomeLimits::default(), None).unwrap();
    runtime.block_on(machine.apply(stream::iter([entry(1, put("a", "1"))]))).unwrap();
    store.set_lag(true);
    let delete = Change::Delete { key: "a".into() };
    runtime.block_on(machine.apply(stream::iter([entry(2, put("b", "2"))]))).unwrap();
    let half = Atomic {
        conditions: vec![Condition { key: "a".into(), expect: Expect::Present }],
        operations: vec![
            Operation::Put { key: "half".into(), value: "x".into() },
            Operation::Put { key: "b".into(), value: "x".into() },
        ],
    };
    let entries = [
        entry(3, cas("b", Expect::Version(Version(2)), "3")), // holds: applied, though not published
        entry(4, cas("b", Expect::Value("3".into()), "4")),   // holds: in this very commit
        entry(5, cas("b", Expect::Version(Version(3)), "x")), // no longer
        entry(6, cas("a", Expect::Absent, "x")),              // does not hold
        entry(7, delete),
        entry(8, Change::Atomic(half)), // does not hold: neither of its two is applied
        entry(9, cas("a", Expect::Absent, "9")),
        entry(
            10,
            Change::Atomic(Atomic {
                conditions: vec![],
                operations: vec![Operation::Increment { key: "n".into(), by: 5 }],
            }),
        ),
    ];
    runtime.block_on(machine.apply(stream::iter(entries))).unwrap();
    store.set_lag(false);
    let view = store.current();
    let stored = |key: &str| view.get(key.as_bytes()).unwrap().map(|stored| (stored.value, stored.version.0));
    assert_eq!(stored("a"), Some(("9".into(), 9)));
    assert_eq!(stored("b"), Some(("4".into(), 4)));
    assert_eq!(stored("half"), None);
    assert_eq!(stored("n"), Some(("5".into(), 10)));
    let codes: Vec<_> = view.kept_outcomes().map(|pair| Record::decode(&pair.unwrap().1).unwrap().code).collect();
    let failed = ErrorCode::ConditionFailed as u16;
    assert_eq!(codes, [0, 0, 0, 0, failed, failed, 0, failed, 0, 0]);
}

#[test]
fn a_repeat_that_comes_late_is_found_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Arc::new(FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
    let mut machine = StateMachine::start(store.clone(), OutcomeLimits::default(), None).unwrap();
    let last = RECENT as u64 + 3_000;
    let first = put("a", "first");
    let entries = (1..last).map(|index| entry(index, if index == 700 { first.clone() } else { put("b", "x") }));
    runtime.block_on(machine.apply(stream::iter(entries))).unwrap();
    let again = [
        entry(last, put("a", "last")),
        repeated(last + 1, 700, first),           // is not applied again
        repeated(last + 2, 701, put("a", "bad")), // another body under a key that was used
    ];
    runtime.block_on(machine.apply(stream::iter(again))).unwrap();
    let view = store.current();
    let stored = view.get(b"a").unwrap().unwrap();
    assert_eq!((stored.value.as_ref(), stored.version), (&b"last"[..], Version(last)));
    assert_eq!((view.position(), view.kept_outcomes().count() as u64), (Position(last + 2), last));
}

#[test]
fn bytes_of_the_note_are_golden() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let note =
        Note { applied: Some(LogId { leader_id: LeaderId { term: 2, node_id: 3 }, index: 4 }), ..Note::default() };
    let bytes = note.encode().unwrap();
    assert_eq!(hex(&bytes), GOLDEN_NOTE);
    assert_eq!(Note::decode(&bytes).unwrap(), note);
    assert_eq!(Note::decode(&[]).unwrap(), Note::default());
    assert!(matches!(Note::decode(&[2]), Err(StorageError::Corrupt(_))));
    assert!(Note::decode(&bytes[..bytes.len() - 1]).is_err());
}

const GOLDEN_NOTE: &str = "01010203040000000002fc40420f00030000000000";

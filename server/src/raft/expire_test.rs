//! Expiry in the state machine: by log time alone, the same however entries are batched, after a restart and after a
//! snapshot.

use super::*;
use crate::raft::types::{WriteKey, digest};
use crate::storage::fjall_store::StoreSettings;
use crate::storage::state_store::StateStore;
use futures_util::stream;
use openraft::entry::RaftEntry;
use openraft::impls::leader_id_adv::LeaderId;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tiedkv_protocol::atomic::{Atomic, Expect, Operation};
use tiedkv_protocol::ids::{CallerId, ClientId};

/// One replica's state.
struct Replica {
    store: Arc<FjallStore>,
    machine: StateMachine,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

/// Stamp and change of one entry.
type Step = (u64, Change);

impl Replica {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(FjallStore::open(folder.path(), StoreSettings::default()).unwrap());
        let machine = StateMachine::start(store.clone(), OutcomeLimits::default(), None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { store, machine, runtime, _folder: folder }
    }

    /// Applies entries from `first` on, all offered at once.
    fn apply(&mut self, first: u64, steps: &[Step]) {
        self.apply_under(first, first, steps);
    }

    /// Applies entries from `first` on; their idempotency keys count from `sequence` on.
    fn apply_under(&mut self, first: u64, sequence: u64, steps: &[Step]) {
        let entry = |(index, (stamp_ms, change)): (u64, &Step)| {
            let key = WriteKey { caller: CallerId(1), client: ClientId(1), sequence: sequence + index - first };
            let (floor, change) = (Position(0), change.clone());
            let command = Command { stamp_ms: *stamp_ms, key, floor, digest: digest(&change), change };
            let log_id = LogId { leader_id: LeaderId { term: 1, node_id: 1 }, index };
            Ok((Entry::new(log_id, Payload::Normal(command)), None))
        };
        let entries: Vec<Result<EntryResponder<TypeConfig>, io::Error>> = (first..).zip(steps).map(entry).collect();
        self.runtime.block_on(self.machine.apply(stream::iter(entries))).unwrap();
    }

    fn value(&self, key: &str) -> Option<(Bytes, u64)> {
        let stored = self.store.current().get(key.as_bytes()).unwrap()?;
        Some((stored.value, stored.version.0))
    }

    /// Everything that is kept, byte for byte.
    fn kept(&self) -> BTreeMap<Bytes, Bytes> {
        self.store.current().values().map(Result::unwrap).collect()
    }
}

fn atomic(operation: Operation) -> Change {
    Change::Atomic(Atomic { conditions: Vec::new(), operations: vec![operation] })
}

fn put_for(key: &'static str, value: &'static str, ttl_ms: u64) -> Change {
    atomic(Operation::PutFor { key: key.into(), value: value.into(), ttl_ms })
}

fn expire(key: &'static str, ttl_ms: Option<u64>) -> Change {
    atomic(Operation::Expire { key: key.into(), ttl_ms })
}

fn put(key: &'static str, value: &'static str) -> Change {
    Change::Put { key: key.into(), value: value.into() }
}

fn tick() -> Change {
    Change::Tick { sweep_to: None }
}

fn sweep(at_ms: u64, key: &'static str) -> Change {
    Change::Tick { sweep_to: Some(Expiry { at_ms, key: key.into() }) }
}

/// The same intent, sent again when half of its time is over.
#[test]
fn a_repeat_does_not_lengthen_a_time() {
    let mut replica = Replica::new();
    replica.apply(1, &[(1_000, put_for("a", "v", 500))]);
    replica.apply_under(2, 1, &[(1_250, put_for("a", "v", 500))]);
    assert_eq!(replica.value("a"), Some(("v".into(), 1)));
    replica.apply(3, &[(1_499, tick())]);
    assert!(replica.value("a").is_some());
    replica.apply(4, &[(1_500, tick())]);
    assert_eq!(replica.value("a"), None);
}

#[test]
fn a_key_is_gone_exactly_when_its_time_is_not_above_the_stamp() {
    let mut replica = Replica::new();
    replica.apply(1, &[(1_000, put_for("a", "1", 500)), (1_499, tick())]);
    assert_eq!(replica.value("a"), Some(("1".into(), 1)));
    assert_eq!(replica.store.current().get(b"a").unwrap().unwrap().expires_ms, Some(1_500));
    replica.apply(3, &[(1_500, tick())]);
    assert_eq!(replica.value("a"), None);
    // A leader whose clock is behind stamps no less than before: nothing comes back.
    replica.apply(4, &[(900, tick()), (10, put("b", "1"))]);
    assert_eq!((replica.value("a"), replica.store.current().stamp_ms()), (None, 1_500));
    assert_eq!(replica.kept().len(), 2, "it is removed later");
}

#[test]
fn touch_persist_and_put_change_the_time_and_nothing_else() {
    let mut replica = Replica::new();
    replica.apply(1, &[(1_000, put_for("a", "1", 500)), (1_100, expire("a", Some(5_000))), (2_000, tick())]);
    assert_eq!(replica.value("a"), Some(("1".into(), 1)), "value and version stay");
    replica.apply(4, &[(2_000, expire("a", None)), (9_000, tick())]);
    assert_eq!(replica.value("a"), Some(("1".into(), 1)));
    replica.apply(6, &[(9_000, put_for("b", "1", 100)), (9_050, put("b", "2")), (20_000, tick())]);
    assert_eq!(replica.value("b"), Some(("2".into(), 7)), "a put takes the time away");
    replica.apply(9, &[(20_000, put_for("c", "1", 100)), (20_200, expire("c", Some(100))), (20_250, tick())]);
    assert_eq!(replica.value("c"), None, "what has expired cannot be touched");
}

#[test]
fn conditions_see_what_has_expired_at_their_own_stamp_as_absent() {
    let mut replica = Replica::new();
    let take = |value: &'static str| {
        let operation = Operation::PutFor { key: "lock".into(), value: value.into(), ttl_ms: 100 };
        Change::Atomic(Atomic::compare("lock".into(), Expect::Absent, operation))
    };
    // All in one commit: each is judged at its own log time.
    replica.apply(1, &[(1_000, take("one")), (1_099, take("two")), (1_100, take("three")), (1_150, take("four"))]);
    assert_eq!(replica.value("lock"), Some(("three".into(), 3)));
}

#[test]
fn a_sweep_removes_what_has_expired_up_to_its_bound_and_no_more() {
    let mut replica = Replica::new();
    let puts = [("a", 100), ("b", 200), ("c", 200), ("d", 300)].map(|(key, ttl)| (1_000, put_for(key, "v", ttl)));
    replica.apply(1, &puts);
    let changed = [(1_000, expire("a", Some(5_000))), (1_250, tick())];
    replica.apply(5, &changed);
    replica.apply(7, &[(1_250, sweep(1_200, "b"))]);
    let left = |replica: &Replica| replica.kept().into_keys().collect::<Vec<_>>();
    assert_eq!(left(&replica), ["a", "c", "d"], "what was touched stays, and what lies behind the bound");
    replica.apply(8, &[(1_250, sweep(u64::MAX, "z"))]);
    assert_eq!(left(&replica), ["a", "d"], "nothing that has not expired");
    assert_eq!(replica.store.current().expiries(None, u64::MAX).count(), 2);
    replica.apply(9, &[(7_000, sweep(u64::MAX, "z"))]);
    assert!(left(&replica).is_empty() && replica.store.current().expiries(None, u64::MAX).next().is_none());
}

#[test]
fn a_snapshot_brings_times_and_their_index() {
    let mut source = Replica::new();
    source.apply(1, &[(1_000, put_for("a", "1", 500)), (1_000, put("b", "1")), (1_000, put_for("c", "1", 900))]);
    let target = Replica::new();
    let view = source.store.current();
    let staged = Staged::copy_of(&target.store, &view).unwrap();
    let meta = Meta { position: view.position(), stamp_ms: view.stamp_ms(), ..Meta::default() };
    staged.install.flip(meta).unwrap();
    assert_eq!(target.kept(), source.kept());
    let index = |replica: &Replica| {
        replica.store.current().expiries(None, u64::MAX).map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(index(&target), index(&source));
    assert_eq!(index(&target).len(), 2);
    let behind = index(&target)[0].clone();
    assert_eq!(target.store.view().stamp_ms(), 1_000);
    assert_eq!(target.store.current().expiries(Some(&behind), u64::MAX).count(), 1);
    assert_eq!(target.store.current().expiries(Some(&behind), 1).count(), 0);
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

fn step() -> impl Strategy<Value = (u64, Change)> {
    let change = (0_usize..4, 0_u8..8, 1_u64..3_000).prop_map(|(key, kind, ttl)| match kind {
        0 | 1 => put_for(KEYS[key], "v", ttl),
        2 => put(KEYS[key], "p"),
        3 => expire(KEYS[key], Some(ttl)),
        4 => expire(KEYS[key], None),
        5 => Change::Delete { key: KEYS[key].into() },
        6 => tick(),
        _ => sweep(5_000 + ttl * 4, KEYS[key]),
    });
    (5_000_u64..20_000, change)
}

/// The same by the rules alone.
fn model(steps: &[Step]) -> (BTreeMap<&'static str, Option<u64>>, u64) {
    let (mut kept, mut stamp) = (BTreeMap::new(), 0);
    for (wall, change) in steps {
        stamp = stamp.max(*wall);
        let alive = |kept: &BTreeMap<&'static str, Option<u64>>, key: &Bytes| {
            let known = KEYS.iter().find(|known| *key == known.as_bytes()).unwrap();
            (*known, kept.get(known).is_some_and(|at| at.is_none_or(|at| at > stamp)))
        };
        match change {
            Change::Put { key, .. } => {
                kept.insert(alive(&kept, key).0, None);
            }
            Change::Delete { key } => {
                kept.remove(alive(&kept, key).0);
            }
            Change::Atomic(atomic) => match &atomic.operations[0] {
                Operation::PutFor { key, ttl_ms, .. } => {
                    kept.insert(alive(&kept, key).0, Some(stamp + ttl_ms));
                }
                Operation::Expire { key, ttl_ms } => {
                    if let (key, true) = alive(&kept, key) {
                        kept.insert(key, ttl_ms.map(|ttl| stamp + ttl));
                    }
                }
                _ => {}
            },
            Change::Tick { sweep_to: Some(bound) } => kept.retain(|key, at| {
                at.is_none_or(|at| at > stamp || (at, key.as_bytes()) > (bound.at_ms, &bound.key[..]))
            }),
            Change::Tick { sweep_to: None } | Change::Ceiling(_) => {}
        }
    }
    (kept, stamp)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn replicas_agree_byte_for_byte_however_entries_are_batched(
        steps in prop::collection::vec(step(), 1..60),
        cuts in prop::collection::vec(1_usize..8, 1..60),
    ) {
        let (mut one, mut other) = (Replica::new(), Replica::new());
        one.apply(1, &steps);
        let mut at = 0_usize;
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let part = &steps[at..at.saturating_add(cut).min(steps.len())];
            other.apply(at as u64 + 1, part);
            at += part.len();
        }
        prop_assert_eq!(one.kept(), other.kept());
        let (kept, stamp) = model(&steps);
        prop_assert_eq!(one.store.current().stamp_ms(), stamp);
        let found: BTreeMap<Bytes, Option<u64>> = one.store.current().values().map(|pair| {
            let (key, bytes) = pair.unwrap();
            (key, crate::storage::view::decode_value(&bytes).unwrap().expires_ms)
        }).collect();
        let expected: BTreeMap<Bytes, Option<u64>> = kept.into_iter().map(|(key, at)| (key.into(), at)).collect();
        prop_assert_eq!(found, expected);
    }
}

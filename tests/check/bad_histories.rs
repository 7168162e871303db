//! A table of bad histories: each is rejected, by the promise that it breaks; and good ones beside them are not.

use tiedkv_tests::check::history::{Asked, Call, Came, Freshness, Value, Violation};
use tiedkv_tests::check::{linear, session};

fn call(session: u32, asked: Asked, span: (u64, u64), came: Came) -> Call {
    let freshness = Freshness::Linearizable;
    Call { session, key: 1, asked, began: span.0, ended: span.1, came, freshness, version: 0, position: 0 }
}

fn put(session: u32, value: Value, span: (u64, u64)) -> Call {
    call(session, Asked::Put(value), span, Came::Done)
}

fn read(session: u32, value: impl Into<Option<Value>>, span: (u64, u64)) -> Call {
    call(session, Asked::Read, span, Came::Found(value.into()))
}

fn lost(session: u32, asked: Asked, began: u64) -> Call {
    call(session, asked, (began, began), Came::Unknown)
}

fn at(version: u64, position: u64, call: Call) -> Call {
    Call { version, position, ..call }
}

fn level(freshness: Freshness, call: Call) -> Call {
    Call { freshness, ..call }
}

fn all(calls: &[Call]) -> Vec<&'static str> {
    let mut found: Vec<Violation> = linear::violations(calls);
    found.extend(session::violations(calls));
    found.into_iter().map(|violation| violation.promise).collect()
}

#[test]
fn bad_histories_of_one_register_are_rejected() {
    let swap = |expect, value| Asked::CompareAndSet(expect, value);
    let table: &[(&str, &[Call])] = &[
        ("a stale read", &[put(1, 1, (0, 10)), put(1, 2, (20, 30)), read(2, 1, (40, 50))]),
        ("a lost write", &[put(1, 1, (0, 10)), read(2, None, (20, 30))]),
        ("a value of nobody", &[read(1, 7, (0, 10))]),
        ("from the future", &[read(1, 1, (0, 10)), put(2, 1, (20, 30))]),
        ("back and forth", &[put(1, 1, (0, 10)), put(2, 2, (20, 100)), read(3, 2, (30, 40)), read(3, 1, (50, 60))]),
        (
            "two readers disagree on the order",
            &[put(1, 1, (0, 100)), put(2, 2, (0, 100)), read(3, 1, (110, 120)), read(4, 2, (130, 140))],
        ),
        (
            "a deleted key is back",
            &[put(1, 1, (0, 10)), call(1, Asked::Delete, (20, 30), Came::Done), read(2, 1, (40, 50))],
        ),
        (
            "two winners of one compare-and-set",
            &[
                put(1, 1, (0, 10)),
                call(1, swap(Some(1), 2), (20, 30), Came::Done),
                call(2, swap(Some(1), 3), (20, 30), Came::Done),
            ],
        ),
        (
            "a compare-and-set refused although it held",
            &[put(1, 1, (0, 10)), call(1, swap(Some(1), 2), (20, 30), Came::Unmet(Some(1)))],
        ),
        (
            "a refusal that shows what never was",
            &[put(1, 1, (0, 10)), call(1, swap(None, 2), (20, 30), Came::Unmet(Some(5)))],
        ),
        ("an unknown write that took effect before it began", &[read(1, 5, (0, 10)), lost(2, Asked::Put(5), 20)]),
        (
            "an unknown write that came and went without a cause",
            &[lost(1, Asked::Put(5), 0), read(2, 5, (10, 20)), read(2, None, (30, 40))],
        ),
        ("a write applied twice", &[put(1, 1, (0, 10)), put(2, 2, (20, 30)), read(3, 1, (40, 50))]),
    ];
    for (name, calls) in table {
        assert!(!linear::violations(calls).is_empty(), "not rejected: {name}");
    }
}

#[test]
fn good_histories_pass() {
    let table: &[(&str, &[Call])] = &[
        (
            "overlapping writes in either order",
            &[put(1, 1, (0, 100)), put(2, 2, (0, 100)), read(3, 2, (10, 20)), read(3, 1, (30, 40))],
        ),
        ("an unknown write that never came", &[lost(1, Asked::Put(5), 0), read(2, None, (10, 20))]),
        (
            "an unknown write that came late",
            &[
                lost(1, Asked::Put(5), 0),
                read(2, None, (10, 20)),
                put(2, 6, (30, 40)),
                read(2, 6, (50, 60)),
                read(2, 5, (70, 80)),
            ],
        ),
        (
            "an unknown compare-and-set that did not hold",
            &[put(1, 1, (0, 10)), lost(2, Asked::CompareAndSet(Some(9), 2), 20), read(1, 1, (30, 40))],
        ),
        (
            "a refusal in the middle of a change",
            &[
                put(1, 1, (0, 100)),
                call(2, Asked::CompareAndSet(Some(3), 4), (10, 20), Came::Unmet(None)),
                call(2, Asked::CompareAndSet(Some(3), 5), (30, 40), Came::Unmet(Some(1))),
            ],
        ),
    ];
    for (name, calls) in table {
        assert_eq!(linear::violations(calls), [], "{name}");
    }
}

#[test]
fn bad_sessions_and_views_are_rejected_by_name() {
    let written = || [at(5, 5, put(1, 1, (0, 10))), at(7, 7, put(1, 2, (20, 30)))];
    let with = |last: Call| [written().as_slice(), &[last]].concat();
    let seen = Freshness::Session;
    let stale = Freshness::Stale(None);
    let bounded = Freshness::Stale(Some(15));
    let table = [
        ("sessions go forward", with(at(5, 6, level(seen, read(1, 1, (40, 50)))))),
        ("value and position come from one view", with(at(5, 8, level(stale, read(2, 1, (40, 50)))))),
        ("value and position come from one view", with(at(7, 6, level(stale, read(2, 2, (40, 50)))))),
        ("value and position come from one view", with(at(0, 7, level(stale, read(2, None, (40, 50)))))),
        (
            "value and position come from one view",
            [with(lost(3, Asked::Delete, 60)), vec![at(0, 8, level(stale, read(2, None, (40, 50))))]].concat(),
        ),
        ("a version names one value", with(at(7, 8, level(stale, read(2, 9, (40, 50)))))),
        ("versions never repeat", with(at(7, 7, put(2, 3, (40, 50))))),
        ("a bound of staleness holds", with(at(5, 6, level(bounded, read(2, 1, (46, 50)))))),
    ];
    for (promise, calls) in table {
        assert!(all(&calls).contains(&promise), "{promise} not found in {:?}", all(&calls));
    }
    let good = [
        with(at(5, 6, level(stale, read(2, 1, (40, 50))))),
        with(at(5, 6, level(bounded, read(2, 1, (41, 50))))),
        with(at(7, 9, level(seen, read(1, 2, (40, 50))))),
        with(at(0, 4, level(seen, read(2, None, (40, 50))))),
        [with(lost(3, Asked::Delete, 35)), vec![at(0, 8, level(stale, read(2, None, (40, 50))))]].concat(),
    ];
    for calls in good {
        assert_eq!(session::violations(&calls), []);
    }
}

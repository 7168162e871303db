//! One intent sent twice: every kind of write that takes an idempotency key, through the crate, against three replicated
//! nodes. The tool's own keys are tried in [`crate::tool`].

use crate::bed::PATIENCE;
use crate::data::replicated;
use crate::data_model_map::{Outcome, Write};
use crate::data_model_send::send;
use bytes::Bytes;
use tiedkv_client::{Expect, ReadOptions, View, WriteOptions};
use tiedkv_protocol::atomic::{Condition, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::ClientId;
use tiedkv_protocol::request::IdempotencyKey;

/// A time to live that does not end within the test, milliseconds.
const LONG_MS: u64 = 3_600_000;
/// Counts beside the key in the batch.
const COUNTER: &str = "counter";

/// A kind of write, what its key is before, and what it comes to.
struct Kind {
    before: Option<&'static str>,
    write: Write,
    outcome: Outcome,
}

fn key() -> Bytes {
    Bytes::from_static(b"key")
}

fn put() -> Operation {
    Operation::Put { key: key(), value: "new".into() }
}

fn increment() -> Operation {
    Operation::Increment { key: key(), by: 1 }
}

/// Every kind of write that is applied.
fn applied() -> Vec<Kind> {
    let kind = |before, write, numbers: &[i64]| {
        let numbers = numbers.to_vec();
        Kind { before, write, outcome: Outcome::Applied { numbers } }
    };
    let expire = |ttl_ms| Write::when(Expect::Present, Operation::Expire { key: key(), ttl_ms });
    let count = Operation::Increment { key: COUNTER.into(), by: 1 };
    let batch = Write {
        conditions: vec![Condition { key: key(), expect: Expect::Value("old".into()) }],
        operations: vec![put(), count],
    };
    let put_for = Operation::PutFor { key: key(), value: "new".into(), ttl_ms: LONG_MS };
    let delete = || Operation::Delete { key: key() };
    vec![
        kind(Some("old"), Write::of(put()), &[]),
        kind(Some("old"), Write::of(put_for), &[]),
        kind(Some("old"), Write::of(delete()), &[]),
        kind(Some("41"), Write::of(increment()), &[42]),
        kind(Some("old"), expire(Some(LONG_MS)), &[]),
        kind(Some("old"), expire(None), &[]),
        kind(None, Write::when(Expect::Absent, put()), &[]),
        kind(Some("old"), Write::when(Expect::Value("old".into()), put()), &[]),
        kind(Some("old"), Write::when(Expect::Present, delete()), &[]),
        kind(Some("old"), batch, &[1]),
    ]
}

/// Sets the key, or removes it, under a key of the crate's own.
async fn set(view: &View, value: Option<&'static str>) {
    let options = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
    match value {
        Some(value) => view.put_with(key(), value, options).await.unwrap(),
        None => view.delete_with(key(), options).await.unwrap(),
    };
}

/// Options of a write under the key of an intent.
fn intent(view: &View, sequence: u64) -> impl Fn() -> WriteOptions {
    let idempotency = IdempotencyKey { client: ClientId(0x1d), sequence, floor: view.token().position };
    move || WriteOptions { deadline: Some(PATIENCE), idempotency: Some(idempotency), ..WriteOptions::default() }
}

fn patient() -> ReadOptions {
    ReadOptions { deadline: Some(PATIENCE), ..ReadOptions::default() }
}

#[tokio::test]
async fn every_kind_of_write_under_one_key_is_applied_once_and_answered_alike() {
    let bed = replicated().await;
    let view = bed.client.view(1);
    for (sequence, kind) in (1..).zip(applied()) {
        let Kind { before, write, outcome } = kind;
        set(&view, before).await;
        let options = intent(&view, sequence);
        let first = send(&view, &write, options()).await;
        assert_eq!(first.outcome, outcome, "{write:?}");
        let again = send(&view, &write, options()).await;
        assert_eq!(again.outcome, outcome, "{write:?} again");
        let version = first.report.map(|report| report.version);
        assert_eq!(again.report.map(|report| report.version), version, "{write:?} again");
        if let (Some(first), Some(again)) = (first.report, again.report) {
            // A first one that was sent twice may have met itself.
            assert!(again.repeated && (!first.repeated || first.tries > 1), "{write:?}: {first:?}, {again:?}");
        }
        // Whatever a repeat would do to it is seen.
        set(&view, Some("between")).await;
        let between = view.get_with(key(), patient()).await.unwrap().value.unwrap();
        let late = send(&view, &write, options()).await;
        assert!(matches!(late.outcome, Outcome::Applied { .. }), "{write:?}: {late:?}");
        assert_eq!(late.report.map(|report| report.version), version, "{write:?} late");
        let after = view.get_with(key(), patient()).await.unwrap().value.unwrap();
        assert_eq!((&after.value[..], after.remaining), (&b"between"[..], None), "{write:?} was applied again");
        assert_eq!(after.version, between.version, "{write:?} was applied again");
    }
    let counter = view.get_with(COUNTER, patient()).await.unwrap().value.unwrap();
    assert_eq!(&counter.value[..], b"1", "the batch was applied once");
}

#[tokio::test]
async fn a_write_that_was_refused_stays_refused_under_its_key() {
    let bed = replicated().await;
    let view = bed.client.view(1);
    let full = i64::MAX.to_string();
    let wrong = Expect::Value("other".into());
    for (sequence, (write, code)) in (1..).zip([
        (Write::when(Expect::Absent, put()), None),
        (Write::when(wrong.clone(), Operation::Delete { key: key() }), None),
        (Write { conditions: Write::when(wrong, put()).conditions, operations: vec![put(), other()] }, None),
        (Write::of(increment()), Some(ErrorCode::NotANumber)),
        (Write::of(increment()), Some(ErrorCode::NumberOverflow)),
    ]) {
        let value = if code == Some(ErrorCode::NumberOverflow) { full.clone() } else { "old".to_owned() };
        let patiently = WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
        let version = view.put_with(key(), value.clone(), patiently).await.unwrap().version;
        let expected = match code {
            None => Outcome::Unmet { condition: 0, current: Some((version, value.into())) },
            Some(code) => Outcome::Refused(code),
        };
        let options = intent(&view, sequence);
        for _ in 0..2 {
            assert_eq!(send(&view, &write, options()).await.outcome, expected, "{write:?}");
        }
        // What it asked for holds now; the intent was answered for good.
        let now = if write.conditions.iter().any(|condition| condition.expect != Expect::Absent) {
            Some("other")
        } else {
            None
        };
        set(&view, now).await;
        let late = send(&view, &write, options()).await.outcome;
        match (&late, code) {
            (Outcome::Unmet { condition: 0, .. }, None) => {}
            (Outcome::Refused(late), Some(code)) if *late == code => {}
            _ => panic!("{write:?} was answered {late:?}"),
        }
        let after = view.get_with(key(), patient()).await.unwrap().value;
        assert_eq!(after.map(|after| after.value), now.map(Bytes::from), "{write:?} was applied");
    }
    assert!(!view.exists("beside", patient()).await.unwrap(), "half of a batch was applied");
}

fn other() -> Operation {
    Operation::Put { key: "beside".into(), value: "new".into() }
}

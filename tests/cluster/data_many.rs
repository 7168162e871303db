//! Calls for many keys and scans of real processes, through the engine of policies: what comes of a node that hangs, and
//! under which policy each kind of read is sent and counted.

use crate::bed::{Bed, PATIENCE, within};
use crate::data::{fill, patient_url, replicated};
use std::time::{Duration, Instant};
use tiedkv_client::gate::NotTied;
use tiedkv_client::stats::PolicyStats;
use tiedkv_client::{
    Client, Entry, Level, MultiGet, Operation, ReadOptions, ReadPolicy, ScanOptions, ScanRange, Stats, Switch,
};
use tiedkv_protocol::request::CopyKind;

const KEYS: u64 = 200;

fn stale(policy: ReadPolicy) -> ReadOptions {
    ReadOptions { policy: Some(policy), level: Some(Level::Stale { bound: None }), ..ReadOptions::default() }
}

/// A replicated cluster with [`KEYS`] keys on every replica, and what its client has read so far.
async fn filled() -> Bed {
    let bed = replicated().await;
    fill(&bed.client, (0..KEYS).map(|n| (format!("k{n:03}"), n.to_string().into_bytes()))).await;
    bed.until_applied(&bed.nodes(), bed.client.token().position).await;
    bed
}

fn call(client: &Client, options: ReadOptions) -> MultiGet {
    client.multi_get((0..KEYS).map(|n| format!("k{n:03}"))).with(options)
}

/// Every key that was answered has its own value.
fn answered(entries: &[Entry]) -> usize {
    assert_eq!(entries.len() as u64, KEYS);
    let right = |(n, entry): (usize, &Entry)| match entry {
        Entry::Found(value) => {
            assert_eq!(value.value, n.to_string());
            1
        }
        Entry::Absent => panic!("key {n} is there, and nobody may call it absent"),
        Entry::Missing => 0,
    };
    entries.iter().enumerate().map(right).sum()
}

#[tokio::test]
async fn a_call_for_many_keys_tells_missing_from_absent_while_a_node_hangs() {
    let mut bed = filled().await;
    let whole = within("a call", call(&bed.client, stale(ReadPolicy::UNTIED)).send()).await.unwrap();
    assert!(whole.values.iter().all(Option::is_some));
    // One that takes a silent node for lost only after long: a third of its keys goes to the node that hangs.
    let patient = Client::connect_url(&format!("{}&silence=10s", patient_url(&bed))).await.unwrap();
    patient.all_connected(PATIENCE).await.unwrap();
    let hung = bed.followers().await[0];
    bed.cluster.pause(hung).unwrap();

    let fresh = patient.view(1);
    let by = Duration::from_millis(500);
    let options = ReadOptions { deadline: Some(PATIENCE), ..stale(ReadPolicy::UNTIED) };
    let begun = Instant::now();
    let keys = (0..KEYS).map(|n| format!("k{n:03}"));
    let part = fresh.multi_get(keys.clone()).with(options).partial(0.3, by).send();
    let part = within("a partial answer", part).await.unwrap();
    let count = answered(&part.entries);
    assert!(begun.elapsed() >= by && begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    assert!(count as f64 >= 0.3 * KEYS as f64 && (count as u64) < KEYS, "{count} of {KEYS}");
    assert_eq!(part.completeness, count as f64 / KEYS as f64);

    // The deadline is that of the whole call, however many keys wait.
    let deadline = Duration::from_secs(1);
    let options = ReadOptions { deadline: Some(deadline), ..stale(ReadPolicy::UNTIED) };
    let begun = Instant::now();
    let error = patient.view(2).multi_get(keys.clone()).with(options).send().await.unwrap_err();
    let took = begun.elapsed();
    assert!(took >= deadline && took < deadline * 10, "{took:?}");
    let count = answered(&error.entries);
    assert!(count > 0 && (count as u64) < KEYS, "{count} of {KEYS}: {error}");
    assert_eq!(error.completeness, count as f64 / KEYS as f64);
    assert!(error.to_string().contains(&format!("{count} of {KEYS} keys were answered")), "{error}");

    // Each key is a tie of its own: the other copy answers.
    let options = ReadOptions { deadline: Some(PATIENCE), ..stale(ReadPolicy::TIED2) };
    let tied = within("a tied call", patient.view(3).multi_get(keys).with(options).send()).await.unwrap();
    assert!(tied.values.iter().all(Option::is_some));
    let stats = patient.stats();
    assert_eq!((stats.multi_gets, stats.multi_gets_partial, stats.multi_gets_failed), (3, 1, 1));
    assert!(stats.completeness() < 1.0);
    bed.cluster.resume(hung).unwrap();
}

#[tokio::test]
async fn extra_copies_of_a_call_are_paid_from_one_budget() {
    let mut bed = filled().await;
    let policy = ReadPolicy::UNTIED.with_rescue();
    let view = bed.client.view(1);
    let keys = || (0..KEYS).map(|n| format!("k{n:03}"));
    let options = |deadline| ReadOptions { deadline: Some(deadline), ..stale(policy) };
    // What a key of a call usually takes is learned first.
    for _ in 0..5 {
        within("a call", view.multi_get(keys()).with(options(PATIENCE)).send()).await.unwrap();
    }
    let rescues =
        |stats: Stats| stats.of(Operation::MultiGet, policy).map_or(0, |row| row.copies.sent.of(CopyKind::Rescue));
    let before = rescues(bed.client.stats());
    let hung = bed.followers().await[0];
    bed.cluster.pause(hung).unwrap();
    let ended = view.multi_get(keys()).with(options(Duration::from_millis(800))).send().await;
    let sent = rescues(bed.client.stats()) - before;
    // .05 of 200 keys; without it each of some 66 keys would be rescued.
    assert!(sent <= KEYS / 20, "{sent} rescues for one call of {KEYS} keys: {:?}", ended.map(|_| ()));
    bed.cluster.resume(hung).unwrap();
}

#[tokio::test]
async fn each_kind_of_read_has_its_policy_and_is_counted_under_it() {
    let bed = filled().await;
    let table = "policy=tied3&policy.multi_get=tied2&policy.scan=untied&policy.scan.stale=tied2&gate=off";
    let client = Client::connect_url(&format!("{}&{table}", patient_url(&bed))).await.unwrap();
    client.all_connected(PATIENCE).await.unwrap();
    client.get("k001").await.unwrap();
    client.multi_get(["k001", "k002"]).send().await.unwrap();
    let pages = |level, page_rows| ScanOptions {
        page_rows,
        read: ReadOptions { level: Some(level), ..ReadOptions::default() },
        ..ScanOptions::default()
    };
    let rows = async |options| {
        let mut scan = client.scan(&ScanRange::all(), options).unwrap();
        let mut rows = 0;
        while scan.next().await.unwrap().is_some() {
            rows += 1;
        }
        rows
    };
    assert_eq!(rows(pages(Level::Session, 50)).await, KEYS);
    assert_eq!(rows(pages(Level::Stale { bound: None }, 100)).await, KEYS);
    assert_eq!(client.count(&ScanRange::all()).await.unwrap(), KEYS);
    assert!(client.exists("k001").await.unwrap());

    let stats = client.stats();
    let row =
        |operation, policy| stats.of(operation, policy).cloned().unwrap_or_else(|| panic!("{operation} {policy}"));
    // A node that is busy may say that a tie does not pay: that is counted too.
    let judged = |row: &PolicyStats| row.ties + row.not_tied.iter().sum::<u64>();
    for (operation, policy, reads) in
        [(Operation::Get, ReadPolicy::TIED3, 1), (Operation::MultiGet, ReadPolicy::TIED2, 2)]
    {
        let row = row(operation, policy);
        assert!(row.reads == reads && judged(&row) >= reads, "{row:?}");
    }
    let untied = row(Operation::Scan, ReadPolicy::UNTIED);
    // Four pages or five, a count, a key asked for; the last page may say that more may follow.
    assert!((6..=7).contains(&untied.reads) && untied.ties == 0, "{untied:?}");
    let tied = row(Operation::Scan, ReadPolicy::TIED2);
    assert!((2..=3).contains(&tied.reads) && judged(&tied) >= tied.reads, "{tied:?}");
    for row in [untied, tied] {
        assert_eq!((row.answered, row.failed), (row.reads, 0));
    }

    // The switch of one operation leaves the others.
    client.policy().set_for(Operation::Scan, Switch::OFF).unwrap();
    assert_eq!(rows(pages(Level::Stale { bound: None }, 100)).await, KEYS);
    client.get("k001").await.unwrap();
    let stats = client.stats();
    let switched_off = |operation, policy| {
        stats.of(operation, policy).map_or(0, |row| row.not_tied[NotTied::SwitchedOff as usize])
    };
    assert!(switched_off(Operation::Scan, ReadPolicy::TIED2) >= 2);
    assert_eq!(switched_off(Operation::Get, ReadPolicy::TIED3), 0);
}

#[tokio::test]
async fn a_read_of_one_node_asks_no_other() {
    let bed = filled().await;
    for node in bed.nodes() {
        // Also when the policy of the settings is of more copies.
        let options = ReadOptions { node: Some(node), policy: None, ..stale(ReadPolicy::UNTIED) };
        for _ in 0..20 {
            let read = within("a read", bed.client.get_with("k007", options.clone())).await.unwrap();
            assert_eq!((read.report.node, read.report.copies.len()), (node, 1));
        }
        // A policy of more copies beside it could have no effect.
        for policy in [ReadPolicy::TIED3, ReadPolicy { rescue: true, ..ReadPolicy::UNTIED }] {
            let options = ReadOptions { policy: Some(policy), ..options.clone() };
            let text = bed.client.get_with("k007", options.clone()).await.unwrap_err().to_string();
            assert!(text.contains(&format!("leave out `{policy}`")), "{text}");
            let many = bed.client.multi_get(["k007"]).with(options).send().await;
            assert!(many.unwrap_err().to_string().contains("alone is asked once"));
        }
    }
    let nobody = ReadOptions {
        node: Some(tiedkv_protocol::ids::NodeId(9)),
        deadline: Some(Duration::from_millis(300)),
        ..stale(ReadPolicy::UNTIED)
    };
    assert!(bed.client.get_with("k007", nobody).await.is_err());
}

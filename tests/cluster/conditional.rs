//! Conditional and atomic writes against real processes: through the crate on a replicated cluster, and by the tool.

use crate::bed::{Bed, PATIENCE, within};
use crate::tool::{code, one_node, text, tool};
use std::collections::BTreeSet;
use tiedkv_benches::cluster::Storage;
use tiedkv_client::conditional::{Batch, Conditional};
use tiedkv_client::options::WriteOptions;
use tiedkv_client::{Client, Expect};
use tiedkv_protocol::error::ErrorCode;

#[tokio::test]
async fn of_many_that_compare_and_set_exactly_one_wins_each_round_while_the_leader_is_killed() {
    let mut bed = Bed::with(3, |settings| settings.storage = Storage::Disk).await;
    let options = || WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() };
    let mut versions = BTreeSet::new();
    let mut last = None;
    for round in 0..10 {
        let expect = last.map_or(Expect::Absent, Expect::Version);
        let views: Vec<_> = (0..8).map(|seed| bed.client.view(seed)).collect();
        let calls = views.iter().enumerate().map(|(caller, view)| {
            let value = format!("round {round} caller {caller}");
            view.compare_and_set("lock", expect.clone(), value, options())
        });
        if round == 4 {
            let leader = bed.client.topology().leader.unwrap();
            bed.cluster.kill(leader);
        }
        let became = within("all callers", all_of(calls.collect())).await;
        let won: Vec<_> = became.into_iter().filter_map(|became| became.unwrap().applied()).collect();
        assert_eq!(won.len(), 1, "round {round}");
        assert!(versions.insert(won[0].version), "a version came twice");
        last = Some(won[0].version);
    }
    let unmet = bed.client.put_if_absent("lock", "x").await.unwrap();
    let Conditional::Unmet(unmet) = unmet else { panic!("{unmet:?}") };
    assert_eq!(unmet.current.unwrap().version, last.unwrap());
}

#[tokio::test]
async fn a_batch_is_applied_whole_or_not_at_all() {
    let bed = Bed::with(3, |settings| settings.storage = Storage::Disk).await;
    let client = &bed.client;
    let batch = Batch::new().when("a", Expect::Absent).put("a", "1").put("b", "2").increment("n", 7);
    let Conditional::Applied(applied) = client.batch(batch.clone()).await.unwrap() else { panic!("unmet") };
    assert_eq!(applied.numbers, [Some(7)]);
    let Conditional::Unmet(unmet) = client.batch(batch).await.unwrap() else { panic!("applied twice") };
    assert_eq!((unmet.condition, unmet.current.unwrap().version), (0, applied.report.version));
    let mixed = Batch::new().put("b", "3").increment("a", i64::MAX).increment("c", 1);
    assert_eq!(client.batch(mixed).await.unwrap_err().code(), Some(ErrorCode::NumberOverflow));
    assert_eq!(read(client, "b").await.as_deref(), Some("2"));
    assert_eq!(read(client, "c").await, None);
    assert_eq!(client.increment("n", -10).await.unwrap().number, Some(-3));
    client.put("text", "x").await.unwrap();
    assert_eq!(client.increment("text", 1).await.unwrap_err().code(), Some(ErrorCode::NotANumber));
    let deleted = client.delete_if("text", Expect::Value("x".into())).await.unwrap();
    assert!(deleted.applied().is_some());
    let large = (0..1_000).fold(Batch::new(), |batch, key| batch.put(format!("k{key:04}"), vec![b'x'; 8_000]));
    assert!(client.batch(large.clone()).await.unwrap().applied().is_some());
    assert_eq!(client.batch(large.put("one", "more")).await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    assert_eq!(read(client, "k0999").await.map(|value| value.len()), Some(8_000));
}

async fn read(client: &Client, key: &'static str) -> Option<String> {
    let value = client.get(key).await.unwrap();
    value.map(|value| String::from_utf8_lossy(&value.value).into_owned())
}

async fn all_of<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (future, done) in pending.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(context)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(done.iter_mut().filter_map(Option::take).collect()),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

#[tokio::test]
async fn the_tool_compares_and_sets() {
    let (_bed, url) = one_node().await;
    let cas = |rest: &[&str]| {
        let mut arguments = vec!["cas", "--cluster", &url];
        arguments.extend(rest);
        tool(&arguments, b"")
    };
    assert_eq!(code(&cas(&["lock", "mine", "--absent"])), Some(0));
    let refused = cas(&["lock", "theirs", "--absent", "-o", "json"]);
    assert_eq!(code(&refused), Some(1), "{}", text(&refused.stderr));
    let json: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!((&json["applied"], &json["value"], &json["version"]), (&false.into(), &"mine".into(), &1.into()));
    assert_eq!(code(&cas(&["lock", "again", "--version", "1"])), Some(0));
    assert_eq!(code(&cas(&["lock", "--expect", "mine", "--delete"])), Some(1));
    assert_eq!(code(&cas(&["lock", "--expect", "again", "--delete"])), Some(0));
    assert_eq!(code(&cas(&["lock", "value"])), Some(2), "no expectation");
    assert_eq!(code(&cas(&["lock", "value", "--absent", "--version", "1"])), Some(2), "two expectations");
}

//! Scans against scripted nodes: order, limits, tokens, what is fetched ahead, what failures leave.

use super::*;
use crate::Level;
use crate::Switch;
use crate::client::Client;
use crate::copies::Order;
use crate::fake_node::{Deed, FakeCluster};
use crate::options::WriteOptions;
use crate::policy::ReadPolicy;
use crate::test_support::{connect, connect_with, run, stale, until};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tiedkv_protocol::ids::{ClusterId, NodeId, Position, SHARD_ZERO, ShardId};
use tiedkv_protocol::request::{AdminOperation, CopyKind};

/// Three nodes with `count` keys k000.. and a client.
async fn bed(count: u32) -> (FakeCluster, Client) {
    let cluster = FakeCluster::start(3).await;
    let values: BTreeMap<Bytes, Bytes> =
        (0..count).map(|n| (format!("k{n:03}").into(), Bytes::from(vec![n as u8; 10]))).collect();
    cluster.nodes.iter().for_each(|node| node.state.lock().values = values.clone());
    let client = connect(&cluster).await;
    (cluster, client)
}

fn pages(page_rows: u32) -> ScanOptions {
    let read = ReadOptions { level: Some(Level::Stale { bound: None }), ..ReadOptions::default() };
    ScanOptions { page_rows, read, ..ScanOptions::default() }
}

async fn keys(mut scan: Scan) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(row) = scan.next().await.unwrap() {
        keys.push(String::from_utf8(row.key.to_vec()).unwrap());
    }
    keys
}

fn scans(cluster: &FakeCluster) -> Vec<(NodeId, PageRequest, Class)> {
    let page = |(node, request): (NodeId, tiedkv_protocol::request::ReadRequest)| match request.operation {
        ReadOperation::Scan(page) => Some((node, *page, request.class)),
        ReadOperation::Get { .. } | ReadOperation::MultiGet { .. } => None,
    };
    cluster.reads().into_iter().filter_map(page).collect()
}

#[test]
fn pages_join_in_order_and_a_limit_holds_over_pages() {
    run(async {
        let (_cluster, client) = bed(100).await;
        let all: Vec<String> = (0..100).map(|n| format!("k{n:03}")).collect();
        assert_eq!(keys(client.scan(&ScanRange::all(), pages(7)).unwrap()).await, all);
        let limit = |limit, reverse| ScanOptions { limit: Some(limit), reverse, ..pages(7) };
        assert_eq!(keys(client.scan(&ScanRange::all(), limit(17, false)).unwrap()).await, all[..17]);
        let greatest = keys(client.scan(&ScanRange::prefix("k0"), limit(3, true)).unwrap()).await;
        assert_eq!(greatest, ["k099", "k098", "k097"]);
        let some = ScanRange::between("k010", "k012");
        assert_eq!(keys(client.scan(&some, pages(7)).unwrap()).await, ["k010", "k011"]);
        assert_eq!(keys(client.scan(&ScanRange::between("z", "a"), pages(7)).unwrap()).await, [""; 0]);
        assert_eq!(client.count(&ScanRange::prefix("k01")).await.unwrap(), 10);
        assert_eq!(client.count(&ScanRange::starting_at("k090")).await.unwrap(), 10);
        assert_eq!(client.count(&ScanRange::before("k001")).await.unwrap(), 1);
        assert!(client.exists("k001").await.unwrap() && !client.exists("k00").await.unwrap());
    });
}

#[test]
fn observed_pages_count_the_ties_they_would_have_sent_and_send_one_copy() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Answer(Duration::from_millis(30)));
        let client = connect_with(&cluster, |config| {
            config.tie_delay_floor = Duration::from_millis(1);
            config.tie_delay_cap = Duration::from_millis(1);
        })
        .await;
        client.policy().set(Switch::OBSERVE).unwrap();
        assert_eq!(client.count_with(&ScanRange::all(), stale(ReadPolicy::TIED2)).await.unwrap(), 0);
        assert!(!client.exists_with("k", stale(ReadPolicy::TIED2)).await.unwrap());
        assert_eq!(scans(&cluster).len(), 2, "one copy each");
        let stats = client.stats();
        let observed = stats.of(Operation::Scan, ReadPolicy::TIED2).unwrap();
        // A page of one row is as short as a get; a longer one may send its tie, and hedges of no kind.
        assert_eq!((observed.unsent.of(CopyKind::Tied), observed.unsent.total()), (2, 2));
        assert_eq!(observed.unsent_after.count(), 2);
    });
}

#[test]
fn what_is_out_of_its_bounds_is_an_error_that_names_it() {
    run(async {
        let (_cluster, client) = bed(1).await;
        for (options, named) in [
            (ScanOptions { limit: Some(0), ..pages(7) }, "limit of a scan"),
            (pages(0), "rows of a page"),
            (ScanOptions { page_bytes: 1 << 21, ..pages(7) }, "bytes of a page"),
            (ScanOptions { pages_ahead: 0, ..pages(7) }, "pages ahead"),
        ] {
            let error = client.scan(&ScanRange::all(), options).unwrap_err();
            assert_eq!(error.code(), Some(ErrorCode::OverLimit));
            assert!(error.to_string().contains(named), "{error}");
        }
        let long = ScanRange::starting_at(vec![b'k'; 5000]);
        assert!(client.count(&long).await.unwrap_err().to_string().contains("5000"));
        assert_eq!(client.exists("").await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    });
}

#[test]
fn a_scan_goes_on_from_its_token_also_elsewhere() {
    run(async {
        let (cluster, client) = bed(50).await;
        cluster.nodes.iter().for_each(|node| node.state.lock().position = 9);
        let options = || ScanOptions {
            limit: Some(20),
            reverse: true,
            keys_only: true,
            read: ReadOptions::default(),
            ..pages(4)
        };
        let mut scan = client.scan(&ScanRange::prefix("k"), options()).unwrap();
        for n in (40..50).rev() {
            let row = scan.next().await.unwrap().unwrap();
            assert_eq!((row.key, row.value.len()), (Bytes::from(format!("k{n:03}")), 0));
        }
        let token = scan.token().to_string();
        let elsewhere = Client::connect(cluster.config()).await.unwrap();
        let rest = elsewhere.resume(token.parse().unwrap(), ScanOptions { limit: None, ..pages(100) }).unwrap();
        let expected: Vec<String> = (30..40).rev().map(|n| format!("k{n:03}")).collect();
        assert_eq!(keys(rest).await, expected, "order, columns and what is left of the limit are the token's");
        let next: ScanToken = token.parse().unwrap();
        let rest = elsewhere.resume(next.with_limit(Some(12)), pages(5)).unwrap();
        assert_eq!(keys(rest).await.len(), 12, "a limit of its own may be more than what is left");
        assert_eq!(elsewhere.token().position.0, 9, "the session goes on too");
        let stranger: ScanToken = token.replace("scan1.00", "scan1.ff").parse().unwrap();
        assert_eq!(client.resume(stranger, pages(1)).unwrap_err().code(), Some(ErrorCode::BadToken));
    });
}

#[test]
fn pages_are_fetched_ahead_within_bounds_and_no_further() {
    run(async {
        let (cluster, client) = bed(100).await;
        let untied = ReadOptions { policy: Some(ReadPolicy::UNTIED), ..pages(10).read };
        let options = ScanOptions { pages_ahead: 3, read: untied, ..pages(10) };
        let mut scan = client.scan(&ScanRange::all(), options).unwrap();
        until("three pages are asked for", || scans(&cluster).len() == 3).await;
        for _ in 0..10 {
            scan.next().await.unwrap();
        }
        until("one more", || scans(&cluster).len() == 4).await;
        // Nobody reads on: nothing more is asked for, and nodes hold nothing.
        for _ in 0..20 {
            client.get("k001").await.unwrap();
        }
        assert_eq!(scans(&cluster).len(), 4);
        assert!(scans(&cluster).iter().all(|(_, page, class)| page.rows_max == 10 && *class == Class::Batch));
    });
}

#[test]
fn a_dropped_scan_withdraws_its_copies() {
    run(async {
        let (cluster, client) = bed(10).await;
        cluster.script(|_, _| Deed::Silence);
        let scan = client.scan(&ScanRange::all(), pages(10)).unwrap();
        until("a copy is out", || !scans(&cluster).is_empty()).await;
        drop(scan);
        until("it is withdrawn", || cluster.withdrawn() > 0).await;
    });
}

#[test]
fn a_page_is_tied_as_its_policy_says_but_neither_hedged_nor_rescued() {
    run(async {
        let (cluster, client) = bed(10).await;
        cluster.script(|_, request| match request.tie.as_ref().map(|tie| tie.number.0) {
            Some(0) => Deed::Silence,
            _ => Deed::Answer(Duration::from_millis(50)),
        });
        // The client's own policy is tied2+rescue.
        let tied = ReadOptions { gate: Some(false), ..pages(10).read };
        let scan = client.scan(&ScanRange::all(), ScanOptions { read: tied, ..pages(10) }).unwrap();
        assert_eq!(keys(scan).await.len(), 10);
        let kinds: Vec<_> = cluster.reads().into_iter().map(|(_, read)| read.kind.name()).collect();
        let mut nodes: Order = scans(&cluster).into_iter().map(|(node, ..)| node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!((kinds.len(), nodes.len()), (2, 2), "{kinds:?}");
        assert!(kinds.contains(&"first") && kinds.contains(&"tied"), "{kinds:?}");
    });
}

#[test]
fn a_deadline_over_the_limit_is_an_error_that_names_it_in_every_call() {
    run(async {
        let (cluster, client) = bed(1).await;
        let sent = cluster.reads().len();
        let deadline = Duration::from_secs(61);
        let read = ReadOptions { deadline: Some(deadline), ..ReadOptions::default() };
        let write = WriteOptions { deadline: Some(deadline), ..WriteOptions::default() };
        let pages = ScanOptions { read: read.clone(), ..ScanOptions::default() };
        let status = AdminOperation::Status;
        let refused = [
            client.get_with("k000", read.clone()).await.map(drop),
            client.multi_get(["k000"]).with(read.clone()).send().await.map(drop).map_err(|error| error.error),
            client.scan(&ScanRange::all(), pages).map(drop),
            client.view(1).count(&ScanRange::all(), read).await.map(drop),
            client.put_with("k000", "v", write).await.map(drop),
            client.admin_within(NodeId(1), status, deadline).await.map(drop),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.code(), Some(ErrorCode::OverLimit));
            assert!(error.to_string().contains("at most 60s, 61s were"), "{error}");
        }
        assert_eq!(cluster.reads().len(), sent, "nothing was sent");
        let longest = ReadOptions { deadline: Some(Duration::from_secs(60)), ..ReadOptions::default() };
        client.get_with("k000", longest).await.unwrap();
    });
}

#[test]
fn a_policy_with_extra_copies_that_a_scan_names_is_an_error_that_says_what_has_an_effect() {
    run(async {
        let (cluster, client) = bed(10).await;
        for (policy, right) in [
            (ReadPolicy::HEDGED, "`untied`"),
            (ReadPolicy::UNTIED.with_rescue(), "`untied`"),
            (ReadPolicy::TIED3.with_rescue(), "`tied3`"),
        ] {
            let read = ReadOptions { policy: Some(policy), ..pages(10).read };
            let refused = [
                client.scan(&ScanRange::all(), ScanOptions { read: read.clone(), ..pages(10) }).map(drop),
                client.view(1).count(&ScanRange::all(), read.clone()).await.map(drop),
                client.view(1).exists("k001", read).await.map(drop),
            ];
            for error in refused.map(Result::unwrap_err) {
                assert_eq!(error.code(), Some(ErrorCode::Unsupported));
                assert!(error.to_string().contains(right), "{error}");
            }
        }
        assert!(scans(&cluster).is_empty(), "nothing was sent");
        let tied = ReadOptions { policy: Some(ReadPolicy::TIED2), ..pages(10).read };
        assert_eq!(client.view(1).count(&ScanRange::all(), tied).await.unwrap(), 10);
    });
}

#[test]
fn an_error_ends_the_scan_and_its_token_goes_on_behind_what_was_read() {
    run(async {
        let (cluster, client) = bed(30).await;
        cluster.script(|_, request| match &request.operation {
            ReadOperation::Scan(page) if page.lo > "k010" => Deed::Refuse(ErrorCode::Malformed),
            _ => Deed::Answer(Duration::ZERO),
        });
        let mut scan = client.scan(&ScanRange::all(), pages(15)).unwrap();
        for _ in 0..15 {
            scan.next().await.unwrap().unwrap();
        }
        assert_eq!(scan.next().await.unwrap_err().code(), Some(ErrorCode::Malformed));
        assert_eq!(scan.next().await.unwrap(), None);
        cluster.script(|_, _| Deed::Answer(Duration::ZERO));
        let rest = keys(client.resume(scan.token(), pages(100)).unwrap()).await;
        assert_eq!((rest.len(), &rest[0][..]), (15, "k015"));
    });
}

#[test]
fn a_range_is_deleted_in_batches_and_progress_is_told() {
    run(async {
        let (cluster, client) = bed(400).await;
        let mut told = Vec::new();
        let range = ScanRange::between("k010", "k390");
        let removed = client.delete_range(&range, pages(9), |gone| told.push(gone)).await.unwrap();
        assert!(told.is_sorted() && told.contains(&380), "{told:?}");
        assert_eq!((removed, told.len()), (380, 3));
        let writes: Vec<_> =
            cluster.nodes[0].state.lock().writes.iter().map(|write| write.operation.clone()).collect();
        assert_eq!(writes.len(), 3);
        assert_eq!(cluster.nodes[0].state.lock().values.len(), 20);
    });
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

proptest! {
    #[test]
    fn a_token_survives_its_text(
        cluster: u128, position: u64, lo in bytes(), hi in prop::option::of(bytes()), reverse: bool, keys_only: bool,
        left: Option<u64>,
    ) {
        let seen = PositionToken { cluster: ClusterId(cluster), shard: SHARD_ZERO, position: Position(position) };
        let token = ScanToken { seen, range: ScanRange { lo, hi }, reverse, keys_only, left };
        prop_assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn other_texts_are_no_tokens_and_never_a_panic(text in "(scan1)?[.a-z0-9+-]{0,80}") {
        if let Ok(token) = text.parse::<ScanToken>() {
            prop_assert_eq!(token.to_string().parse(), Ok(token));
        }
    }
}

#[test]
fn a_token_of_another_shard_is_refused() {
    run(async {
        let (_cluster, client) = bed(1).await;
        let own = client.token();
        client.observe(own).unwrap();
        let error = client.observe(PositionToken { shard: ShardId(SHARD_ZERO.0 + 1), ..own }).unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::BadToken));
        assert!(error.to_string().contains("only"), "{error}");
    });
}

//! Tests of the client against scripted nodes over real QUIC.

use super::*;
use crate::fake_node::{CLUSTER, Deed, FakeCluster};
use crate::options::Level;
use crate::policy::ReadPolicy;
use crate::test_support::{connect, run, stale as options, until};
use crate::{Cause, CopyFate, clock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::ids::{Position, SHARD_ZERO};
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Failure;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_tied_read_wins_by_the_second_copy_and_withdraws_the_first() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match request.kind {
            CopyKind::First => Deed::Silence,
            _ => Deed::Answer(MS),
        });
        let client = connect(&cluster).await;
        let read = client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
        assert!(read.value.is_none());
        let report = &read.report;
        assert_eq!((report.kind, report.copies.len()), (CopyKind::Tied, 2));
        assert_eq!(report.copies[0].fate, CopyFate::Unanswered);
        assert_eq!(report.copies[1].fate, CopyFate::Won);
        let early = report.tie_delay.unwrap().saturating_sub(report.tie_delay_realised.unwrap());
        assert!(early <= crate::lateness::LATENESS_MAX, "{early:?} before it was due");
        let reads = cluster.reads();
        let ties: Vec<_> = reads.iter().map(|(node, read)| (read.tie.clone().unwrap(), *node)).collect();
        assert_eq!(ties.len(), 2);
        assert_eq!(ties[0].0.id, ties[1].0.id);
        assert_eq!(ties[0].0.members, ties[1].0.members);
        for (tie, node) in &ties {
            assert_eq!(tie.holder(), Some(*node));
            tie.check().unwrap();
        }
        until("the withdraw arrives", || cluster.withdrawn() == 1).await;
        let stats = client.stats();
        assert!(stats.balanced(), "{stats:?}");
        assert_eq!((stats.won.of(CopyKind::Tied), stats.unanswered.of(CopyKind::First)), (1, 1));
        assert_eq!(stats.outstanding.total(), 0);
    });
}

#[test]
fn a_quick_first_copy_is_the_only_one() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let mut config = cluster.config();
        config.tie_delay_floor = MS * 200;
        config.tie_delay_cap = MS * 200;
        let client = Client::connect(config).await.unwrap();
        for _ in 0..20 {
            let read = client.get_with("k", options(ReadPolicy::TIED3)).await.unwrap();
            assert_eq!(read.report.copies.len(), 1);
        }
        assert_eq!(cluster.reads().len(), 20);
        assert_eq!(client.stats().withdrawn.total(), 0);
    });
}

#[test]
fn refusals_ask_the_next_at_once_and_failures_begin_a_fresh_tie() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster).await;
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        cluster.script(move |_, _| match count.fetch_add(1, Relaxed) {
            0 => Deed::Refuse(ErrorCode::Busy),
            1 => Deed::Fail(ErrorCode::Storage),
            _ => Deed::Answer(Duration::ZERO),
        });
        let read = client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
        assert!(matches!(&read.report.copies[0].fate, CopyFate::Refused(f) if f.code == ErrorCode::Busy));
        assert!(read.report.copies.iter().any(|copy| matches!(&copy.fate, CopyFate::Failed(_))));
        assert!(read.report.fresh_ties >= 1);
        assert!(client.stats().balanced(), "{:?}", client.stats());
    });
}

#[test]
fn a_wrong_call_ends_the_read_and_says_so() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Refuse(ErrorCode::OverLimit));
        let client = connect(&cluster).await;
        let error = client.get("k").await.unwrap_err();
        assert_eq!((error.caller_move(), error.code()), (Move::FixTheCall, Some(ErrorCode::OverLimit)));
        assert_eq!(client.get("").await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    });
}

#[test]
fn black_holes_end_on_time_and_list_what_was_tried() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Silence);
        let client = connect(&cluster).await;
        let options = ReadOptions { deadline: Some(MS * 150), ..options(ReadPolicy::TIED2) };
        // Other tests share the machine: the fastest of some tries is on time, none is early.
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let began = clock::now();
            client.get_with("k", options.clone()).await.unwrap_err();
            fastest = fastest.min(clock::now().since(began));
        }
        assert!(fastest >= MS * 150 && fastest < MS * 170, "{fastest:?}");
        let error = client.get_with("k", options).await.unwrap_err();
        assert_eq!(error.caller_move(), Move::GiveUp);
        assert_eq!(error.copies().len(), 2);
        assert!(error.to_string().contains("first copy to n"), "{error}");
        assert!(client.stats().balanced());
    });
}

#[test]
fn silent_nodes_are_given_up_and_the_read_goes_elsewhere() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster).await;
        // One node falls silent altogether: no echo of pings either.
        cluster.nodes[0].state.lock().mute = true;
        let mut elsewhere = 0;
        for _ in 0..30 {
            let read = client.get_with("k", options(ReadPolicy::UNTIED)).await.unwrap();
            if read.report.copies.iter().any(|copy| matches!(copy.fate, CopyFate::LinkLost(_))) {
                elsewhere += 1;
                break;
            }
        }
        assert_eq!(elsewhere, 1, "30 reads never chose the mute node first");
        assert!(client.stats().balanced(), "{:?}", client.stats());
    });
}

#[test]
fn dropped_reads_leave_nothing_behind() {
    run(drop_many_reads());
}

#[test]
fn dropped_reads_leave_nothing_behind_on_many_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), drop_many_reads()).await.expect("the test hangs");
    });
}

async fn drop_many_reads() {
    let cluster = FakeCluster::start(3).await;
    cluster.script(|_, request| match request.read.0 % 3 {
        0 => Deed::Answer(MS * 2),
        1 => Deed::Silence,
        _ => Deed::Answer(Duration::ZERO),
    });
    let client = connect(&cluster).await;
    let mut reads = Vec::new();
    for round in 0..2_000_u64 {
        let view = client.view(round);
        reads.push(tokio::spawn(async move {
            let wait = Duration::from_micros(round % 5_000);
            let _ = tokio::time::timeout(wait, view.get_with("k", options(ReadPolicy::TIED3))).await;
        }));
    }
    for read in reads {
        read.await.unwrap();
    }
    let stats = client.stats();
    assert_eq!(stats.outstanding.total(), 0);
    assert!(stats.reads_dropped > 0);
    assert_eq!(stats.reads, stats.reads_answered + stats.reads_failed + stats.reads_dropped);
    // Every copy that arrived was answered or is withdrawn, and late answers find their way into the balance.
    until("all copies are withdrawn or answered", || {
        let stats = client.stats();
        stats.balanced() && cluster.withdrawn() as u64 == stats.withdrawn.total()
    })
    .await;
    assert_eq!(cluster.reads().len() as u64, client.stats().sent.total());
}

#[test]
fn a_lost_link_fails_over_and_comes_back() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| if request.kind == CopyKind::First { Deed::HangUp } else { Deed::Answer(MS) });
        let client = connect(&cluster).await;
        let read = client.get_with("k", options(ReadPolicy::UNTIED)).await.unwrap();
        assert!(matches!(read.report.copies[0].fate, CopyFate::LinkLost(_)), "{:?}", read.report.copies);
        assert_eq!(read.report.kind, CopyKind::Retry);
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        cluster.nodes[1].hang_up();
        until("the loss is noticed", || client.stats().links_lost >= 2).await;
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        assert!(client.stats().balanced(), "{:?}", client.stats());
    });
}

#[test]
fn a_node_that_moved_is_found_by_the_topology() {
    run(async {
        let mut cluster = FakeCluster::start(2).await;
        let client = connect(&cluster).await;
        cluster.restart(1);
        until("the loss is noticed", || client.stats().links_lost >= 1).await;
        client.all_connected(Duration::from_secs(10)).await.unwrap();
        assert_eq!(client.topology().version, 2);
    });
}

#[test]
fn writes_follow_the_leader_and_keep_their_key() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster).await;
        cluster.nodes[0].state.lock().write_failures = vec![
            Failure::new(ErrorCode::Busy, "full"),
            Failure::new(ErrorCode::UnknownOutcome, "the leader changed"),
        ];
        let written = client.put("k", "v").await.unwrap();
        assert!(written.tries >= 3);
        assert_eq!(client.token(), written.token);
        let keys: Vec<_> =
            cluster.nodes.iter().flat_map(|node| node.state.lock().writes.clone()).map(|w| w.idempotency).collect();
        assert!(keys.len() >= 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        let other = client.put("k", "v2").await.unwrap();
        assert!(other.version > written.version);
        let pinned = client.put_on(NodeId(2), "k", "v").await.unwrap_err();
        assert!(pinned.to_string().contains("not-leader"), "{pinned}");
    });
}

#[test]
fn an_unknown_outcome_is_said_when_nothing_settles_it() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        let client = connect(&cluster).await;
        cluster.nodes[0].state.lock().mute = true;
        let options = WriteOptions { deadline: Some(MS * 120), ..WriteOptions::default() };
        let error = client.put_with("k", "v", options).await.unwrap_err();
        assert!(error.elapsed() < MS * 900, "{:?}", error.elapsed());
        assert_eq!(error.caller_move(), Move::UnknownOutcome);
        assert!(matches!(error.cause(), Cause::UnknownOutcome(_)), "{error}");
    });
}

#[test]
fn large_values_travel_both_ways() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        let client = connect(&cluster).await;
        let value = Bytes::from(vec![7u8; 3_000_000]);
        client.put("big", value.clone()).await.unwrap();
        let found = client.get("big").await.unwrap().unwrap();
        assert_eq!(found.value, value);
        let over = client.put("big", vec![0u8; 9 << 20]).await.unwrap_err();
        assert_eq!(over.code(), Some(ErrorCode::OverLimit));
    });
}

#[test]
fn sessions_read_their_writes_and_refuse_foreign_tokens() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster).await;
        let written = client.put("k", "v").await.unwrap();
        // Node 1 has it; the others answer from an older position and are not believed.
        let options = ReadOptions { level: Some(Level::Session), ..options(ReadPolicy::UNTIED) };
        for _ in 0..10 {
            let read = client.get_with("k", options.clone()).await.unwrap();
            assert_eq!(read.report.node, NodeId(1));
            assert!(read.report.token.position >= written.token.position);
        }
        let view = client.view(1);
        assert_eq!(view.token().position, Position(0));
        view.observe(written.token).unwrap();
        assert_eq!(view.token(), written.token);
        let foreign = PositionToken { cluster: ClusterId(1), shard: SHARD_ZERO, position: Position(9) };
        assert_eq!(view.observe(foreign).unwrap_err().code(), Some(ErrorCode::BadToken));
        assert!(client.stats().balanced(), "{:?}", client.stats());
    });
}

#[test]
fn unreachable_clusters_and_wrong_certificates_are_explained() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        let mut config = cluster.config();
        config.seeds = vec!["127.0.0.1:1".into()];
        config.connect_deadline = MS * 300;
        let began = clock::now();
        let error = Client::connect(config.clone()).await.unwrap_err();
        assert!(clock::now().since(began) < MS * 1_500);
        assert_eq!(error.caller_move(), Move::RetryHere);
        config.certificate_name = "node-1".into();
        let error = Client::connect(config.clone()).await.unwrap_err();
        assert!(error.to_string().contains("certificate of node n1"), "{error}");
        config.certificate_name = "nobody".into();
        let error = Client::connect(config).await.unwrap_err();
        assert!(error.to_string().contains("nobody.pem"), "{error}");
    });
}

#[test]
fn seeds_are_tried_until_one_answers() {
    run(async {
        let cluster = FakeCluster::start(2).await;
        let mut config = cluster.config();
        config.seeds =
            vec!["127.0.0.1:1".into(), "no-such-name.invalid:7".into(), cluster.nodes[1].address.clone()];
        let client = Client::connect(config).await.unwrap();
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        assert_eq!(client.cluster(), CLUSTER);
        let nodes = client.nodes();
        assert_eq!(nodes.len(), 2);
        assert!(nodes[0].leader && nodes[0].modelled);
        until("round trips are known", || client.nodes().iter().all(|node| node.round_trip.is_some())).await;
        assert_eq!(client.status(NodeId(2)).await.unwrap(), "{}");
        assert!(client.admin(NodeId(9), AdminOperation::Status).await.is_err());
    });
}

#[test]
fn a_closed_or_dropped_client_ends_its_connections() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        cluster.script(|_, _| Deed::Silence);
        let client = connect(&cluster).await;
        let view = client.view(1);
        let read = tokio::spawn(async move { view.get("k").await });
        until("the copy arrives", || !cluster.reads().is_empty()).await;
        client.close();
        let error = read.await.unwrap().unwrap_err();
        assert!(matches!(error.cause(), Cause::Closed), "{error}");
        assert!(matches!(client.get("k").await.unwrap_err().cause(), Cause::Closed));
        let lost = client.stats().links_lost;
        assert_eq!(lost, 1);
    });
}

#[test]
fn a_node_on_probation_gets_shadows_and_comes_back() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let mut config = cluster.config();
        config.engine.probation.stay_min = MS * 100;
        config.engine.probation.shadow_every = MS * 5;
        let client = Client::connect(config).await.unwrap();
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        let sick = Arc::new(AtomicU64::new(1));
        let node = sick.clone();
        cluster.script(move |id, _| match id.0 == node.load(Relaxed) {
            true => Deed::Fail(ErrorCode::Internal),
            false => Deed::Answer(Duration::ZERO),
        });
        for _ in 0..60 {
            client.get_with("k", options(ReadPolicy::UNTIED)).await.unwrap();
        }
        let firsts =
            |kind: CopyKind| cluster.nodes[0].state.lock().reads.iter().filter(|read| read.kind == kind).count();
        let before = firsts(CopyKind::First);
        assert!((5..20).contains(&before), "{before} first copies");
        sick.store(0, Relaxed);
        let end = clock::now() + Duration::from_secs(10);
        while firsts(CopyKind::First) < before + 5 {
            assert!(clock::now() < end, "it never came back; {} shadows", firsts(CopyKind::Shadow));
            client.get_with("k", options(ReadPolicy::UNTIED)).await.unwrap();
            tokio::time::sleep(MS).await;
        }
        assert!(firsts(CopyKind::Shadow) >= 5);
        until("the shadows are answered", || client.stats().outstanding.total() == 0).await;
        assert!(client.stats().balanced(), "{:?}", client.stats());
    });
}

#[test]
fn several_connections_per_node_share_the_copies() {
    run(async {
        let cluster = FakeCluster::start(2).await;
        let mut config = cluster.config();
        config.connections_per_node = 3;
        let client = Client::connect(config).await.unwrap();
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        assert_eq!(client.nodes().iter().map(|node| node.links).collect::<Vec<_>>(), [3, 3]);
        cluster.script(|_, _| Deed::Silence);
        let short = ReadOptions { deadline: Some(MS * 40), ..options(ReadPolicy::TIED2) };
        let reads: Vec<_> = (0..30)
            .map(|_| {
                let (client, short) = (client.clone(), short.clone());
                tokio::spawn(async move { client.get_with("k", short).await })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await.unwrap().unwrap_err().copies().len(), 2);
        }
        until("all are withdrawn", || cluster.withdrawn() == 60).await;
        assert!(client.stats().balanced());
    });
}

#[test]
fn ipv6_addresses_are_dialled() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return;
    }
    run(async {
        let cluster = FakeCluster::start_on("[::1]:0", 2).await;
        assert!(cluster.nodes[0].address.starts_with("[::1]:"));
        let client = connect(&cluster).await;
        client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
    });
}

#[test]
fn calls_that_time_out_keep_no_entry() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        let mut config = cluster.config();
        config.pending_max = 24;
        config.silence_min = Duration::from_secs(30);
        let client = Client::connect(config).await.unwrap();
        cluster.nodes[0].state.lock().mute = true;
        for _ in 0..60 {
            let short = WriteOptions { deadline: Some(MS), ..WriteOptions::default() };
            let error = client.put_with("k", "v", short).await.unwrap_err();
            assert!(!error.to_string().contains("answers are owed"), "{error}");
        }
    });
}

#[test]
fn a_node_of_another_version_is_named() {
    run(async {
        let cluster = FakeCluster::start(1).await;
        cluster.nodes[0].state.lock().version = 900;
        let mut config = cluster.config();
        config.connect_deadline = 300 * MS;
        let error = Client::connect(config).await.unwrap_err();
        assert!(error.to_string().contains("protocol version 900"), "{error}");
    });
}

#[test]
fn slow_reads_are_kept_with_their_copies_and_who_cancelled_whom() {
    run(async {
        let cluster = FakeCluster::start(2).await;
        let mut config = cluster.config();
        (config.slow_read, config.tie_delay_cap) = (250 * MS, MS);
        let client = Client::connect(config).await.unwrap();
        client.all_connected(Duration::from_secs(5)).await.unwrap();
        client.get_with("quick", options(ReadPolicy::TIED2)).await.unwrap();
        // The second copy's node answers late; the first one is silent, as if it had been cancelled.
        cluster.script(|_, request| match request.tie.as_ref().map(|tie| tie.number.0) {
            Some(0) => Deed::Silence,
            _ => Deed::Answer(300 * MS),
        });
        client.get_with("slow", options(ReadPolicy::TIED2)).await.unwrap();
        let slow = client.slow_reads();
        let [read] = &slow[..] else { panic!("one is slow: {slow:?}") };
        let [first, second] = &read.copies[..] else { panic!("{read}") };
        assert!(read.latency >= 300 * MS && read.answered && read.tie_delay.is_some(), "{read}");
        assert_eq!((first.number, first.cancelled_by), (Some(0), Some(second.node)), "{read}");
        assert_eq!((second.started, second.fate.clone()), (Some(true), CopyFate::Won), "{read}");
        assert!(second.queue_wait.is_some() && second.sent_after > first.sent_after, "{read}");
        assert!(read.to_string().contains(&format!("cancelled by {}", second.node)), "{read}");
    });
}

//! The tie, through the public door: two or three in-process nodes with real workers, and a wire in the test's hand.

use crate::clock;
use crate::request::execute::execute;
use crate::request::held::{Admission, HeldCopy};
use crate::request::test_support::{Cluster, PATIENCE, drawn, modelled, read, seen, stall_now, tied};
use crate::storage::state_store::{Mutation, StateStore};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position, RequestId, Version};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::multi_get::{Answer, Answers};
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::{CopyKind, ReadOperation, ReadRequest};
use tiedkv_protocol::response::{CopyEnd, flags};
use tiedkv_protocol::tie::CopyNumber;

const MS: Duration = Duration::from_millis(1);
/// Long enough that nothing of a test waits for its end by chance.
const LONG: Duration = Duration::from_millis(800);

fn cluster(nodes: u64, service: Duration) -> Cluster {
    Cluster::new(nodes, |config| config.device = modelled(service))
}

fn reads_wire(cluster: &Cluster) -> Vec<(u64, u64, u8)> {
    let mut wire = cluster.on_wire();
    wire.sort_unstable();
    wire
}

#[test]
fn an_untied_read_is_served_with_its_value_and_its_times() {
    let cluster = cluster(1, 4 * MS);
    let node = cluster.node(0);
    node.read(read(1));
    let (reply, value) = node.answer_with_value();
    let found = reply.outcome.expect("found");
    assert_eq!((found.position, &value[..], found.version.map(|v| v.0)), (Position(1), &b"value"[..], Some(1)));
    let service = Duration::from_micros(u64::from(reply.service.service_time_us));
    assert!(reply.service.started && service + MS >= drawn(4 * MS, 1), "{:?}", reply.service);
    assert_eq!((reply.service.flags, reply.service.node), (flags::MODELLED, NodeId(1)));
    let counters = node.assert_balanced();
    assert_eq!((counters.answered_good, counters.started, counters.cancels_sent), (1, 1, 0));
}

#[test]
fn a_real_device_serves_at_once() {
    let cluster = Cluster::new(1, |config| config.workers_per_lane = 4);
    let node = cluster.node(0);
    (0..1_000).for_each(|request| node.read(read(request)));
    (0..1_000).for_each(|_| assert!(node.answer().outcome.is_ok()));
    assert!(!node.path.status().modelled);
    node.assert_balanced();
}

#[test]
fn keys_that_share_a_copy_are_answered_in_order_and_take_a_draw_each() {
    let cluster = cluster(1, MS);
    let node = cluster.node(0);
    node.store
        .apply(&[Mutation::Put { key: Bytes::from_static(b"other"), value: Bytes::new() }], Position(2), 0)
        .unwrap();
    let keys = [&b"absent"[..], b"other", read(1).operation.first_key()].map(Bytes::copy_from_slice).to_vec();
    node.read(ReadRequest { operation: ReadOperation::MultiGet { keys: keys.clone() }, ..read(7) });
    let (reply, payload) = node.answer_with_value();
    let mut answers = Answers::new(payload);
    assert_eq!(answers.next_answer(), Ok(Some(None)));
    let other = Answer { value: Bytes::new(), version: Version(2), remaining_ms: None };
    assert_eq!(answers.next_answer(), Ok(Some(Some(other))));
    let value = answers.next_answer().unwrap().flatten().map(|answer| answer.value);
    assert_eq!((value.as_deref(), answers.next_answer()), (Some(&b"value"[..]), Ok(None)));
    let three: Duration = (7..10).map(|request| drawn(MS, request)).sum();
    let service = Duration::from_micros(u64::from(reply.service.service_time_us));
    assert!(service + MS / 2 >= three, "{service:?} of {three:?}");
    node.read(ReadRequest { operation: ReadOperation::MultiGet { keys: Vec::new() }, ..read(8) });
    assert_eq!(node.answer().outcome.unwrap_err().code, ErrorCode::OverLimit);
    // Some keys are answered, however little time there is.
    let keys = vec![keys[0].clone(); 20];
    let admission = Admission { lane: 0, admitted: Moment(0), deadline: Moment(1), barrier: None, page: None };
    let request = ReadRequest { operation: ReadOperation::MultiGet { keys }, ..read(9) };
    let copy = HeldCopy::new(node.caller.clone(), request, admission);
    let (_, payload) = execute(&*node.store, &copy, || false).unwrap().expect("done");
    assert_eq!(payload.len(), 8, "an absent key takes a byte");
    node.assert_balanced();
}

#[test]
fn both_queues_empty_the_first_start_cancels_the_copy_that_comes_later() {
    let cluster = cluster(2, 5 * MS);
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    assert_eq!(cluster.on_wire(), [(1, 2, 0)]);
    cluster.deliver_all();
    cluster.node(1).read(tied(1, 1, 2));
    assert!(cluster.node(0).answer().outcome.is_ok());
    let second = cluster.node(1).assert_balanced();
    assert_eq!((second.early_dropped, second.started, second.cancels_filed), (1, 0, 1));
    cluster.assert_balanced();
}

#[test]
fn a_start_cancels_the_copy_that_waits_elsewhere() {
    let cluster = cluster(3, LONG);
    // Copies 1 and 2 wait behind reads of their own node's.
    cluster.node(1).read(read(90));
    cluster.node(2).read(read(91));
    for index in 1..3 {
        cluster.node(index).until("the start", |c| c.started == 1);
    }
    cluster.node(2).read(tied(1, 2, 3));
    cluster.node(1).read(tied(1, 1, 3));
    cluster.node(0).read(tied(1, 0, 3));
    cluster.node(0).until("the start", |c| c.started == 1);
    assert_eq!(reads_wire(&cluster), [(1, 2, 0), (1, 3, 0)]);
    cluster.deliver_all();
    assert!(cluster.node(0).answer().outcome.is_ok());
    for index in 1..3 {
        assert_eq!(cluster.node(index).answer().request, RequestId(89 + index as u64));
        let counters = cluster.node(index).assert_balanced();
        assert_eq!((counters.cancelled, counters.started), (1, 1));
        assert_eq!(cluster.node(index).path.status().lanes[0].depth, 0);
    }
}

#[test]
fn both_start_at_once_the_higher_number_yields_and_one_answers() {
    let cluster = cluster(2, LONG);
    let began = clock::now();
    (0..2).for_each(|n| cluster.node(n).read(tied(1, n as u8, 2)));
    for index in 0..2 {
        cluster.node(index).until("the start", |c| c.started == 1);
    }
    cluster.deliver_all();
    let second = cluster.node(1).until("the yield", |c| c.yielded == 1);
    assert!(clock::now().since(began) < drawn(LONG, 1), "a yield frees the worker before the service is over");
    assert!(second.wasted_us > 0 && second.duplicates_seen == 1, "{second:?}");
    assert!(cluster.node(0).answer().outcome.is_ok());
    cluster.assert_balanced();
}

#[test]
fn a_lost_cancel_is_made_good_by_the_cancel_sent_back() {
    let cluster = cluster(2, LONG);
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    let _lost = cluster.take_wire();
    cluster.node(1).read(tied(1, 1, 2));
    cluster.node(1).until("the start", |c| c.started == 1);
    // B tells A; A runs with the lower number and tells B: once per cancel received.
    let from_second = cluster.take_wire();
    cluster.deliver(&from_second);
    cluster.deliver(&from_second);
    assert_eq!(cluster.on_wire(), [(1, 2, 0), (1, 2, 0)]);
    cluster.deliver_all();
    cluster.node(1).until("the yield", |c| c.yielded == 1);
    assert!(cluster.node(0).answer().outcome.is_ok());
    assert_eq!(cluster.node(0).path.counters().cancels_sent_back, 2);
    cluster.assert_balanced();
}

#[test]
fn all_cancels_lost_costs_duplicates_never_a_read() {
    let cluster = cluster(3, 5 * MS);
    for request in 1..=20 {
        (0..3).for_each(|n| cluster.node(n).read(tied(request, n as u8, 3)));
    }
    for index in 0..3 {
        (0..20).for_each(|_| assert!(cluster.node(index).answer().outcome.is_ok()));
    }
    let _lost = cluster.take_wire();
    cluster.assert_balanced();
}

#[test]
fn late_double_and_strange_cancels_change_nothing() {
    let cluster = cluster(3, LONG);
    // Queued behind a read; n3 is no member of this tie.
    cluster.node(1).read(read(90));
    cluster.node(1).until("the start", |c| c.started == 1);
    cluster.node(1).read(tied(1, 1, 2));
    let stolen = {
        cluster.node(0).read(tied(1, 0, 2));
        cluster.node(0).until("start", |c| c.started == 1);
        cluster.take_wire()
    };
    let (_, to, cancel) = stolen[0];
    cluster.node(1).path.cancel(NodeId(3), cancel);
    assert_eq!((to, cluster.node(1).path.counters().cancels_ignored), (NodeId(2), 1));
    // The named peer's, twice: the second finds nothing.
    cluster.deliver(&stolen);
    cluster.deliver(&stolen);
    assert_eq!(cluster.node(1).path.counters().cancelled, 1);
    assert!(cluster.node(0).answer().outcome.is_ok());
    // Late: after everything ended.
    cluster.node(0).path.cancel(NodeId(2), Cancel { number: CopyNumber(1), ..cancel });
    cluster.node(1).answer();
    cluster.assert_balanced();
}

#[test]
fn a_cancel_of_a_former_life_does_not_touch_fresh_ties() {
    let cluster = cluster(2, 5 * MS);
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    let former = cluster.take_wire();
    // n1 restarts under its old identity; the client sends what it lost as a fresh tie, copy 0 to n1 again.
    let again = Cluster::new(2, |config| config.device = modelled(5 * MS));
    again.node(1).read(tied(2, 1, 2));
    again.deliver(&former);
    assert!(again.node(1).answer().outcome.is_ok());
    again.assert_balanced();
}

#[test]
fn a_chunk_that_waits_is_running_a_higher_number_s_cancel_does_not_end_it() {
    let cluster = Cluster::new(2, |config| {
        config.device = modelled(LONG);
        config.chunk_max = 20 * MS;
    });
    let first = cluster.node(0);
    first.read(tied(1, 0, 2));
    first.until("the start", |c| c.started == 1);
    // A second read makes the first one's chunks wait in turn.
    first.read(read(90));
    first.until("the second start", |c| c.started == 2);
    cluster.node(1).read(tied(1, 1, 2));
    cluster.node(1).until("the start", |c| c.started == 1);
    assert_eq!(first.path.status().lanes[0].depth, 1, "one of the two waits for its next chunk");
    // Lost: n1's cancel. n2's cancel comes again and again, so that it meets the copy waiting and being served.
    let from_second: Vec<_> = cluster.take_wire().into_iter().filter(|(from, ..)| *from == NodeId(2)).collect();
    for _ in 0..40 {
        cluster.deliver(&from_second);
        let chunks = clock::now() + 2 * MS;
        while clock::now() < chunks {
            std::thread::yield_now();
        }
    }
    // What n1 sent back ends the copy of n2; its own goes on.
    cluster.deliver_all();
    cluster.node(1).until("the yield", |c| c.yielded == 1);
    let answers = [first.answer(), first.answer()];
    assert!(answers.iter().all(|answer| answer.outcome.is_ok()), "{answers:?}");
    cluster.assert_balanced();
}

#[test]
fn a_chunk_that_waits_ends_when_it_has_to_yield() {
    let cluster = Cluster::new(2, |config| {
        config.device = modelled(LONG);
        config.chunk_max = 20 * MS;
    });
    let second = cluster.node(1);
    second.read(tied(1, 1, 2));
    second.read(read(90));
    second.until("both started", |c| c.started == 2);
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    cluster.deliver_all();
    second.until("the yield", |c| c.yielded == 1);
    assert_eq!((second.answer().request, cluster.node(0).answer().request), (RequestId(90), RequestId(1)));
    cluster.assert_balanced();
}

#[test]
fn a_copy_set_aside_cancels_nobody_until_it_starts() {
    let cluster = Cluster::new(2, |config| {
        config.device = modelled(5 * MS);
        config.aside_limit = PATIENCE;
    });
    let first = cluster.node(0);
    let copy = |number| ReadRequest { level: seen(2), ..tied(1, number, 2) };
    first.read(copy(0));
    first.until("set aside", |c| c.set_aside == 1);
    assert_eq!((cluster.on_wire(), first.path.counters().started), (vec![], 0));
    assert_eq!(first.path.status().lanes[0].set_aside, 1);
    first.store.apply(&[], Position(2), 0).expect("applies");
    let reply = first.answer();
    assert_eq!(reply.outcome.map(|found| found.position), Ok(Position(2)));
    assert_eq!(cluster.on_wire(), [(1, 2, 0)]);
    cluster.assert_balanced();
}

#[test]
fn a_copy_set_aside_is_cancelled_like_a_queued_one() {
    let cluster = Cluster::new(2, |config| config.aside_limit = PATIENCE);
    let copy = |number| ReadRequest { level: seen(2), ..tied(1, number, 2) };
    cluster.node(1).read(copy(1));
    cluster.node(1).until("set aside", |c| c.set_aside == 1);
    cluster.node(0).store.apply(&[], Position(2), 0).expect("applies");
    cluster.node(0).read(copy(0));
    assert!(cluster.node(0).answer().outcome.is_ok());
    cluster.deliver_all();
    assert_eq!(cluster.node(1).assert_balanced().cancelled, 1);
    // Published later, the replica finds nothing to do.
    cluster.node(1).store.apply(&[], Position(2), 0).expect("applies");
    assert_eq!(cluster.node(1).assert_balanced().started, 0);
}

#[test]
fn a_lagging_replica_answers_behind_with_what_it_has() {
    let cluster = Cluster::new(1, |_| {});
    let node = cluster.node(0);
    node.store.lag(true);
    node.store.apply(&[], Position(9), 0).expect("applies");
    node.read(ReadRequest { level: seen(9), ..read(1) });
    let reply = node.answer();
    let failure = reply.outcome.expect_err("behind");
    assert_eq!(
        (failure.code, failure.need, failure.have),
        (ErrorCode::Behind, Some(Position(9)), Some(Position(1)))
    );
    assert!(!reply.service.started);
    node.store.lag(false);
    node.read(ReadRequest { level: seen(9), ..read(2) });
    assert!(node.answer().outcome.is_ok());
    node.assert_balanced();
}

#[test]
fn too_many_set_aside_are_answered_behind_at_once() {
    let cluster = Cluster::new(1, |config| {
        config.aside_max = 3;
        config.aside_limit = PATIENCE;
    });
    let node = cluster.node(0);
    (0..10).for_each(|id| node.read(ReadRequest { level: seen(2), ..read(id) }));
    for _ in 0..7 {
        assert_eq!(node.answer().outcome.map_err(|f| f.code), Err(ErrorCode::Behind));
    }
    node.store.apply(&[Mutation::Delete { key: Bytes::from_static(b"key") }], Position(2), 0).expect("applies");
    (0..3).for_each(|_| assert_eq!(node.answer().outcome.map(|found| found.version), Ok(None)));
    node.assert_balanced();
}

#[test]
fn a_stall_after_the_start_keeps_the_worker_though_the_copy_yields() {
    let cluster = cluster(2, 2 * MS);
    let second = cluster.node(1);
    second.path.record_starts(true);
    let stall_end = stall_now(second, true);
    second.read(tied(1, 1, 2));
    second.until("the start", |c| c.started == 1);
    second.read(read(90));
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    cluster.deliver_all();
    assert!(cluster.node(0).answer().outcome.is_ok());
    assert!(second.answer().outcome.is_ok());
    let records = second.path.take_starts(0, 10).records;
    assert_eq!((records.len(), records[0].end), (2, CopyEnd::Yielded));
    assert!(clock::now() > stall_end && records[0].started_us < stall_end.as_micros());
    assert!(records.iter().all(|record| record.ended_us >= stall_end.as_micros()), "{stall_end:?}, {records:?}");
    assert!(records[1].started_us >= stall_end.as_micros(), "a yield freed the worker of a stalled device");
    cluster.assert_balanced();
}

#[test]
fn a_stall_before_the_start_holds_the_lane_but_not_cancels() {
    let cluster = cluster(2, 2 * MS);
    let second = cluster.node(1);
    let stall_end = stall_now(second, false);
    second.read(tied(1, 1, 2));
    cluster.node(0).read(tied(1, 0, 2));
    cluster.node(0).until("the start", |c| c.started == 1);
    cluster.deliver_all();
    assert!(cluster.node(0).answer().outcome.is_ok());
    let counters = second.assert_balanced();
    assert_eq!((counters.cancelled, counters.started), (1, 0));
    assert!(clock::now() < stall_end, "the test was too slow to show anything");
    second.read(read(2));
    assert!(second.answer().outcome.is_ok() && clock::now() >= stall_end);
    cluster.assert_balanced();
}

#[test]
fn withdraws_end_copies_wherever_they_are() {
    let cluster = cluster(1, LONG);
    let node = cluster.node(0);
    node.path.record_starts(true);
    // Before its copy.
    node.path.withdraw(&node.caller, &[RequestId(9)]);
    node.read(read(1));
    node.until("the start", |c| c.started == 1);
    node.path.withdraw(&node.caller, &[RequestId(9)]);
    node.read(read(9));
    assert_eq!(node.path.counters().withdrawn, 1);
    // Queued, then running: the worker goes on at once with what waits.
    node.read(read(2));
    node.read(read(3));
    node.path.withdraw(&node.caller, &[RequestId(2)]);
    assert_eq!((node.path.counters().withdrawn, node.path.status().lanes[0].depth), (2, 1));
    let before = clock::now();
    node.path.withdraw(&node.caller, &[RequestId(1), RequestId(1)]);
    node.until("the next start", |c| c.started == 2);
    assert!(clock::now().since(before) < drawn(LONG, 1) / 2, "the withdrawn copy kept its worker");
    assert_eq!(node.answer().request, RequestId(3));
    let counters = node.assert_balanced();
    assert_eq!((counters.withdrawn, counters.withdrawn_running), (3, 1));
    let ends: Vec<_> = node.path.take_starts(0, 9).records.iter().map(|record| record.end).collect();
    assert_eq!(ends, [CopyEnd::Withdrawn, CopyEnd::Answered]);
}

#[test]
fn a_lost_connection_leaves_nothing() {
    let cluster = Cluster::new(1, |config| {
        config.device = modelled(LONG);
        config.aside_limit = PATIENCE;
    });
    let node = cluster.node(0);
    node.read(ReadRequest { level: seen(2), ..read(1) });
    node.until("set aside", |c| c.set_aside == 1);
    (2..6).for_each(|request| node.read(read(request)));
    node.until("the start", |c| c.started == 1);
    node.path.connection_lost(&node.caller);
    let counters = node.assert_balanced();
    assert_eq!((counters.withdrawn, counters.withdrawn_running), (5, 1));
    assert_eq!(node.path.status().lanes[0].depth, 0);
}

#[test]
fn a_full_queue_answers_busy_at_once_and_sheds_extra_copies_first() {
    let cluster = Cluster::new(1, |config| {
        config.device = modelled(LONG);
        config.queue_max = 3;
    });
    let node = cluster.node(0);
    node.read(read(1));
    node.until("the start", |c| c.started == 1);
    let hedge = |id| ReadRequest { kind: CopyKind::Hedge, ..read(id) };
    node.read(hedge(2));
    node.read(hedge(3));
    node.read(read(4));
    // A first copy pushes the youngest hedge out; another hedge is refused; then no hedge is left to push out but one.
    node.read(read(5));
    node.read(hedge(6));
    node.read(read(7));
    node.read(read(8));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let reply = node.answer_now().expect("answered at once");
            let failure = reply.outcome.expect_err("busy");
            assert_eq!((failure.code, reply.service.started), (ErrorCode::Busy, false));
            assert!(failure.retry_after_us >= 1_000);
            reply.request.0
        })
        .collect();
    assert_eq!(busy, [3, 6, 2, 8]);
    node.path.stop(Duration::ZERO);
    (0..4).for_each(|_| assert_eq!(node.answer().outcome.map_err(|f| f.code), Err(ErrorCode::TryElsewhere)));
    node.assert_balanced();
}

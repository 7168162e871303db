//! Scans through the public door: chunks queue again behind interactive reads, stay running for every rule of a tie,
//! and the number of pages in the making is bounded.

use crate::request::config::RequestConfig;
use crate::request::test_support::{Cluster, TestNode, modelled, read, tied};
use crate::storage::state_store::{Mutation, StateStore};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{Position, RequestId};
use tiedkv_protocol::request::{Class, ReadOperation, ReadRequest};
use tiedkv_protocol::response::ReadReply;
use tiedkv_protocol::scan::{Columns, Page, PageRequest};

const SERVICE: Duration = Duration::from_millis(10);
const ROWS: u32 = 1_000;
/// Of a page of all rows: 256 in each.
const CHUNKS: u64 = 4;

fn whole() -> PageRequest {
    PageRequest {
        lo: Bytes::new(),
        hi: None,
        reverse: false,
        columns: Columns::All,
        rows_max: 60_000,
        bytes_max: 1 << 20,
    }
}

fn scanning(request: ReadRequest) -> ReadRequest {
    ReadRequest { operation: ReadOperation::Scan(Box::new(whole())), class: Class::Batch, ..request }
}

fn cluster(nodes: u64, change: impl Fn(&mut RequestConfig)) -> Cluster {
    let cluster = Cluster::new(nodes, change);
    let put = |n: u32| Mutation::Put { key: format!("row-{n:04}").into(), value: Bytes::from_static(b"value") };
    let batch: Vec<Mutation> = (1..ROWS).map(put).collect();
    for node in &cluster.nodes {
        node.store.apply(&batch, Position(2), 0).unwrap();
    }
    cluster
}

fn page(answer: (ReadReply, Bytes)) -> Page {
    let (reply, payload) = answer;
    assert_eq!(reply.outcome.unwrap().position, Position(2));
    Page::decode(payload, Columns::All).unwrap()
}

fn answered(node: &TestNode, count: usize) -> Vec<u64> {
    (0..count).map(|_| node.answer().request.0).collect()
}

#[test]
fn a_page_is_served_in_chunks_of_at_most_the_mean_service_time() {
    let cluster = cluster(1, |config| config.device = modelled(SERVICE));
    let node = cluster.node(0);
    node.read(scanning(read(1)));
    let (reply, payload) = node.answer_with_value();
    let took = Duration::from_micros(u64::from(reply.service.service_time_us));
    // Each chunk takes at least 0.3 of the mean.
    assert!(took >= SERVICE.mul_f64(0.3 * CHUNKS as f64), "{took:?}");
    let page = page((reply, payload));
    assert_eq!((page.rows(), page.more()), (ROWS, false));
    let counters = node.assert_balanced();
    assert_eq!((counters.scan_chunks, counters.started), (CHUNKS, 1));
    assert_eq!(node.path.status().service_p50_us, 0, "a page says nothing about gets");
}

#[test]
fn an_interactive_read_goes_before_the_next_chunk() {
    let cluster = cluster(1, |config| config.device = modelled(SERVICE));
    let node = cluster.node(0);
    node.read(scanning(read(1)));
    node.until("the scan starts", |c| c.started == 1);
    (2..5).for_each(|request| node.read(read(request)));
    assert_eq!(answered(node, 4), [2, 3, 4, 1]);
    node.assert_balanced();
}

#[test]
fn on_a_real_device_too_the_worker_is_given_up_between_chunks() {
    let cluster = cluster(1, |_| {});
    let node = cluster.node(0);
    node.read(scanning(read(1)));
    assert_eq!(page(node.answer_with_value()).rows(), ROWS);
    assert_eq!(node.assert_balanced().scan_chunks, CHUNKS);
}

#[test]
fn a_tied_page_runs_on_one_node_and_a_waiting_chunk_is_still_running() {
    let cluster = cluster(2, |config| config.device = modelled(SERVICE));
    cluster.node(1).read(read(90));
    cluster.node(1).until("the start", |c| c.started == 1);
    cluster.node(0).read(scanning(tied(1, 0, 2)));
    cluster.node(1).read(scanning(tied(1, 1, 2)));
    cluster.node(0).until("the scan starts", |c| c.started == 1);
    cluster.deliver_all();
    cluster.node(1).until("its copy is cancelled", |c| c.cancelled == 1);
    // A get makes the next chunk wait; the copy that waits runs, and cancels back.
    cluster.node(0).read(read(91));
    cluster.node(0).until("the get starts", |c| c.started == 2);
    assert_eq!(cluster.node(0).answer().request, RequestId(91));
    assert_eq!(page(cluster.node(0).answer_with_value()).rows(), ROWS);
    assert_eq!(cluster.node(1).answer().request, RequestId(90));
    cluster.assert_balanced();
    assert_eq!(cluster.node(1).path.counters().started, 1);
}

#[test]
fn a_page_that_both_started_yields_between_chunks_at_the_higher_number() {
    let cluster = cluster(2, |config| config.device = modelled(SERVICE));
    (0..2).for_each(|n| cluster.node(n).read(scanning(tied(1, n as u8, 2))));
    for index in 0..2 {
        cluster.node(index).until("the start", |c| c.started == 1);
    }
    cluster.deliver_all();
    cluster.node(1).until("the yield", |c| c.yielded == 1);
    assert_eq!(page(cluster.node(0).answer_with_value()).rows(), ROWS);
    cluster.assert_balanced();
}

#[test]
fn pages_in_the_making_are_bounded_and_their_places_come_back() {
    let cluster = cluster(1, |config| {
        config.device = modelled(SERVICE);
        config.pages_max = 2;
    });
    let node = cluster.node(0);
    (1..4).for_each(|request| node.read(scanning(read(request))));
    let (refused, _) = node.answer_with_value();
    let failure = refused.outcome.unwrap_err();
    assert_eq!((refused.request, failure.code), (RequestId(3), ErrorCode::Busy));
    assert!(failure.retry_after_us > 0 && failure.message.contains("2 pages"), "{failure:?}");
    node.path.withdraw(&node.caller, &[RequestId(1)]);
    node.until("the withdraw", |c| c.withdrawn == 1);
    assert_eq!(page(node.answer_with_value()).rows(), ROWS);
    node.read(scanning(read(4)));
    assert_eq!(page(node.answer_with_value()).rows(), ROWS);
    node.assert_balanced();
}

#[test]
fn a_page_out_of_its_bounds_is_refused_with_the_limit() {
    let cluster = cluster(1, |_| {});
    let none = PageRequest { rows_max: 0, ..whole() };
    let operation = ReadOperation::Scan(Box::new(none));
    cluster.node(0).read(ReadRequest { operation, ..read(1) });
    let failure = cluster.node(0).answer().outcome.unwrap_err();
    assert_eq!(failure.code, ErrorCode::OverLimit);
    assert!(failure.message.contains("65536"), "{}", failure.message);
}

#[test]
fn a_failing_disk_ends_a_page_as_it_ends_a_get() {
    let cluster = cluster(1, |_| {});
    cluster.node(0).path.fail_reads(true);
    cluster.node(0).read(scanning(read(1)));
    assert_eq!(cluster.node(0).answer().outcome.unwrap_err().code, ErrorCode::Storage);
    cluster.node(0).assert_balanced();
}

//! Tests of the trace with a made-up device: places, the shift of clocks, jobs in the way.

use super::*;
use smallvec::SmallVec;
use tiedkv_protocol::ids::CallerId;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::CopyEnd;

/// Every service takes 10 ms, every key has lane 0, one job of 50 ms on node 1 two milliseconds after `since`.
struct Made;

impl DeviceModel for Made {
    fn service(&self, _: ReadId) -> Duration {
        Duration::from_millis(10)
    }

    fn lane(&self, _: NodeId, _: &[u8]) -> u16 {
        0
    }

    fn jobs(&self, node: NodeId, _: &Disturbance, since: Moment, until: Moment) -> Vec<DrawnJob> {
        assert!(until > since);
        let job =
            DrawnJob { lane: 0, arrived: since + Duration::from_millis(2), service: Duration::from_millis(50) };
        if node == NodeId(1) { vec![job] } else { Vec::new() }
    }
}

fn read(id: u128, at_ms: u64, nodes: &[u64]) -> Traced {
    Traced {
        at: Duration::from_millis(at_ms),
        latency: None,
        read: Some(ReadId(id)),
        key: 0,
        nodes: nodes.iter().map(|node| NodeId(*node)).collect::<SmallVec<_>>(),
        crossings: None,
        counted: true,
    }
}

fn record(read: u128, admitted_us: u64) -> StartRecord {
    StartRecord {
        caller: CallerId(1),
        read: ReadId(read),
        tie: None,
        kind: CopyKind::First,
        lane: 0,
        admitted_us,
        started_us: admitted_us,
        ended_us: admitted_us,
        end: CopyEnd::Answered,
    }
}

#[test]
fn a_job_by_the_nodes_clock_is_in_the_way_of_a_read_by_the_clients() {
    // Node 1's clock is 7 s ahead, node 2's 1 s: first copies are admitted 100 us after they were planned.
    let reads = [read(1, 4, &[1, 2]), read(2, 100, &[2, 1])];
    let records =
        [(NodeId(1), vec![record(1, 7_004_100)]), (NodeId(2), vec![record(2, 1_100_100), record(1, 1_004_500)])];
    let from = Ingredients {
        reads: &reads,
        key: &|_| b"key".to_vec(),
        records: &records,
        disturbance: &Disturbance { jobs_load: 0.2, ..Disturbance::default() },
        since: &[Moment(7_000_000_000), Moment(1_000_000_000)],
        lanes: 8,
        span: Duration::from_secs(1),
        crossings: Duration::from_micros(300),
    };
    let ideals = ideals(&from, &Made).unwrap();
    // The job arrives at 1.9 ms of the client's clock and holds node 1 until 51.9 ms.
    assert_eq!(ideals.jsw1, [57_900 + 300, 10_300]);
    assert_eq!(ideals.jsw2, [10_300, 10_300]);
    assert_eq!(ideals.central.len(), 2);
}

#[test]
fn nodes_that_were_not_asked_follow_in_a_drawn_order() {
    let nodes = [NodeId(1), NodeId(2), NodeId(3)];
    assert_eq!(order(ReadId(0), &[NodeId(3), NodeId(1)], &nodes), [2, 0, 1]);
    let mut seconds = [0; 3];
    for id in 0..3_000u128 {
        let order = order(ReadId(id | (id / 3) << 64), &[NodeId(2)], &nodes);
        assert_eq!((order[0], order.len()), (1, 3));
        seconds[order[1]] += 1;
    }
    assert_eq!(seconds[1], 0);
    assert!((1_200..1_800).contains(&seconds[0]), "{seconds:?}");
}

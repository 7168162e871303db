//! What happens at the same time: one write at two nodes while leadership passes between them; reads of a new leader
//! that nobody has written through.

use super::tests::{Cluster, eventually, put};
use super::*;
use crate::request::barrier::BarrierReply;
use tiedkv_protocol::atomic::{Atomic, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::request::WriteOperation;

/// Counted through the old leader and through the new one at once, under one idempotency key: both copies may be in the
/// log, and one is applied.
#[test]
fn both_copies_of_a_write_in_flight_on_two_nodes_count_once() {
    let cluster = Cluster::start(|_| ());
    let wait = Duration::from_secs(5);
    let increment = Operation::Increment { key: Bytes::from_static(b"n"), by: 1 };
    let body = Atomic { conditions: Vec::new(), operations: vec![increment] }.encode().unwrap();
    let (rounds, mut both) = (20, 0);
    for _ in 0..rounds {
        let request = WriteRequest { operation: WriteOperation::Atomic, ..put("", cluster.next()) };
        let leader = cluster.leader();
        let heir = (leader + 1) % 3;
        let write = |index: usize| cluster.group(index).write(CallerId(7), request.clone(), body.clone());
        let copies = async {
            let handed = cluster.group(leader).transfer_leader(Some(cluster.members[heir].node), wait);
            let later = async {
                loop {
                    let outcome = write(heir).await.0.outcome;
                    match outcome {
                        Err(failure) if failure.code == ErrorCode::NotLeader => {
                            tokio::time::sleep(Duration::from_millis(1)).await
                        }
                        outcome => return outcome,
                    }
                }
            };
            let (_, one, other) = tokio::join!(handed, write(leader), tokio::time::timeout(wait, later));
            (one.0.outcome, other.unwrap())
        };
        let (one, other) = cluster.runtime.block_on(copies);
        if let (Ok(one), Ok(other)) = (&one, &other) {
            both += 1;
            assert_eq!(one.version, other.version);
            assert!(one.repeated != other.repeated, "{one:?} {other:?}");
        }
        let settle = || cluster.runtime.block_on(write(cluster.leader())).0.outcome.ok();
        let settled = eventually("it is settled", settle);
        let versions = [one, other].into_iter().flatten().map(|written| written.version);
        versions.for_each(|version| assert_eq!(version, settled.version));
    }
    let leader = cluster.leader();
    assert_eq!(cluster.get(leader, "n"), Some(rounds.to_string()));
    println!("{both} of {rounds} writes were acknowledged by both nodes");
}

#[test]
fn a_new_leader_answers_barriers_although_nobody_writes() {
    let mut cluster = Cluster::start(|_| ());
    let written = cluster.put("a", "1");
    let old = cluster.leader();
    cluster.groups[old] = None;
    let asked = |index: usize| -> Option<Position> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (reply, answer) = BarrierReply::new(move || sender.send(()).unwrap());
        cluster.group(index).read_barrier().ask(reply).ok()?;
        receiver.recv().ok()?;
        answer.answer()?.clone().ok()
    };
    for index in (0..3).filter(|index| *index != old) {
        let position = eventually("a barrier is answered", || asked(index));
        assert!(position > written.position, "the new leader's own entry is covered");
        cluster.applied(index, position);
    }
}

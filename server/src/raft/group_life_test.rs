//! The life of members: far behind, restarted, stopped in order, wiped, added, removed, on a broken disk.

use super::tests::{Cluster, eventually, member, put};
use super::*;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;

fn often(config: &mut GroupConfig) {
    config.snapshots = SnapshotSettings { entries: 200, bytes: 1 << 20, keep_entries: 50, keep_bytes: 8 << 20 };
}

/// Writes `count` keys at once through the leader.
fn fill(cluster: &Cluster, count: usize, value: &str) -> Position {
    let leader = cluster.leader();
    let writes: Vec<_> = (0..count)
        .map(|number| {
            let request = put(&format!("k{}", number % 500), cluster.next());
            cluster.group(leader).write(CallerId(7), request, Bytes::copy_from_slice(value.as_bytes()))
        })
        .collect();
    let replies = cluster.runtime.block_on(futures_util::future::join_all(writes));
    replies.into_iter().map(|reply| reply.0.outcome.unwrap().position).max().unwrap()
}

#[test]
fn an_heir_that_does_not_answer_costs_no_writes_but_those_of_the_wait() {
    let mut cluster = Cluster::start(|_| {});
    let leader = cluster.leader();
    let dead = (leader + 1) % 3;
    cluster.groups[dead] = None;
    let (heir, wait) = (Some(cluster.members[dead].node), Duration::from_millis(300));
    let handed = cluster.runtime.block_on(cluster.group(leader).transfer_leader(heir, wait));
    assert_eq!(handed.unwrap_err().code, ErrorCode::Expired);
    eventually("writes go on", || cluster.write(cluster.leader(), put("after", cluster.next()), "x").ok());
}

#[test]
fn a_follower_far_behind_gets_a_snapshot_while_the_others_serve() {
    let mut cluster = Cluster::start(often);
    let leader = cluster.leader();
    fill(&cluster, 100, "first");
    let once = put("once", 9_999_999);
    let first = cluster.write(leader, once.clone(), "1").unwrap();
    let behind = (leader + 1) % 3;
    cluster.groups[behind] = None;
    let generation = || cluster.group((leader + 2) % 3).store().current().generation();
    let before = generation();
    for round in 0..10 {
        fill(&cluster, 200, &format!("round {round}"));
    }
    eventually("the log is cut beyond the one that is behind", || {
        cluster.group(cluster.leader()).status().purged.filter(|purged| *purged > 500)
    });
    assert_eq!(generation(), before);
    let last = fill(&cluster, 10, "last");
    cluster.boot(behind);
    cluster.applied(behind, last);
    let view = cluster.group(behind).store().current();
    assert!(view.generation() > 0, "came by a snapshot");
    drop(view);
    let leader = cluster.leader();
    let all = |index: usize| {
        let view = cluster.group(index).store().current();
        view.values().collect::<Result<Vec<_>, _>>().unwrap()
    };
    cluster.applied(leader, last);
    assert_eq!(all(behind), all(leader));
    // What became of earlier writes came with it: it answers a repeat when it leads.
    eventually("it leads", || {
        let (leader, heir) = (cluster.leader(), Some(cluster.members[behind].node));
        let wait = Duration::from_secs(5);
        (leader == behind || cluster.runtime.block_on(cluster.group(leader).transfer_leader(heir, wait)).is_ok())
            .then_some(())
    });
    let again = eventually("the repeat", || cluster.write(behind, once.clone(), "1").ok());
    assert_eq!((again.version, again.repeated), (first.version, true));
    // It survives its own restart, and takes part again.
    cluster.groups[behind] = None;
    cluster.boot(behind);
    let more = fill(&cluster, 10, "more");
    cluster.applied(behind, more);
}

#[test]
fn all_restart_and_keep_what_was_acknowledged() {
    let mut cluster = Cluster::start(often);
    let last = fill(&cluster, 700, "kept");
    let request = put("once", 9_999_999);
    let first = cluster.write(cluster.leader(), request.clone(), "1").unwrap();
    for index in 0..3 {
        cluster.groups[index] = None;
    }
    for index in 0..3 {
        cluster.boot(index);
    }
    let leader = cluster.leader();
    let again = eventually("the repeat", || cluster.write(cluster.leader(), request.clone(), "1").ok());
    assert_eq!((again.version, again.repeated), (first.version, true));
    for index in 0..3 {
        cluster.applied(index, last);
        assert_eq!(cluster.get(index, "k499").as_deref(), Some("kept"));
    }
    assert!(cluster.group(leader).status().term > 0);
}

#[test]
fn an_orderly_stop_hands_leadership_on_without_an_election_timeout() {
    let mut cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    cluster.put("a", "1");
    let handed = cluster.runtime.block_on(cluster.group(leader).transfer_leader(None, Duration::from_secs(5)));
    let heir = handed.unwrap();
    assert_ne!(heir, cluster.members[leader].node);
    eventually("the old leader names the heir", || {
        let refused = cluster.write(leader, put("b", cluster.next()), "1").err()?;
        (refused.code == ErrorCode::NotLeader && refused.leader == Some(heir)).then_some(())
    });
    cluster.put("b", "1");
    let leader = cluster.leader();
    cluster.runtime.block_on(cluster.group(leader).stop(Duration::from_secs(5)));
    cluster.groups[leader] = None;
    cluster.put("c", "1");
}

#[test]
fn a_wiped_node_is_refused_with_instructions() {
    let mut cluster = Cluster::start(|_| ());
    let written = cluster.put("a", "1");
    for index in 0..3 {
        cluster.applied(index, written.position);
    }
    let wiped = (cluster.leader() + 1) % 3;
    cluster.groups[wiped] = None;
    std::fs::remove_dir_all(cluster.config(wiped).data_dir).unwrap();
    cluster.boot(wiped);
    let fatal = cluster.group(wiped).fatal();
    let why = eventually("the refusal", || fatal.borrow().clone());
    assert!(why.contains("another data folder") && why.contains("member remove"), "{why}");
    cluster.groups[wiped] = None;
    cluster.put("b", "1");
}

#[test]
fn members_come_and_go_but_never_below_a_quorum() {
    let mut cluster = Cluster::start(|_| ());
    fill(&cluster, 100, "before");
    let fourth = member(4);
    cluster.members.push(fourth.clone());
    cluster.groups.push(None);
    cluster.boot(3);
    let wait = Duration::from_secs(20);
    let leader = cluster.leader_of(3);
    cluster.runtime.block_on(cluster.group(leader).add_member(&fourth, wait)).unwrap();
    cluster.runtime.block_on(cluster.group(leader).add_member(&fourth, wait)).unwrap();
    let written = cluster.put("with four", "1");
    cluster.applied(3, written.position);
    let follower = (leader + 1) % 3;
    let refused = cluster.runtime.block_on(cluster.group(follower).remove_member(NodeId(4), wait)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotLeader);
    cluster.runtime.block_on(cluster.group(leader).remove_member(NodeId(4), wait)).unwrap();
    let topology = cluster.group(leader).topology().borrow().clone();
    assert_eq!(topology.members.iter().map(|member| member.node.0).collect::<Vec<_>>(), [1, 2, 3]);
    cluster.groups[3] = None;
    // One of three is down: to remove the other follower would leave one voter of two.
    let other = (leader + 2) % 3;
    cluster.groups[follower] = None;
    let down = cluster.members[follower].node.0;
    eventually("the leader no longer hears from the one that is down", || {
        let silent = cluster.group(leader).status().silent_ms;
        let (_, silent) = silent.into_iter().find(|(node, _)| *node == down)?;
        (silent? >= membership::HEARD_WITHIN.as_millis() as u64).then_some(())
    });
    let node = cluster.members[other].node;
    let refused = cluster.runtime.block_on(cluster.group(leader).remove_member(node, wait)).unwrap_err();
    assert!(refused.code == ErrorCode::Membership && refused.message.contains("quorum"), "{}", refused.message);
}

#[test]
fn a_broken_disk_stops_acknowledging_and_is_told() {
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    cluster.put("a", "1");
    cluster.group(leader).log.break_for_test();
    let outcome = cluster.write(leader, put("b", cluster.next()), "1").unwrap_err();
    assert_eq!(outcome.code, ErrorCode::UnknownOutcome);
    let fatal = cluster.group(leader).fatal();
    let why = eventually("the failure", || fatal.borrow().clone());
    assert!(why.contains("broken by a test"), "{why}");
}

#[test]
fn an_old_key_is_expired_and_told_what_a_fresh_one_needs() {
    let cluster = Cluster::start(|config| {
        config.outcomes = OutcomeLimits { count_max: 2_000, age_max_ms: u64::MAX };
    });
    let leader = cluster.leader();
    let first = put("first", cluster.next());
    cluster.write(leader, first.clone(), "1").unwrap();
    // Keys that know the present, as those of a client that has seen something.
    for _ in 0..5 {
        let floor = cluster.group(leader).store().current().position();
        let writes: Vec<_> = (0..700)
            .map(|_| {
                let mut request = put("other", cluster.next());
                request.idempotency.floor = floor;
                cluster.group(leader).write(CallerId(7), request, Bytes::new())
            })
            .collect();
        for reply in cluster.runtime.block_on(futures_util::future::join_all(writes)) {
            reply.0.outcome.unwrap();
        }
    }
    let expired = cluster.write(leader, first, "1").unwrap_err();
    assert_eq!((expired.code, expired.leader), (ErrorCode::KeyExpired, Some(cluster.members[leader].node)));
    let mut fresh = put("first", cluster.next());
    fresh.idempotency.floor = expired.have.unwrap();
    assert!(!cluster.write(leader, fresh, "2").unwrap().repeated);
}

#[test]
fn one_folder_serves_one_process() {
    let cluster = Cluster::start(|_| ());
    let refused = Group::start(cluster.config(0)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("in use by another process"), "{refused}");
}

#[test]
fn a_barrier_covers_what_was_acknowledged_before_it_on_any_replica() {
    use crate::request::barrier::BarrierReply;
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    for number in 0..5 {
        let written = cluster.put("a", &number.to_string());
        for index in 0..3 {
            // A busy machine may answer one too late, which is an error and never an old position.
            let position = eventually("a barrier is answered", || {
                let (sender, receiver) = std::sync::mpsc::sync_channel(1);
                let (reply, answer) = BarrierReply::new(move || sender.send(()).unwrap());
                cluster.group(index).read_barrier().ask(reply).unwrap();
                receiver.recv().unwrap();
                answer.answer()?.clone().ok()
            });
            assert!(position >= written.position, "{index} (leader {leader})");
            cluster.applied(index, position);
        }
    }
}

#[test]
fn a_ceiling_reaches_every_replica() {
    let cluster = Cluster::start(|_| ());
    let leader = cluster.leader();
    let ceiling = Ceiling { copies_max: 2, ..Ceiling::default() };
    let set = cluster.group(leader).set_ceiling(ceiling, Duration::from_secs(5));
    cluster.runtime.block_on(set).unwrap();
    for index in 0..3 {
        let known = cluster.group(index).ceiling();
        eventually("the ceiling", || {
            let known = *known.borrow();
            (known.copies_max == 2 && known.version == 1).then_some(())
        });
    }
}

/// One value of one replica is changed behind Raft's back, as a bug or a disk would: no checksum of the engine tells.
#[test]
fn a_replica_whose_state_differs_takes_itself_out_of_service_for_good_and_the_others_go_on() {
    use crate::storage::state_store::{Mutation, StateStore as _};
    let mut cluster = Cluster::start(|config| {
        config.check_entries = 20;
        config.check_window = Duration::from_millis(300);
    });
    let leader = cluster.leader();
    let last = (0..30).map(|number| cluster.put(&format!("key {number}"), "right")).last().unwrap();
    (0..3).for_each(|index| cluster.applied(index, last.position));
    for index in 0..3 {
        eventually("the states are compared", || {
            let status = cluster.group(index).status();
            (status.checks_total > 0).then(|| assert_eq!(status.checks_differed_total, 0))
        });
    }
    let odd = (leader + 1) % 3;
    let store = cluster.group(odd).store();
    let view = store.current();
    let wrong = Mutation::Put { key: Bytes::from_static(b"key 7"), value: Bytes::from_static(b"wrong") };
    store.apply(&[wrong], view.position(), view.stamp_ms()).unwrap();
    let writer = (0..).map(|number| cluster.put(&format!("more {number}"), "right")).take(30).last();
    assert!(writer.is_some());
    let why = eventually("the odd one stops", || cluster.group(odd).fatal().borrow().clone());
    assert!(why.contains("differs from that of the other replicas") && why.contains("member remove"), "{why}");
    cluster.put("after", "it");
    drop(cluster.groups[odd].take());
    let again = eventually("the folder is free", || {
        let refused = Group::start(cluster.config(odd)).map(drop).unwrap_err().to_string();
        (!refused.contains("in use")).then_some(refused)
    });
    assert!(again.contains("differs from that of the other replicas"), "{again}");
    for index in (0..3).filter(|index| *index != odd) {
        assert_eq!(*cluster.group(index).fatal().borrow(), None);
    }
}

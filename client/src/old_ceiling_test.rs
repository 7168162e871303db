//! What an older ceiling makes a node say with an answer counts nowhere: not with that to a read or a page, nor with that
//! to a shadow copy. What nodes said last is [`crate::view`]'s to test.

use super::*;
use crate::fake_node::{Deed, FakeCluster};
use crate::pending::ShadowReader;
use crate::policy::ReadPolicy;
use crate::test_support::{connect, run, stale};
use tiedkv_protocol::hello::{Ceiling, Mode};
use tiedkv_protocol::ids::RequestId;
use tiedkv_protocol::scan::{Columns, PageRequest};

const LEVEL: ReadLevel = ReadLevel::Stale { bound_us: None };

/// One that nodes obey no longer.
fn old() -> Ceiling {
    Ceiling { version: 1, mode: Mode::Off, ..Ceiling::default() }
}

/// A good answer of a node that obeys the old ceiling.
fn answer(node: NodeId) -> ReadReply {
    let service = Service {
        node,
        started: true,
        queue_wait_us: 0,
        service_time_us: 0,
        queue_depth: 0,
        flags: old().flags(),
        unhealthy_pairs: 0,
    };
    let found = Found { version: None, level: LEVEL, position: Position(1), remaining_ms: None };
    ReadReply { request: RequestId(0), service, outcome: Ok(found) }
}

/// Whether the view holds back ties, and extra copies.
fn held_back(view: &ViewInner) -> (bool, bool) {
    let own = view.own.lock();
    (own.engine.gate.ties_off(), own.engine.gate.no_extra_copies())
}

#[test]
fn what_an_old_ceiling_makes_a_node_say_with_an_answer_does_not_count() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Silence);
        let client = connect(&cluster).await;
        let view = client.view(1);
        let inner = view.inner();
        let connections = inner.shared.connections();
        connections.table().peers.iter().for_each(|peer| peer.heard_ceiling(&old()));
        let new = Ceiling { version: 2, ..Ceiling::default() };
        connections.board.learn_ceiling(new);
        let (lo, columns) = (Bytes::new(), Columns::All);
        let page = PageRequest { lo, hi: None, reverse: false, columns, rows_max: 9, bytes_max: 1_000 };
        for (what, operation) in [
            (ReadOperation::Get { key: "k".into() }, Operation::Get),
            (ReadOperation::Scan(Box::new(page)), Operation::Scan),
        ] {
            let options = stale(ReadPolicy::UNTIED);
            let asked = asked(inner, &options, operation, LevelName::Stale, None);
            let (now, deadline) = (clock::now(), Duration::from_secs(10));
            let wish = Wish { asked, options: &options, level: LEVEL, what, deadline: now + deadline };
            let mut running = Running::begin(inner, wish, deadline, now, now);
            let node = running.race.copies()[0].replica;
            running.on_answer((0, answer(node), Bytes::new(), now), &mut inner.own.lock().engine);
            assert_eq!(held_back(inner), (false, false), "{operation}");
        }
        let node = NodeId(1);
        let shadow = || {
            inner.own.lock().engine.copy_sent(node, CopyKind::Shadow);
            Shadow::new(inner, None).shadow_answered(Duration::from_millis(1), &answer(node), clock::now());
            held_back(inner)
        };
        assert_eq!(shadow(), (false, false));
        // It knows the newest and says so all the same: that is its own judgement.
        connections.table().peer(node).unwrap().heard_ceiling(&new);
        assert_eq!(shadow(), (true, true));
    });
}

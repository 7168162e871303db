//! What an older ceiling makes a node say with an answer counts nowhere: not with that to a read or a page, nor with that
//! to a shadow copy. What nodes said last is [`crate::view`]'s to test.

use super::*;
use crate::Client;
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

/// The same after a read of `what` was sent and its answer came, by a view of its own.
fn held_back_by(client: &Client, what: ReadOperation, operation: Operation) -> (bool, bool) {
    let view = client.view(1);
    let inner = view.inner();
    let options = stale(ReadPolicy::UNTIED);
    let asked = asked(inner, &options, operation, LevelName::Stale, None);
    let (now, deadline) = (clock::now(), Duration::from_secs(10));
    let wish = Wish { asked, options: &options, level: LEVEL, what, deadline: now + deadline };
    let (chosen, plan) = choose(inner, &mut inner.own.lock(), wish, now);
    let mut running = Running::new(inner, chosen, plan, deadline, now, now);
    running.begin(now);
    let node = running.race.copies()[0].replica;
    running.on_answer((0, answer(node), Bytes::new(), now), &mut inner.own.lock().engine);
    held_back(inner)
}

#[test]
fn what_an_old_ceiling_makes_a_node_say_with_an_answer_does_not_count() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Silence);
        let client = connect(&cluster).await;
        let connections = client.view.shared().connections();
        let heard = |ceiling: &Ceiling| {
            connections.table().peers.iter().for_each(|peer| peer.heard_ceiling(ceiling));
        };
        heard(&old());
        let new = Ceiling { version: 2, ..Ceiling::default() };
        connections.board.learn_ceiling(new);
        let (lo, columns) = (Bytes::new(), Columns::All);
        let page = PageRequest { lo, hi: None, reverse: false, columns, rows_max: 9, bytes_max: 1_000 };
        let get = || held_back_by(&client, ReadOperation::Get { key: "k".into() }, Operation::Get);
        let scan = || held_back_by(&client, ReadOperation::Scan(Box::new(page.clone())), Operation::Scan);
        let shadow = || {
            let (view, node) = (client.view(1), NodeId(1));
            {
                // As by the read that goes before it.
                let mut own = view.inner().own.lock();
                own.sync(&[], &connections.table(), &connections.board, clock::now());
                own.engine.copy_sent(node, CopyKind::Shadow);
            }
            let shadow = Shadow::new(view.inner(), None);
            shadow.shadow_answered(Duration::from_millis(1), &answer(node), clock::now());
            held_back(view.inner())
        };
        assert_eq!([get(), scan(), shadow()], [(false, false); 3]);
        // They know the newest and say so all the same: that is their own judgement.
        heard(&new);
        assert_eq!([get(), scan(), shadow()], [(true, true); 3]);
    });
}

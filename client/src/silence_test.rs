//! A replica that takes copies and answers none, while its links and its pings are alive: found and spared.

use crate::fake_node::{Deed, FakeCluster};
use crate::policy::ReadPolicy;
use crate::test_support::{connect_with as connect, run, stale as options};
use crate::{Client, clock};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::CopyKind;

const MS: Duration = Duration::from_millis(1);

fn on_probation(client: &Client) -> usize {
    client.view.inner().own.lock().engine.probation.on_probation()
}

#[test]
fn a_tied_replica_that_hangs_behind_live_links_is_found_and_spared() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|node, _| match node {
            NodeId(1) => Deed::Silence,
            _ => Deed::Answer(Duration::ZERO),
        });
        let client = connect(&cluster, |config| config.engine.probation.slow_for = MS * 200).await;
        let policy = ReadPolicy::TIED2.with_rescue();
        let end = clock::now() + Duration::from_secs(20);
        while on_probation(&client) == 0 {
            assert!(clock::now() < end, "it was never found");
            client.get_with("k", options(policy)).await.unwrap();
            tokio::time::sleep(MS).await;
        }
        let firsts = || {
            let node = cluster.nodes[0].state.lock();
            node.reads.iter().filter(|read| read.kind == CopyKind::First).count()
        };
        let before = firsts();
        for _ in 0..50 {
            client.get_with("k", options(policy)).await.unwrap();
        }
        assert_eq!(firsts(), before, "no first copies");
    });
}

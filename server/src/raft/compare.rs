//! Asks the other replicas for their sums and acts on what they say; see [`checksum`](crate::raft::checksum).

use crate::peer::raft_link::{LinkError, RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::checksum::{Finding, Sum, Sums, judge};
use crate::raft::folder::Folder;
use crate::raft::membership::topology;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::{NodeId, Position};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// The others are asked so often, within three windows.
const TRIES: u32 = 24;

/// See the head of this room.
pub(super) struct Compare {
    pub(super) own: NodeId,
    pub(super) raft: Raft<TypeConfig, StateMachine>,
    pub(super) link: Arc<RaftLink>,
    pub(super) sums: Arc<Sums>,
    pub(super) folder: Arc<Folder>,
}

impl Compare {
    /// Compares each sum that was made until the checker ends; ends when this replica is the odd one.
    pub(super) async fn run(self, mut hashed: mpsc::Receiver<Sum>, window: Duration) {
        let pause = (window / 8).max(Duration::from_millis(50));
        while let Some(sum) = hashed.recv().await {
            if self.is_odd(sum, pause).await {
                let why = format!(
                    "the state of this node differs from that of the other replicas (at {}); it serves no more. Remove it \
                     (`tiedkv member remove --node {}`), make a certificate with a new id (`tiedkv certs --add`) and add \
                     that with an empty folder; keep this folder for whoever looks into it",
                    sum.position, self.own.0
                );
                self.sums.counters.differed.fetch_add(1, Relaxed);
                if let Err(error) = self.folder.condemn(&why) {
                    tracing::error!(%error, "a folder that differs could not be marked");
                }
                return self.link.stop_for(LinkError::Differs(self.own, why));
            }
        }
    }

    /// True when a majority agrees on another sum.
    async fn is_odd(&self, own: Sum, pause: Duration) -> bool {
        let mut known = BTreeMap::from([(self.own, own.sum)]);
        let mut alarmed = false;
        for _ in 0..TRIES {
            sleep(pause).await;
            let members = topology(&self.raft.server_metrics().borrow_watched()).members;
            for member in &members {
                if !known.contains_key(&member.node)
                    && let Some(sum) = self.sum_of(member, own.position).await
                {
                    known.insert(member.node, sum);
                }
            }
            let names: Vec<NodeId> = members.iter().map(|member| member.node).collect();
            let alarm = match judge(self.own, &names, &known) {
                Finding::Odd => return true,
                Finding::Others(others) => Some(others),
                Finding::Split => Some(names.clone()),
                Finding::Agreed if known.len() >= names.len() => {
                    self.sums.counters.agreed.fetch_add(1, Relaxed);
                    return false;
                }
                Finding::Agreed | Finding::Open => None,
            };
            if let Some(nodes) = alarm.filter(|_| !std::mem::replace(&mut alarmed, true)) {
                self.sums.counters.differed.fetch_add(1, Relaxed);
                tracing::error!(position = %own.position, ?nodes, "replicas differ");
            }
        }
        false
    }

    async fn sum_of(&self, member: &Member, position: Position) -> Option<u64> {
        const WAIT: Duration = Duration::from_secs(1);
        let asked = timeout(WAIT, async {
            let opened = self.link.open(member.node, &member.peer_address, StreamKind::Sum, WAIT).await;
            let (mut send, mut recv) = opened.ok()?;
            write_message(&mut send, &position).await.ok()?;
            send.finish().ok()?;
            read_message::<Option<u64>>(&mut recv).await.ok()?.flatten()
        });
        asked.await.ok().flatten()
    }
}

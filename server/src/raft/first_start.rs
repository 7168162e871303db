//! How a cluster begins: once, when a majority of its first members is here, empty, and all that answer were given the
//! same list. A member that finds the cluster begun waits to be contacted; one that finds another list stops and names
//! both, because two lists could begin two clusters under one name. Everything later is Raft's.

use crate::peer::raft_link::{LinkError, RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{MemberRecord, TypeConfig};
use openraft::Raft;
use openraft::errors::{InitializeError, RaftError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::NodeId;
use tokio::time::{sleep, timeout};

/// The list that a node was given of the members that begin the cluster, in a form that can be compared and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstMembers(String);

impl FirstMembers {
    /// Of a list, in any order.
    pub fn of(members: &[Member]) -> Self {
        let mut sorted: Vec<&Member> = members.iter().collect();
        sorted.sort_by_key(|member| member.node);
        let line = |member: &&Member| {
            let Member { node, client_address, peer_address, cancel_address, .. } = member;
            format!("{}={client_address},peer={peer_address},cancel={cancel_address}", node.0)
        };
        Self(sorted.iter().map(line).collect::<Vec<_>>().join("; "))
    }
}

/// What a member answers to whoever begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstState {
    /// Its log has begun.
    pub begun: bool,
    /// The list it was given.
    pub members: FirstMembers,
}

/// Starts the cluster if no member of it has begun: when a majority of its members is here and empty.
pub(super) async fn first_start(
    raft: Raft<TypeConfig, StateMachine>,
    link: Arc<RaftLink>,
    own: NodeId,
    members: Vec<Member>,
    first: FirstMembers,
) {
    const PAUSE: Duration = Duration::from_millis(200);
    if !members.iter().any(|member| member.node == own) {
        return;
    }
    loop {
        match raft.is_initialized().await {
            Ok(false) => {}
            Ok(true) | Err(_) => return,
        }
        let others: Vec<&Member> = members.iter().filter(|member| member.node != own).collect();
        let answers = futures_util::future::join_all(others.iter().map(|member| state_of(&link, member))).await;
        let heard: Vec<_> = others
            .iter()
            .zip(&answers)
            .filter_map(|(member, answer)| Some((member.node, answer.as_ref()?)))
            .collect();
        if heard.iter().any(|(_, state)| state.begun) {
            tracing::info!("the cluster has begun; waiting to be contacted");
            return;
        }
        if let Some((node, theirs)) = heard.iter().find(|(_, state)| state.members != first) {
            link.stop_for(LinkError::Refused(*node, differs(own, &first, *node, &theirs.members)));
            return;
        }
        if 1 + heard.len() > members.len() / 2 {
            let nodes: BTreeMap<u64, MemberRecord> =
                members.iter().map(|member| (member.node.0, MemberRecord::from(member))).collect();
            match raft.initialize(nodes).await {
                Ok(()) => tracing::info!("the cluster begins"),
                Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
                Err(error) => {
                    tracing::error!(%error, "the cluster cannot begin");
                    sleep(PAUSE).await;
                    continue;
                }
            }
            return;
        }
        sleep(PAUSE).await;
    }
}

fn differs(own: NodeId, ours: &FirstMembers, node: NodeId, theirs: &FirstMembers) -> String {
    format!(
        "the cluster begins with the same list of members on all of them, but {own} was given `{}` and {node} was given \
         `{}`; correct `members` and start again",
        ours.0, theirs.0
    )
}

/// Asks a member for its state; `None` when it does not answer.
pub(super) async fn state_of(link: &Arc<RaftLink>, member: &Member) -> Option<FirstState> {
    const WAIT: Duration = Duration::from_secs(1);
    let asked = timeout(WAIT, async {
        let (mut send, mut recv) =
            link.open(member.node, &member.peer_address, StreamKind::State, WAIT).await.ok()?;
        write_message(&mut send, &()).await.ok()?;
        send.finish().ok()?;
        read_message(&mut recv).await.ok()?
    });
    asked.await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node: u64, address: &str) -> Member {
        Member {
            node: NodeId(node),
            zone: String::new(),
            client_address: address.to_owned(),
            peer_address: "p".to_owned(),
            cancel_address: "c".to_owned(),
            learner: false,
        }
    }

    #[test]
    fn lists_are_the_same_in_any_order_and_a_difference_names_both() {
        let ours = FirstMembers::of(&[member(2, "b"), member(1, "a")]);
        assert_eq!(ours, FirstMembers::of(&[member(1, "a"), member(2, "b")]));
        let theirs = FirstMembers::of(&[member(1, "a"), member(2, "x")]);
        assert_ne!(ours, theirs);
        let text = differs(NodeId(1), &ours, NodeId(2), &theirs);
        assert!(text.contains("2=b,peer=p") && text.contains("2=x,peer=p"), "{text}");
    }
}

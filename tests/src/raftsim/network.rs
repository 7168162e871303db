//! The made-up network between nodes and clients: delays, losses, cuts; and openraft's questions over it.

use super::machine::State;
use super::node::Running;
use super::runtime::{Party, draw, draw_time, sleep, spawn_for, within};
use super::types::{SimTypes, Vote};
use super::world::World;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::EmptyNode;
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use std::collections::BTreeSet;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

/// What is wrong with the network now.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// From, to: nothing arrives.
    pub cut: BTreeSet<(Party, Party)>,
    /// Everything from and to this party takes up to so much longer.
    pub slow: Option<(Party, Duration)>,
    /// One message in so many is lost; 0: none.
    pub loss: u64,
}

impl Rules {
    /// `None`: lost; else how long it takes.
    fn fate(&self, from: Party, to: Party) -> Option<Duration> {
        if self.cut.contains(&(from, to)) || (self.loss > 0 && draw(self.loss) == 0) {
            return None;
        }
        let slow = self.slow.filter(|(party, _)| [from, to].contains(party)).map(|(_, by)| draw_time(by));
        Some(Duration::from_micros(50) + draw_time(Duration::from_millis(2)) + slow.unwrap_or_default())
    }
}

async fn travel(world: &World, from: Party, to: Party) {
    let fate = world.rules.lock().fate(from, to);
    match fate {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Asks a node; ends never when question or answer is lost, with `None` when the node does not run or dies over it.
pub async fn ask<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    world: &Arc<World>,
    from: Party,
    to: u64,
    question: impl FnOnce(Running) -> F + Send,
) -> Option<T> {
    travel(world, from, to).await;
    let answer = spawn_for(to, question(world.running(to)?)).await.ok()?;
    travel(world, to, from).await;
    Some(answer)
}

/// The way from one node to another.
pub struct SimNetwork {
    world: Arc<World>,
    from: u64,
    life: u64,
    to: u64,
}

/// Makes them.
pub struct SimNetworks {
    /// Where.
    pub world: Arc<World>,
    /// Whose.
    pub from: u64,
    /// In which of its lives.
    pub life: u64,
}

impl RaftNetworkFactory<SimTypes> for SimNetworks {
    type Network = SimNetwork;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> SimNetwork {
        SimNetwork { world: self.world.clone(), from: self.from, life: self.life, to: target }
    }
}

type Rpc<T> = Result<T, RPCError<SimTypes>>;

fn lost(what: &str) -> RPCError<SimTypes> {
    RPCError::Unreachable(Unreachable::from_string(what.to_owned()))
}

impl SimNetwork {
    async fn rpc<T, E, F>(&self, wait: Duration, question: impl FnOnce(Running) -> F + Send) -> Rpc<T>
    where
        T: Send + 'static,
        E: std::fmt::Display + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        match within(wait, ask(&self.world, self.from, self.to, question)).await {
            Some(Some(Ok(answer))) => Ok(answer),
            Some(Some(Err(error))) => Err(lost(&error.to_string())),
            Some(None) => Err(lost("does not run")),
            None => Err(lost("no answer in time")),
        }
    }
}

impl RaftNetworkV2<SimTypes> for SimNetwork {
    type SnapshotData = Arc<State>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<SimTypes>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<SimTypes>> {
        let leader = request.vote.leader_id;
        self.world.watch.lock().leads(leader.term, leader.node_id, self.life);
        self.rpc(option.hard_ttl(), |node| async move { node.raft.append_entries(request).await }).await
    }

    async fn vote(&mut self, request: VoteRequest<SimTypes>, option: RPCOption) -> Rpc<VoteResponse<SimTypes>> {
        self.rpc(option.hard_ttl(), |node| async move { node.raft.vote(request).await }).await
    }

    async fn pre_vote(&mut self, request: VoteRequest<SimTypes>, option: RPCOption) -> Rpc<VoteResponse<SimTypes>> {
        self.rpc(option.hard_ttl(), |node| async move { node.raft.pre_vote(request).await }).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<SimTypes>,
        option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<SimTypes>> {
        self.rpc(option.hard_ttl(), |node| async move { node.raft.handle_transfer_leader(request).await }).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<SimTypes, Arc<State>>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<SimTypes>, StreamingError<SimTypes>> {
        let wait = Duration::from_secs(1);
        let sent = self.rpc(wait, |node| async move { node.raft.install_full_snapshot(vote, snapshot).await });
        sent.await.map_err(StreamingError::from)
    }
}

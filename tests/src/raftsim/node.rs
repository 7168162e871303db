//! One simulated node: openraft over made-up log, state and network, with the shipped read barrier; what it answers to
//! clients, and how it dies and starts again.

use super::log::SimLog;
use super::machine::{SimMachine, State};
use super::network::{SimNetworks, ask};
use super::runtime::{draw, now_ns, sleep, spawn_for, within};
use super::types::{Planted, SimTypes};
use super::world::World;
use crate::check::history::Freshness;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{Config, Raft, SnapshotPolicy};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::Failure;
use tiedkv_server::raft::confirm::Ballot;
use tiedkv_server::raft::read_barrier;
use tiedkv_server::raft::read_index::{ReadIndex, companion_of, confirmed_with, follows, read_index};
use tiedkv_server::raft::types::{Answer, Command};
use tiedkv_server::request::barrier::BarrierReply;
use tiedkv_server::request::freshness::Rounds;
use tokio::sync::{mpsc, oneshot};

/// As long as a barrier may take, in this faster world.
const BARRIER_MAX: Duration = Duration::from_millis(300);
/// As long as a follower may take to say whom it votes for.
const BALLOT_MAX: Duration = Duration::from_millis(10);
/// A lagging replica is waited for so long.
const BEHIND_MAX: Duration = Duration::from_millis(40);
/// Entries that stay behind a snapshot: few, so that those who were away need one.
const KEEP: u64 = 20;

/// openraft of the simulation.
pub type SimRaft = Raft<SimTypes, SimMachine>;

/// A node that runs.
#[derive(Clone)]
pub struct Running {
    /// Who.
    pub node: u64,
    /// Its openraft.
    pub raft: SimRaft,
    /// Its state.
    pub machine: SimMachine,
    planted: Option<Planted>,
    waiting: mpsc::Sender<BarrierReply>,
    rounds: Arc<Mutex<Rounds>>,
    /// Only for a planted bug: what a follower once said whom it votes for.
    remembered: Arc<Mutex<Option<Ballot>>>,
}

/// A node that runs or not: what is on its disk, and its life.
pub struct Node {
    /// Its log.
    pub log: SimLog,
    /// Its state.
    pub machine: SimMachine,
    /// How often it was started.
    pub life: u64,
    /// While it runs.
    pub running: Option<Running>,
}

/// What became of a write that a node was asked for.
#[derive(Debug)]
pub enum Wrote {
    /// It came to this at this position.
    Settled(Answer, Position),
    /// Certainly not proposed; who leads, if known.
    NotLeader(Option<u64>),
    /// Not known.
    Unknown,
}

/// What a read found.
pub struct Served {
    /// The state that it was served from.
    pub view: Arc<State>,
}

/// Starts a node from what its disk holds.
///
/// # Errors
/// When openraft does not start.
pub async fn start(world: &Arc<World>, node: u64) -> Result<(), String> {
    let (log, machine, life) = {
        let mut nodes = world.nodes.lock();
        let slot = nodes.get_mut(&node).ok_or("no such node")?;
        slot.log = slot.log.after_crash();
        slot.machine = slot.machine.after_crash();
        slot.life += 1;
        (slot.log.clone(), slot.machine.clone(), slot.life)
    };
    world.watch.lock().restarted(node, machine.view().position());
    let config = Config {
        heartbeat_interval: 20,
        election_timeout_min: 80,
        election_timeout_max: 140,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        install_snapshot_timeout: 1_000,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: KEEP,
        purge_batch_size: 8,
        replication_lag_threshold: 1_000,
        // Or openraft's own assertion would be the first to find it.
        allow_log_reversion: Some(world.planted == Some(Planted::AppendNotSynced)),
        ..Config::default()
    };
    let config = Arc::new(config.validate().map_err(|error| error.to_string())?);
    let (here, kept) = (world.clone(), machine.clone());
    let started = spawn_for(node, async move {
        let networks = SimNetworks { world: here, from: node, life };
        SimRaft::new(node, config, networks, log, kept).await
    });
    let raft = started.await.map_err(|_| "died at its start")?.map_err(|error| error.to_string())?;
    let (waiting, inbox) = mpsc::channel(1_024);
    let rounds = Arc::new(Mutex::new(Rounds::default()));
    let (planted, remembered) = (world.planted, Arc::default());
    let running = Running { node, raft, machine, planted, waiting, rounds: rounds.clone(), remembered };
    let (asks, here) = (running.clone(), world.clone());
    let asked = async move || match within(BARRIER_MAX, barrier(&here, &asks)).await {
        Some(answer) => answer,
        None => Err(Failure::new(ErrorCode::TryElsewhere, "no answer of the leader")),
    };
    if world.planted == Some(Planted::BarrierJoinedLate) {
        spawn_for(node, serve_late_comers(inbox, rounds, asked));
    } else {
        spawn_for(
            node,
            read_barrier::serve(inbox, rounds, || Moment(now_ns()), async |time| sleep(time).await, asked),
        );
    }
    if let Some(slot) = world.nodes.lock().get_mut(&node) {
        slot.running = Some(running);
    }
    Ok(())
}

/// The bug: all that came while the question was out are answered by it.
async fn serve_late_comers(
    mut inbox: mpsc::Receiver<BarrierReply>,
    rounds: Arc<Mutex<Rounds>>,
    asked: impl AsyncFn() -> Result<Position, Failure>,
) {
    let mut round = Vec::new();
    while inbox.recv_many(&mut round, 1_024).await > 0 {
        let sent = Moment(now_ns());
        let answer = asked().await;
        // Long enough for a write of somebody else.
        sleep(Duration::from_millis(5)).await;
        while let Ok(late) = inbox.try_recv() {
            round.push(late);
        }
        if let Ok(position) = &answer {
            rounds.lock().answered(sent, *position);
        }
        round.drain(..).for_each(|reply| reply.answer(answer.clone()));
    }
}

async fn barrier(world: &Arc<World>, own: &Running) -> Result<Position, Failure> {
    let nobody = || Failure::new(ErrorCode::TryElsewhere, "no leader to ask");
    let leader = own.raft.current_leader().await.ok_or_else(nobody)?;
    let answer = if leader == own.node {
        match ask_companion(world, own).await {
            Some(position) => ReadIndex::At(position),
            None => read_index(&own.raft, None).await,
        }
    } else {
        let asked = follows(&own.raft).await.map(|follows| (NodeId(own.node), follows));
        let question = async move |node: Running| read_index(&node.raft, asked).await;
        ask(world, own.node, leader, question).await.ok_or_else(nobody)?
    };
    match answer {
        ReadIndex::At(position) => Ok(position),
        ReadIndex::NotLeader(_) => Err(nobody()),
    }
}

/// A leader asks one other node whom it votes for.
async fn ask_companion(world: &Arc<World>, own: &Running) -> Option<Position> {
    let companion = companion_of(&own.raft, NodeId(own.node), draw(2) as usize)?;
    let remembered = own.remembered.lock().filter(|_| own.planted == Some(Planted::BallotRemembered));
    let votes_for = match remembered {
        Some(ballot) => Some(ballot),
        None => {
            let question = async move |node: Running| follows(&node.raft).await;
            within(BALLOT_MAX, ask(world, own.node, companion.0, question)).await??
        }
    };
    *own.remembered.lock() = votes_for;
    confirmed_with(&own.raft, companion, votes_for?).await
}

impl Running {
    /// Proposes a write.
    pub async fn write(self, command: Command) -> Wrote {
        match self.raft.client_write(command).await {
            Ok(response) => Wrote::Settled(response.data, Position(response.log_id.index)),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Wrote::NotLeader(forward.leader_id)
            }
            Err(_) => Wrote::Unknown,
        }
    }

    /// Serves a read at this level; `seen` is what its session has seen. `None`: this replica cannot.
    pub async fn read(self, freshness: Freshness, seen: Position) -> Option<Served> {
        match freshness {
            Freshness::Stale(None) => {}
            Freshness::Session if self.planted == Some(Planted::SessionNotWaited) => {}
            Freshness::Session => within(BEHIND_MAX, self.machine.applied(seen)).await?,
            Freshness::Linearizable if self.planted == Some(Planted::NoBarrier) => {}
            Freshness::Linearizable => self.caught_up().await?,
            Freshness::Stale(Some(bound)) => {
                if let Some(served) = self.fresh(bound) {
                    return Some(served);
                }
                self.caught_up().await?;
                return self.fresh(bound);
            }
        }
        Some(Served { view: self.machine.view() })
    }

    /// A view that is not older than this, if that is known.
    fn fresh(&self, bound: u64) -> Option<Served> {
        let view = self.machine.view();
        let sent = self.rounds.lock().covered(view.position())?;
        (now_ns() - sent.0 <= bound).then_some(Served { view })
    }

    async fn caught_up(&self) -> Option<()> {
        let (told, answered) = oneshot::channel();
        let (reply, answer) = BarrierReply::new(move || {
            // Nobody may wait any more.
            let _ = told.send(());
        });
        self.waiting.try_send(reply).ok()?;
        answered.await.ok()?;
        let position = *answer.answer()?.as_ref().ok()?;
        within(BEHIND_MAX, self.machine.applied(position)).await
    }
}

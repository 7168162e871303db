//! openraft's network over the peers' links: what this node sends. What it is sent is served by
//! [`serve`](crate::raft::serve).
//!
//! Appends are pipelined on one stream per session; a heartbeat is a session of its own, hence has its own
//! stream that is sent first, so that a large append causes no election. Snapshots go on their own stream at the
//! lowest priority, read from a view block by block. A peer that is down is `Unreachable`.

use crate::peer::raft_link::{LinkError, RaftLink, StreamKind};
use crate::peer::stream::{StreamError, read_message, write_message};
use crate::raft::snapshot::write_blocks;
use crate::raft::state_machine::SnapshotData;
use crate::raft::types::{MemberRecord, TypeConfig, Vote};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use quinn::{RecvStream, SendStream};
use serde::{Serialize, de::DeserializeOwned};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// An append that is not answered for this long breaks its session. openraft's soft limit (3/4 of a heartbeat)
/// would break sessions whenever a follower's disk takes a slow fsync; the connection notices a dead peer itself.
const APPEND_ANSWER_MAX: Duration = Duration::from_secs(2);
/// A vote needs an fsync on the other side.
const VOTE_ANSWER_MIN: Duration = Duration::from_millis(250);
/// One block of a snapshot must leave within this time.
const BLOCK_MAX: Duration = Duration::from_secs(10);
/// The receiver installs a snapshot within this time after its last block.
const INSTALL_MAX: Duration = Duration::from_secs(60);

/// Makes the clients of openraft, one per peer and purpose.
#[derive(Clone)]
pub struct NetworkFactory {
    link: Arc<RaftLink>,
}

impl NetworkFactory {
    /// Over the links of this node.
    pub fn new(link: Arc<RaftLink>) -> Self {
        Self { link }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: u64, node: &MemberRecord) -> PeerNetwork {
        PeerNetwork { link: self.link.clone(), target: NodeId(target), address: node.peer_address.clone() }
    }
}

/// The way to one peer. All purposes share the connection and differ by stream.
pub struct PeerNetwork {
    link: Arc<RaftLink>,
    target: NodeId,
    address: String,
}

type Rpc<T> = Result<T, RPCError<TypeConfig>>;

impl PeerNetwork {
    async fn open(&self, kind: StreamKind, wait: Duration) -> Rpc<(SendStream, RecvStream)> {
        self.link.open(self.target, &self.address, kind, wait).await.map_err(unreachable)
    }

    async fn ask<Q: Serialize + Sync, A: DeserializeOwned>(
        &self,
        kind: StreamKind,
        question: &Q,
        wait: Duration,
    ) -> Rpc<A> {
        let asked = timeout(wait, async {
            let (mut send, mut recv) = self.open(kind, wait).await?;
            write_message(&mut send, question).await.map_err(lost)?;
            send.finish().map_err(|error| lost(StreamError::Lost(error.to_string())))?;
            read_message(&mut recv).await.map_err(lost)?.ok_or_else(no_answer)
        });
        asked.await.unwrap_or_else(|_| Err(no_answer()))
    }
}

fn unreachable(error: LinkError) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&error))
}

fn lost(error: StreamError) -> RPCError<TypeConfig> {
    match error {
        StreamError::Lost(_) => RPCError::Unreachable(Unreachable::new(&error)),
        StreamError::Message(_) => RPCError::Network(NetworkError::new(&error)),
    }
}

fn slow_disk() -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(format!(
        "the view to send could not be read on within {BLOCK_MAX:?}"
    )))
}

fn no_answer() -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string("no answer in time"))
}

impl RaftNetworkV2<TypeConfig> for PeerNetwork {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<AppendEntriesResponse<TypeConfig>> {
        let mut answers = self.stream_append(Box::pin(stream::iter([request])), option).await?;
        answers.next().await.ok_or_else(no_answer)?.map(AppendEntriesResponse::from)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Rpc<BoxStream<'s, Rpc<StreamAppendResult<TypeConfig>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let (send, recv) = self.open(StreamKind::Append, option.soft_ttl()).await?;
            let sent = Arc::new(AtomicU64::new(0));
            // What may be on its way is bounded by the stream's flow-control window and by openraft's pipeline.
            let writer = AbortOnDrop(tokio::spawn(write_appends(input, send, sent.clone())));
            let session = Session { recv, sent, answered: 0, _writer: writer };
            let answers: BoxStream<'s, _> = Box::pin(stream::unfold(Some(session), |session| async move {
                let mut session = session?;
                match session.next().await {
                    None => None,
                    Some(Ok(answer)) => {
                        let go_on = answer.is_ok().then_some(session);
                        Some((Ok(answer), go_on))
                    }
                    Some(Err(error)) => Some((Err(error), None)),
                }
            }));
            Ok(answers)
        })
    }

    async fn vote(&mut self, request: VoteRequest<TypeConfig>, option: RPCOption) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask(StreamKind::Vote, &request, option.soft_ttl().max(VOTE_ANSWER_MIN)).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<VoteResponse<TypeConfig>> {
        self.ask(StreamKind::PreVote, &request, option.soft_ttl().max(VOTE_ANSWER_MIN)).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Rpc<TransferLeaderResponse<TypeConfig>> {
        self.ask(StreamKind::Transfer, &request, option.soft_ttl().max(VOTE_ANSWER_MIN)).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot) => sent.map_err(StreamingError::from),
        }
    }
}

impl PeerNetwork {
    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
    ) -> Rpc<SnapshotResponse<TypeConfig>> {
        let SnapshotData::Outgoing(view) = snapshot.snapshot else {
            return Err(RPCError::Network(NetworkError::from_string(
                "a snapshot that was received is not sent on",
            )));
        };
        let (mut send, mut recv) = self.open(StreamKind::Snapshot, VOTE_ANSWER_MIN).await?;
        timeout(BLOCK_MAX, write_message(&mut send, &vote)).await.map_err(|_| no_answer())?.map_err(lost)?;
        // Memory holds at most these blocks; the reader of the view waits for the network.
        let (blocks, mut to_send) = mpsc::channel::<Bytes>(2);
        let meta = snapshot.meta;
        let reader = tokio::task::spawn_blocking(move || {
            write_blocks(&view, &meta, |block| blocks.blocking_send(block).is_ok())
        });
        // Every wait has its limit, so a snapshot that makes no progress ends; one that does may take long.
        while let Some(block) = timeout(BLOCK_MAX, to_send.recv()).await.map_err(|_| slow_disk())? {
            match timeout(BLOCK_MAX, send.write_chunk(block)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(lost(StreamError::Lost(error.to_string()))),
                Err(_) => return Err(no_answer()),
            }
        }
        match timeout(BLOCK_MAX, reader).await.map_err(|_| slow_disk())? {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(RPCError::Network(NetworkError::new(&error))),
            Err(error) => return Err(RPCError::Network(NetworkError::new(&error))),
        }
        send.finish().map_err(|error| lost(StreamError::Lost(error.to_string())))?;
        let answer = timeout(INSTALL_MAX, read_message::<Result<SnapshotResponse<TypeConfig>, String>>(&mut recv));
        match answer.await {
            Ok(Ok(Some(Ok(response)))) => Ok(response),
            Ok(Ok(Some(Err(refused)))) => Err(RPCError::Unreachable(Unreachable::from_string(refused))),
            Ok(Ok(None)) | Err(_) => Err(no_answer()),
            Ok(Err(error)) => Err(lost(error)),
        }
    }
}

async fn write_appends<S>(mut input: S, mut send: SendStream, sent: Arc<AtomicU64>)
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    while let Some(request) = input.next().await {
        sent.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = write_message(&mut send, &request).await {
            tracing::debug!(%error, "an append session broke");
            return;
        }
    }
    let _gone = send.finish();
}

/// The answers of one append session, in the order of its requests.
struct Session {
    recv: RecvStream,
    sent: Arc<AtomicU64>,
    answered: u64,
    _writer: AbortOnDrop,
}

impl Session {
    async fn next(&mut self) -> Option<Rpc<StreamAppendResult<TypeConfig>>> {
        let mut answer = std::pin::pin!(read_message(&mut self.recv));
        let mut waiting_at_last_check = false;
        let answer = loop {
            match timeout(APPEND_ANSWER_MAX, &mut answer).await {
                Ok(answer) => break answer,
                // Silence is only wrong while a request waits; one may have been sent just now.
                Err(_) if self.sent.load(Ordering::Relaxed) == self.answered => waiting_at_last_check = false,
                Err(_) if waiting_at_last_check => return Some(Err(no_answer())),
                Err(_) => waiting_at_last_check = true,
            }
        };
        match answer {
            Ok(Some(answer)) => {
                self.answered += 1;
                Some(Ok(answer))
            }
            Ok(None) => None,
            Err(error) => Some(Err(lost(error))),
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

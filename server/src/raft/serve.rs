//! Serves the streams that peers open to this node's Raft group.

use crate::clock;
use crate::peer::raft_link::{PeerService, Served, StreamKind};
use crate::peer::stream::{StreamError, read_bytes, read_message, write_message};
use crate::raft::checksum::Sums;
use crate::raft::contact::Contact;
use crate::raft::first_start::{FirstMembers, FirstState};
use crate::raft::read_barrier::Question;
use crate::raft::read_index::{follows, read_index};
use crate::raft::snapshot::{BLOCK_BYTES_MAX, stage};
use crate::raft::state_machine::{SnapshotData, StateMachine};
use crate::raft::types::{TypeConfig, Vote};
use crate::storage::fjall_store::FjallStore;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use openraft::Raft;
use openraft::raft::{AppendEntriesRequest, SnapshotResponse};
use openraft::type_config::alias::SnapshotOf;
use quinn::{RecvStream, SendStream};
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, Position};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// A peer that sends a snapshot sends a block within this time.
const BLOCK_MAX: Duration = Duration::from_secs(10);
/// A question arrives whole within this time; so does the next one on a stream for several.
const QUESTION_MAX: Duration = Duration::from_secs(2);
/// Most bytes of a question for the read index.
const QUESTION_BYTES_MAX: usize = 64;

/// The server side of a group.
pub struct GroupService {
    pub(super) raft: Raft<TypeConfig, StateMachine>,
    pub(super) store: Arc<FjallStore>,
    /// One snapshot is taken in at a time.
    pub(super) installing: Arc<Semaphore>,
    /// The first members that this node was given.
    pub(super) first: FirstMembers,
    /// Told whenever the leader speaks.
    pub(super) contact: Arc<Contact>,
    /// What this replica has hashed.
    pub(super) sums: Arc<Sums>,
}

impl PeerService for GroupService {
    fn serve(self: Arc<Self>, from: NodeId, kind: StreamKind, send: SendStream, recv: RecvStream) -> Served {
        Box::pin(async move {
            let served = match kind {
                StreamKind::Append => self.append(send, recv).await,
                StreamKind::Snapshot => self.snapshot(send, recv).await,
                StreamKind::ReadIndex => self.read_indexes(from, send, recv).await,
                StreamKind::Ballot => self.ballots(send, recv).await,
                _ => self.question(kind, send, recv).await,
            };
            if let Err(error) = served {
                tracing::debug!(%from, ?kind, %error, "a stream of a peer ended");
            }
        })
    }
}

fn fatal(error: impl std::fmt::Display) -> StreamError {
    StreamError::Lost(format!("this node's group has stopped: {error}"))
}

impl GroupService {
    async fn append(&self, mut send: SendStream, recv: RecvStream) -> Result<(), StreamError> {
        // openraft reads ahead by 64 requests at most.
        let contact = self.contact.clone();
        let requests = stream::unfold((Some(recv), contact), |(recv, contact)| async move {
            let mut recv = recv?;
            match read_message::<AppendEntriesRequest<TypeConfig>>(&mut recv).await {
                Ok(Some(request)) => {
                    contact.heard();
                    Some((request, (Some(recv), contact)))
                }
                Ok(None) => None,
                Err(error) => {
                    tracing::debug!(%error, "an append session ended");
                    None
                }
            }
        });
        let mut answers = std::pin::pin!(self.raft.stream_append(requests));
        while let Some(answer) = answers.next().await {
            write_message(&mut send, &answer.map_err(fatal)?).await?;
        }
        let _gone = send.finish();
        Ok(())
    }

    async fn question(
        &self,
        kind: StreamKind,
        mut send: SendStream,
        mut recv: RecvStream,
    ) -> Result<(), StreamError> {
        let question = timeout(QUESTION_MAX, read_bytes(&mut recv, BLOCK_BYTES_MAX)).await;
        let question = question
            .map_err(|_| StreamError::Lost("no question in time".to_owned()))??
            .ok_or_else(|| StreamError::Lost("no question".to_owned()))?;
        match kind {
            StreamKind::Vote => {
                let answer = self.raft.vote(decode(&question)?).await.map_err(fatal)?;
                write_message(&mut send, &answer).await?;
            }
            StreamKind::PreVote => {
                let answer = self.raft.pre_vote(decode(&question)?).await.map_err(fatal)?;
                write_message(&mut send, &answer).await?;
            }
            StreamKind::Transfer => {
                let answer = self.raft.handle_transfer_leader(decode(&question)?).await.map_err(fatal)?;
                write_message(&mut send, &answer).await?;
            }
            StreamKind::State => {
                let begun = self.raft.is_initialized().await.map_err(fatal)?;
                write_message(&mut send, &FirstState { begun, members: self.first.clone() }).await?;
            }
            StreamKind::Clock => write_message(&mut send, &(clock::unix_ns() / 1_000_000)).await?,
            StreamKind::Sum => {
                let position: Position = decode(&question)?;
                write_message(&mut send, &self.sums.at(position)).await?;
            }
            StreamKind::Hello
            | StreamKind::Append
            | StreamKind::Snapshot
            | StreamKind::ReadIndex
            | StreamKind::Ballot => {}
        }
        let _gone = send.finish();
        Ok(())
    }

    /// A peer asks one question after the other on one stream, while it has some.
    async fn read_indexes(
        &self,
        from: NodeId,
        mut send: SendStream,
        mut recv: RecvStream,
    ) -> Result<(), StreamError> {
        while let Ok(question) = timeout(QUESTION_MAX, read_bytes(&mut recv, QUESTION_BYTES_MAX)).await {
            let Some(question) = question? else { break };
            // One of an older version says nothing.
            let follows = if question.is_empty() { None } else { decode::<Question>(&question)?.follows };
            let asked = follows.map(|follows| (from, follows));
            write_message(&mut send, &read_index(&self.raft, asked).await).await?;
        }
        let _gone = send.finish();
        Ok(())
    }

    /// A leader asks whom this node votes for, one question after the other on one stream.
    async fn ballots(&self, mut send: SendStream, mut recv: RecvStream) -> Result<(), StreamError> {
        while let Ok(question) = timeout(QUESTION_MAX, read_bytes(&mut recv, QUESTION_BYTES_MAX)).await {
            if question?.is_none() {
                break;
            }
            write_message(&mut send, &follows(&self.raft).await).await?;
        }
        let _gone = send.finish();
        Ok(())
    }

    async fn snapshot(&self, mut send: SendStream, mut recv: RecvStream) -> Result<(), StreamError> {
        let vote: Vote = timeout(QUESTION_MAX, read_message(&mut recv))
            .await
            .map_err(|_| StreamError::Lost("no vote in time".to_owned()))??
            .ok_or_else(|| StreamError::Lost("no vote".to_owned()))?;
        let Ok(_one) = self.installing.try_acquire() else {
            let busy: Result<SnapshotResponse<TypeConfig>, _> = Err("another snapshot is coming in".to_owned());
            return write_message(&mut send, &busy).await;
        };
        let (blocks, mut inbox) = mpsc::channel::<Bytes>(2);
        let store = self.store.clone();
        let staging = tokio::task::spawn_blocking(move || stage(&store, || inbox.blocking_recv()));
        let mut broken = None;
        loop {
            match timeout(BLOCK_MAX, read_bytes(&mut recv, BLOCK_BYTES_MAX)).await {
                Ok(Ok(Some(block))) => {
                    // Staging that failed says why below.
                    if blocks.send(block).await.is_err() {
                        break;
                    }
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    broken = Some(error);
                    break;
                }
                Err(_) => {
                    broken = Some(StreamError::Lost("no block in time".to_owned()));
                    break;
                }
            }
        }
        drop(blocks);
        let staged = staging.await.map_err(fatal)?;
        if let Some(error) = broken {
            return Err(error);
        }
        let answer = match staged {
            Err(error) => Err(error.to_string()),
            Ok(staged) => {
                let meta = staged.meta.clone();
                tracing::info!(%meta, "a snapshot arrived");
                let snapshot =
                    SnapshotOf::<TypeConfig, _> { meta, snapshot: SnapshotData::Incoming(Box::new(staged)) };
                Ok(self.raft.install_full_snapshot(vote, snapshot).await.map_err(fatal)?)
            }
        };
        write_message(&mut send, &answer).await?;
        let _gone = send.finish();
        Ok(())
    }
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, StreamError> {
    tiedkv_protocol::codec::decode_large(bytes).map_err(|error| StreamError::Message(error.to_string()))
}

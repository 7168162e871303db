//! The path of a write: to the leader if it is known, else to any node; follow who leads; send again with the same
//! idempotency key until the outcome is known or the deadline is over.
//!
//! A try whose answer was lost leaves the outcome unknown; only a later answer to the same key settles it.

use crate::clock;
use crate::conditional::{Applied, Conditional, Unmet};
use crate::connections::Connections;
use crate::error::{Cause, CopyFate, CopyReport, Error};
use crate::options::{WriteOptions, deadline_of};
use crate::peer::Peer;
use crate::report::WriteReport;
use crate::retry::{BackoffSettings, backoff};
use crate::tied_read::check_key;
use crate::view::ViewInner;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, WriteDetail};
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::ids::{NodeId, Position, RequestId, SHARD_ZERO};
use tiedkv_protocol::limits::VALUE_BYTES_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{CopyKind, IdempotencyKey, WriteOperation, WriteRequest};
use tiedkv_protocol::response::{Failure, Written};

/// Tries that an error lists; later ones replace the last.
const REPORTED_MAX: usize = 16;

/// Writes one key.
///
/// # Cancel safety
/// A write whose future is dropped may still be applied.
pub(crate) async fn write(
    view: &ViewInner,
    operation: WriteOperation,
    value: Bytes,
    options: WriteOptions,
) -> Result<WriteReport, Error> {
    if let WriteOperation::Put { key } | WriteOperation::Delete { key } = &operation {
        check_key(key)?;
    }
    if value.len() > VALUE_BYTES_MAX {
        let message = format!("a value has at most {VALUE_BYTES_MAX} bytes, this one has {}", value.len());
        return Err(Error::call(ErrorCode::OverLimit, message));
    }
    match settle(view, operation, value, options).await? {
        Settled::Written(report, _) => Ok(report),
        Settled::Refused(failure, _, _) => Err(Error::node(failure)),
    }
}

/// Applies conditions and operations, all or nothing.
///
/// # Cancel safety
/// A write whose future is dropped may still be applied.
pub(crate) async fn write_atomic(
    view: &ViewInner,
    atomic: &Atomic,
    options: WriteOptions,
) -> Result<Conditional, Error> {
    let wrong = |error: String| Error::call(ErrorCode::OverLimit, error);
    atomic.check().map_err(|error| wrong(error.to_string()))?;
    let body = atomic.encode().map_err(|error| wrong(error.to_string()))?;
    let settled = settle(view, WriteOperation::Atomic, body, options).await?;
    let detail = |bytes: &Bytes| {
        WriteDetail::decode(bytes).map_err(|error| Error::internal(&format!("the detail of a write {error}")))
    };
    match settled {
        Settled::Written(report, bytes) => {
            let numbers = match detail(&bytes)? {
                Some(WriteDetail::Numbers(numbers)) => numbers,
                _ => Vec::new(),
            };
            Ok(Conditional::Applied(Applied { report, numbers }))
        }
        Settled::Refused(failure, mut unmet, bytes) if failure.code == ErrorCode::ConditionFailed => {
            if let Some(WriteDetail::Unmet { index, current }) = detail(&bytes)? {
                (unmet.condition, unmet.current) = (index as usize, current);
            }
            Ok(Conditional::Unmet(unmet))
        }
        Settled::Refused(failure, ..) => Err(Error::node(failure)),
    }
}

/// A write whose outcome is known.
enum Settled {
    Written(WriteReport, Bytes),
    /// The state refused it.
    Refused(Failure, Unmet, Bytes),
}

async fn settle(
    view: &ViewInner,
    operation: WriteOperation,
    value: Bytes,
    options: WriteOptions,
) -> Result<Settled, Error> {
    let began = clock::now();
    let deadline = deadline_of(options.deadline, view.shared.config().deadline)?;
    let own_key = options.idempotency.is_none();
    let idempotency = options.idempotency.unwrap_or_else(|| view.shared.idempotency(view.seen()));
    view.shared.connections().counters.writes.fetch_add(1, Relaxed);
    let mut running = Running {
        view,
        connections: view.shared.connections(),
        operation,
        value,
        idempotency,
        own_key,
        pinned: options.node,
        hint: None,
        until: began + deadline,
        tries: Vec::new(),
        count: 0,
        unknown: None,
        round: 0,
    };
    let ended = running.run().await;
    ended.map_err(|cause| {
        let cause = match (cause, running.unknown.take()) {
            // Whatever ended it: a try before may have been applied.
            (Cause::Deadline(_) | Cause::NoReplica(_) | Cause::Closed | Cause::Node(_), Some(reason)) => {
                Cause::UnknownOutcome(reason)
            }
            // "Not applied now" says nothing of the try before: its outcome is forgotten.
            (Cause::Call(failure), Some(reason)) if failure.code == ErrorCode::KeyExpired => {
                Cause::UnknownOutcome(format!("{reason}; its outcome is forgotten by now"))
            }
            (Cause::Deadline(_), None) => Cause::Deadline(deadline),
            (cause, _) => cause,
        };
        Error::new(cause, std::mem::take(&mut running.tries), clock::now().since(began))
    })
}

/// The outcome of a write's key, and the payload that came with it.
type Known = (Result<Written, Failure>, Bytes);

fn refused_by_state(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::ConditionFailed | ErrorCode::NotANumber | ErrorCode::NumberOverflow)
}

struct Running<'v> {
    view: &'v ViewInner,
    connections: &'v Arc<Connections>,
    operation: WriteOperation,
    value: Bytes,
    idempotency: IdempotencyKey,
    /// The key was made here, not by the caller.
    own_key: bool,
    pinned: Option<NodeId>,
    /// Who leads, as the last refusal said.
    hint: Option<NodeId>,
    until: Moment,
    tries: Vec<CopyReport>,
    count: u32,
    /// Why an earlier try may have been applied.
    unknown: Option<String>,
    round: u8,
}

impl Running<'_> {
    async fn run(&mut self) -> Result<Settled, Cause> {
        let mut avoid = None;
        loop {
            let peer = self.next_peer(avoid).await?;
            let written = self.attempt(&peer).await;
            let (fate, pause) = match written {
                Ok(Some((outcome, detail))) => return Ok(self.settled(peer.node, outcome, detail)),
                Ok(None) => return Err(Cause::Deadline(Duration::ZERO)),
                Err(fate) => self.judge(fate)?,
            };
            avoid = Some(peer.node);
            self.note(peer.node, fate);
            if let Some(hint) = pause {
                let span = backoff(&BackoffSettings::default(), self.round, hint, &mut self.view.own.lock().rng);
                self.round = self.round.saturating_add(1);
                let at = clock::now() + span;
                if at >= self.until {
                    return Err(self.last_failure().unwrap_or(Cause::Deadline(Duration::ZERO)));
                }
                self.connections.timer.until(at).await;
            }
        }
    }

    /// The node of the next try: the pinned one, who was named, who leads, or the next one that is connected.
    async fn next_peer(&mut self, avoid: Option<NodeId>) -> Result<Arc<Peer>, Cause> {
        let pinned = self.pinned;
        let usable = |connections: &Connections| match pinned {
            Some(node) => connections.table().peer(node).is_none_or(|peer| peer.links() > 0),
            None => connections.any_link(),
        };
        if !self.connections.wait(self.until, usable).await {
            return Err(match self.connections.is_closed() {
                true => Cause::Closed,
                false => Cause::NoReplica(self.connections.dial_errors()),
            });
        }
        let table = self.connections.table();
        if let Some(node) = pinned {
            return table.peer(node).cloned().ok_or_else(|| {
                Cause::Call(Failure::new(ErrorCode::NotAllowed, format!("{node} is no member of the cluster")))
            });
        }
        let linked = |node: NodeId| table.peer(node).filter(|peer| peer.links() > 0).cloned();
        let named = self.hint.take().or(table.topology.leader.filter(|leader| Some(*leader) != avoid));
        if let Some(peer) = named.and_then(linked) {
            return Ok(peer);
        }
        // Round the members, beginning behind the one that was asked last.
        let after = avoid.map_or(0, |node| table.peers.partition_point(|peer| peer.node <= node));
        let mut next =
            (0..table.peers.len()).filter_map(|step| table.peers.get((after + step) % table.peers.len()));
        let next = next.find(|peer| peer.links() > 0).cloned();
        next.ok_or_else(|| Cause::NoReplica(self.connections.dial_errors()))
    }

    /// One try: `Ok(None)` when the deadline came first.
    async fn attempt(&mut self, peer: &Arc<Peer>) -> Result<Option<Known>, CopyFate> {
        let not_sent = || peer.dial_error().unwrap_or_else(|| "not connected".to_owned());
        let link = peer.link().ok_or_else(|| CopyFate::NotSent(not_sent()))?;
        let now = clock::now();
        let request = WriteRequest {
            request: RequestId(0),
            shard: SHARD_ZERO,
            idempotency: self.idempotency,
            time_left_us: u64::try_from(self.until.since(now).as_micros()).unwrap_or(u64::MAX),
            operation: self.operation.clone(),
        };
        let answer = link.send_write(request, &self.value, now).map_err(CopyFate::NotSent)?;
        self.count += 1;
        match self.connections.timer.within(self.until, answer.answer()).await {
            Some(Ok((reply, detail))) => match reply.outcome {
                // Also the state's refusal is the outcome of this key, whatever became of an earlier try.
                Err(failure) if !refused_by_state(failure.code) => Err(CopyFate::Failed(Box::new(failure))),
                outcome => Ok(Some((outcome, detail))),
            },
            Some(Err(lost)) => Err(CopyFate::lost(&lost.0)),
            None => {
                self.unknown = Some(format!("{} did not answer within the deadline", peer.node));
                self.note(peer.node, CopyFate::Unanswered);
                Ok(None)
            }
        }
    }

    /// What the end of a try means: the pause before the next one (`None`: at once), or the end of the write.
    fn judge(&mut self, fate: CopyFate) -> Result<(CopyFate, Option<Duration>), Cause> {
        match &fate {
            CopyFate::LinkLost(reason) | CopyFate::CutOff(reason) => {
                self.unknown = Some(format!("a link was lost while its answer was owed: {reason}"));
                Ok((fate, Some(Duration::ZERO)))
            }
            CopyFate::Failed(failure) => {
                let hint = Duration::from_micros(failure.retry_after_us);
                match (failure.code, failure.code.caller_move()) {
                    (ErrorCode::NotLeader, _) => {
                        self.hint = failure.leader;
                        let known = failure.leader.is_some() && self.round < 2;
                        self.round = self.round.saturating_add(u8::from(known));
                        Ok((fate, if known { None } else { Some(hint) }))
                    }
                    (ErrorCode::KeyExpired, _) if self.may_renew(failure.have) => {
                        // Made before this client had seen a position of a cluster that has forgotten much.
                        self.idempotency = self.view.shared.idempotency(failure.have.unwrap_or_default());
                        self.hint = failure.leader;
                        Ok((fate, None))
                    }
                    (_, Move::FixTheCall) => Err(Cause::Call(Failure::clone(failure))),
                    (ErrorCode::Storage | ErrorCode::Internal | ErrorCode::Unknown, _)
                    | (_, Move::UnknownOutcome) => {
                        self.unknown = Some(format!("{}: {}", failure.code, failure.message));
                        Ok((fate, Some(hint)))
                    }
                    _ => Ok((fate, Some(hint))),
                }
            }
            _ => Ok((fate, Some(Duration::ZERO))),
        }
    }

    /// A key of the crate's own may be replaced by a fresh one while no try under it can have been applied.
    fn may_renew(&self, have: Option<Position>) -> bool {
        self.own_key && self.unknown.is_none() && have.is_some_and(|have| have > self.idempotency.floor)
    }

    fn settled(&self, node: NodeId, outcome: Result<Written, Failure>, detail: Bytes) -> Settled {
        let tries = self.count;
        match outcome {
            Ok(written) => {
                self.view.saw(written.position);
                let token = self.view.token_of(written.position);
                let (version, repeated) = (written.version, written.repeated);
                Settled::Written(WriteReport { node, version, token, repeated, tries }, detail)
            }
            Err(failure) => {
                // What the caller was shown counts as seen.
                let position = failure.have.unwrap_or_default();
                self.view.saw(position);
                let token = self.view.token_of(position);
                Settled::Refused(failure, Unmet { node, condition: 0, current: None, token, tries }, detail)
            }
        }
    }

    fn note(&mut self, node: NodeId, fate: CopyFate) {
        let kind = if self.tries.is_empty() { CopyKind::First } else { CopyKind::Retry };
        self.tries.truncate(REPORTED_MAX - 1);
        self.tries.push(CopyReport { node, kind, fate });
    }

    fn last_failure(&self) -> Option<Cause> {
        match self.tries.last().map(|last| &last.fate) {
            Some(CopyFate::Failed(failure)) => Some(Cause::Node(Failure::clone(failure))),
            _ => None,
        }
    }
}

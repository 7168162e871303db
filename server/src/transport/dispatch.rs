//! What to do with one frame of a client: decode its message and call the room it is for. Answers what cannot be
//! decoded, so that every request that can be named gets an answer.

use super::large::LargeRoom;
use super::replies::Replies;
use super::tls::Client;
use crate::admin::desk::{Desk, Rights};
use crate::clock;
use crate::peer::directory::Directory;
use crate::request::doors::{Caller, CancelSender, Writer};
use crate::request::path::RequestPath;
use crate::shutdown::Phase;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{Frame, FrameKind};
use tiedkv_protocol::hello::Notice;
use tiedkv_protocol::ids::{ClusterId, NodeId, RequestId};
use tiedkv_protocol::limits::{INLINE_VALUE_BYTES_MAX, TIME_LEFT_MAX, WITHDRAWS_MAX};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{AdminRequest, Ping, ReadRequest, Withdraw, WriteRequest};
use tiedkv_protocol::response::{AdminReply, Failure, Pong, ReadReply, Service, WriteReply};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// A write's own deadline plus this is when the node gives it up itself.
const WRITE_GRACE: Duration = Duration::from_secs(1);

/// Bounds of client connections.
#[derive(Clone, Copy, Debug)]
pub struct SessionLimits {
    /// Longest time from the first packet of a connection to its hello.
    pub handshake_limit: Duration,
    /// Most bytes of answers that wait for one connection.
    pub replies_waiting_max_bytes: usize,
    /// Longest time in which a client with waiting answers takes nothing.
    pub replies_stalled_max: Duration,
    /// Most writes of one connection in flight.
    pub connection_writes_max: usize,
}

/// Everything that client sessions of a node share.
pub struct Door {
    /// This node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// Bounds.
    pub limits: SessionLimits,
    /// Where copies go.
    pub path: RequestPath,
    /// Where writes go.
    pub writer: Arc<dyn Writer>,
    /// Health of the cancel channel, for pongs.
    pub cancels: Arc<dyn CancelSender>,
    /// Who is in the cluster.
    pub directory: Arc<Directory>,
    /// Administration.
    pub desk: Arc<Desk>,
    /// Places for large frames.
    pub large_frames: LargeRoom,
    /// Whether the node is on its way out.
    pub phase: watch::Receiver<Phase>,
    /// What sessions count.
    pub counters: Arc<SessionCounters>,
}

/// What sessions count; each field only grows.
#[derive(Debug, Default)]
pub struct SessionCounters {
    /// Connections so far; also numbers them.
    pub connections: AtomicU64,
    /// Frames received.
    pub frames: AtomicU64,
    /// Frames that could not be decoded or were not allowed.
    pub malformed: AtomicU64,
    /// Writes refused because too many of the connection were in flight.
    pub writes_refused: AtomicU64,
}

/// One client connection, as the frames on it see it. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    door: Arc<Door>,
    caller: Caller,
    rights: Rights,
    replies: Arc<Replies>,
    writes: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Session {
    /// A session of `client` whose answers go to `replies`.
    pub fn new(door: Arc<Door>, client: &Client, replies: Arc<Replies>) -> Self {
        let connection = door.counters.connections.fetch_add(1, Relaxed) + 1;
        let writes = Arc::new(Semaphore::new(door.limits.connection_writes_max));
        let caller = Caller { id: client.caller, connection, replies: replies.clone() };
        let rights = if client.operator { Rights::Operator } else { Rights::Client };
        let large = door.large_frames.share(client.caller);
        Self { door, caller, rights, replies, writes, large }
    }

    /// What all sessions share.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// The caller's share of the places for large frames.
    pub(super) fn large_share(&self) -> &Arc<Semaphore> {
        &self.large
    }

    /// Numbers the connection within the process.
    pub fn connection(&self) -> u64 {
        self.caller.connection
    }

    /// The connection is gone. Call once, after the last frame.
    pub fn lost(&self) {
        self.door.path.connection_lost(&self.caller);
    }

    /// Acts on one frame that was received whole at `received`; never waits.
    pub fn take(&self, frame: &Frame, received: Moment) {
        self.door.counters.frames.fetch_add(1, Relaxed);
        match frame.kind {
            FrameKind::Read => {
                if let Some(request) = self.decode::<ReadRequest>(frame) {
                    self.door.path.read(&self.caller, request, received);
                }
            }
            FrameKind::Withdraw => match frame.message::<Withdraw>() {
                Ok(withdraw) if withdraw.requests.len() <= WITHDRAWS_MAX => {
                    self.door.path.withdraw(&self.caller, &withdraw.requests);
                }
                Ok(_) => self.malformed(frame, &format!("a withdraw names at most {WITHDRAWS_MAX} requests")),
                Err(error) => self.malformed(frame, &error.to_string()),
            },
            FrameKind::Write => {
                if let Some(request) = self.decode::<WriteRequest>(frame) {
                    // A small value gets its own copy: a slice would keep the whole receive buffer alive.
                    let small = frame.payload.len() <= INLINE_VALUE_BYTES_MAX;
                    let value = if small { Bytes::copy_from_slice(&frame.payload) } else { frame.payload.clone() };
                    self.write(request, value);
                }
            }
            FrameKind::Ping => {
                if let Some(ping) = self.decode::<Ping>(frame) {
                    self.pong(ping, received);
                }
            }
            FrameKind::Admin => {
                if let Some(request) = self.decode::<AdminRequest>(frame) {
                    self.administer(request);
                }
            }
            _ => self.malformed(frame, "a client does not send this kind of frame, or not again"),
        }
    }

    /// Complains about something that belongs to no request.
    pub fn refuse(&self, failure: Failure) {
        self.door.counters.malformed.fetch_add(1, Relaxed);
        self.push(FrameKind::Notice, &Notice::Refused(failure), Bytes::new());
    }

    /// Answers a write that did not come whole.
    pub(super) fn refuse_write(&self, request: RequestId, failure: Failure) {
        self.door.counters.malformed.fetch_add(1, Relaxed);
        self.write_reply(request, failure);
    }

    fn decode<T: DeserializeOwned>(&self, frame: &Frame) -> Option<T> {
        match frame.message() {
            Ok(message) => Some(message),
            Err(error) => {
                self.malformed(frame, &error.to_string());
                None
            }
        }
    }

    /// Answers the request of a frame if it can be named, else complains.
    fn malformed(&self, frame: &Frame, reason: &str) {
        let failure = Failure::new(ErrorCode::Malformed, format!("{:?} frame: {reason}", frame.kind));
        let Some(request) = frame.request() else { return self.refuse(failure) };
        self.door.counters.malformed.fetch_add(1, Relaxed);
        match frame.kind {
            FrameKind::Read => {
                let service = self.refusal();
                self.caller.replies.read_reply(ReadReply { request, service, outcome: Err(failure) }, Bytes::new());
            }
            FrameKind::Write => self.write_reply(request, failure),
            FrameKind::Admin => {
                self.push(FrameKind::AdminReply, &AdminReply { request, outcome: Err(failure) }, Bytes::new());
            }
            _ => self.push(FrameKind::Notice, &Notice::Refused(failure), Bytes::new()),
        }
    }

    fn refusal(&self) -> Service {
        Service {
            node: self.door.node,
            started: false,
            queue_wait_us: 0,
            service_time_us: 0,
            queue_depth: 0,
            flags: self.door.path.flags(),
            unhealthy_pairs: self.door.cancels.unhealthy_pairs(),
        }
    }

    fn write(&self, request: WriteRequest, value: Bytes) {
        let id = request.request;
        let Ok(permit) = self.writes.clone().try_acquire_owned() else {
            self.door.counters.writes_refused.fetch_add(1, Relaxed);
            let most = self.door.limits.connection_writes_max;
            let text = format!("{most} writes of this connection are in flight");
            return self.write_reply(id, Failure::new(ErrorCode::Busy, text));
        };
        let limit = Duration::from_micros(request.time_left_us).min(TIME_LEFT_MAX) + WRITE_GRACE;
        let outcome = self.door.writer.write(self.caller.id, request, value);
        let session = self.clone();
        tokio::spawn(async move {
            match timeout(limit, outcome).await {
                Ok((reply, detail)) => session.push(FrameKind::WriteReply, &reply, detail),
                Err(_) => {
                    let text = "no outcome by the deadline; it may still be applied";
                    session.write_reply(id, Failure::new(ErrorCode::UnknownOutcome, text));
                }
            }
            drop(permit);
        });
    }

    fn write_reply(&self, request: RequestId, failure: Failure) {
        let reply = WriteReply { request, node: self.door.node, outcome: Err(failure) };
        self.push(FrameKind::WriteReply, &reply, Bytes::new());
    }

    fn pong(&self, ping: Ping, received: Moment) {
        let held = clock::now().since(received).as_micros();
        let pong = Pong {
            request: ping.request,
            held_us: u32::try_from(held).unwrap_or(u32::MAX),
            flags: self.door.path.flags(),
            unhealthy_pairs: self.door.cancels.unhealthy_pairs(),
        };
        self.push(FrameKind::Pong, &pong, Bytes::new());
    }

    fn administer(&self, request: AdminRequest) {
        let session = self.clone();
        // Bounded like writes: an operation may wait for Raft.
        let Ok(permit) = self.writes.clone().try_acquire_owned() else {
            let failure =
                Failure::new(ErrorCode::Busy, "too many writes and operations of this connection in flight");
            let reply = AdminReply { request: request.request, outcome: Err(failure) };
            return self.push(FrameKind::AdminReply, &reply, Bytes::new());
        };
        tokio::spawn(async move {
            let limit = Duration::from_micros(request.time_left_us).min(TIME_LEFT_MAX);
            let answer = timeout(limit, session.door.desk.answer(request.operation, session.rights)).await;
            let (outcome, document) = match answer {
                Ok(Ok(document)) => (Ok(()), document),
                Ok(Err(failure)) => (Err(failure), Bytes::new()),
                Err(_) => (Err(Failure::new(ErrorCode::Expired, "not done by the deadline")), Bytes::new()),
            };
            session.push(FrameKind::AdminReply, &AdminReply { request: request.request, outcome }, document);
            drop(permit);
        });
    }

    fn push<T: serde::Serialize>(&self, kind: FrameKind, message: &T, payload: Bytes) {
        if let Err(error) = self.replies.push(kind, message, payload) {
            tracing::error!(?kind, %error, "an answer could not be encoded");
        }
    }
}

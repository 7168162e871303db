//! Frames on the one long-lived stream of a connection: hands over what callers send, tells them what came back.
//!
//! Whatever callers hand over between two turns of the link's task travels in one write. Copies and withdraws share
//! the stream, in order (rule R14 of docs/tie-protocol.md). The task itself is [`crate::link_task`]; who is told
//! is kept in [`crate::pending`]. Decides nothing about reads.
//!
//! Cost of a copy: one slab entry (no allocation once warm), one reference count, its bytes appended to a buffer
//! that is reused; no task switch of the caller.

use crate::clock;
use crate::cut_off::Turns;
use crate::mailbox::{Mail, Mailbox};
use crate::peer::Peer;
use crate::pending::{Lost, NotAdded, Owed, Pending, ShadowReader, copy_of};
use crate::stats::Counters;
use crate::tally::{Slot, Tally};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, Frame, FrameError, FrameKind};
use tiedkv_protocol::hello::Notice;
use tiedkv_protocol::ids::RequestId;
use tiedkv_protocol::limits::{INLINE_VALUE_BYTES_MAX, WITHDRAWS_MAX};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{AdminOperation, AdminRequest, CopyKind, Ping, ReadRequest, Withdraw, WriteRequest};
use tiedkv_protocol::response::{AdminReply, Pong, ReadReply, Service, WriteReply};
use tokio::sync::{Notify, oneshot};

/// Longest time that a withdraw of an answered read waits for another frame to ride on: its copies were cancelled
/// by the winner's node already, unless that cancel was lost.
pub(crate) const WITHDRAW_WAIT: Duration = Duration::from_millis(5);
/// Withdraws that wait for company before they are written at once.
const WITHDRAWS_WAITING_MAX: usize = 64;
/// Answers with more bytes than this are no sample of the round trip.
const SAMPLE_BYTES_MAX: usize = 16 * 1024;
/// Pings without an echo before no more are sent.
const PINGS_MAX: usize = 8;

/// What waits to be written to one connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Whole frames for the shared stream.
    pub(crate) frames: Vec<u8>,
    /// Frames that get a stream of their own.
    pub(crate) large: Vec<Vec<u8>>,
    large_bytes: usize,
    withdraws: Vec<RequestId>,
}

/// One connection to one node.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    pub(crate) connection: quinn::Connection,
    pub(crate) counters: Arc<Counters>,
    pending: Mutex<Pending>,
    outbox: Mutex<Outbox>,
    outbox_bytes_max: usize,
    /// There is something to write.
    pub(crate) wake: Notify,
    /// There are withdraws that wait for company.
    pub(crate) lazy: Notify,
    /// When anything was received last, in nanoseconds of our clock.
    heard: AtomicU64,
    /// The turns of the link's watch.
    pub(crate) turns: Mutex<Turns>,
    close_reason: Mutex<Option<String>>,
}

/// What a frame from the node changes beyond this link.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Nothing.
    Nothing,
    /// Topology, ceiling or a refusal of the connection.
    Notice(Notice),
}

/// A copy that was handed over; give it back to [`Link::withdraw`].
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) link: Arc<Link>,
    pub(crate) id: RequestId,
}

/// An answer to come. Dropping it forgets the request; the node is not told.
#[derive(Debug)]
pub(crate) struct Awaited<T> {
    link: Arc<Link>,
    id: RequestId,
    receiver: oneshot::Receiver<Result<T, Lost>>,
}

impl<T> Awaited<T> {
    /// The answer, or why the link was lost.
    pub(crate) async fn answer(mut self) -> Result<T, Lost> {
        match (&mut self.receiver).await {
            Ok(answer) => answer,
            Err(_) => Err(Lost("the link ended".into())),
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        self.link.forget(self.id);
    }
}

impl Link {
    pub(crate) fn new(
        peer: Arc<Peer>,
        connection: quinn::Connection,
        counters: Arc<Counters>,
        pending_max: usize,
        outbox_bytes_max: usize,
    ) -> Self {
        Self {
            peer,
            connection,
            counters,
            pending: Mutex::new(Pending::new(pending_max)),
            outbox: Mutex::default(),
            outbox_bytes_max,
            wake: Notify::new(),
            lazy: Notify::new(),
            heard: AtomicU64::new(clock::now().0),
            turns: Mutex::new(Turns::new(clock::now())),
            close_reason: Mutex::new(None),
        }
    }

    /// Hands over one copy; the answer goes to `mailbox` as the answer to `copy`.
    ///
    /// # Errors
    /// Why it certainly did not leave.
    pub(crate) fn send_copy(
        self: &Arc<Self>,
        request: ReadRequest,
        slot: Slot,
        mailbox: &Arc<Mailbox>,
        copy: u16,
        now: Moment,
    ) -> Result<Handed, String> {
        let id = self.send_read(request, slot, Owed::Copy { mailbox: mailbox.clone(), copy }, now)?;
        Ok(Handed { link: self.clone(), id })
    }

    /// Hands over a copy that measures.
    ///
    /// # Errors
    /// Why it certainly did not leave.
    pub(crate) fn send_shadow(
        &self,
        request: ReadRequest,
        slot: Slot,
        reader: Arc<dyn ShadowReader>,
        now: Moment,
    ) -> Result<(), String> {
        self.send_read(request, slot, Owed::Shadow(reader), now).map(|_| ())
    }

    fn send_read(
        &self,
        mut request: ReadRequest,
        slot: Slot,
        owed: Owed,
        now: Moment,
    ) -> Result<RequestId, String> {
        let kind = request.kind;
        let id = self.add(owed, Some((kind, slot)), now)?;
        request.request = id;
        // Counted before it can be answered.
        let tally = self.counters.tallies.of(slot);
        tally.sent.add(kind);
        tally.outstanding.add(kind);
        if let Err(reason) = self.enqueue(FrameKind::Read, &request, &[]) {
            if self.pending.lock().take(id).is_some() {
                tally.sent.take_back(kind);
                tally.outstanding.take_back(kind);
            }
            return Err(reason);
        }
        Ok(id)
    }

    /// Nobody waits for this copy any more. Does nothing if it was answered. An `urgent` one does not wait for
    /// another frame to ride on.
    pub(crate) fn withdraw(&self, id: RequestId, urgent: bool) {
        if self.pending.lock().take(id).is_none() {
            return;
        }
        if let Some((kind, slot)) = copy_of(id) {
            let tally = self.counters.tallies.of(slot);
            tally.outstanding.take_back(kind);
            tally.unanswered.add(kind);
            tally.withdrawn.add(kind);
        }
        let waiting = {
            let mut outbox = self.outbox.lock();
            outbox.withdraws.push(id);
            outbox.withdraws.len()
        };
        if urgent || waiting >= WITHDRAWS_WAITING_MAX {
            self.wake.notify_one();
        } else if waiting == 1 {
            self.lazy.notify_one();
        }
    }

    /// Hands over a try of a write.
    ///
    /// # Errors
    /// Why it certainly did not leave.
    pub(crate) fn send_write(
        self: &Arc<Self>,
        mut request: WriteRequest,
        value: &[u8],
        now: Moment,
    ) -> Result<Awaited<(WriteReply, Bytes)>, String> {
        let (sender, receiver) = oneshot::channel();
        request.request = self.add(Owed::Write(sender), None, now)?;
        self.counters.writes_sent.fetch_add(1, Relaxed);
        let awaited = Awaited { link: self.clone(), id: request.request, receiver };
        self.enqueue(FrameKind::Write, &request, value)?;
        Ok(awaited)
    }

    /// Hands over an administrative request.
    ///
    /// # Errors
    /// Why it certainly did not leave.
    pub(crate) fn send_admin(
        self: &Arc<Self>,
        operation: AdminOperation,
        time_left: Duration,
        now: Moment,
    ) -> Result<Awaited<(AdminReply, Bytes)>, String> {
        let (sender, receiver) = oneshot::channel();
        let request = self.add(Owed::Admin(sender), None, now)?;
        let time_left_us = u64::try_from(time_left.as_micros()).unwrap_or(u64::MAX);
        let message = AdminRequest { request, time_left_us, operation };
        let awaited = Awaited { link: self.clone(), id: request, receiver };
        self.enqueue(FrameKind::Admin, &message, &[])?;
        Ok(awaited)
    }

    /// Pings the node, unless many pings are out.
    pub(crate) fn ping(&self, now: Moment) {
        if self.pending.lock().pings() >= PINGS_MAX {
            return;
        }
        if let Ok(request) = self.add(Owed::Ping, None, now)
            && self.enqueue(FrameKind::Ping, &Ping { request }, &[]).is_err()
        {
            self.forget(request);
        }
    }

    /// Ends the link; its task tells everybody who waits.
    pub(crate) fn close(&self, reason: &str) {
        self.close_reason.lock().get_or_insert_with(|| reason.to_owned());
        self.connection.close(quinn::VarInt::from_u32(0), reason.as_bytes());
    }

    /// Why [`Link::close`] was called, if it was.
    pub(crate) fn close_reason(&self) -> Option<String> {
        self.close_reason.lock().clone()
    }

    /// Answers owed, pings not counted.
    pub(crate) fn owed(&self) -> usize {
        self.pending.lock().owed()
    }

    /// When anything was received last.
    pub(crate) fn heard(&self) -> Moment {
        Moment(self.heard.load(Relaxed))
    }

    /// Takes what is to be written: swaps the frames into `buffer` (which must be empty), withdraws last. Of the
    /// frames with a stream of their own it takes the oldest `large_max`; the others stay and count as waiting.
    pub(crate) fn take_outbox(&self, buffer: &mut Vec<u8>, large_max: usize) -> Vec<Vec<u8>> {
        let mut outbox = self.outbox.lock();
        let withdraws = std::mem::take(&mut outbox.withdraws);
        for part in withdraws.chunks(WITHDRAWS_MAX) {
            let message = Withdraw { requests: part.iter().copied().collect() };
            // Cannot fail: at most 256 numbers. A withdraw that is not sent costs work, never an answer.
            if frame::encode(FrameKind::Withdraw, &message, &[], &mut outbox.frames).is_ok() {
                self.counters.withdraw_frames.fetch_add(1, Relaxed);
                self.counters.frames_sent.fetch_add(1, Relaxed);
            }
        }
        std::mem::swap(&mut outbox.frames, buffer);
        let count = outbox.large.len().min(large_max);
        let large: Vec<Vec<u8>> = outbox.large.drain(..count).collect();
        outbox.large_bytes -= large.iter().map(Vec::len).sum::<usize>();
        large
    }

    /// True while withdraws wait.
    pub(crate) fn has_withdraws(&self) -> bool {
        !self.outbox.lock().withdraws.is_empty()
    }

    fn add(&self, owed: Owed, copy: Option<(CopyKind, Slot)>, now: Moment) -> Result<RequestId, String> {
        self.pending.lock().add(owed, copy, now).map_err(|refused| match refused {
            NotAdded::Lost(reason) => reason.to_string(),
            NotAdded::Full(bound) => format!("{bound} answers are owed on this connection"),
        })
    }

    fn forget(&self, id: RequestId) {
        self.pending.lock().take(id);
    }

    fn enqueue<T: serde::Serialize>(&self, kind: FrameKind, message: &T, payload: &[u8]) -> Result<(), String> {
        let full = |waiting: usize| format!("{waiting} bytes wait to be written");
        let wrong = |error: FrameError| error.to_string();
        {
            let mut outbox = self.outbox.lock();
            let waiting = outbox.frames.len() + outbox.large_bytes;
            if waiting > 0 && waiting + payload.len() > self.outbox_bytes_max {
                return Err(full(waiting));
            }
            if payload.len() > INLINE_VALUE_BYTES_MAX {
                let mut alone = Vec::with_capacity(payload.len() + 256);
                frame::encode(kind, message, payload, &mut alone).map_err(wrong)?;
                outbox.large_bytes += alone.len();
                outbox.large.push(alone);
            } else {
                frame::encode(kind, message, payload, &mut outbox.frames).map_err(wrong)?;
            }
        }
        self.counters.frames_sent.fetch_add(1, Relaxed);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes one frame of the node.
    ///
    /// # Errors
    /// When it cannot be understood; the link cannot go on.
    pub(crate) fn on_frame(&self, frame: &Frame, now: Moment) -> Result<Heard, String> {
        self.heard.store(now.0, Relaxed);
        self.counters.frames_received.fetch_add(1, Relaxed);
        let wrong = |error: tiedkv_protocol::codec::CodecError| format!("a {:?} frame {error}", frame.kind);
        match frame.kind {
            FrameKind::ReadReply => self.on_read_reply(frame.message().map_err(wrong)?, frame.payload.clone(), now),
            FrameKind::WriteReply => {
                let reply: WriteReply = frame.message().map_err(wrong)?;
                if let Some((Owed::Write(sender), _)) = self.pending.lock().take(reply.request) {
                    let _ = sender.send(Ok((reply, frame.payload.clone())));
                }
            }
            FrameKind::AdminReply => {
                let reply: AdminReply = frame.message().map_err(wrong)?;
                if let Some((Owed::Admin(sender), _)) = self.pending.lock().take(reply.request) {
                    let _ = sender.send(Ok((reply, frame.payload.clone())));
                }
            }
            FrameKind::Pong => {
                let pong: Pong = frame.message().map_err(wrong)?;
                self.peer.heard_flags(pong.flags, pong.unhealthy_pairs);
                let taken = self.pending.lock().take(pong.request);
                if let Some((Owed::Ping, sent)) = taken {
                    let held = Duration::from_micros(u64::from(pong.held_us));
                    self.peer.heard_echo(now.since(sent).saturating_sub(held), now);
                }
            }
            FrameKind::Notice => return Ok(Heard::Notice(frame.message().map_err(wrong)?)),
            other => return Err(format!("a node does not send {other:?} frames")),
        }
        Ok(Heard::Nothing)
    }

    /// An answer came. What carries much is longer under way than the tie's little frames: no sample.
    fn heard_answer(&self, service: &Service, bytes: usize, latency: Duration, now: Moment) {
        if bytes > SAMPLE_BYTES_MAX {
            self.peer.heard_flags(service.flags, service.unhealthy_pairs);
        } else {
            self.peer.heard_answer(latency, service, now);
        }
    }

    fn on_read_reply(&self, reply: ReadReply, value: Bytes, now: Moment) {
        let id = reply.request;
        let taken = self.pending.lock().take(id);
        let Some((kind, slot)) = copy_of(id) else { return };
        let tally = self.counters.tallies.of(slot);
        match taken {
            Some((Owed::Copy { mailbox, copy }, sent)) => {
                self.heard_answer(&reply.service, value.len(), now.since(sent), now);
                tally.outstanding.take_back(kind);
                let good = reply.outcome.is_ok();
                count_bad_answer(tally, kind, &reply);
                let read = mailbox.leave(Mail::Answer { copy, reply, value, received: now });
                if !read && good {
                    tally.late.add(kind);
                }
            }
            Some((Owed::Shadow(reader), sent)) => {
                self.peer.heard_answer(now.since(sent), &reply.service, now);
                tally.outstanding.take_back(kind);
                count_bad_answer(tally, kind, &reply);
                if reply.outcome.is_ok() {
                    tally.late.add(kind);
                }
                reader.shadow_answered(now.since(sent), &reply, now);
            }
            Some(_) => {}
            // It was withdrawn: the answer was on its way already.
            None => {
                self.peer.heard_flags(reply.service.flags, reply.service.unhealthy_pairs);
                if tally.unanswered.take_back(kind) {
                    count_bad_answer(tally, kind, &reply);
                    if reply.outcome.is_ok() {
                        tally.late.add(kind);
                    }
                }
            }
        }
    }

    /// The link is gone: everybody who waits is told. Called once, by the link's task.
    pub(crate) fn lose(&self, reason: &Arc<str>) {
        let owed = self.pending.lock().lose(reason.clone());
        for (id, owed) in owed {
            match owed {
                Owed::Shadow(reader) => {
                    self.count_lost(id);
                    reader.shadow_lost(self.peer.node);
                }
                Owed::Copy { mailbox, .. } => {
                    self.count_lost(id);
                    mailbox.leave(Mail::LinkLost { node: self.peer.node, reason: reason.clone() });
                }
                Owed::Write(sender) => drop(sender.send(Err(Lost(reason.clone())))),
                Owed::Admin(sender) => drop(sender.send(Err(Lost(reason.clone())))),
                Owed::Ping => {}
            }
        }
    }

    fn count_lost(&self, id: RequestId) {
        if let Some((kind, slot)) = copy_of(id) {
            let tally = self.counters.tallies.of(slot);
            tally.outstanding.take_back(kind);
            tally.unanswered.add(kind);
            tally.lost_links.add(kind);
        }
    }
}

/// Counts an answer that is not good; good ones are counted by the read, which knows whether they won.
fn count_bad_answer(tally: &Tally, kind: CopyKind, reply: &ReadReply) {
    match &reply.outcome {
        Ok(_) => {}
        Err(failure) if failure.code == ErrorCode::Expired => tally.expired.add(kind),
        Err(_) if reply.service.started => tally.copies_failed.add(kind),
        Err(_) => tally.refused.add(kind),
    }
}

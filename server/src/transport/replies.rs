//! The answers of one client connection, from worker threads to the connection's writer.
//!
//! Whoever has an answer encodes it straight into one buffer; the writer takes the whole buffer at each wake-up, so
//! that answers that become ready together travel in one write. Values over the inline bound wait apart: each gets
//! a stream of its own. The bound is in bytes; reaching it closes the connection.

use crate::request::doors::ReplySink;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, FrameKind};
use tiedkv_protocol::limits::INLINE_VALUE_BYTES_MAX;
use tiedkv_protocol::response::{Failure, ReadReply};
use tokio::sync::Notify;

/// A frame that travels on a stream of its own.
#[derive(Debug)]
pub struct LargeFrame {
    /// All but the value.
    pub head: Bytes,
    /// The value.
    pub payload: Bytes,
}

impl LargeFrame {
    fn bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// What the writer takes at one wake-up.
#[derive(Debug, Default)]
pub struct Batch {
    /// Whole frames, one after the other; may be empty.
    pub frames: Bytes,
    /// Frames for streams of their own.
    pub large: VecDeque<LargeFrame>,
}

/// The bound on waiting bytes was reached: the client does not read its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("answers are not read: more than {0} bytes wait")]
pub struct Overflow(pub usize);

/// Collects answers; shared by the workers, the reader and the writer of a connection.
#[derive(Debug)]
pub struct Replies {
    state: Mutex<State>,
    wake: Notify,
    over: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    frames: Vec<u8>,
    large: VecDeque<LargeFrame>,
    /// Bytes not yet handed to QUIC, also those the writer took.
    waiting_bytes: usize,
    overflow: bool,
}

impl Replies {
    /// Holds at most `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), wake: Notify::new(), over: Notify::new(), bytes_max }
    }

    /// Hands over one message; never waits. After the bound was reached it is dropped: the connection is closing.
    pub fn push<T: Serialize>(
        &self,
        kind: FrameKind,
        message: &T,
        payload: Bytes,
    ) -> Result<(), frame::FrameError> {
        let mut state = self.state.lock();
        if state.overflow {
            return Ok(());
        }
        let was_empty = state.frames.is_empty() && state.large.is_empty();
        let added = if payload.len() > INLINE_VALUE_BYTES_MAX {
            let mut head = Vec::with_capacity(256);
            frame::encode_head(kind, message, payload.len(), &mut head)?;
            let large = LargeFrame { head: head.into(), payload };
            let bytes = large.bytes();
            state.large.push_back(large);
            bytes
        } else {
            let before = state.frames.len();
            frame::encode(kind, message, &payload, &mut state.frames)?;
            state.frames.len() - before
        };
        state.waiting_bytes += added;
        state.overflow = state.waiting_bytes > self.bytes_max;
        let overflow = state.overflow;
        drop(state);
        if overflow {
            self.over.notify_one();
        } else if was_empty {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Takes what waits; waits until something does.
    ///
    /// # Cancel safety
    /// Safe: a batch is taken in the same step as it is returned.
    pub async fn batch(&self) -> Batch {
        loop {
            let woken = self.wake.notified();
            if let Some(batch) = self.try_batch() {
                return batch;
            }
            woken.await;
        }
    }

    /// Takes what waits, if anything does.
    pub fn try_batch(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        if state.frames.is_empty() && state.large.is_empty() {
            return None;
        }
        let frames = std::mem::take(&mut state.frames).into();
        Some(Batch { frames, large: std::mem::take(&mut state.large) })
    }

    /// Waits until the bound is reached; for one waiter, who then closes the connection.
    ///
    /// # Cancel safety
    /// Not safe: reaching the bound is told once.
    pub async fn overflow(&self) -> Overflow {
        self.over.notified().await;
        Overflow(self.bytes_max)
    }

    /// The writer handed so many bytes to QUIC.
    pub fn written(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.waiting_bytes = state.waiting_bytes.saturating_sub(bytes);
    }

    /// Bytes that are not yet handed to QUIC.
    pub fn waiting_bytes(&self) -> usize {
        self.state.lock().waiting_bytes
    }
}

impl ReplySink for Replies {
    fn read_reply(&self, reply: ReadReply, value: Bytes) {
        if let Err(error) = self.push(FrameKind::ReadReply, &reply, value) {
            // Only a value over its bound gets here; the copy must be answered all the same.
            let failure = Failure::new(ErrorCode::Internal, format!("the answer cannot be sent: {error}"));
            let reply = ReadReply { outcome: Err(failure), ..reply };
            if let Err(error) = self.push(FrameKind::ReadReply, &reply, Bytes::new()) {
                tracing::error!(request = %reply.request, %error, "an answer could not be encoded");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_protocol::frame::FrameDecoder;
    use tiedkv_protocol::ids::RequestId;
    use tiedkv_protocol::limits::VALUE_BYTES_MAX;
    use tiedkv_protocol::request::Ping;

    fn ping(request: u64) -> Ping {
        Ping { request: RequestId(request) }
    }

    #[tokio::test]
    async fn what_is_ready_together_travels_together_and_in_order() {
        let replies = Replies::new(1 << 20);
        for request in 0..10 {
            replies.push(FrameKind::Ping, &ping(request), Bytes::new()).unwrap();
        }
        let batch = replies.batch().await;
        let mut decoder = FrameDecoder::default();
        decoder.feed(&batch.frames);
        for request in 0..10 {
            let frame = decoder.next_frame().unwrap().unwrap();
            assert_eq!(frame.message::<Ping>().unwrap(), ping(request));
        }
        assert_eq!(decoder.next_frame().unwrap(), None);
        assert!(replies.try_batch().is_none());
        assert_eq!(replies.waiting_bytes(), batch.frames.len());
        replies.written(batch.frames.len());
        assert_eq!(replies.waiting_bytes(), 0);
    }

    #[tokio::test]
    async fn a_large_value_waits_apart() {
        let replies = Replies::new(1 << 20);
        let large = Bytes::from(vec![7; INLINE_VALUE_BYTES_MAX + 1]);
        replies.push(FrameKind::Ping, &ping(1), large.clone()).unwrap();
        replies.push(FrameKind::Ping, &ping(2), large.slice(1..)).unwrap();
        let batch = replies.batch().await;
        assert_eq!(batch.large.len(), 1);
        assert!(batch.frames.len() > INLINE_VALUE_BYTES_MAX);
        let mut decoder = FrameDecoder::default();
        decoder.feed(&batch.large[0].head);
        decoder.feed(&batch.large[0].payload);
        assert_eq!(decoder.next_frame().unwrap().unwrap().payload, large);
    }

    #[tokio::test]
    async fn the_bound_is_an_answer_although_the_writer_takes_what_waits() {
        let replies = Replies::new(1000);
        for request in 0..1000 {
            replies.push(FrameKind::Ping, &ping(request), Bytes::new()).unwrap();
            // Takes, but never gets rid of it.
            replies.try_batch();
        }
        let overflow = tokio::time::timeout(std::time::Duration::from_secs(5), replies.overflow()).await;
        assert_eq!(overflow, Ok(Overflow(1000)));
        assert!(replies.waiting_bytes() < 1100);
    }

    #[test]
    fn a_value_over_its_bound_is_answered_as_a_failure() {
        use tiedkv_protocol::ids::{NodeId, Position};
        use tiedkv_protocol::request::ReadLevel;
        use tiedkv_protocol::response::{Found, Service};
        let replies = Replies::new(1 << 30);
        let service = Service {
            node: NodeId(1),
            started: true,
            queue_wait_us: 0,
            service_time_us: 0,
            queue_depth: 0,
            flags: 0,
            unhealthy_pairs: 0,
        };
        let found =
            Found { version: None, level: ReadLevel::Linearizable, position: Position(1), remaining_ms: None };
        let reply = ReadReply { request: RequestId(5), service, outcome: Ok(found) };
        replies.read_reply(reply, Bytes::from(vec![0; VALUE_BYTES_MAX + (1 << 20)]));
        let mut decoder = FrameDecoder::default();
        decoder.feed(&replies.try_batch().unwrap().frames);
        let reply: ReadReply = decoder.next_frame().unwrap().unwrap().message().unwrap();
        assert_eq!(reply.outcome.unwrap_err().code, ErrorCode::Internal);
    }
}

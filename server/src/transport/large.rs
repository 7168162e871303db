//! Frames on streams of their own: large writes. Their number is bounded over the node, and each caller has a share, so
//! that a few slow clients cannot keep the others' large values out. What does not come whole is answered under the
//! request's own id as soon as that is known.
//!
//! Copies and withdraws must not come here: their order matters (rule R14, docs/tie-protocol.md).

use super::dispatch::Session;
use crate::clock;
use parking_lot::Mutex;
use quinn::{Connection, RecvStream};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{Frame, FrameDecoder, FrameKind, PREFIX_BYTES};
use tiedkv_protocol::ids::CallerId;
use tiedkv_protocol::limits::HEADER_BYTES_MAX;
use tiedkv_protocol::response::Failure;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Large frames that arrive at the same time, over all clients: bounds their memory to about 256 MiB.
pub const LARGE_FRAMES_MAX: usize = 32;
/// Those of one caller, over all of its connections.
pub const LARGE_FRAMES_PER_CALLER_MAX: usize = 8;
/// Longest time for one frame to come whole, its wait for a place included.
const WHOLE_LIMIT: Duration = Duration::from_secs(10);
/// Longest chunk taken from QUIC at once.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// The places of a node for large frames.
#[derive(Debug)]
pub struct LargeRoom {
    all: Arc<Semaphore>,
    /// One per caller that is connected.
    callers: Mutex<HashMap<CallerId, Weak<Semaphore>>>,
}

impl LargeRoom {
    /// All places free.
    pub fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(LARGE_FRAMES_MAX)), callers: Mutex::default() }
    }

    /// The share of `caller`, for as long as any of its connections lives.
    pub fn share(&self, caller: CallerId) -> Arc<Semaphore> {
        let mut callers = self.callers.lock();
        if let Some(share) = callers.get(&caller).and_then(Weak::upgrade) {
            return share;
        }
        callers.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(LARGE_FRAMES_PER_CALLER_MAX));
        callers.insert(caller, Arc::downgrade(&share));
        share
    }
}

impl Default for LargeRoom {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes what comes apart; at most as many streams at once as the transport grants.
pub(super) async fn take_large(session: Session, connection: Connection) {
    let mut streams = JoinSet::new();
    while let Ok(stream) = connection.accept_uni().await {
        while streams.try_join_next().is_some() {}
        streams.spawn(take_one(session.clone(), stream));
    }
}

async fn take_one(session: Session, stream: RecvStream) {
    let mut arriving = Arriving { stream, decoder: FrameDecoder::default(), has_place: false };
    let failure = match timeout(WHOLE_LIMIT, arriving.whole(&session)).await {
        Ok(Ok(frame)) => return session.take(&frame, clock::now()),
        Ok(Err(reason)) => Failure::new(ErrorCode::Malformed, reason),
        Err(_) if arriving.has_place => {
            Failure::new(ErrorCode::Malformed, format!("a large value did not come whole within {WHOLE_LIMIT:?}"))
        }
        Err(_) => {
            let text = format!(
                "no place for a large value within {WHOLE_LIMIT:?}: a node takes {LARGE_FRAMES_MAX} at a time, \
                 {LARGE_FRAMES_PER_CALLER_MAX} of one caller"
            );
            Failure::new(ErrorCode::Busy, text)
        }
    };
    match arriving
        .decoder
        .pending_head()
        .filter(|head| head.kind == FrameKind::Write)
        .and_then(|head| head.request())
    {
        Some(request) => session.refuse_write(request, failure),
        None => session.refuse(failure),
    }
}

/// One stream.
struct Arriving {
    stream: RecvStream,
    decoder: FrameDecoder,
    has_place: bool,
}

impl Arriving {
    /// The one frame of the stream. Waits for a place between head and value: until then QUIC's flow control holds
    /// the sender back.
    async fn whole(&mut self, session: &Session) -> Result<Frame, &'static str> {
        const WANTED: &str = "a stream of its own must hold exactly one whole Write frame";
        let kind = loop {
            if let Some(head) = self.decoder.pending_head() {
                break head.kind;
            }
            let too_much = self.decoder.pending_bytes() > PREFIX_BYTES + HEADER_BYTES_MAX;
            // Without a head there is no whole frame to be lost here, only an error to be found early.
            if self.decoder.next_frame().is_err() || too_much || !self.more(HEADER_BYTES_MAX).await {
                return Err(WANTED);
            }
        };
        if kind != FrameKind::Write {
            return Err(WANTED);
        }
        let (share, all) = (session.large_share().clone(), session.door().large_frames.all.clone());
        let _own = share.acquire_owned().await.map_err(|_| WANTED)?;
        let _place = all.acquire_owned().await.map_err(|_| WANTED)?;
        self.has_place = true;
        loop {
            match self.decoder.next_frame() {
                // Whatever follows the frame is too much.
                Ok(Some(frame)) => {
                    let ends = self.decoder.pending_bytes() == 0 && !self.more(1).await;
                    return if ends { Ok(frame) } else { Err(WANTED) };
                }
                Ok(None) if self.more(CHUNK_BYTES_MAX).await => {}
                Ok(None) | Err(_) => return Err(WANTED),
            }
        }
    }

    /// False at the end of the stream.
    async fn more(&mut self, bytes_max: usize) -> bool {
        match self.stream.read_chunk(bytes_max, true).await {
            Ok(Some(chunk)) => {
                self.decoder.feed(&chunk.bytes);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_caller_share_and_callers_do_not() {
        let room = LargeRoom::new();
        let (one, again, other) = (room.share(CallerId(1)), room.share(CallerId(1)), room.share(CallerId(2)));
        let taken = one.try_acquire_many(LARGE_FRAMES_PER_CALLER_MAX as u32).unwrap();
        assert!(again.try_acquire().is_err() && other.try_acquire().is_ok());
        drop(taken);
        drop((one, again));
        // Nobody of the first is connected any more: forgotten at the next newcomer.
        room.share(CallerId(3));
        assert_eq!(room.callers.lock().len(), 2, "the second and the newcomer");
    }
}

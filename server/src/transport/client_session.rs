//! One client connection from its hello to its end: reads frames and hands them to [`super::dispatch`], writes what
//! the workers answer, tells the client of changes.
//!
//! The session holds no policy: what becomes of a copy is decided by the request path. A protocol error is answered
//! and leaves the connection open; bytes that are no frames end it, with a reason.

use super::dispatch::{Door, Session};
use super::large::take_large;
use super::quic::{CLOSE_DONE, CLOSE_OVER_LIMIT, CLOSE_PROTOCOL, CLOSE_SHUTDOWN, CLOSE_TOO_SLOW};
use super::replies::{LargeFrame, Replies};
use super::tls::Client;
use crate::clock;
use crate::peer::directory::Announcement;
use crate::shutdown::{Phase, reached};
use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::frame::{self, FrameDecoder, FrameKind, PREFIX_BYTES};
use tiedkv_protocol::hello::{Hello, Notice, Welcome};
use tiedkv_protocol::limits::{HEADER_BYTES_MAX, INLINE_VALUE_BYTES_MAX, PROTOCOL_VERSION};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longest chunk taken from QUIC at once: bounds the time in which one connection keeps the thread.
const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Longest frame in the ordered stream: bounds what a client can make this node hold for it.
const INLINE_FRAME_BYTES_MAX: usize = PREFIX_BYTES + HEADER_BYTES_MAX + INLINE_VALUE_BYTES_MAX;
/// Longest time that the last answers of a connection may take to be acknowledged when the node stops.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// Why a connection ends; becomes the close code and the reason that the client sees.
#[derive(Debug)]
struct End {
    code: VarInt,
    reason: String,
}

impl End {
    fn new(code: VarInt, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// The other end closed or is gone: nothing is left to say.
    fn gone() -> Self {
        Self::new(CLOSE_DONE, "")
    }
}

/// Says hello within the door's handshake limit. The session can serve afterwards.
///
/// # Errors
/// When the client is too slow, speaks another version or no frames; the connection is closed then.
pub async fn greet(door: &Arc<Door>, connection: Connection, client: Client) -> Option<Greeted> {
    let limit = door.limits.handshake_limit;
    let greeted = match timeout(limit, hello(door, &connection)).await {
        Ok(Ok(streams)) => Ok(Greeted { connection: connection.clone(), client, streams }),
        Ok(Err(end)) => Err(end),
        Err(_) => Err(End::new(CLOSE_TOO_SLOW, format!("no hello within {limit:?}"))),
    };
    match greeted {
        Ok(greeted) => Some(greeted),
        Err(end) => {
            tracing::debug!(reason = end.reason, "client refused");
            connection.close(end.code, end.reason.as_bytes());
            None
        }
    }
}

/// A client that said hello and was welcomed.
pub struct Greeted {
    connection: Connection,
    client: Client,
    streams: Streams,
}

/// What was made by saying hello.
struct Streams {
    send: SendStream,
    recv: RecvStream,
    decoder: FrameDecoder,
    /// What the client was told, and what changes after that.
    told: Announcement,
    changes: watch::Receiver<Announcement>,
}

async fn hello(door: &Door, connection: &Connection) -> Result<Streams, End> {
    let (mut send, mut recv) = connection.accept_bi().await.map_err(|_| End::gone())?;
    let mut decoder = FrameDecoder::default();
    let first = loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => break frame,
            Ok(None) => match recv.read_chunk(CHUNK_BYTES_MAX, true).await {
                Ok(Some(chunk)) => decoder.feed(&chunk.bytes),
                _ => return Err(End::gone()),
            },
            Err(error) => return Err(End::new(CLOSE_PROTOCOL, error.to_string())),
        }
    };
    let hello: Hello = match first.kind {
        FrameKind::Hello => first.message().map_err(|error| End::new(CLOSE_PROTOCOL, format!("hello: {error}")))?,
        other => return Err(End::new(CLOSE_PROTOCOL, format!("the first frame is {other:?}, want Hello"))),
    };
    if !(hello.version_min..=hello.version_max).contains(&PROTOCOL_VERSION) {
        let (min, max) = (hello.version_min, hello.version_max);
        let reason = format!("client speaks versions {min} to {max}, this node speaks {PROTOCOL_VERSION}");
        return Err(End::new(CLOSE_PROTOCOL, reason));
    }
    let mut changes = door.directory.watch();
    let told = changes.borrow_and_update().clone();
    let welcome = Welcome {
        version: PROTOCOL_VERSION,
        node: door.node,
        cluster: door.cluster,
        modelled: door.modelled,
        topology: (*told.topology).clone(),
        ceiling: told.ceiling,
    };
    let mut bytes = Vec::new();
    frame::encode(FrameKind::Welcome, &welcome, &[], &mut bytes)
        .map_err(|error| End::new(CLOSE_PROTOCOL, format!("welcome: {error}")))?;
    send.write_all(&bytes).await.map_err(|_| End::gone())?;
    Ok(Streams { send, recv, decoder, told, changes })
}

/// Serves until the client leaves, breaks the protocol, does not read, or the node stops.
pub async fn serve(door: Arc<Door>, greeted: Greeted) {
    let Greeted { connection, client, streams } = greeted;
    let Streams { send, recv, decoder, told, changes } = streams;
    let replies = Arc::new(Replies::new(door.limits.replies_waiting_max_bytes));
    let session = Session::new(door.clone(), &client, replies.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(write(door.clone(), connection.clone(), send, replies.clone()));
    tasks.spawn(close_on_overflow(connection.clone(), replies.clone()));
    tasks.spawn(announce(told, changes, replies.clone()));
    tasks.spawn(take_large(session.clone(), connection.clone()));
    let end = read(&session, recv, decoder).await;
    session.lost();
    tracing::debug!(connection = session.connection(), reason = end.reason, "client connection ended");
    connection.close(end.code, end.reason.as_bytes());
}

/// The reader: frames in order, until the stream ends. The only place that hands over copies and withdraws, so
/// that a withdraw never overtakes its copy (rule R14, docs/tie-protocol.md).
async fn read(session: &Session, mut recv: RecvStream, mut decoder: FrameDecoder) -> End {
    let mut received = clock::now();
    loop {
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => session.take(&frame, received),
                Ok(None) => break,
                Err(error) => return End::new(CLOSE_PROTOCOL, error.to_string()),
            }
        }
        match recv.read_chunk(CHUNK_BYTES_MAX, true).await {
            Ok(Some(chunk)) => {
                received = clock::now();
                decoder.feed(&chunk.bytes);
                if decoder.pending_bytes() > INLINE_FRAME_BYTES_MAX + CHUNK_BYTES_MAX {
                    return End::new(CLOSE_PROTOCOL, "a value this large travels on a stream of its own");
                }
            }
            Ok(None) if decoder.pending_bytes() > 0 => {
                return End::new(CLOSE_PROTOCOL, "the stream ends within a frame");
            }
            Ok(None) | Err(_) => return End::gone(),
        }
    }
}

/// Closes the connection when more answers wait than may, also while a write waits for the client. A task of its own,
/// so that the writer's wake-ups poll nothing but the writer.
async fn close_on_overflow(connection: Connection, replies: Arc<Replies>) {
    let overflow = replies.overflow().await;
    connection.close(CLOSE_OVER_LIMIT, overflow.to_string().as_bytes());
}

/// The writer: one write per wake-up. Closes the connection when the client does not read, and after the last
/// answers when the node stops; the reader then sees the end.
async fn write(door: Arc<Door>, connection: Connection, mut send: SendStream, replies: Arc<Replies>) {
    let end = write_until_end(&door, &connection, &mut send, &replies).await;
    connection.close(end.code, end.reason.as_bytes());
}

async fn write_until_end(
    door: &Door,
    connection: &Connection,
    send: &mut SendStream,
    replies: &Arc<Replies>,
) -> End {
    let mut phase = door.phase.clone();
    // Made once: a new one per wake-up would join and leave the list of those who wait for the phase each time.
    let mut closing = std::pin::pin!(reached(&mut phase, Phase::Closing));
    let mut large = JoinSet::new();
    let stalled = door.limits.replies_stalled_max;
    let too_slow =
        || End::new(CLOSE_OVER_LIMIT, format!("answers are not read: nothing was taken for {stalled:?}"));
    loop {
        let batch = tokio::select! {
            batch = replies.batch() => batch,
            () = &mut closing => return flush(send, large, replies).await,
        };
        while large.try_join_next().is_some() {}
        for frame in batch.large {
            large.spawn(write_large(connection.clone(), frame, replies.clone(), stalled));
        }
        match write_all(send, [batch.frames], replies, stalled).await {
            Ok(()) => {}
            Err(Stuck::Gone) => return End::gone(),
            Err(Stuck::Stalled) => return too_slow(),
        }
    }
}

/// Why bytes could not be handed to QUIC.
enum Stuck {
    /// The connection or stream is gone.
    Gone,
    /// Nothing was taken for the whole limit.
    Stalled,
}

/// Hands all chunks to QUIC and tells `replies` so; the limit is for any progress, not for the whole.
async fn write_all<const N: usize>(
    send: &mut SendStream,
    mut chunks: [Bytes; N],
    replies: &Replies,
    limit: Duration,
) -> Result<(), Stuck> {
    let mut rest = &mut chunks[..];
    while let Some(first) = rest.first() {
        if first.is_empty() {
            rest = &mut rest[1..];
            continue;
        }
        match timeout(limit, send.write_chunks(rest)).await {
            Ok(Ok(written)) => {
                replies.written(written.bytes);
                rest = &mut rest[written.chunks..];
            }
            Ok(Err(_)) => return Err(Stuck::Gone),
            Err(_) => return Err(Stuck::Stalled),
        }
    }
    Ok(())
}

/// The last answers, then the end of the stream, acknowledged or not.
async fn flush(send: &mut SendStream, mut large: JoinSet<()>, replies: &Replies) -> End {
    let last = async {
        if let Some(batch) = replies.try_batch()
            && write_all(send, [batch.frames], replies, FLUSH_LIMIT).await.is_err()
        {
            return;
        }
        while large.join_next().await.is_some() {}
        if send.finish().is_ok() {
            let _ = send.stopped().await;
        }
    };
    let _ = timeout(FLUSH_LIMIT, last).await;
    End::new(CLOSE_SHUTDOWN, "the node is stopping")
}

/// Below the shared stream's.
const LARGE_PRIORITY: i32 = -1;

/// One value on a stream of its own. Opening waits for stream credit, hence the limit. A client that does not take
/// it loses the connection: its answer is owed and cannot be given.
async fn write_large(connection: Connection, frame: LargeFrame, replies: Arc<Replies>, limit: Duration) {
    let stuck = match timeout(limit, connection.open_uni()).await {
        Ok(Ok(mut stream)) => {
            // Small answers go first. Only a stream that is gone refuses, and writing tells that as well.
            let _gone = stream.set_priority(LARGE_PRIORITY);
            let written = write_all(&mut stream, [frame.head, frame.payload], &replies, limit).await;
            // Dropping a stream without this resets it.
            let _ = stream.finish();
            written.err()
        }
        Ok(Err(_)) => Some(Stuck::Gone),
        Err(_) => Some(Stuck::Stalled),
    };
    if let Some(Stuck::Stalled) = stuck {
        connection.close(CLOSE_OVER_LIMIT, b"answers are not read: a large value was not taken in time");
    }
}

/// Tells the client what changes after its welcome.
async fn announce(mut told: Announcement, mut changes: watch::Receiver<Announcement>, replies: Arc<Replies>) {
    while changes.changed().await.is_ok() {
        let now = changes.borrow_and_update().clone();
        let mut notices = Vec::new();
        if now.topology.version != told.topology.version {
            notices.push(Notice::Topology((*now.topology).clone()));
        }
        if now.ceiling != told.ceiling {
            notices.push(Notice::Ceiling(now.ceiling));
        }
        for notice in notices {
            if let Err(error) = replies.push(FrameKind::Notice, &notice, Bytes::new()) {
                tracing::warn!(%error, "a change could not be told to a client");
            }
        }
        told = now;
    }
}

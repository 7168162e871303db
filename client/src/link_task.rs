//! The tasks of a connection: write what is handed over, read what comes, watch for silence, until the link is lost
//! or closed. Reading and writing are tasks of their own, so that a wake-up for one polls nothing else.

use crate::clock;
use crate::cut_off;
use crate::exchange::{Heard, Link, WITHDRAW_WAIT};
use crate::timer::Timer;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::frame::{Frame, FrameDecoder};
use tiedkv_protocol::hello::Notice;
use tiedkv_protocol::limits::FRAME_BYTES_MAX;
use tokio::task::JoinSet;

/// Pings sent one after another on a new link, so that the tie delay is known before the first reads.
const FIRST_PINGS: u32 = 16;
/// Between them.
const FIRST_PINGS_EVERY: Duration = Duration::from_millis(3);
/// While nothing is owed a ping goes out once in so many turns of the watch.
const IDLE_PING_TURNS: u32 = 10;
/// A write buffer that grew beyond this is given back.
const BUFFER_KEPT_BYTES: usize = 256 * 1024;
/// Frames that are written on streams of their own at a time.
const LARGE_OUT_MAX: usize = 32;
/// Of streams with large frames: below the shared one's.
const LARGE_PRIORITY: i32 = -1;
/// Most bytes taken from the stream at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// The two halves of a connection's stream after the greeting.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) send: quinn::SendStream,
    pub(crate) receive: quinn::RecvStream,
    /// May hold what came right behind the greeting.
    pub(crate) decoder: FrameDecoder,
}

/// Who is told of changes beyond the link.
pub(crate) type OnNotice = Arc<dyn Fn(Notice) + Send + Sync>;

/// Runs the link to its end, tells everybody who waits, and returns why it ended.
pub(crate) async fn run(link: &Arc<Link>, streams: Streams, timer: &Timer, on_notice: OnNotice) -> Arc<str> {
    let Streams { send, receive, decoder } = streams;
    // Tells also when this task is dropped with its runtime or its client.
    let mut end = End { link: link.clone(), reason: "the client was dropped".into() };
    // Dropped, and so ended, with this task.
    let mut often = JoinSet::new();
    often.spawn(read(link.clone(), receive, decoder, on_notice.clone()));
    often.spawn(write(link.clone(), send));
    let reason = tokio::select! {
        biased;
        Some(ended) = often.join_next() => ended.unwrap_or_else(|error| error.to_string()),
        reason = read_large(link, &on_notice) => reason,
        reason = flush_withdraws(link, timer) => reason,
        reason = watch(link, timer) => reason,
    };
    let reason = link.close_reason().unwrap_or(reason);
    link.close(&reason);
    end.reason = reason.into();
    end.reason.clone()
}

struct End {
    link: Arc<Link>,
    reason: Arc<str>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.link.close(&self.reason);
        self.link.lose(&self.reason);
    }
}

async fn read(
    link: Arc<Link>,
    mut stream: quinn::RecvStream,
    mut decoder: FrameDecoder,
    on_notice: OnNotice,
) -> String {
    loop {
        if let Err(reason) = drain(&link, &mut decoder, &on_notice) {
            return reason;
        }
        match stream.read_chunk(CHUNK_BYTES, true).await {
            Ok(Some(chunk)) => decoder.feed(&chunk.bytes),
            Ok(None) => return "the node ended the stream".to_owned(),
            Err(error) => return describe(&link, &error),
        }
    }
}

/// Hands on every whole frame that was received.
fn drain(link: &Link, decoder: &mut FrameDecoder, on_notice: &OnNotice) -> Result<(), String> {
    let now = clock::now();
    while let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
        take(link, &frame, now, on_notice)?;
    }
    Ok(())
}

fn take(
    link: &Link,
    frame: &Frame,
    now: tiedkv_protocol::moment::Moment,
    on_notice: &OnNotice,
) -> Result<(), String> {
    if let Heard::Notice(notice) = link.on_frame(frame, now)? {
        on_notice(notice);
    }
    Ok(())
}

async fn write(link: Arc<Link>, mut stream: quinn::SendStream) -> String {
    let mut buffer = Vec::new();
    let mut alone: JoinSet<Result<(), String>> = JoinSet::new();
    loop {
        // A large frame that is written makes room for the next; the shared stream never waits for one.
        tokio::select! {
            () = link.wake.notified() => {}
            Some(_) = alone.join_next() => {}
        }
        loop {
            while alone.try_join_next().is_some() {}
            for frame in link.take_outbox(&mut buffer, LARGE_OUT_MAX - alone.len()) {
                alone.spawn(write_alone(link.connection.clone(), frame));
            }
            if buffer.is_empty() {
                break;
            }
            link.counters.stream_writes.fetch_add(1, Relaxed);
            if let Err(error) = stream.write_all(&buffer).await {
                return describe(&link, &error);
            }
            buffer.clear();
            if buffer.capacity() > BUFFER_KEPT_BYTES {
                buffer = Vec::new();
            }
        }
    }
}

/// Writes one large frame on a stream of its own. An error means that the connection ends, and is told by its reader.
async fn write_alone(connection: quinn::Connection, frame: Vec<u8>) -> Result<(), String> {
    let mut stream = connection.open_uni().await.map_err(|error| error.to_string())?;
    // Small frames go first. Only a stream that is gone refuses, and writing tells that as well.
    let _gone = stream.set_priority(LARGE_PRIORITY);
    stream.write_all(&frame).await.map_err(|error| error.to_string())?;
    stream.finish().map_err(|error| error.to_string())
}

/// Receives large values; how many at a time is bounded by the transport's settings.
async fn read_large(link: &Arc<Link>, on_notice: &OnNotice) -> String {
    let mut streams: JoinSet<Result<Vec<u8>, String>> = JoinSet::new();
    loop {
        tokio::select! {
            stream = link.connection.accept_uni() => match stream {
                Ok(mut stream) => {
                    streams.spawn(async move {
                        stream.read_to_end(FRAME_BYTES_MAX + 4).await.map_err(|error| error.to_string())
                    });
                }
                Err(error) => return describe(link, &error),
            },
            Some(received) = streams.join_next() => {
                // A stream that was cut off belongs to an answer that its node gave up, or to a lost connection.
                let Ok(Ok(bytes)) = received else { continue };
                let mut decoder = FrameDecoder::default();
                decoder.feed(&bytes);
                if let Err(reason) = drain(link, &mut decoder, on_notice) {
                    return reason;
                }
            }
        }
    }
}

/// Withdraws ride on later frames, but not for longer than [`WITHDRAW_WAIT`].
async fn flush_withdraws(link: &Link, timer: &Timer) -> String {
    loop {
        link.lazy.notified().await;
        timer.until(clock::now() + WITHDRAW_WAIT).await;
        if link.has_withdraws() {
            link.wake.notify_one();
        }
    }
}

/// Pings, and ends the link when it owes an answer and is silent for too long. Silence is counted in turns of this
/// task, so that a process that stood still does not blame the node.
async fn watch(link: &Link, timer: &Timer) -> String {
    for _ in 0..FIRST_PINGS {
        link.ping(clock::now());
        timer.until(clock::now() + FIRST_PINGS_EVERY).await;
    }
    let every = link.peer.ping_every();
    let mut turn: u32 = 0;
    let mut before = clock::now();
    let mut heard = link.heard();
    let mut owed_before = false;
    let mut silent = Duration::ZERO;
    loop {
        timer.until(before + every).await;
        let now = clock::now();
        link.turns.lock().turn(now);
        let owed = link.owed() > 0;
        let heard_now = link.heard();
        if !owed || !owed_before || heard_now != heard {
            silent = Duration::ZERO;
        } else {
            silent += now.since(before).min(every * 2);
        }
        (before, heard, owed_before) = (now, heard_now, owed);
        if silent >= link.peer.silence_limit() {
            return format!("silent for {silent:?} while {} answers are owed", link.owed());
        }
        turn = turn.wrapping_add(1);
        if owed || turn.is_multiple_of(IDLE_PING_TURNS) {
            link.ping(now);
        }
    }
}

/// The connection's own reason where there is one: "connection lost" alone says nothing.
fn describe(link: &Link, error: &impl ToString) -> String {
    match link.connection.close_reason() {
        Some(reason) => cut_off::describe(&reason, link.turns.lock().stood_still(clock::now())),
        None => error.to_string(),
    }
}

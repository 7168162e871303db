//! Messages on a stream between two nodes: u32 LE length, then the body. The length is checked before memory
//! is taken, and every read and write of the callers has a deadline of theirs.

use bytes::Bytes;
use quinn::{RecvStream, SendStream};
use serde::{Serialize, de::DeserializeOwned};
use tiedkv_protocol::codec;

/// Longest message between peers: a few entries of the largest value.
pub const MESSAGE_BYTES_MAX: usize = 48 * 1024 * 1024;

/// Of what a length claims, so much memory is taken before anything came.
const CLAIMED_BYTES_MAX: usize = 64 * 1024;

/// Why a stream between peers cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The connection or stream is gone.
    #[error("stream lost: {0}")]
    Lost(String),
    /// What came is no message, or what was to be sent is too long.
    #[error("bad message: {0}")]
    Message(String),
}

/// Writes one message.
///
/// # Errors
/// When the stream is gone or the message is too long.
pub async fn write_message<T: Serialize + Sync>(stream: &mut SendStream, message: &T) -> Result<(), StreamError> {
    let body = codec::encode_large(message).map_err(|error| StreamError::Message(error.to_string()))?;
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(StreamError::Message(format!("{} bytes; the bound is {MESSAGE_BYTES_MAX}", body.len())));
    }
    let length = (body.len() as u32).to_le_bytes();
    let mut chunks = [Bytes::copy_from_slice(&length), Bytes::from(body)];
    stream.write_all_chunks(&mut chunks).await.map_err(|error| StreamError::Lost(error.to_string()))
}

/// Reads the bytes of one message of at most `bytes_max`; `None` when the stream ended before one.
///
/// # Cancel safety
/// Not cancel safe: a dropped future may have taken a part of the message.
///
/// # Errors
/// When the stream is gone or ends within a message, or the length is over the bound.
pub async fn read_bytes(stream: &mut RecvStream, bytes_max: usize) -> Result<Option<Bytes>, StreamError> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(StreamError::Lost(error.to_string())),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > bytes_max {
        return Err(StreamError::Message(format!("{length} bytes claimed; the bound is {bytes_max}")));
    }
    let mut body = Vec::with_capacity(length.min(CLAIMED_BYTES_MAX));
    while body.len() < length {
        // What was claimed is believed once this much of it came: then it is one large buffer, not one after another.
        if body.len() >= CLAIMED_BYTES_MAX {
            body.reserve_exact(length - body.len());
        }
        match stream.read_chunk(length - body.len(), true).await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk.bytes),
            Ok(None) => return Err(StreamError::Lost("ended within a message".to_owned())),
            Err(error) => return Err(StreamError::Lost(error.to_string())),
        }
    }
    Ok(Some(Bytes::from(body)))
}

/// Reads one message; `None` when the stream ended before one.
///
/// # Cancel safety
/// Not cancel safe, as [`read_bytes`].
///
/// # Errors
/// As [`read_bytes`], and when the bytes are no such message.
pub async fn read_message<T: DeserializeOwned>(stream: &mut RecvStream) -> Result<Option<T>, StreamError> {
    match read_bytes(stream, MESSAGE_BYTES_MAX).await? {
        None => Ok(None),
        Some(bytes) => {
            codec::decode_large(&bytes).map(Some).map_err(|error| StreamError::Message(error.to_string()))
        }
    }
}

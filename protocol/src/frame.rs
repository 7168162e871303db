//! Length-prefixed frames on a QUIC stream: a bincode header and a raw payload.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | length of all that follows, little-endian |
//! | 4 | 1 | kind ([`FrameKind`]) |
//! | 5 | 1 | reserved, 0 |
//! | 6 | 2 | length of the header, little-endian |
//! | 8 | h | header: one message, by [`crate::codec`] |
//! | 8 + h | rest | payload: raw bytes (a value) |
//!
//! This room does no I/O: [`FrameDecoder`] is fed bytes and yields frames; [`encode`] appends one.

use crate::codec::{self, CodecError};
use crate::ids::RequestId;
use crate::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use bytes::{Buf, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

/// Bytes before the header.
pub const PREFIX_BYTES: usize = 8;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What message a frame's header is. Numbers are the wire format: never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum FrameKind { $($(#[$doc])* $name = $number,)* }

        impl FrameKind {
            /// The kind of a wire number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// [`crate::hello::Hello`], client to node.
    Hello = 1,
    /// [`crate::hello::Welcome`], node to client.
    Welcome = 2,
    /// [`crate::hello::Notice`], node to client.
    Notice = 3,
    /// [`crate::request::ReadRequest`].
    Read = 16,
    /// [`crate::request::Withdraw`].
    Withdraw = 17,
    /// [`crate::request::WriteRequest`], value in the payload.
    Write = 18,
    /// [`crate::request::Ping`].
    Ping = 19,
    /// [`crate::request::AdminRequest`].
    Admin = 20,
    /// [`crate::response::ReadReply`], value in the payload.
    ReadReply = 32,
    /// [`crate::response::WriteReply`].
    WriteReply = 33,
    /// [`crate::response::Pong`].
    Pong = 34,
    /// [`crate::response::AdminReply`], document in the payload.
    AdminReply = 35,
}

/// One frame as received: its kind, header bytes and payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the header is.
    pub kind: FrameKind,
    /// The encoded message.
    pub header: Bytes,
    /// The raw value, often empty.
    pub payload: Bytes,
}

impl Frame {
    /// Decodes the header as the message that belongs to the kind.
    ///
    /// # Errors
    /// When the header is no such message.
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        codec::decode(&self.header)
    }

    /// The request that a frame of a client belongs to, even if the rest of its header cannot be decoded: every
    /// request begins with its id. `None` if there is none or its bytes are none.
    pub fn request(&self) -> Option<RequestId> {
        match self.kind {
            FrameKind::Read | FrameKind::Write | FrameKind::Ping | FrameKind::Admin => {
                codec::decode_first(&self.header)
            }
            _ => None,
        }
    }
}

/// Why a stream of bytes is no stream of frames. The stream cannot go on after one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is over the bound or too short for its own prefix.
    #[error("a frame of {0} bytes; the bound is {FRAME_BYTES_MAX}")]
    Length(usize),
    /// The header's length is over its bound or beyond the frame.
    #[error("a frame header of {0} bytes in a frame of {1}")]
    HeaderLength(usize, usize),
    /// The kind is not known or the reserved byte is not 0.
    #[error("frame kind {0} is not known to protocol version {version}", version = crate::limits::PROTOCOL_VERSION)]
    Kind(u8),
    /// A message that cannot be encoded within the bounds.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Appends one frame to `out`.
///
/// # Errors
/// When header or payload are over their bounds; `out` is as before then.
pub fn encode<T: Serialize>(
    kind: FrameKind,
    message: &T,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    encode_head(kind, message, payload.len(), out)?;
    out.extend_from_slice(payload);
    Ok(())
}

/// Appends all of a frame but its payload of `payload_bytes`, which the caller sends right after it.
///
/// # Errors
/// As [`encode`].
pub fn encode_head<T: Serialize>(
    kind: FrameKind,
    message: &T,
    payload_bytes: usize,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
    let header = match codec::encode_into(message, out) {
        Ok(header) => header,
        Err(error) => {
            out.truncate(start);
            return Err(error.into());
        }
    };
    let length = (PREFIX_BYTES - 4 + header).saturating_add(payload_bytes);
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::Length(length));
    }
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    out[start + 6..start + 8].copy_from_slice(&(header as u16).to_le_bytes());
    Ok(())
}

/// Cuts received bytes into frames. Holds at most one incomplete frame plus what was fed at once; memory grows
/// with the bytes received, never with a length that was only claimed.
///
/// ```
/// use tiedkv_protocol::frame::{FrameDecoder, FrameKind, encode};
/// use tiedkv_protocol::ids::RequestId;
/// use tiedkv_protocol::request::Ping;
///
/// let mut bytes = Vec::new();
/// encode(FrameKind::Ping, &Ping { request: RequestId(7) }, b"", &mut bytes)?;
/// let mut decoder = FrameDecoder::default();
/// decoder.feed(&bytes[..5]);
/// assert_eq!(decoder.next_frame()?, None);
/// decoder.feed(&bytes[5..]);
/// let frame = decoder.next_frame()?;
/// assert_eq!(frame.and_then(|frame| frame.request()), Some(RequestId(7)));
/// # Ok::<(), tiedkv_protocol::frame::FrameError>(())
/// ```
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that wait for the rest of their frame.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The frame that waits for its rest, without its payload, once its header is here: so that what never comes whole
    /// can be answered. `None` as well for bytes that are no frame.
    pub fn pending_head(&self) -> Option<Frame> {
        let [_, _, _, _, number, 0, low, high, rest @ ..] = &self.buffer[..] else { return None };
        let header = rest.get(..usize::from(u16::from_le_bytes([*low, *high])))?;
        let kind = FrameKind::from_number(*number)?;
        Some(Frame { kind, header: Bytes::copy_from_slice(header), payload: Bytes::new() })
    }

    /// The next whole frame, `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the bytes are no frame; the stream cannot go on.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.buffer.len() < PREFIX_BYTES {
            return Ok(None);
        }
        let length = u32::from_le_bytes([self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]]) as usize;
        if !(PREFIX_BYTES - 4..=FRAME_BYTES_MAX).contains(&length) {
            return Err(FrameError::Length(length));
        }
        let (number, reserved) = (self.buffer[4], self.buffer[5]);
        let kind = match FrameKind::from_number(number) {
            Some(kind) if reserved == 0 => kind,
            _ => return Err(FrameError::Kind(number)),
        };
        let header = usize::from(u16::from_le_bytes([self.buffer[6], self.buffer[7]]));
        if header > HEADER_BYTES_MAX || header + PREFIX_BYTES - 4 > length {
            return Err(FrameError::HeaderLength(header, length));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let mut whole = self.buffer.split_to(4 + length).freeze();
        whole.advance(PREFIX_BYTES);
        let header = whole.split_to(header);
        Ok(Some(Frame { kind, header, payload: whole }))
    }
}

#[cfg(test)]
#[path = "frame_test.rs"]
mod tests;

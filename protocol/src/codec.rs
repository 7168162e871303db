//! The one module that knows `bincode`: control headers, datagrams and log entries are written by it.
//!
//! Decoding never trusts a length: a limit caps what containers may claim, allocation is bounded by the bytes
//! received, and trailing bytes are an error. No wire type is recursive.

use crate::limits::HEADER_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};

/// Little-endian, variable-length integers, at most [`HEADER_BYTES_MAX`] decoded bytes.
const HEADER: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<HEADER_BYTES_MAX>,
> = bincode::config::standard().with_limit::<HEADER_BYTES_MAX>();

/// The same format for what comes from our own peers or disk: up to 64 MiB.
const LARGE: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<{ 64 * 1024 * 1024 }>,
> = bincode::config::standard().with_limit::<{ 64 * 1024 * 1024 }>();

/// Why bytes are no message, or a message cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Not decodable; with the decoder's reason.
    #[error("cannot be decoded: {0}")]
    Decode(String),
    /// More bytes than the message has.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// Over the limit, or not encodable.
    #[error("cannot be encoded: {0}")]
    Encode(String),
}

/// Encodes a control header.
///
/// # Errors
/// When the encoded form is over the limit.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    bincode::serde::encode_to_vec(message, HEADER).map_err(|error| CodecError::Encode(error.to_string()))
}

/// Appends a control header to `out`.
///
/// # Errors
/// When the message cannot be encoded; `out` then holds a partial message and must be cut back.
pub fn encode_into<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<usize, CodecError> {
    bincode::serde::encode_into_std_write(message, out, HEADER)
        .map_err(|error| CodecError::Encode(error.to_string()))
}

/// Decodes a control header.
///
/// # Errors
/// When the bytes are no such message, claim more than the limit, or go on after it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    finish(bytes, bincode::serde::decode_from_slice(bytes, HEADER))
}

/// Encodes what goes to our own peers or disk (up to 64 MiB).
///
/// # Errors
/// When the encoded form is over the limit.
pub fn encode_large<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    bincode::serde::encode_to_vec(message, LARGE).map_err(|error| CodecError::Encode(error.to_string()))
}

/// Decodes what comes from our own peers or disk (up to 64 MiB).
///
/// # Errors
/// As [`decode`].
pub fn decode_large<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    finish(bytes, bincode::serde::decode_from_slice(bytes, LARGE))
}

fn finish<T>(bytes: &[u8], decoded: Result<(T, usize), bincode::error::DecodeError>) -> Result<T, CodecError> {
    let (message, used) = decoded.map_err(|error| CodecError::Decode(error.to_string()))?;
    match bytes.len() - used {
        0 => Ok(message),
        more => Err(CodecError::Trailing(more)),
    }
}

//! The one module that knows `bincode`: control headers, datagrams and log entries are written by it.
//!
//! Decoding never trusts a length: allocation is bounded by the bytes received (through the crate's `frugal`
//! layer), not by what they claim, and trailing bytes are an error. No wire type is recursive.

use crate::frugal::Frugal;
use crate::limits::HEADER_BYTES_MAX;
use serde::{Serialize, de::DeserializeOwned};
use std::marker::PhantomData;

/// Most bytes of what goes to our own peers or disk.
const LARGE_BYTES_MAX: usize = 64 * 1024 * 1024;

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
    bincode::config::Limit<LARGE_BYTES_MAX>,
> = bincode::config::standard().with_limit::<LARGE_BYTES_MAX>();

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
/// When the encoded form is over [`HEADER_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::new();
    encode_into(message, &mut out)?;
    Ok(out)
}

/// Appends a control header to `out`; returns its length in bytes.
///
/// # Errors
/// When the encoded form is over [`HEADER_BYTES_MAX`]; `out` is as before then.
pub fn encode_into<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<usize, CodecError> {
    let start = out.len();
    let written = bincode::serde::encode_into_std_write(message, out, HEADER);
    match written {
        Ok(length) if length <= HEADER_BYTES_MAX => Ok(length),
        Ok(length) => {
            out.truncate(start);
            Err(over(length, HEADER_BYTES_MAX))
        }
        Err(error) => {
            out.truncate(start);
            Err(CodecError::Encode(error.to_string()))
        }
    }
}

/// Decodes a control header.
///
/// # Errors
/// When the bytes are no such message, claim more than the limit, or go on after it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let seed = Frugal(PhantomData::<T>);
    finish(bytes, bincode::serde::seed_decode_from_slice(seed, bytes, HEADER))
}

/// Decodes the first part of a control header and ignores what follows; `None` if it is no such part. For
/// answering to a message that cannot be decoded whole.
pub fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let seed = Frugal(PhantomData::<T>);
    bincode::serde::seed_decode_from_slice(seed, bytes, HEADER).ok().map(|(first, _)| first)
}

/// Encodes what goes to our own peers or disk.
///
/// # Errors
/// When the encoded form is over 64 MiB.
pub fn encode_large<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    encode_large_after(Vec::new(), message)
}

/// As [`encode_large`], behind what `bytes` holds: a large message is not copied to stand there.
///
/// # Errors
/// As [`encode_large`]; what `bytes` held counts for the bound.
pub fn encode_large_after<T: Serialize>(mut bytes: Vec<u8>, message: &T) -> Result<Vec<u8>, CodecError> {
    match bincode::serde::encode_into_std_write(message, &mut bytes, LARGE) {
        Ok(_) if bytes.len() <= LARGE_BYTES_MAX => Ok(bytes),
        Ok(_) => Err(over(bytes.len(), LARGE_BYTES_MAX)),
        Err(error) => Err(CodecError::Encode(error.to_string())),
    }
}

/// Decodes what comes from our own peers or disk (up to 64 MiB).
///
/// # Errors
/// As [`decode`].
pub fn decode_large<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let seed = Frugal(PhantomData::<T>);
    finish(bytes, bincode::serde::seed_decode_from_slice(seed, bytes, LARGE))
}

fn over(length: usize, bound: usize) -> CodecError {
    CodecError::Encode(format!("{length} bytes are over the bound of {bound}"))
}

fn finish<T>(bytes: &[u8], decoded: Result<(T, usize), bincode::error::DecodeError>) -> Result<T, CodecError> {
    let (message, used) = decoded.map_err(|error| CodecError::Decode(error.to_string()))?;
    match bytes.len() - used {
        0 => Ok(message),
        more => Err(CodecError::Trailing(more)),
    }
}

#[cfg(test)]
#[path = "codec_test.rs"]
mod tests;

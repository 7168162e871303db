//! The index of keys that expire, by time: what the background removal goes by.
//!
//! An entry is written with the value and is not removed when the key is changed before its time: whoever takes an
//! entry compares it with the value. So a put reads nothing. Not part of snapshots: it is made anew from the values.

use bytes::Bytes;

/// A key and the log time at which it expires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Expiry {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The key.
    pub key: Bytes,
}

impl Expiry {
    /// The bytes of the index's key: time (big-endian, so that they sort by it), key.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + self.key.len());
        bytes.extend_from_slice(&self.at_ms.to_be_bytes());
        bytes.extend_from_slice(&self.key);
        bytes
    }

    /// The expiry of an index's key; `None` if it is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (at, key) = bytes.split_first_chunk::<8>()?;
        Some(Self { at_ms: u64::from_be_bytes(*at), key: Bytes::copy_from_slice(key) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_sort_by_time_then_key_and_come_back() {
        let expiry = |at_ms, key: &'static str| Expiry { at_ms, key: key.into() };
        let sorted = [expiry(1, "z"), expiry(255, "a"), expiry(256, "a"), expiry(256, "b"), expiry(u64::MAX, "")];
        let bytes: Vec<Vec<u8>> = sorted.iter().map(Expiry::encode).collect();
        assert!(bytes.is_sorted() && sorted.is_sorted());
        assert!(sorted.iter().zip(&bytes).all(|(expiry, bytes)| Expiry::decode(bytes).as_ref() == Some(expiry)));
        assert_eq!(Expiry::decode(&[0; 7]), None);
    }
}

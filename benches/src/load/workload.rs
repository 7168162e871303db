//! Which keys and values a run uses: a numbered key is always the same bytes, and so is its value.

use bytes::Bytes;
use std::str::FromStr;
use tiedkv_protocol::limits::VALUE_BYTES_MAX;

/// Keys of a run: `count` keys with values of `sizes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How many keys.
    pub count: u64,
    /// Bytes of each value.
    pub sizes: Sizes,
}

impl Default for Workload {
    /// 20,000 keys of 100 bytes.
    fn default() -> Self {
        Self { count: 20_000, sizes: Sizes::of(100) }
    }
}

/// How many bytes values have: evenly spread over a range, by the number of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    min: usize,
    max: usize,
}

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no size of values: want BYTES or MIN..MAX (both included), at most {VALUE_BYTES_MAX}")]
pub struct BadSizes(String);

impl Sizes {
    /// All values alike.
    pub const fn of(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// Of the value of key `number`.
    fn bytes(self, number: u64) -> usize {
        // Neighbours in the key space must not be neighbours in size.
        self.min + (mix(number) % (self.max - self.min + 1) as u64) as usize
    }
}

/// A number that looks drawn, always the same: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl FromStr for Sizes {
    type Err = BadSizes;

    fn from_str(text: &str) -> Result<Self, BadSizes> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let bytes = |text: &str| text.parse::<usize>().ok().filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        match (bytes(min), bytes(max)) {
            (Some(min), Some(max)) if min <= max => Ok(Self { min, max }),
            _ => Err(BadSizes(text.to_owned())),
        }
    }
}

impl Workload {
    /// The bytes of key `number`.
    pub fn key(&self, number: u64) -> Bytes {
        Bytes::from(format!("key-{number:08}"))
    }

    /// The value of key `number`: begins with the key, so that a wrong answer is seen.
    pub fn value(&self, number: u64) -> Bytes {
        let mut value = format!("value-of-key-{number:08}-").into_bytes();
        value.resize(self.sizes.bytes(number), b'.');
        Bytes::from(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_values_have_their_length() {
        let workload = Workload::default();
        assert_ne!(workload.key(1), workload.key(2));
        assert_ne!(workload.value(1), workload.value(2));
        assert_eq!(workload.value(19_999).len(), 100);
    }

    #[test]
    fn sizes_are_spread_over_their_range() {
        let workload = Workload { count: 1_000, sizes: "100..4099".parse().unwrap() };
        let sizes: Vec<usize> = (0..1_000).map(|number| workload.value(number).len()).collect();
        assert!(sizes.iter().all(|bytes| (100..=4_099).contains(bytes)));
        let mean = sizes.iter().sum::<usize>() as f64 / 1e3;
        assert!((1_950.0..2_250.0).contains(&mean), "{mean}");
        assert_eq!(workload.value(7), workload.value(7));
        for wrong in ["", "x", "2..1", "-1", "1..", "999999999"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }
}

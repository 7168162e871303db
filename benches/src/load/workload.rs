//! Which keys and values a run uses: a numbered key is always the same bytes, and so is its value.

use bytes::Bytes;

/// Keys of a run: `count` keys with values of `value_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How many keys.
    pub count: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
}

impl Default for Workload {
    /// 20,000 keys of 100 bytes.
    fn default() -> Self {
        Self { count: 20_000, value_bytes: 100 }
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
        value.resize(self.value_bytes, b'.');
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
}

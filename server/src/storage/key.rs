//! What a key may be, and which lane is charged for it. Pure.

use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::KEY_BYTES_MAX;

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// A key has at least one byte.
    #[error("the key is empty")]
    Empty,
    /// A key has at most [`KEY_BYTES_MAX`] bytes.
    #[error("the key has {0} bytes; at most {KEY_BYTES_MAX} are allowed")]
    Long(usize),
}

/// Checks the bounds of a key.
///
/// # Errors
/// When it is empty or too long.
pub fn check_key(key: &[u8]) -> Result<(), BadKey> {
    match key.len() {
        0 => Err(BadKey::Empty),
        bytes if bytes > KEY_BYTES_MAX => Err(BadKey::Long(bytes)),
        _ => Ok(()),
    }
}

/// Chooses lanes for keys: the same key always has the same lane on one node, and unrelated lanes on two nodes,
/// because the hash is salted with the NodeId. With the same hash on all nodes the queues that a tie chooses
/// between would be copies of each other.
#[derive(Clone, Copy, Debug)]
pub struct LaneOfKey {
    salt: u64,
    lanes: u64,
}

impl LaneOfKey {
    /// `lanes` below 1 counts as 1.
    pub fn new(node: NodeId, lanes: u16) -> Self {
        Self { salt: mix(node.0 ^ 0x7469_6564_6b76_6c61), lanes: u64::from(lanes.max(1)) }
    }

    /// The lane of `key`, below the number of lanes.
    pub fn lane(&self, key: &[u8]) -> u16 {
        let hash = mix(fnv1a(key) ^ self.salt);
        // Multiply-shift instead of modulo: uses the high bits, and no division.
        ((u128::from(hash) * u128::from(self.lanes)) >> 64) as u16
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): fixed here so that the choice survives upgrades of hash crates.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit moves every output bit.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_to_4096_bytes() {
        assert_eq!(check_key(b""), Err(BadKey::Empty));
        assert_eq!(check_key(b"k"), Ok(()));
        assert_eq!(check_key(&[0; KEY_BYTES_MAX]), Ok(()));
        assert_eq!(check_key(&[0; KEY_BYTES_MAX + 1]), Err(BadKey::Long(KEY_BYTES_MAX + 1)));
    }

    #[test]
    fn lanes_are_even_and_two_nodes_disagree() {
        let (a, b) = (LaneOfKey::new(NodeId(1), 8), LaneOfKey::new(NodeId(2), 8));
        let mut counts = [0_u32; 8];
        let mut same = 0;
        for key in 0..20_000 {
            let key = format!("key-{key:08}");
            let lane = a.lane(key.as_bytes());
            counts[usize::from(lane)] += 1;
            same += u32::from(lane == b.lane(key.as_bytes()));
        }
        // Standard deviation of a lane's count is 47, of `same` 47 around 2,500: five of them either side.
        assert!(counts.iter().all(|count| (2_265..2_735).contains(count)), "{counts:?}");
        assert!((2_265..2_735).contains(&same), "{same} of 20,000 keys share the lane's number on two nodes");
    }

    #[test]
    fn the_choice_is_fixed_for_ever() {
        let lanes = LaneOfKey::new(NodeId(1), 8);
        let chosen: Vec<u16> =
            ["a", "b", "c", "key-00000001"].iter().map(|key| lanes.lane(key.as_bytes())).collect();
        assert_eq!(chosen, [0, 3, 4, 3]);
    }
}

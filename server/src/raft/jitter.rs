//! Keeps the periodic work of replicas apart: snapshots, flushes and checks that all nodes do after the same number of
//! entries would be done by all at once, and ties gain nothing from replicas that are busy together. Pure: the same
//! node and round draw the same.

use std::time::Duration;
use tiedkv_protocol::ids::NodeId;

/// What is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Making state durable.
    Snapshot = 1,
    /// Writing a memtable.
    Flush = 2,
    /// Hashing the state.
    Check = 3,
}

/// Between 0 and 1: a number of this node, work and round (SplitMix64, Steele and others 2014).
fn draw(node: NodeId, work: Work, round: u64) -> f64 {
    let mut z = node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (work as u64) << 56
        ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        z = (z ^ (z >> 30)).wrapping_mul(multiplier);
        z ^= z >> 27;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// How much of its period passes before a node does something for the next time: 0.8 to 1.2.
pub fn share(node: NodeId, work: Work, round: u64) -> f64 {
    0.8 + 0.4 * draw(node, work, round)
}

/// So much of a period.
pub fn part(node: NodeId, work: Work, round: u64, period: u64) -> u64 {
    (period as f64 * share(node, work, round)) as u64
}

/// When within a window a node does something that all are to do.
pub fn moment(node: NodeId, work: Work, round: u64, window: Duration) -> Duration {
    window.mul_f64(draw(node, work, round))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of the time that at least two of three nodes are busy, when each is for `length` at these moments.
    fn together(begins: [Vec<f64>; 3], length: f64) -> (f64, f64) {
        let end = begins.iter().filter_map(|one| one.last()).fold(f64::MAX, |end, last| end.min(*last));
        let (steps, mut both, mut alone) = (200_000, 0u32, [0u32; 3]);
        let mut next = [0; 3];
        for step in 0..steps {
            let now = end * f64::from(step) / f64::from(steps);
            let mut busy = 0;
            for node in 0..3 {
                while begins[node].get(next[node] + 1).is_some_and(|begin| *begin <= now) {
                    next[node] += 1;
                }
                let is = begins[node].get(next[node]).is_some_and(|begin| (*begin..begin + length).contains(&now));
                alone[node] += u32::from(is);
                busy += u32::from(is);
            }
            both += u32::from(busy >= 2);
        }
        let [a, b, c] = alone.map(|count| f64::from(count) / f64::from(steps));
        let chance = a * b * (1.0 - c) + a * c * (1.0 - b) + b * c * (1.0 - a) + a * b * c;
        (f64::from(both) / f64::from(steps), chance)
    }

    fn nodes() -> [NodeId; 3] {
        [1, 2, 3].map(NodeId)
    }

    #[test]
    fn snapshots_flushes_and_checks_of_replicas_overlap_no_more_than_chance() {
        let periods = |work: Work, redrawn: bool| {
            nodes().map(|node| {
                let mut at = 0.0;
                let step = |round| {
                    at += share(node, work, if redrawn { round } else { 0 });
                    at
                };
                (0..2_000).map(step).collect::<Vec<f64>>()
            })
        };
        let checks = nodes().map(|node| {
            let window = Duration::from_secs(1);
            (0..2_000u32)
                .map(|round| {
                    f64::from(round) + moment(node, Work::Check, u64::from(round), window).as_secs_f64() * 0.9
                })
                .collect()
        });
        // The size of a memtable is drawn once in the life of a node, the others every time.
        for (what, begins) in [
            ("snapshots", periods(Work::Snapshot, true)),
            ("flushes", periods(Work::Flush, false)),
            ("checks", checks),
        ] {
            let (both, chance) = together(begins, 0.1);
            assert!(both <= 1.15 * chance, "{what}: {both:.4} of the time together, {chance:.4} by chance");
        }
        // In step, as without jitter, they would be together whenever they are busy.
        let same = (1..2_000).map(f64::from).collect::<Vec<f64>>();
        let (both, chance) = together([same.clone(), same.clone(), same], 0.1);
        assert!(both > 3.0 * chance, "{both:.4} {chance:.4}");
    }

    #[test]
    fn a_share_is_between_four_and_six_fifths() {
        for round in 0..1_000 {
            let share = share(NodeId(round % 7), Work::Snapshot, round);
            assert!((0.8..=1.2).contains(&share), "{share}");
        }
        assert_eq!(part(NodeId(1), Work::Flush, 3, 1_000), part(NodeId(1), Work::Flush, 3, 1_000));
    }
}

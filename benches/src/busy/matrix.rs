//! Which cells are played, in which order, and how long that takes. Pure.
//!
//! Repeats are interleaved: within one repeat of a scene every policy is played once, and the order turns by one from
//! repeat to repeat, so that drift of the machine hits all policies alike.

use super::policy::BusyPolicy;
use super::scene::{BedKind, BusyScene};
use std::collections::HashSet;
use std::time::Duration;

/// Sent and not counted at the beginning of each playing.
pub const WARM_UP: Duration = Duration::from_secs(2);
/// Setting up and taking down one playing: disturb, wait at rest, take records.
const AROUND: Duration = Duration::from_millis(700);
/// Starting a cluster and loading its keys.
const BED: Duration = Duration::from_secs(6);
/// The same where values are large and many.
const DISK_BED: Duration = Duration::from_secs(14);

/// One scene with the policies and the time it is played.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Which scene.
    pub scene: BusyScene,
    /// Under which policies.
    pub policies: Vec<BusyPolicy>,
    /// Counted time of one playing.
    pub measured: Duration,
    /// Playings of each policy.
    pub repeats: u32,
}

/// One playing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Index of the part.
    pub part: usize,
    /// Index of the policy within the part.
    pub policy: usize,
    /// Which repeat.
    pub repeat: u32,
}

/// What a cluster is made by.
fn bed_of(part: &Part) -> (BedKind, u64) {
    (part.scene.bed, part.scene.service_us)
}

/// All playings in order: bed by bed, scenes one after the other within a repeat.
pub fn turns(parts: &[Part]) -> Vec<Turn> {
    let mut beds: Vec<_> = Vec::new();
    for part in parts {
        if !beds.contains(&bed_of(part)) {
            beds.push(bed_of(part));
        }
    }
    let mut turns = Vec::new();
    for bed in beds {
        let of_bed = || parts.iter().enumerate().filter(|(_, part)| bed_of(part) == bed);
        let repeats = of_bed().map(|(_, part)| part.repeats).max().unwrap_or(0);
        for repeat in 0..repeats {
            for (index, part) in of_bed().filter(|(_, part)| repeat < part.repeats) {
                let count = part.policies.len();
                turns.extend((0..count).map(|step| Turn {
                    part: index,
                    policy: (step + repeat as usize) % count,
                    repeat,
                }));
            }
        }
    }
    turns
}

/// About how long all of it takes.
pub fn estimate(parts: &[Part]) -> Duration {
    let beds: HashSet<_> = parts.iter().map(bed_of).collect();
    let playing: Duration = turns(parts).iter().map(|turn| WARM_UP + parts[turn.part].measured + AROUND).sum();
    playing + beds.iter().map(|(kind, _)| if *kind == BedKind::Disk { DISK_BED } else { BED }).sum::<Duration>()
}

#[cfg(test)]
mod tests {
    use super::super::{policy, scene};
    use super::*;

    fn part(scene: &str, policies: &str, repeats: u32) -> Part {
        Part {
            scene: scene::named(scene).unwrap().remove(0),
            policies: policy::named(policies).unwrap(),
            measured: Duration::from_secs(10),
            repeats,
        }
    }

    #[test]
    fn repeats_are_interleaved_and_beds_are_not() {
        let parts = [part("idle", "untied,tied2", 2), part("in-memory", "untied", 1), part("busy", "untied", 2)];
        let turns: Vec<(usize, usize, u32)> =
            turns(&parts).iter().map(|turn| (turn.part, turn.policy, turn.repeat)).collect();
        let wanted = [(0, 0, 0), (0, 1, 0), (2, 0, 0), (0, 1, 1), (0, 0, 1), (2, 0, 1), (1, 0, 0)];
        assert_eq!(turns, wanted);
        assert_eq!(estimate(&parts), Duration::from_millis(7 * 12_700 + 12_000));
    }
}

//! How far a policy may act: the client's own switch per operation and the operator's ceiling, whichever is lower.
//!
//! The ceiling travels in replies and notices; the newest version seen counts. It is asked at each read and at each
//! extra copy, so a change holds from the next decision on, in calls under way too. It does not say whether a tie
//! pays: that is [`crate::gate`]. Who turns the switch is [`crate::switchboard`]'s.

use crate::operation::Operation;
use rand::Rng;
use tiedkv_protocol::hello::{Ceiling, Mode};

/// The switch of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// Off, observe or on. Default on.
    pub mode: Mode,
    /// Share of reads to which `On` applies; the others observe. 0.0 to 1.0, default 1.0.
    pub share: f64,
    /// Share of observed reads whose extra copy is sent for real, compared and thrown away. Default 0.0.
    pub sample: f64,
}

impl Default for Switch {
    fn default() -> Self {
        Self { mode: Mode::On, share: 1.0, sample: 0.0 }
    }
}

impl Switch {
    /// Nothing extra.
    pub const OFF: Self = Self { mode: Mode::Off, share: 1.0, sample: 0.0 };
    /// Decide and count, send nothing extra.
    pub const OBSERVE: Self = Self { mode: Mode::Observe, share: 1.0, sample: 0.0 };
    /// As the policies say.
    pub const ON: Self = Self { mode: Mode::On, share: 1.0, sample: 0.0 };

    /// Whether the values can have an effect together.
    ///
    /// # Errors
    /// Says which cannot and why.
    pub fn check(self) -> Result<Self, BadSwitch> {
        let is_share = |share: f64| share.is_finite() && (0.0..=1.0).contains(&share);
        if !is_share(self.share) || !is_share(self.sample) {
            return Err(BadSwitch::Share(if is_share(self.share) { self.sample } else { self.share }));
        }
        if self.share < 1.0 && self.mode != Mode::On {
            return Err(BadSwitch::ShareWithoutOn);
        }
        if self.sample > 0.0 && (self.mode == Mode::Off || (self.mode == Mode::On && self.share >= 1.0)) {
            return Err(BadSwitch::SampleWithoutObserve);
        }
        Ok(self)
    }

    /// The lower of two: the lower mode, the smaller share; samples are taken if either says so.
    pub fn lower(self, other: Self) -> Self {
        Self {
            mode: lower(self.mode, other.mode),
            share: self.share.min(other.share),
            sample: self.sample.max(other.sample),
        }
    }
}

/// Why a switch cannot be set so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BadSwitch {
    /// Not a share.
    #[error("{0} is no share within 0.0 and 1.0")]
    Share(f64),
    /// A share of what is not on.
    #[error("a share has an effect only in mode `on`: it is the share of reads to which `on` applies")]
    ShareWithoutOn,
    /// Samples of what is never observed.
    #[error("a sample has an effect only on observed reads: mode `observe`, or `on` with a share below 1.0")]
    SampleWithoutObserve,
}

/// The switches of all operations and the ceiling, as one view obeys them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Control {
    switches: [Switch; Operation::ALL.len()],
    ceiling: Ceiling,
}

/// What one read may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// `Off`: untied, nothing extra. `Observe`: the same, but decide and count.
    pub mode: Mode,
    /// Most copies of a tie.
    pub copies_max: u8,
    /// The extra copy of this observed read is sent for real, compared and thrown away.
    pub sample: bool,
}

impl Control {
    /// Takes over the switches.
    pub fn switch(&mut self, switches: [Switch; Operation::ALL.len()]) {
        self.switches = switches;
    }

    /// A node told its ceiling. True if it was news.
    pub fn learn(&mut self, ceiling: Ceiling) -> bool {
        let news = ceiling.version > self.ceiling.version;
        if news {
            self.ceiling = ceiling;
        }
        news
    }

    /// The ceiling in force.
    pub fn ceiling(&self) -> &Ceiling {
        &self.ceiling
    }

    /// What the next read of `operation` may do.
    pub fn allowed(&self, operation: Operation, rng: &mut impl Rng) -> Allowed {
        let switch = self.switches[operation as usize];
        let share = switch.share.min(f64::from(self.ceiling.share_ppm) / 1e6);
        let drawn = share >= 1.0 || rng.random::<f64>() < share;
        let mode = match self.mode(operation) {
            Mode::On if !drawn => Mode::Observe,
            mode => mode,
        };
        let sample = mode == Mode::Observe && switch.sample > 0.0 && rng.random::<f64>() < switch.sample;
        Allowed { mode, copies_max: self.ceiling.copies_max.max(1), sample }
    }

    /// The mode in force for `operation`, whatever the share: what a read under way obeys.
    pub fn mode(&self, operation: Operation) -> Mode {
        lower(self.switches[operation as usize].mode, self.ceiling.mode)
    }
}

fn lower(one: Mode, other: Mode) -> Mode {
    match (one, other) {
        (Mode::Off, _) | (_, Mode::Off) => Mode::Off,
        (Mode::Observe, _) | (_, Mode::Observe) => Mode::Observe,
        _ => Mode::On,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn the_lower_of_switch_and_ceiling_counts() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut control = Control::default();
        let on = Allowed { mode: Mode::On, copies_max: 3, sample: false };
        assert_eq!(control.allowed(Operation::Get, &mut rng), on);
        let ceiling = Ceiling { version: 2, mode: Mode::Observe, copies_max: 2, ..Ceiling::default() };
        assert!(control.learn(ceiling));
        assert!(!control.learn(Ceiling { version: 1, ..Ceiling::default() }), "older");
        let observed = Allowed { mode: Mode::Observe, copies_max: 2, sample: false };
        assert_eq!(control.allowed(Operation::Get, &mut rng), observed);
        control.switch([Switch::ON, Switch::OFF, Switch::ON]);
        assert_eq!(control.allowed(Operation::MultiGet, &mut rng).mode, Mode::Off);
        assert_eq!(control.allowed(Operation::Get, &mut rng).mode, Mode::Observe);
    }

    #[test]
    fn a_share_is_a_share_and_the_others_observe_and_some_of_them_are_samples() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut control = Control::default();
        control.switch([Switch { share: 0.25, sample: 0.1, ..Switch::ON }; 3]);
        let all: Vec<Allowed> = (0..4_000).map(|_| control.allowed(Operation::Get, &mut rng)).collect();
        let on = all.iter().filter(|one| one.mode == Mode::On).count();
        let sampled = all.iter().filter(|one| one.sample).count();
        assert!((900..1_100).contains(&on), "{on}");
        assert!((230..370).contains(&sampled), "{sampled}");
        assert!(all.iter().all(|one| !(one.sample && one.mode == Mode::On)));
    }

    #[test]
    fn what_can_have_no_effect_is_refused_with_the_reason() {
        let refused = |switch: Switch| switch.check().unwrap_err().to_string();
        assert!(refused(Switch { share: 0.5, ..Switch::OFF }).contains("only in mode `on`"));
        assert!(refused(Switch { sample: 0.5, ..Switch::ON }).contains("only on observed reads"));
        assert!(refused(Switch { share: 1.5, ..Switch::ON }).contains("no share"));
        assert!(Switch { share: 0.5, sample: 0.5, ..Switch::ON }.check().is_ok());
        assert!(Switch { sample: 0.01, ..Switch::OBSERVE }.check().is_ok());
    }
}

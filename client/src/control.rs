//! How far a policy may act: the client's own switch and the operator's ceiling, whichever is lower.
//!
//! The ceiling travels in replies and notices; the newest version seen counts. It is asked at each read, so a
//! change holds from the next decision on, in calls under way too. It does not say whether a tie pays: that is
//! [`crate::gate`].

use rand::Rng;
use tiedkv_protocol::hello::{Ceiling, Mode};

/// The switch and the ceiling of one kind of read.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    own: Mode,
    own_share: f64,
    ceiling: Ceiling,
}

/// What one read may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// `Off`: untied, nothing extra. `Observe`: the same, but decide and count.
    pub mode: Mode,
    /// Most copies of a tie.
    pub copies_max: u8,
}

impl Default for Control {
    fn default() -> Self {
        Self { own: Mode::On, own_share: 1.0, ceiling: Ceiling::default() }
    }
}

impl Control {
    /// Sets the own switch; `share` (0.0 to 1.0) is the share of reads to which `On` applies, the others observe.
    pub fn switch(&mut self, mode: Mode, share: f64) {
        self.own = mode;
        self.own_share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 };
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

    /// What the next read may do.
    pub fn allowed(&self, rng: &mut impl Rng) -> Allowed {
        let mode = lower(self.own, self.ceiling.mode);
        let share = self.own_share.min(f64::from(self.ceiling.share_ppm) / 1e6);
        let drawn = share >= 1.0 || rng.random::<f64>() < share;
        let mode = if mode == Mode::On && !drawn { Mode::Observe } else { mode };
        Allowed { mode, copies_max: self.ceiling.copies_max.max(1) }
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
        assert_eq!(control.allowed(&mut rng), Allowed { mode: Mode::On, copies_max: 3 });
        let ceiling = Ceiling { version: 2, mode: Mode::Observe, copies_max: 2, ..Ceiling::default() };
        assert!(control.learn(ceiling));
        assert!(!control.learn(Ceiling { version: 1, ..Ceiling::default() }), "older");
        assert_eq!(control.allowed(&mut rng), Allowed { mode: Mode::Observe, copies_max: 2 });
        control.switch(Mode::Off, 1.0);
        assert_eq!(control.allowed(&mut rng).mode, Mode::Off);
    }

    #[test]
    fn a_share_is_a_share() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut control = Control::default();
        control.switch(Mode::On, 0.25);
        let on = (0..4_000).filter(|_| control.allowed(&mut rng).mode == Mode::On).count();
        assert!((900..1_100).contains(&on), "{on}");
    }
}

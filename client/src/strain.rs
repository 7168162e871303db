//! Whether the cluster is under a strain that hedges would make worse: many bad answers, or busy workers.
//!
//! A hedge helps against bad luck of one replica. When answers go bad or most replicas say that their workers are
//! busy, the slowness is shared and an extra copy only adds to it. Counts answers; decides only "no hedges now".

use crate::gate::Latch;

/// When hedges stay away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrainSettings {
    /// Share of answers that are refusals or failures: hedges off from the first, on again below the second.
    /// Default 0.10 and 0.05.
    pub errors: (f64, f64),
    /// Below this many answers nothing is concluded. Default 20.
    pub samples_min: u32,
}

impl Default for StrainSettings {
    fn default() -> Self {
        Self { errors: (0.10, 0.05), samples_min: 20 }
    }
}

/// The recent answers of all replicas together.
#[derive(Clone, Debug)]
pub struct Strain {
    settings: StrainSettings,
    share: f64,
    samples: u32,
    high: Latch,
}

/// A new answer's weight once there are many.
const NEW_SAMPLE: f64 = 0.02;

impl Strain {
    /// Knows nothing yet.
    pub fn new(settings: StrainSettings) -> Self {
        Self { settings, share: 0.0, samples: 0, high: Latch(false) }
    }

    /// A copy was answered, or its link was lost. Withdrawn copies say nothing.
    pub fn answered(&mut self, good: bool) {
        self.samples = self.samples.saturating_add(1);
        let weight = (1.0 / f64::from(self.samples)).max(NEW_SAMPLE);
        self.share += weight * (f64::from(u8::from(!good)) - self.share);
        if self.samples >= self.settings.samples_min {
            self.high.update(self.share, self.settings.errors);
        }
    }

    /// Many answers are refusals or failures.
    pub fn errors_high(&self) -> bool {
        self.high.0
    }

    /// Share of recent answers that are refusals or failures.
    pub fn error_share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_stay_away_while_answers_go_bad_and_come_back_with_hysteresis() {
        let mut strain = Strain::new(StrainSettings::default());
        (0..10).for_each(|_| strain.answered(false));
        assert!(!strain.errors_high(), "ten answers conclude nothing");
        (0..10).for_each(|_| strain.answered(false));
        assert!(strain.errors_high());
        let good = (1..1_000).find(|_| {
            strain.answered(true);
            !strain.errors_high()
        });
        let bound = strain.error_share();
        assert!(good.is_some() && bound < 0.05, "{good:?} {bound}");
        (0..400).for_each(|i| strain.answered(i % 13 != 0));
        assert!(!strain.errors_high(), "8 % turn nothing off");
    }
}

//! The pause before another round over the replicas.
//!
//! Exponential with jitter (AWS architecture blog, "Exponential backoff and jitter": equal jitter), never shorter
//! than a node's own hint. Whether a round may be paid is [`crate::budget`]'s to say.

use rand::Rng;
use std::time::Duration;

/// How the pause grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackoffSettings {
    /// Middle of the first pause. Default 4 ms.
    pub base: Duration,
    /// No pause without a hint is longer. Default 200 ms.
    pub cap: Duration,
}

impl Default for BackoffSettings {
    fn default() -> Self {
        Self { base: Duration::from_millis(4), cap: Duration::from_millis(200) }
    }
}

/// The pause after round `round` (0 is the first): between half and all of base x 2^(round + 1) up to the cap,
/// on top of `hint` when that is longer.
pub fn backoff(settings: &BackoffSettings, round: u8, hint: Duration, rng: &mut impl Rng) -> Duration {
    let doubled = settings.base.saturating_mul(1_u32 << u32::from(round).saturating_add(1).min(20));
    let span = doubled.min(settings.cap);
    let jittered = span.mul_f64(rng.random_range(0.5..=1.0));
    if hint > jittered { hint.saturating_add(settings.base.mul_f64(rng.random_range(0.0..=1.0))) } else { jittered }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    proptest! {
        #[test]
        fn a_pause_is_bounded_and_heeds_the_hint(seed: u64, round in 0_u8..40, hint_us in 0_u64..1_000_000) {
            let settings = BackoffSettings::default();
            let hint = Duration::from_micros(hint_us);
            let pause = backoff(&settings, round, hint, &mut StdRng::seed_from_u64(seed));
            prop_assert!(pause >= hint && pause >= settings.base);
            prop_assert!(pause <= settings.cap.max(hint + settings.base));
        }
    }

    #[test]
    fn pauses_of_many_clients_spread() {
        let mut rng = StdRng::seed_from_u64(1);
        let settings = BackoffSettings::default();
        let pauses: std::collections::BTreeSet<u128> =
            (0..100).map(|_| backoff(&settings, 3, Duration::ZERO, &mut rng).as_micros()).collect();
        assert!(pauses.len() > 90, "{}", pauses.len());
    }
}

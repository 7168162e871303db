//! How late a timer usually fires: the median of the last few times, bounded. Whoever wants to act *at* a moment
//! asks to be woken that much before it.
//!
//! Pure: knows no clock and no descriptor; [`crate::timer`] feeds it.

use std::time::Duration;

/// Firings that are remembered: odd, so that one of them is the median.
const REMEMBERED: usize = 31;
/// Greatest estimate: above it a wake-up is late because the machine is busy, which an earlier one does not mend.
pub(crate) const LATENESS_MAX: Duration = Duration::from_micros(100);

/// The last firings of one timer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lateness {
    /// Microseconds, cut at [`LATENESS_MAX`].
    late: [u8; REMEMBERED],
    seen: usize,
}

impl Lateness {
    /// It fired this late.
    pub(crate) fn note(&mut self, late: Duration) {
        self.late[self.seen % REMEMBERED] = late.min(LATENESS_MAX).as_micros() as u8;
        self.seen = self.seen.wrapping_add(1);
    }

    /// The median, at most [`LATENESS_MAX`]; zero until enough firings were seen.
    pub(crate) fn usual(&self) -> Duration {
        if self.seen < REMEMBERED {
            return Duration::ZERO;
        }
        let mut late = self.late;
        let (_, median, _) = late.select_nth_unstable(REMEMBERED / 2);
        Duration::from_micros(u64::from(*median))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_is_the_median_of_the_last_few_and_bounded() {
        let mut lateness = Lateness::default();
        (0..REMEMBERED - 1).for_each(|_| lateness.note(Duration::from_micros(50)));
        assert_eq!(lateness.usual(), Duration::ZERO, "too few to say");
        lateness.note(Duration::from_secs(1));
        assert_eq!(lateness.usual(), Duration::from_micros(50), "one that was very late changes nothing");
        (0..REMEMBERED).for_each(|_| lateness.note(Duration::from_micros(20)));
        assert_eq!(lateness.usual(), Duration::from_micros(20), "old ones are forgotten");
        (0..REMEMBERED).for_each(|_| lateness.note(Duration::from_secs(1)));
        assert_eq!(lateness.usual(), LATENESS_MAX);
    }
}

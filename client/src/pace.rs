//! The tie delay of one replica, and when silence of its link is a loss.
//!
//! Tie delay = p95 of the clean round trip (latency less the reported queue wait and service time), which is two
//! one-way latencies: long enough that a cancel of a copy 0 that started at once arrives before copy 1 does.
//! Belongs to the connection, not to a caller. Decides no choice and sends nothing.

use crate::latency::{Durations, Memory, REFRESH_AFTER};
use std::time::Duration;
use tiedkv_protocol::limits::{TIE_DELAY_CAP, TIE_DELAY_FLOOR};
use tiedkv_protocol::moment::Moment;

/// Bounds of the tie delay and of silence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaceSettings {
    /// Never shorter. Default 50 us.
    pub floor: Duration,
    /// Never longer, and the delay while nothing is known. Default 10 ms.
    pub cap: Duration,
    /// Quantile of the clean round trip. Default 0.95.
    pub quantile: f64,
    /// How the estimator forgets. Default: 10 s, 8 samples.
    pub memory: Memory,
    /// A link that owes an answer is silent for at least this long before it counts as lost. Default 200 ms.
    pub silence_min: Duration,
    /// While an answer is owed, a ping goes out this often. Default 50 ms.
    pub ping_every: Duration,
}

impl Default for PaceSettings {
    fn default() -> Self {
        Self {
            floor: TIE_DELAY_FLOOR,
            cap: TIE_DELAY_CAP,
            quantile: 0.95,
            memory: Memory { half_life: Duration::from_secs(10), samples_min: 8.0 },
            silence_min: Duration::from_millis(200),
            ping_every: Duration::from_millis(50),
        }
    }
}

/// How many samples computed quantiles serve before they are computed again, at least.
const REFRESH_EVERY: u32 = 16;

/// What is known of the way to one replica.
#[derive(Clone, Debug)]
pub struct Pace {
    settings: PaceSettings,
    clean: Durations,
    cached: Option<Known>,
    until_refresh: u32,
    /// When the quantiles were computed last.
    computed_at: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    p10: Duration,
    p50: Duration,
    paced: Duration,
    p99: Duration,
}

impl Pace {
    /// Knows nothing yet: the delay is the cap.
    pub fn new(settings: PaceSettings) -> Self {
        let clean = Durations::new(settings.memory);
        Self { settings, clean, cached: None, until_refresh: 0, computed_at: Moment::ZERO }
    }

    /// An answer came: `latency` from wire to answer, and what of it the node spent on the copy. Every reply is
    /// a sample, late ones too.
    pub fn record(&mut self, latency: Duration, queue_wait: Duration, service_time: Duration, now: Moment) {
        self.record_round_trip(latency.saturating_sub(queue_wait).saturating_sub(service_time), now);
    }

    /// An echo came: the round trip, less what the node held it.
    pub fn record_round_trip(&mut self, clean: Duration, now: Moment) {
        self.clean.record(clean, now);
        if self.until_refresh > 0 && now.since(self.computed_at) < REFRESH_AFTER {
            self.until_refresh -= 1;
            return;
        }
        self.computed_at = now;
        let at = |q| self.clean.quantile(q);
        let fresh = match (at(0.1), at(0.5), at(self.settings.quantile), at(0.99)) {
            (Some(p10), Some(p50), Some(paced), Some(p99)) => Some(Known { p10, p50, paced, p99 }),
            _ => None,
        };
        if fresh.is_some() {
            self.cached = fresh;
            self.until_refresh = self.clean.refresh_after(REFRESH_EVERY);
        }
    }

    /// How long after copy 0 went to this replica copy 1 goes to another.
    pub fn tie_delay(&self) -> Duration {
        let (floor, cap) = (self.settings.floor, self.settings.cap.max(self.settings.floor));
        self.cached.map_or(cap, |known| known.paced.clamp(floor, cap))
    }

    /// One way to this replica, if known: half of the median clean round trip.
    pub fn one_way(&self) -> Option<Duration> {
        self.cached.map(|known| known.p50 / 2)
    }

    /// How long the link may be silent while it owes an answer: max(200 ms, 8 x p99 of the round trip), but no more
    /// than 40 x its p10 and than 5 x the minimum: answers that come after a stop of the whole node look like long
    /// ways and must not make the next stop go unnoticed.
    pub fn silence_limit(&self) -> Duration {
        let silence_min = self.settings.silence_min;
        let by_ways = self.cached.map_or(Duration::ZERO, |known| (known.p99 * 8).min(known.p10 * 40));
        by_ways.clamp(silence_min, silence_min * 5)
    }

    /// How often to ping while an answer is owed.
    pub fn ping_every(&self) -> Duration {
        self.settings.ping_every
    }

    /// The membership changed or the link was made anew: keeps the delay and learns anew.
    pub fn relearn(&mut self) {
        self.clean.clear();
        self.until_refresh = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn unknown_means_the_cap_and_known_the_p95() {
        let mut pace = Pace::new(PaceSettings::default());
        assert_eq!(pace.tie_delay(), TIE_DELAY_CAP);
        assert_eq!(pace.silence_limit(), Duration::from_millis(200));
        for i in 0..1_000_u64 {
            let clean = Duration::from_micros(if i % 10 == 9 { 400 } else { 100 });
            let (wait, service) = (Duration::from_millis(i % 7), Duration::from_millis(5));
            pace.record(clean + wait + service, wait, service, ms(i));
        }
        let delay = pace.tie_delay().as_micros();
        assert!((370..=430).contains(&delay), "p95 of 100/400 us is 400 us, not {delay}");
        let one_way = pace.one_way().unwrap().as_micros();
        assert!((45..=55).contains(&one_way), "{one_way}");
    }

    #[test]
    fn the_delay_stays_within_floor_and_cap() {
        let mut pace = Pace::new(PaceSettings::default());
        for i in 0..100 {
            pace.record_round_trip(Duration::from_micros(3), ms(i));
        }
        assert_eq!(pace.tie_delay(), TIE_DELAY_FLOOR);
        for i in 0..10_000 {
            pace.record_round_trip(Duration::from_millis(40), ms(100 + i));
        }
        assert_eq!(pace.tie_delay(), TIE_DELAY_CAP);
        assert!(pace.silence_limit() > Duration::from_millis(300));
    }

    #[test]
    fn answers_after_a_stop_do_not_hide_the_next_one() {
        let mut pace = Pace::new(PaceSettings::default());
        (0..30).for_each(|i| pace.record_round_trip(Duration::from_micros(300), ms(i)));
        (0..70).for_each(|_| pace.record_round_trip(Duration::from_millis(800), ms(1_000)));
        assert_eq!(pace.silence_limit(), Duration::from_millis(200));
        let mut fooled = Pace::new(PaceSettings::default());
        (0..70).for_each(|_| fooled.record_round_trip(Duration::from_millis(800), ms(1_000)));
        assert_eq!(fooled.silence_limit(), Duration::from_secs(1));
    }

    #[test]
    fn a_reply_that_claims_more_than_it_took_is_no_underflow() {
        let mut pace = Pace::new(PaceSettings::default());
        let second = Duration::from_secs(1);
        (0..20).for_each(|i| pace.record(Duration::from_millis(1), second, second, ms(i)));
        assert_eq!(pace.tie_delay(), TIE_DELAY_FLOOR);
    }

    #[test]
    fn a_delay_does_not_outlive_the_traffic_that_it_comes_from() {
        let mut pace = Pace::new(PaceSettings::default());
        // So many samples that the last computed delay would serve some thousand further ones.
        (0..400_000).for_each(|i| pace.record_round_trip(Duration::from_micros(200), ms(i / 40)));
        (0..200).for_each(|i| pace.record_round_trip(Duration::from_millis(2), ms(10_000 + i * 1_000)));
        assert!(pace.tie_delay() > Duration::from_micros(1_900), "{:?}", pace.tie_delay());
    }

    #[test]
    fn relearning_keeps_the_delay_until_it_knows_better() {
        let mut pace = Pace::new(PaceSettings::default());
        (0..50).for_each(|i| pace.record_round_trip(Duration::from_micros(200), ms(i)));
        let before = pace.tie_delay();
        pace.relearn();
        assert_eq!(pace.tie_delay(), before);
        (0..50).for_each(|i| pace.record_round_trip(Duration::from_millis(2), ms(100 + i)));
        assert!(pace.tie_delay() > Duration::from_micros(1_900));
    }
}

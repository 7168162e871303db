//! Estimators of durations that are not fooled by what ties and hedges cut short.
//!
//! [`Durations`] is a bounded, decaying histogram. A copy that was withdrawn before its answer says only "longer
//! than"; such censored samples enter by the product-limit estimator (Kaplan and Meier 1958), so that the
//! quantiles are those of copies left to run. [`Latency`] is what one kind of read knows: with and without
//! extra copies (the hold-out share runs untied). It knows no replica and decides nothing.

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// Buckets per doubling: neighbouring bounds are 4.4 % apart.
const PER_OCTAVE: usize = 16;
/// Doublings covered, from 1 us: up to 67 s. Longer durations saturate in the last bucket.
const OCTAVES: usize = 26;
const BUCKETS: usize = PER_OCTAVE * OCTAVES + 1;
/// Of an `f64` (IEEE 754).
const MANTISSA_BITS: u32 = 52;
const ONE_EXPONENT: usize = 1023;
/// Bounds of the buckets within an octave: 2^(1/16) to 2^(15/16).
const STEPS: [f64; PER_OCTAVE - 1] = [
    1.0442737824274138,
    1.0905077326652577,
    1.1387886347566916,
    1.189207115002721,
    1.241857812073484,
    1.2968395546510096,
    1.3542555469368927,
    std::f64::consts::SQRT_2,
    1.4768261459394993,
    1.5422108254079407,
    1.6104903319492543,
    1.681792830507429,
    1.7562521603732995,
    1.8340080864093424,
    1.9152065613971474,
];

/// How a [`Durations`] forgets and when it speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// A sample counts half after this long. Default 15 s.
    pub half_life: Duration,
    /// Below this many samples (decayed) there is no estimate. Default 30: less than about one and a half reads
    /// per second never reach it and use the fixed fallback.
    pub samples_min: f32,
}

impl Default for Memory {
    fn default() -> Self {
        Self { half_life: Duration::from_secs(15), samples_min: 30.0 }
    }
}

/// A decaying histogram of durations, 1 us to 67 s, 3.3 KiB. Saturating; never grows.
#[derive(Clone, Debug)]
pub struct Durations {
    memory: Memory,
    /// Observed ends and "longer than" marks per bucket.
    buckets: Box<[(f32, f32); BUCKETS]>,
    ends: f32,
    /// All counts are halved when this moment passes.
    halve_at: Option<Moment>,
}

impl Durations {
    /// An empty estimator.
    pub fn new(memory: Memory) -> Self {
        Self { memory, buckets: Box::new([(0.0, 0.0); BUCKETS]), ends: 0.0, halve_at: None }
    }

    /// A duration that was seen to its end.
    pub fn record(&mut self, duration: Duration, now: Moment) {
        self.decay(now);
        self.buckets[bucket(duration)].0 += 1.0;
        self.ends += 1.0;
    }

    /// A duration that was cut short: it would have been longer than this.
    pub fn record_longer_than(&mut self, duration: Duration, now: Moment) {
        self.decay(now);
        self.buckets[bucket(duration)].1 += 1.0;
    }

    /// The duration that a share `q` (0.0 to 1.0) does not exceed; `None` below the minimum of samples. Where
    /// cut samples hide the quantile, the longest end seen stands for it.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        if self.ends < self.memory.samples_min {
            return None;
        }
        let mut at_risk: f64 = self.buckets.iter().map(|(ends, cut)| f64::from(*ends) + f64::from(*cut)).sum();
        let mut surviving = 1.0_f64;
        let mut longest = 0;
        for (index, (ends, cut)) in self.buckets.iter().enumerate() {
            if *ends > 0.0 {
                let before = surviving;
                surviving *= (1.0 - f64::from(*ends) / at_risk).max(0.0);
                longest = index;
                if 1.0 - surviving >= q - 1e-9 {
                    let share = ((before - (1.0 - q)) / (before - surviving)).clamp(0.0, 1.0);
                    return Some(inside(index, share));
                }
            }
            at_risk = (at_risk - f64::from(*ends) - f64::from(*cut)).max(f64::MIN_POSITIVE);
        }
        Some(inside(longest, 1.0))
    }

    /// How many ended samples it remembers, decayed.
    pub fn samples(&self) -> f32 {
        self.ends
    }

    /// How many further samples a computed quantile serves: a share of those remembered, since so few move no quantile
    /// by much, but not fewer than `least`.
    pub fn refresh_after(&self, least: u32) -> u32 {
        least.max((self.ends * REFRESH_SHARE) as u32)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets.fill((0.0, 0.0));
        self.ends = 0.0;
        self.halve_at = None;
    }

    fn decay(&mut self, now: Moment) {
        // In eight steps per half-life, so that the estimate never jumps.
        let step = (self.memory.half_life / 8).max(Duration::from_millis(1));
        let Some(due) = self.halve_at else {
            self.halve_at = Some(now + step);
            return;
        };
        if now < due {
            return;
        }
        let steps = now.since(due).as_nanos() / step.as_nanos() + 1;
        let keep = if steps > 256 { 0.0 } else { 0.5_f32.powf(steps as f32 / 8.0) };
        for (ends, cut) in self.buckets.iter_mut() {
            *ends = fade(*ends, keep);
            *cut = fade(*cut, keep);
        }
        self.ends = self.buckets.iter().map(|(ends, _)| ends).sum();
        self.halve_at = Some(now + step);
    }
}

fn fade(count: f32, keep: f32) -> f32 {
    let left = count * keep;
    if left < 1e-3 { 0.0 } else { left }
}

fn bucket(duration: Duration) -> usize {
    let micros = duration.as_secs_f64() * 1e6;
    if micros <= 1.0 {
        return 0;
    }
    // A positive number's bits are its octave and where it stands within: no logarithm on the path of a read.
    let bits = micros.to_bits();
    let octave = (bits >> MANTISSA_BITS) as usize - ONE_EXPONENT;
    let within = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | (ONE_EXPONENT as u64) << MANTISSA_BITS);
    let step = STEPS.iter().filter(|bound| within >= **bound).count();
    (octave * PER_OCTAVE + step + 1).min(BUCKETS - 1)
}

/// A point inside a bucket: share 0.0 is its lower bound, 1.0 its upper.
fn inside(index: usize, share: f64) -> Duration {
    let exponent = (index as f64 - 1.0 + share) / PER_OCTAVE as f64;
    Duration::from_nanos((exponent.exp2() * 1_000.0) as u64)
}

/// What fires extra copies and at which quantile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySettings {
    /// How the estimators forget.
    pub memory: Memory,
    /// Quantile of latency after which a hedge goes out. Default 0.95: at most 5 % of reads by definition.
    pub hedge_quantile: f64,
    /// Quantile of latency after which a rescue goes out. Default 0.98.
    pub rescue_quantile: f64,
    /// Both delays while the estimate is unknown. Default 50 ms.
    pub fallback: Duration,
    /// A hedge goes out after this and nothing is learned. Default none.
    pub hedge_fixed: Option<Duration>,
    /// A rescue goes out after this and nothing is learned. Default none.
    pub rescue_fixed: Option<Duration>,
    /// Neither delay is shorter. Default 500 us.
    pub delay_min: Duration,
    /// Neither delay is longer. Default 500 ms.
    pub delay_max: Duration,
}

impl Default for LatencySettings {
    fn default() -> Self {
        Self {
            memory: Memory::default(),
            hedge_quantile: 0.95,
            rescue_quantile: 0.98,
            fallback: Duration::from_millis(50),
            hedge_fixed: None,
            rescue_fixed: None,
            delay_min: Duration::from_micros(500),
            delay_max: Duration::from_millis(500),
        }
    }
}

impl LatencySettings {
    /// The hedge delay while nothing is known.
    pub fn hedge_unknown(&self) -> Duration {
        self.hedge_fixed.unwrap_or(self.fallback)
    }

    /// The rescue delay while nothing is known.
    pub fn rescue_unknown(&self) -> Duration {
        self.rescue_fixed.unwrap_or(self.fallback)
    }
}

/// Latency of one kind of read. Client wait never enters.
#[derive(Clone, Debug)]
pub struct Latency {
    settings: LatencySettings,
    /// Reads as their policy sent them, extra copies kept apart: from the first copy's send to the answer of a
    /// tie's own copy; "longer than" when an extra copy answered first.
    with: Durations,
    /// The hold-out: reads that went untied although they might have been tied.
    without: Durations,
    /// Kept while the estimators learn anew.
    frozen: Option<(Duration, Duration)>,
    cached: Option<(Duration, Duration)>,
    until_refresh: u32,
    /// When the delays were computed last.
    computed_at: Moment,
}

/// How many samples a computed delay serves before it is computed again, at least.
const REFRESH_EVERY: u32 = 32;
/// A computed quantile serves no longer than this: what many samples allowed to keep would stay for hours after the
/// traffic fell.
pub(crate) const REFRESH_AFTER: Duration = Duration::from_secs(10);
/// See [`Durations::refresh_after`].
const REFRESH_SHARE: f32 = 1.0 / 64.0;

impl Latency {
    /// Knows nothing yet.
    pub fn new(settings: LatencySettings) -> Self {
        Self {
            settings,
            with: Durations::new(settings.memory),
            without: Durations::new(settings.memory),
            frozen: None,
            cached: None,
            until_refresh: 0,
            computed_at: Moment::ZERO,
        }
    }

    /// A read ended by an answer of its own tie (or its only copy).
    pub fn record(&mut self, latency: Duration, hold_out: bool, now: Moment) {
        if hold_out {
            self.without.record(latency, now);
        }
        self.with.record(latency, now);
        self.refresh(now);
    }

    /// An extra copy answered first, or the read was dropped: the tie's own copies would have taken longer.
    pub fn record_longer_than(&mut self, latency: Duration, hold_out: bool, now: Moment) {
        if hold_out {
            self.without.record_longer_than(latency, now);
        }
        self.with.record_longer_than(latency, now);
        self.refresh(now);
    }

    /// Sent to no answer: after this long a hedge goes out.
    pub fn hedge_delay(&self) -> Duration {
        let learned = self.delays().map(|(hedge, _)| hedge);
        self.settings.hedge_fixed.or(learned).unwrap_or(self.settings.fallback)
    }

    /// Sent to no answer: after this long a rescue goes out.
    pub fn rescue_delay(&self) -> Duration {
        let learned = self.delays().map(|(_, rescue)| rescue);
        self.settings.rescue_fixed.or(learned).unwrap_or(self.settings.fallback)
    }

    /// A quantile of reads as the policy sent them.
    pub fn quantile_with(&self, q: f64) -> Option<Duration> {
        self.with.quantile(q)
    }

    /// A quantile of the hold-out: what reads take untied.
    pub fn quantile_without(&self, q: f64) -> Option<Duration> {
        self.without.quantile(q)
    }

    /// The membership changed: keeps the delays as they are and learns anew.
    pub fn relearn(&mut self) {
        self.frozen = self.delays();
        self.cached = None;
        self.with.clear();
        self.without.clear();
        self.until_refresh = 0;
    }

    fn delays(&self) -> Option<(Duration, Duration)> {
        self.cached.or(self.frozen)
    }

    fn refresh(&mut self, now: Moment) {
        if self.until_refresh > 0 && now.since(self.computed_at) < REFRESH_AFTER {
            self.until_refresh -= 1;
            return;
        }
        self.until_refresh = 0;
        self.computed_at = now;
        let bounds = |delay: Duration| delay.clamp(self.settings.delay_min, self.settings.delay_max);
        let hedge = self.with.quantile(self.settings.hedge_quantile).map(bounds);
        let rescue = self.with.quantile(self.settings.rescue_quantile).map(bounds);
        self.cached = hedge.zip(rescue);
        if self.cached.is_some() {
            self.frozen = None;
            self.until_refresh = self.with.refresh_after(REFRESH_EVERY);
        }
    }
}

#[cfg(test)]
#[path = "latency_test.rs"]
mod tests;

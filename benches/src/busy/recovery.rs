//! When reads are as fast as they were before the event of a scene. Pure; plays nothing.

use super::sample::Tick;
use std::time::Duration;

/// Ticks whose figures are looked at together: a single tenth of a second may be slow by chance.
pub const SMOOTHED: usize = 5;

/// Seconds from the event until a percentile of the reads due then is below twice that before the event, and stays so for at
/// least a second. `None`: not within the series, or too little of it is known.
pub fn recovery_s(series: &[Tick], event_at: Duration, of: fn(&Tick) -> Option<u64>) -> Option<f64> {
    let event_ms = event_at.as_millis() as i64;
    let mut before: Vec<u64> =
        series.iter().filter(|tick| (0..event_ms).contains(&tick.at_ms)).filter_map(of).collect();
    before.sort_unstable();
    let limit = 2 * before.get(before.len() / 2)?;
    // A tick whose reads had hardly a good answer is as slow as can be.
    let span = |tick: &Tick| of(tick).unwrap_or(if tick.reads > 0 { u64::MAX } else { 0 });
    let slow = |ticks: &[Tick]| {
        let mut spans: Vec<u64> = ticks.iter().map(span).collect();
        spans.sort_unstable();
        spans[spans.len() / 2] > limit
    };
    let mut after = series.windows(SMOOTHED).filter(|ticks| ticks[0].at_ms > event_ms).peekable();
    // Too few ticks to be looked at together: nothing is known, which is no recovery.
    after.peek()?;
    let last_slow = after.filter(|ticks| slow(ticks)).map(|ticks| ticks[SMOOTHED / 2].at_ms).max();
    let end = series.last()?.at_ms;
    match last_slow {
        None => Some(0.0),
        Some(at) if at + 1_000 > end => None,
        Some(at) => Some((at - event_ms) as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_millis(2_500);

    fn tick(at_ms: i64, p50_us: u64, p99_us: u64) -> Tick {
        Tick { at_ms, reads: 400, p50_us: Some(p50_us), p99_us: Some(p99_us), ..Tick::default() }
    }

    /// Ten seconds, an event at 2.5 s; medians are slow until `until_ms`, the slowest reads for a second more.
    fn storm(until_ms: i64) -> Vec<Tick> {
        let slow = |at: i64, until: i64| (2_500..until).contains(&at);
        (1..=100)
            .map(|index| index * 100)
            .map(|at| {
                let p50_us = if slow(at, until_ms) { 90_000 } else { 6_000 };
                tick(at, p50_us, if slow(at, until_ms + 1_000) { 300_000 } else { 40_000 })
            })
            .collect()
    }

    fn median_s(series: &[Tick]) -> Option<f64> {
        recovery_s(series, AT, |tick| tick.p50_us)
    }

    #[test]
    fn recovery_is_the_end_of_the_last_slow_time() {
        assert_eq!(median_s(&storm(0)), Some(0.0));
        let seconds = median_s(&storm(6_500)).unwrap();
        assert!((3.7..=4.0).contains(&seconds), "{seconds}");
        let seconds = recovery_s(&storm(6_500), AT, |tick| tick.p99_us).unwrap();
        assert!((4.7..=5.0).contains(&seconds), "{seconds}");
        assert_eq!(median_s(&storm(9_900)), None, "the scene ended too early to know");
        let mut blip = storm(4_500);
        blip[70].p50_us = Some(50_000);
        assert!(median_s(&blip).unwrap() < 2.1, "one slow tick is chance");
        assert_eq!(median_s(&storm(6_500)[..28]), None, "three ticks after the event say nothing");
    }

    #[test]
    fn reads_without_good_answers_are_slow_and_what_was_never_told_is_not_known() {
        let mut failing = storm(0);
        failing[40..60].iter_mut().for_each(|tick| tick.p50_us = None);
        assert!((3.2..=3.5).contains(&median_s(&failing).unwrap()), "{:?}", median_s(&failing));
        failing.iter_mut().for_each(|tick| tick.p50_us = None);
        assert_eq!(median_s(&failing), None);
    }
}

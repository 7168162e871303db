//! Disturbances drawn are those asked for: load, mean, share, agreement of nodes.

use super::*;

const MODEL: ModelledConfig =
    ModelledConfig { mean_service: Duration::from_millis(5), seed: 7, disturbance_allowed: true };
const HOUR: Moment = Moment(3_600_000_000_000);
/// Some day in 2026, so that wall-clock arithmetic is exercised.
const UNIX_NS: u64 = 1_790_000_000_000_000_000;

fn lane(node: u64, lane: u16) -> LaneName {
    LaneName { node: NodeId(node), lane, workers: 1 }
}

fn disturbed(asked: &Disturbance, name: LaneName) -> LaneDisturbance {
    LaneDisturbance::new(asked, &MODEL, name, Moment::ZERO, UNIX_NS)
}

fn jobs(asked: &Disturbance, name: LaneName) -> Vec<Job> {
    let mut lane = disturbed(asked, name);
    std::iter::from_fn(|| lane.job_due(HOUR)).collect()
}

fn load(jobs: &[Job]) -> f64 {
    jobs.iter().map(|job| job.service.as_secs_f64()).sum::<f64>() / 3_600.0
}

#[test]
fn jobs_offer_the_load_asked_for() {
    let asked = Disturbance { jobs_load: 0.2, ..Disturbance::default() };
    let drawn = jobs(&asked, lane(1, 0));
    // 144,000 jobs: standard error of the load is about 0.0007.
    assert!((0.197..0.203).contains(&load(&drawn)), "{}", load(&drawn));
    assert!(drawn.is_sorted_by_key(|job| job.arrived));
    let mean = drawn.iter().map(|job| job.service.as_secs_f64()).sum::<f64>() / drawn.len() as f64;
    assert!((0.00493..0.00507).contains(&mean), "{mean}");
    let two_workers = jobs(&asked, LaneName { workers: 2, ..lane(1, 0) });
    assert!((0.394..0.406).contains(&load(&two_workers)), "{}", load(&two_workers));
}

#[test]
fn gaps_of_jobs_are_exponential() {
    let asked = Disturbance { jobs_load: 0.2, ..Disturbance::default() };
    let drawn = jobs(&asked, lane(3, 2));
    let gaps: Vec<f64> =
        drawn.windows(2).map(|pair| pair[1].arrived.since(pair[0].arrived).as_secs_f64()).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let cv = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean;
    assert!((0.985..1.015).contains(&cv), "{cv}");
    let long = gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as f64 / gaps.len() as f64;
    assert!((0.131..0.140).contains(&long), "P(gap > 2 means) = e^-2, drawn {long}");
}

#[test]
fn capped_jobs_keep_load_and_cap() {
    let asked = Disturbance { jobs_load: 0.3, jobs_mean_us: 2_000, jobs_cap_us: 3_000, ..Disturbance::default() };
    let drawn = jobs(&asked, lane(1, 1));
    assert!(drawn.iter().all(|job| job.service <= Duration::from_micros(3_000)));
    assert!((0.297..0.303).contains(&load(&drawn)), "{}", load(&drawn));
}

#[test]
fn lanes_and_nodes_draw_their_own_jobs() {
    let asked = Disturbance { jobs_load: 0.2, ..Disturbance::default() };
    let first = |name| jobs(&asked, name)[0];
    let all = [first(lane(1, 0)), first(lane(1, 1)), first(lane(2, 0)), first(lane(2, 1))];
    (0..4).for_each(|i| (0..i).for_each(|j| assert_ne!(all[i], all[j])));
}

fn share(pace: &Pace) -> f64 {
    let samples = 400_000_u64;
    let stalled = (0..samples).filter(|i| pace.stalled_until(Moment(i * 9_000_000 + 11)).is_some()).count();
    stalled as f64 / samples as f64
}

#[test]
fn stalls_take_the_share_asked_for() {
    for (stall_share, stall_correlated) in [(0.1, 0.0), (0.1, 1.0), (0.4, 0.0)] {
        let asked = Disturbance { stall_share, stall_us: 40_000, stall_correlated, ..Disturbance::default() };
        let got = share(&disturbed(&asked, lane(1, 0)).pace);
        assert!((got - stall_share).abs() < 0.01, "asked {stall_share}, got {got}");
    }
}

#[test]
fn correlated_stalls_strike_all_nodes_at_once_and_others_do_not() {
    let together = |stall_correlated: f64| {
        let asked = Disturbance { stall_share: 0.2, stall_us: 40_000, stall_correlated, ..Disturbance::default() };
        // The second node's clock started 5 s later: its moments are 5 s less at the same time.
        let (a, b) = (
            disturbed(&asked, lane(1, 0)).pace,
            LaneDisturbance::new(&asked, &MODEL, lane(2, 3), Moment::ZERO, UNIX_NS + 5_000_000_000).pace,
        );
        let (mut one, mut both) = (0, 0);
        for i in 0..100_000_u64 {
            let at = Moment(5_000_000_000 + i * 7_000_000);
            let (in_a, in_b) =
                (a.stalled_until(at).is_some(), b.stalled_until(at - Duration::from_secs(5)).is_some());
            one += u32::from(in_a);
            both += u32::from(in_a && in_b);
        }
        f64::from(both) / f64::from(one)
    };
    assert_eq!(together(1.0), 1.0);
    assert!((0.17..0.23).contains(&together(0.0)), "{}", together(0.0));
}

#[test]
fn a_stall_before_the_start_delays_starts_only() {
    let asked = Disturbance { stall_share: 0.5, stall_us: 10_000, ..Disturbance::default() };
    let pace = disturbed(&asked, lane(1, 0)).pace;
    let within =
        (0..).map(|i| Moment(i * 1_000_000)).find(|at| pace.stalled_until(*at).is_some()).expect("half the time");
    assert!(pace.start_stalled_until(within).is_some());
    assert_eq!(
        pace.phase(within, Duration::from_millis(5)),
        DevicePhase::Serving(within + Duration::from_millis(5))
    );
}

#[test]
fn a_stall_after_the_start_lengthens_the_operation_by_itself() {
    let asked =
        Disturbance { stall_share: 0.3, stall_us: 10_000, stall_after_start: true, ..Disturbance::default() };
    let pace = disturbed(&asked, lane(1, 0)).pace;
    let (mut total, mut stalled) = (Duration::ZERO, Duration::ZERO);
    for start in 0..2_000_u64 {
        let began = Moment(start * 100_000_000 + 3);
        assert_eq!(pace.start_stalled_until(began), None);
        let (mut now, mut left, mut waited) = (began, Duration::from_millis(50), Duration::ZERO);
        while !left.is_zero() {
            let before = now;
            match pace.phase(now, left) {
                DevicePhase::Stalled(end) => {
                    now = end;
                    waited += now.since(before);
                }
                DevicePhase::Serving(end) => {
                    now = end;
                    left -= now.since(before);
                }
            }
            assert!(now > before, "a phase goes forward");
        }
        assert_eq!(now.since(began), Duration::from_millis(50) + waited);
        total += now.since(began);
        stalled += waited;
    }
    let share = stalled.as_secs_f64() / total.as_secs_f64();
    assert!((0.25..0.35).contains(&share), "stalled {share} of the time in service");
}

#[test]
fn slow_down_multiplies() {
    let asked = Disturbance { slow_factor: 3.0, ..Disturbance::default() };
    assert_eq!(disturbed(&asked, lane(1, 0)).pace.slowed(Duration::from_millis(2)), Duration::from_millis(6));
    assert_eq!(LaneDisturbance::quiet().pace.slowed(Duration::from_millis(2)), Duration::from_millis(2));
}

//! The model's draws: mean, spread, shape, and the same on every replica.

use super::*;

const MODEL: ModelledConfig =
    ModelledConfig { mean_service: Duration::from_millis(5), seed: 7, disturbance_allowed: true };

fn read(number: u64) -> ReadId {
    ReadId(u128::from(mix(number)) << 64 | u128::from(mix(number ^ 0xabcd)))
}

#[test]
fn service_has_the_profile_s_mean_and_variation() {
    let draws: Vec<f64> = (0..200_000).map(|number| MODEL.service(read(number)).as_secs_f64() * 1e3).collect();
    let mean = draws.iter().sum::<f64>() / draws.len() as f64;
    let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / draws.len() as f64;
    let cv = variance.sqrt() / mean;
    // Standard error of the mean is 0.004 ms, of the variation about 0.0009.
    assert!((4.98..5.02).contains(&mean), "mean {mean} ms");
    assert!((0.345..0.355).contains(&cv), "cv {cv}");
    assert!(draws.iter().all(|draw| *draw >= 1.5), "0.3 S is the least");
    // Erlang-4 with mean 1: P(X > 2) = e^-8 (1 + 8 + 32 + 85.33) = 0.04238 -> above 0.3 S + 1.4 S = 8.5 ms.
    let above = draws.iter().filter(|draw| **draw > 8.5).count() as f64 / draws.len() as f64;
    assert!((0.0405..0.0443).contains(&above), "P(service > 8.5 ms) = {above}");
}

#[test]
fn replicas_agree_and_seeds_differ() {
    let other = ModelledConfig { seed: 8, ..MODEL };
    let same = (0..1_000).filter(|number| MODEL.service(read(*number)) == MODEL.service(read(*number))).count();
    let alike = (0..1_000).filter(|number| MODEL.service(read(*number)) == other.service(read(*number))).count();
    assert_eq!((same, alike < 5), (1_000, true));
    assert_ne!(MODEL.service(ReadId(1)), MODEL.service(ReadId(1 << 64)));
}

#[test]
fn disturbance_is_checked() {
    let fine = Disturbance { jobs_load: 0.2, stall_share: 0.1, stall_us: 40_000, ..Disturbance::default() };
    assert!(DeviceConfig::Modelled(MODEL).check_disturbance(&fine).is_ok());
    let code = |device: DeviceConfig, asked: &Disturbance| device.check_disturbance(asked).map_err(|f| f.code);
    assert_eq!(code(DeviceConfig::Real, &fine), Err(ErrorCode::NotAllowed));
    let closed = ModelledConfig { disturbance_allowed: false, ..MODEL };
    assert_eq!(code(DeviceConfig::Modelled(closed), &fine), Err(ErrorCode::NotAllowed));
    for wrong in [
        Disturbance { jobs_load: 1.2, ..Disturbance::default() },
        Disturbance { jobs_load: 1e-30, ..Disturbance::default() },
        Disturbance { jobs_load: f64::NAN, ..Disturbance::default() },
        Disturbance { slow_factor: 0.0, ..Disturbance::default() },
        Disturbance { stall_share: 0.5, stall_us: 0, ..Disturbance::default() },
        Disturbance { jobs_mean_us: 61_000_000, ..Disturbance::default() },
    ] {
        assert_eq!(code(DeviceConfig::Modelled(MODEL), &wrong), Err(ErrorCode::OverLimit), "{wrong:?}");
    }
}

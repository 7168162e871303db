//! Tests of the timer on the real descriptor.

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn alarms_fire_in_order_and_never_early() {
    runtime().block_on(async {
        let timer = Timer::new().expect("a timer");
        tokio::spawn(timer.clone().drive());
        let start = clock::now();
        let waits: Vec<_> = [3_000u64, 100, 900, 0, 2_000]
            .into_iter()
            .map(|us| {
                let at = start + Duration::from_micros(us);
                let until = timer.until(at);
                tokio::spawn(async move {
                    until.await;
                    assert!(clock::now() >= at);
                })
            })
            .collect();
        for wait in waits {
            wait.await.expect("on time or late, never early");
        }
        assert_eq!(timer.inner.state.lock().alarms.len(), 0);
    });
}

#[test]
fn dropped_waits_leave_nothing() {
    runtime().block_on(async {
        let timer = Timer::new().expect("a timer");
        tokio::spawn(timer.clone().drive());
        for _ in 0..100 {
            let late = clock::now() + Duration::from_secs(60);
            assert_eq!(timer.within(late, std::future::ready(7)).await, Some(7));
            let soon = clock::now() + Duration::from_micros(10);
            assert_eq!(timer.within(soon, timer.until(late)).await, None);
        }
        assert_eq!(timer.inner.state.lock().alarms.len(), 0);
    });
}

/// How late waits of 100 us end. A figure, asserted only against tokio's tick: other work may run beside it.
#[test]
fn overshoot_is_below_a_millisecond_tick() {
    runtime().block_on(async {
        let timer = Timer::new().expect("a timer");
        tokio::spawn(timer.clone().drive());
        let mut late: Vec<Duration> = Vec::new();
        for _ in 0..400 {
            let at = clock::now() + Duration::from_micros(100);
            timer.until(at).await;
            late.push(clock::now().since(at));
        }
        late.sort();
        println!("overshoot of 100 us: p50 {:?}, p99 {:?}", late[200], late[396]);
        assert!(late[40] < Duration::from_micros(900), "the fastest tenth took {:?}", late[40]);
    });
}

/// Whoever asks for the lead less is on time in the median; the bound is loose because other work may run beside it.
#[test]
fn asking_for_the_lead_less_is_on_time() {
    runtime().block_on(async {
        let timer = Timer::new().expect("a timer");
        tokio::spawn(timer.clone().drive());
        let mut off: Vec<i64> = Vec::new();
        for _ in 0..600 {
            let at = clock::now() + Duration::from_micros(300);
            timer.until(at - timer.lead()).await;
            off.push(clock::now().0 as i64 - at.0 as i64);
        }
        let lead = timer.lead();
        assert!(lead > Duration::ZERO && lead <= crate::lateness::LATENESS_MAX, "{lead:?}");
        let earliest = off.iter().min().copied().unwrap_or_default();
        assert!(
            earliest >= -(crate::lateness::LATENESS_MAX.as_nanos() as i64),
            "{earliest} ns: early by more than it may"
        );
        off.drain(..100);
        off.sort_unstable();
        println!(
            "asked for the lead less: off by p10 {} p50 {} p90 {} ns; lead {lead:?}",
            off[50], off[250], off[450]
        );
    });
}

//! The slow loop of a node: passes changes of members and ceiling on to the request path, tells the cancel channel
//! how long operations take about (once a second), and looks how busy the workers are, so that answers can say so.

use crate::admin::status::Observer;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::response::flags;

const PAUSE: Duration = Duration::from_secs(1);
/// Between looks at the workers.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A look's weight: the share is that of about the last second.
const LOOK_WEIGHT: f64 = 0.025;
/// Workers busy for more than this share: answers say so, until it falls below the second.
const BUSY: (f64, f64) = (0.80, 0.75);

/// How busy the workers have been lately.
#[derive(Debug, Default)]
struct Utilisation {
    share: f64,
    high: bool,
}

impl Utilisation {
    /// Takes a look; true if what answers say changed.
    fn look(&mut self, busy_share: f64) -> bool {
        self.share += LOOK_WEIGHT * (busy_share - self.share);
        let before = self.high;
        self.high = if self.high { self.share >= BUSY.1 } else { self.share > BUSY.0 };
        before != self.high
    }

    fn bits(&self) -> u8 {
        if self.high { flags::BUSY } else { 0 }
    }
}

/// Runs until dropped.
pub async fn run(node: Arc<Observer>) {
    let mut changes = node.directory.watch();
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut utilisation = Utilisation::default();
    let mut ceiling_bits = 0;
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = ticks.tick() => {
                // Unknown at first: then what the settings said stays.
                let service = Duration::from_micros(node.path.status().service_p50_us);
                if !service.is_zero() {
                    node.cancels.expect_service(service);
                }
                continue;
            }
            _ = looks.tick() => {
                if utilisation.look(node.path.busy_share()) {
                    node.path.set_flags(ceiling_bits | utilisation.bits());
                }
                continue;
            }
        }
        let ceiling = changes.borrow_and_update().ceiling;
        node.path.set_members(node.directory.nodes());
        ceiling_bits = ceiling.flags();
        node.path.set_flags(ceiling_bits | utilisation.bits());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_workers_are_told_after_about_a_second_and_with_hysteresis() {
        let mut utilisation = Utilisation::default();
        let looks = (1..1_000).find(|_| utilisation.look(1.0));
        assert!((40..80).contains(&looks.unwrap()), "{looks:?} looks of 25 ms");
        assert_eq!(utilisation.bits(), flags::BUSY);
        assert!((0..1_000).all(|_| !utilisation.look(0.77)), "77 % turns nothing off");
        assert!((0..1_000).any(|_| utilisation.look(0.70)));
        assert!((0..1_000).all(|_| !utilisation.look(0.78)), "and 78 % nothing on");
    }
}

//! The slow loop of a node: passes changes of members and ceiling on to the request path, and tells the cancel
//! channel how long operations take about. Once a second and at each change; decides nothing.

use crate::admin::status::Observer;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::hello::{Ceiling, Mode};
use tiedkv_protocol::response::flags;

const PAUSE: Duration = Duration::from_secs(1);

/// Runs until dropped.
pub async fn run(node: Arc<Observer>) {
    let mut changes = node.directory.watch();
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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
        }
        let ceiling = changes.borrow_and_update().ceiling;
        node.path.set_members(node.directory.nodes());
        node.path.set_flags(flags_of(&ceiling));
    }
}

/// What a ceiling means for clients that know only the flags of an answer.
fn flags_of(ceiling: &Ceiling) -> u8 {
    let off = ceiling.mode == Mode::Off || ceiling.share_ppm == 0;
    let mut bits = 0;
    if off || ceiling.copies_max < 2 {
        bits |= flags::TIES_OFF;
    }
    if off || ceiling.budget_ppm == Some(0) {
        bits |= flags::NO_EXTRA_COPIES;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_reaches_clients_that_know_only_flags() {
        assert_eq!(flags_of(&Ceiling::default()), 0);
        assert_eq!(flags_of(&Ceiling { copies_max: 1, ..Ceiling::default() }), flags::TIES_OFF);
        assert_eq!(flags_of(&Ceiling { budget_ppm: Some(0), ..Ceiling::default() }), flags::NO_EXTRA_COPIES);
        let off = Ceiling { mode: Mode::Off, ..Ceiling::default() };
        assert_eq!(flags_of(&off), flags::TIES_OFF | flags::NO_EXTRA_COPIES);
    }
}

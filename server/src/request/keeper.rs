//! The keeper of copies set aside: one thread per node that queues them again when a view is published, and answers
//! `Behind` when their time is over. It also looks after brisk lanes that were left to the workers awake (`brisk`).
//! Idle while there is neither.
//!
//! It keeps that work off the apply thread, which must be quick, and off the workers, which may all be busy. Copies that
//! wait for a barrier only are queued again by whoever has its answer: a wake-up less in every linearizable read.

use crate::clock;
use crate::request::held::Work;
use crate::request::lane::Waiting;
use crate::request::lane_room::LaneRoom;
use crate::request::state::PathState;
use crate::request::wait::park_until;
use crate::storage::state_store::PositionListener;
use crossbeam::sync::Parker;
use std::sync::{Arc, Weak};
use tiedkv_protocol::ids::Position;

/// Works until the path closes.
pub(crate) fn run_keeper(path: Arc<PathState>, parker: Parker) {
    crate::request::wait::sharpen_timers();
    while !path.is_closing() {
        path.keeper_looks();
        let applied = path.store.view().position();
        let next = path.lanes.iter().flat_map(|lane| [path.look_after(lane, applied), path.look_at(lane)]);
        let next = next.flatten().min();
        match path.keeper_sleeps_until(next) {
            Some(until) => park_until(&parker, until),
            None => parker.park(),
        }
    }
}

impl PathState {
    fn look_after(&self, lane: &LaneRoom, applied: Position) -> Option<tiedkv_protocol::moment::Moment> {
        if !lane.any_aside() {
            return None;
        }
        let due = lane.due(applied, clock::now());
        due.servable.into_iter().for_each(|waiting| self.queue_again(lane, waiting));
        for waiting in due.expired {
            if let Work::Copy(copy) = waiting.item {
                let verdict = self.stripe_of(&copy.name).lock().refuse(&copy.name, clock::now());
                self.end_or_answer(&copy, verdict, self.behind(&copy));
            }
        }
        due.next
    }

    /// Wakes another worker where the one that was trusted to go on does not (`brisk`).
    fn look_at(&self, lane: &LaneRoom) -> Option<tiedkv_protocol::moment::Moment> {
        let (called, next) = lane.look(clock::now());
        self.wake(called);
        next
    }

    /// Its original place; it goes through the whole start step again (rule R6, docs/tie-protocol.md).
    pub(crate) fn queue_again(&self, lane: &LaneRoom, waiting: Waiting<Work>) {
        let Work::Copy(copy) = &waiting.item else { return };
        let mut table = self.stripe_of(&copy.name).lock();
        if table.queue_again(&copy.name) {
            let wake = lane.put_back(waiting, self.brisk());
            drop(table);
            self.wake(wake);
        }
        // A copy that joins an emptied lane of a closing node is answered there.
        if self.is_closing() {
            self.empty_lanes();
        }
    }
}

/// Calls the keeper when a view is published while copies are set aside.
pub(crate) struct CallKeeper(pub Weak<PathState>);

impl PositionListener for CallKeeper {
    fn published(&self, _position: Position) {
        if let Some(path) = self.0.upgrade()
            && path.lanes.iter().any(LaneRoom::any_aside)
        {
            path.wake_keeper();
        }
    }
}

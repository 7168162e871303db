//! What ends copies from outside: a peer's cancel, a client's withdraw, a lost connection.
//!
//! Each is one step under the registry stripe (rule R15, docs/tie-protocol.md); waking and counting come after.
//! `cancel` runs on the cancel channel's own thread, straight into the registry: no queue in between.

use crate::clock;
use crate::request::copy_state::Waited;
use crate::request::doors::Caller;
use crate::request::end::Silent;
use crate::request::held::HeldCopy;
use crate::request::lane_room::Called;
use crate::request::state::PathState;
use crate::request::tie::{CancelOutcome, HandOver, Race, WithdrawOutcome};
use std::sync::Arc;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::peer::Cancel;

impl PathState {
    /// A peer says that its copy of a tie started.
    pub(crate) fn peer_cancels(&self, from: NodeId, cancel: &Cancel) {
        let counters = &self.counters;
        counters.cancels_received.add_one();
        let mut table = self.stripe(&Race::of_cancel(cancel)).lock();
        match table.cancel(from, cancel, clock::now()) {
            CancelOutcome::Filed(_) => counters.cancels_filed.add_one(),
            CancelOutcome::Withdrawn { copy, waited } => {
                self.tell_lane(&copy, waited);
                drop(table);
                copy.note_ended_by(from);
                self.end_silently(&copy, Silent::Cancelled);
            }
            CancelOutcome::Yield { copy } => {
                let worker = copy.worker();
                copy.note_ended_by(from);
                drop(table);
                // Both started: this one, the higher number, is the duplicate.
                counters.duplicates_seen.add_one();
                self.wake(worker.map_or(Called::Nobody, Called::Worker));
            }
            CancelOutcome::CancelBack(hand_over) => {
                self.hand_over(&hand_over);
                drop(table);
                counters.cancels_sent_back.add(hand_over.to.len() as u64);
            }
            CancelOutcome::Equal | CancelOutcome::Stranger => counters.cancels_ignored.add_one(),
            CancelOutcome::Ignored => {}
        }
    }

    /// Hands cancels to the channel; the stripe is locked, so they leave before whatever happens next to the copy.
    pub(crate) fn hand_over(&self, hand_over: &HandOver) {
        hand_over.to.iter().for_each(|peer| self.cancels.cancel(*peer, hand_over.cancel));
    }

    /// The client waits for these copies no more.
    pub(crate) fn client_withdraws(&self, caller: &Caller, requests: &[RequestId]) {
        for request in requests {
            let copy = self.desk(caller.id).lock().withdraw(caller.connection, *request).cloned();
            if let Some(copy) = copy {
                self.withdraw(&copy);
            }
        }
    }

    /// The connection is gone: nobody waits for its copies.
    pub(crate) fn connection_lost(&self, caller: &Caller) {
        let mut copies = self.desk(caller.id).lock().hang_up(caller.connection);
        // Those that run last: a worker that is freed finds nothing of this connection to start.
        copies.sort_by_key(|copy| copy.started().is_some());
        copies.iter().for_each(|copy| self.withdraw(copy));
    }

    fn withdraw(&self, copy: &Arc<HeldCopy>) {
        let mut table = self.stripe_of(&copy.name).lock();
        // A copy that ended a moment ago is no longer registered; nothing must be filed for it.
        if table.copy(&copy.name).is_none_or(|registered| !Arc::ptr_eq(registered, copy)) {
            return;
        }
        match table.withdraw(&copy.name, clock::now()) {
            WithdrawOutcome::Withdrawn { copy, waited } => {
                self.tell_lane(&copy, waited);
                drop(table);
                self.end_silently(&copy, Silent::Withdrawn);
            }
            WithdrawOutcome::Stop { copy } => {
                let worker = copy.worker();
                drop(table);
                self.wake(worker.map_or(Called::Nobody, Called::Worker));
            }
            WithdrawOutcome::Filed(_) | WithdrawOutcome::Ignored => {}
        }
    }

    fn tell_lane(&self, copy: &HeldCopy, waited: Waited) {
        if waited == Waited::Queued {
            self.lane(copy).withdrawn();
        }
    }
}

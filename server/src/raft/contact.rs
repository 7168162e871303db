//! Whether this replica is in contact with its cluster: looked at a few times per election timeout, read by every
//! copy that needs more than the replica has.
//!
//! A leader is cut off when no quorum has answered it for an election timeout, any other replica when no leader has
//! spoken to it for as long (a snapshot on its way counts as restoring). It decides nothing about leadership.

use crate::clock;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, Raft};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tokio::sync::Semaphore;
use tokio::time::interval;

const IN_CONTACT: u8 = 0;
const CUT_OFF: u8 = 1;
const RESTORING: u8 = 2;

/// Shared between who hears the leader, who looks, and who asks.
#[derive(Debug)]
pub struct Contact {
    heard: AtomicU64,
    state: AtomicU8,
    leads: AtomicBool,
}

impl Contact {
    /// A replica that has just started counts as in contact.
    pub fn started() -> Self {
        Self {
            heard: AtomicU64::new(clock::now().0),
            state: AtomicU8::new(IN_CONTACT),
            leads: AtomicBool::new(false),
        }
    }

    /// The leader has spoken.
    pub fn heard(&self) {
        self.heard.store(clock::now().0, Relaxed);
    }

    /// Why this replica cannot catch up now, if so.
    pub fn lost(&self) -> Option<&'static str> {
        match self.state.load(Relaxed) {
            CUT_OFF => Some("this replica is cut off from its cluster"),
            RESTORING => Some("this replica is being restored from a snapshot"),
            _ => None,
        }
    }

    /// This replica leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.leads.load(Relaxed)
    }

    fn silent_for(&self) -> Duration {
        clock::now().since(Moment(self.heard.load(Relaxed)))
    }
}

/// Looks until the group ends.
pub(super) async fn watch(
    contact: Arc<Contact>,
    own: NodeId,
    raft: Raft<TypeConfig, StateMachine>,
    installing: Arc<Semaphore>,
    silence_max: Duration,
) {
    let metrics = raft.metrics();
    let mut ticks = interval(silence_max / 4);
    loop {
        ticks.tick().await;
        let (leads, acknowledged, ended) = {
            let metrics = metrics.borrow_watched();
            let acknowledged = metrics.last_quorum_acked.as_ref().map(|when| when.elapsed());
            // A single voter is its own quorum.
            let leads = metrics.current_leader == Some(own.0);
            let acknowledged = acknowledged.filter(|_| metrics.membership_config.voter_ids().count() > 1);
            (leads, acknowledged, metrics.running_state.is_err())
        };
        if ended {
            return;
        }
        let silence = if leads { acknowledged.unwrap_or_default() } else { contact.silent_for() };
        contact.leads.store(leads, Relaxed);
        contact.state.store(state(installing.available_permits() == 0, silence > silence_max), Relaxed);
    }
}

fn state(restoring: bool, silent: bool) -> u8 {
    match (restoring, silent) {
        (true, _) => RESTORING,
        (false, true) => CUT_OFF,
        (false, false) => IN_CONTACT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_cut_off_or_being_restored_says_why_it_cannot_know_more() {
        let contact = Contact::started();
        assert_eq!(contact.lost(), None);
        let said = |restoring, silent| {
            contact.state.store(state(restoring, silent), Relaxed);
            contact.lost().unwrap_or_default()
        };
        assert!(said(false, true).contains("cut off"));
        assert!(said(true, false).contains("restored"));
        // The sender of a snapshot need not speak as a leader meanwhile.
        assert!(said(true, true).contains("restored"));
        assert_eq!(said(false, false), "");
    }
}

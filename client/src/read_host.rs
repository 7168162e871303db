//! What a race asks of its surroundings, answered from a view's estimates and the shared connections.

use crate::choose::Chosen;
use crate::copies::Host;
use crate::retry::{BackoffSettings, backoff};
use crate::shared::random_u128;
use crate::view::ViewInner;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

/// The surroundings of one read.
pub(crate) struct ReadHost<'a> {
    pub(crate) view: &'a ViewInner,
    pub(crate) chosen: &'a Chosen,
}

impl Host for ReadHost<'_> {
    fn tie_id(&mut self) -> TieId {
        TieId(random_u128())
    }

    fn tie_delay(&mut self, first: NodeId) -> Duration {
        let cap = self.view.shared.config().tie_delay_cap;
        self.chosen.table.peer(first).map_or(cap, |peer| peer.tie_delay())
    }

    fn hedge_delay(&mut self) -> Duration {
        self.view.own.lock().latency.hedge_delay()
    }

    fn rescue_delay(&mut self) -> Duration {
        self.view.own.lock().latency.rescue_delay()
    }

    fn token(&mut self, _kind: CopyKind, now: Moment) -> bool {
        self.view.own.lock().budget.take(now)
    }

    fn backoff(&mut self, round: u8, hint: Duration) -> Duration {
        backoff(&BackoffSettings::default(), round, hint, &mut self.view.own.lock().rng)
    }
}

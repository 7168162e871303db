//! Copies that no caller waits for: shadow reads of replicas on probation, and samples of observed reads, which are
//! compared with the answer that was used and thrown away.
//!
//! Carries answers to the view that learns from them; decides nothing.

use crate::observe::{Answered, Compared, compare};
use crate::pending::ShadowReader;
use crate::tally::Slot;
use crate::view::ViewInner;
use parking_lot::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::ReadReply;

/// One shadow copy that is out.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// A view that is gone learns nothing; the copy does not keep it.
    view: Weak<ViewInner>,
    sample: Option<Arc<Sample>>,
}

impl Shadow {
    pub(crate) fn new(view: &Arc<ViewInner>, sample: Option<Arc<Sample>>) -> Arc<Self> {
        Arc::new(Self { view: Arc::downgrade(view), sample })
    }
}

impl ShadowReader for Shadow {
    fn shadow_answered(&self, latency: Duration, reply: &ReadReply, now: Moment) {
        let Some(view) = self.view.upgrade() else { return };
        let code = reply.outcome.as_ref().err().map(|failure| failure.code);
        {
            let engine = &mut view.own.lock().engine;
            let newest = engine.control.ceiling().version;
            let service = view.shared.connections().table().without_old_ceiling(reply.service, newest);
            engine.answered(latency, &service, code, now);
            engine.copy_gone(service.node, CopyKind::Shadow);
        }
        if let (Some(sample), Ok(found)) = (&self.sample, &reply.outcome) {
            let tally = view.shared.connections().counters.tallies.of(sample.slot);
            tally.extra_path.add(latency);
            sample.came(Answered { version: found.version, position: found.position }, &view);
        }
    }

    fn shadow_lost(&self, node: NodeId) {
        if let Some(view) = self.view.upgrade() {
            view.own.lock().engine.copy_gone(node, CopyKind::Shadow);
        }
    }
}

/// The two answers of one sampled read; compared when both are there.
#[derive(Debug)]
pub(crate) struct Sample {
    slot: Slot,
    first: Mutex<Option<Answered>>,
}

impl Sample {
    pub(crate) fn new(slot: Slot) -> Arc<Self> {
        Arc::new(Self { slot, first: Mutex::new(None) })
    }

    /// One of the two answers came.
    pub(crate) fn came(&self, answered: Answered, view: &ViewInner) {
        let Some(other) = self.first.lock().replace(answered) else { return };
        let tally = view.shared.connections().counters.tallies.of(self.slot);
        tally.samples.fetch_add(1, Relaxed);
        if compare(other, answered) == Compared::Stale {
            tally.samples_stale.fetch_add(1, Relaxed);
            tracing::warn!(?other, ?answered, "two replicas contradict each other");
        }
    }
}

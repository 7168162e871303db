//! What all views know together of one node: its links, the pace of the way to it, what its answers said last.

use crate::exchange::Link;
use crate::pace::Pace;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::time::Duration;
use tiedkv_protocol::hello::{Ceiling, Member};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::Service;
use tokio::sync::Notify;

/// One node as this client knows it. What each read asks of each node stands first, in one cache line: a read comes
/// after a sleep, when nothing of it is at hand.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Peer {
    /// Who; fixed for life.
    pub(crate) node: NodeId,
    /// How many links there are.
    up: AtomicUsize,
    links: ArcSwap<Vec<Arc<Link>>>,
    next_link: AtomicUsize,
    unhealthy_pairs: AtomicU64,
    /// Version of the ceiling that it told last, and the flags that this makes it say.
    ceiling: AtomicU64,
    ceiling_flags: AtomicU8,
    flags: AtomicU8,
    modelled: AtomicBool,
    removed: AtomicBool,
    pace: Mutex<Pace>,
    member: Mutex<Member>,
    /// Makes changes of the links one after another.
    changing: Mutex<()>,
    dial_error: Mutex<Option<String>>,
    last_loss: Mutex<Option<String>>,
    /// Wakes the tasks that dial this node out of their backoff.
    pub(crate) redial: Notify,
}

impl Peer {
    pub(crate) fn new(member: Member, pace: Pace) -> Self {
        Self {
            node: member.node,
            member: Mutex::new(member),
            links: ArcSwap::default(),
            up: AtomicUsize::new(0),
            changing: Mutex::new(()),
            next_link: AtomicUsize::new(0),
            pace: Mutex::new(pace),
            flags: AtomicU8::new(0),
            unhealthy_pairs: AtomicU64::new(0),
            ceiling: AtomicU64::new(0),
            ceiling_flags: AtomicU8::new(0),
            modelled: AtomicBool::new(false),
            dial_error: Mutex::new(None),
            last_loss: Mutex::new(None),
            removed: AtomicBool::new(false),
            redial: Notify::new(),
        }
    }

    /// Its entry in the topology as last heard.
    pub(crate) fn member(&self) -> Member {
        self.member.lock().clone()
    }

    /// Takes over a newer entry of the topology.
    pub(crate) fn update(&self, member: Member) {
        *self.member.lock() = member;
    }

    /// A link that is up; they take turns.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        let links = self.links.load();
        match links.len() {
            0 => None,
            1 => links.first().cloned(),
            count => links.get(self.next_link.fetch_add(1, Relaxed) % count).cloned(),
        }
    }

    /// How many links are up.
    pub(crate) fn links(&self) -> usize {
        self.up.load(Acquire)
    }

    pub(crate) fn link_up(&self, link: &Arc<Link>) {
        *self.dial_error.lock() = None;
        self.change_links(|links| links.push(link.clone()));
    }

    pub(crate) fn link_down(&self, link: &Arc<Link>, reason: &str) {
        *self.dial_error.lock() = Some(reason.to_owned());
        *self.last_loss.lock() = Some(reason.to_owned());
        self.change_links(|links| links.retain(|other| !Arc::ptr_eq(other, link)));
    }

    fn change_links(&self, change: impl FnOnce(&mut Vec<Arc<Link>>)) {
        let _one_after_another = self.changing.lock();
        let mut links = Vec::clone(&self.links.load());
        change(&mut links);
        // The links first: who sees that there is one finds it.
        let up = links.len();
        self.links.store(Arc::new(links));
        self.up.store(up, Release);
        if up == 0 {
            // Who is not there asks for nothing; else what a dead node said last would hold until it is back.
            self.heard_flags(0, 0);
        }
    }

    /// Closes every link with a reason.
    pub(crate) fn close_links(&self, reason: &str) {
        for link in self.links.load().iter() {
            link.close(reason);
        }
    }

    /// Why it was not reached last, or why its last link went down.
    pub(crate) fn dial_error(&self) -> Option<String> {
        self.dial_error.lock().clone()
    }

    /// Why a link went down last, also after another one came up.
    pub(crate) fn last_loss(&self) -> Option<String> {
        self.last_loss.lock().clone()
    }

    pub(crate) fn dial_failed(&self, reason: String) {
        *self.dial_error.lock() = Some(reason);
    }

    /// It left the cluster: its tasks end.
    pub(crate) fn remove(&self) {
        self.removed.store(true, Relaxed);
        self.redial.notify_waiters();
        self.close_links("the node left the cluster");
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Relaxed)
    }

    /// An answer to a copy came, `latency` after it was handed over.
    pub(crate) fn heard_answer(&self, latency: Duration, service: &Service, now: Moment) {
        self.heard_flags(service.flags, service.unhealthy_pairs);
        let wait = Duration::from_micros(u64::from(service.queue_wait_us));
        let time = Duration::from_micros(u64::from(service.service_time_us));
        self.pace.lock().record(latency, wait, time, now);
    }

    /// An echo came; `clean` is the round trip without what the node held it.
    pub(crate) fn heard_echo(&self, clean: Duration, now: Moment) {
        self.pace.lock().record_round_trip(clean, now);
    }

    pub(crate) fn heard_flags(&self, flags: u8, unhealthy_pairs: u64) {
        self.flags.store(flags, Relaxed);
        self.unhealthy_pairs.store(unhealthy_pairs, Relaxed);
    }

    /// It told the operator's ceiling that holds for it.
    pub(crate) fn heard_ceiling(&self, ceiling: &Ceiling) {
        self.ceiling_flags.store(ceiling.flags(), Relaxed);
        self.ceiling.store(ceiling.version, Relaxed);
    }

    /// What of its `flags` counts where `newest` is the newest ceiling known: not what an older one makes it say, for it
    /// may be cut off from those that would tell it.
    pub(crate) fn without_old_ceiling(&self, flags: u8, newest: u64) -> u8 {
        let old = self.ceiling.load(Relaxed) < newest;
        if old { flags & !self.ceiling_flags.load(Relaxed) } else { flags }
    }

    pub(crate) fn heard_modelled(&self, modelled: bool) {
        self.modelled.store(modelled, Relaxed);
    }

    /// A new link: what was measured on the old one is learned anew.
    pub(crate) fn relearn(&self) {
        self.pace.lock().relearn();
    }

    /// [`tiedkv_protocol::response::flags`] of its last answer.
    pub(crate) fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    /// Members to which its cancel channel is down or slow, one bit per index in the topology.
    pub(crate) fn unhealthy_pairs(&self) -> u64 {
        self.unhealthy_pairs.load(Relaxed)
    }

    pub(crate) fn modelled(&self) -> bool {
        self.modelled.load(Relaxed)
    }

    pub(crate) fn tie_delay(&self) -> Duration {
        self.pace.lock().tie_delay()
    }

    pub(crate) fn one_way(&self) -> Option<Duration> {
        self.pace.lock().one_way()
    }

    pub(crate) fn silence_limit(&self) -> Duration {
        self.pace.lock().silence_limit()
    }

    pub(crate) fn ping_every(&self) -> Duration {
        self.pace.lock().ping_every()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::PaceSettings;
    use tiedkv_protocol::response::flags;

    #[test]
    fn a_node_without_a_link_says_nothing() {
        let member = Member {
            node: NodeId(3),
            zone: String::new(),
            client_address: "a:1".to_owned(),
            peer_address: String::new(),
            cancel_address: String::new(),
            learner: false,
        };
        let peer = Peer::new(member, Pace::new(PaceSettings::default()));
        peer.heard_flags(flags::TIES_OFF | flags::NO_EXTRA_COPIES, 0b11);
        // As when its last link goes down.
        peer.change_links(Vec::clear);
        assert_eq!((peer.flags(), peer.unhealthy_pairs()), (0, 0));
    }
}

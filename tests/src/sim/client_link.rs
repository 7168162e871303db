//! The links of a simulated client: what they owe, pings, silence, loss.

use crate::sim::client::{Client, ClientOut, ReadKey};
use crate::sim::config::Planted;
use crate::sim::wire::ToNode;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tiedkv_client::copies::{CopyIndex, Event};
use tiedkv_client::engine::Ways;
use tiedkv_client::pace::Pace;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

pub(crate) struct OutCopy {
    pub(crate) read: ReadKey,
    pub(crate) copy: CopyIndex,
    pub(crate) kind: CopyKind,
    pub(crate) sent: Moment,
}

pub(crate) struct Link {
    pub(crate) node: NodeId,
    /// The current connection, if up.
    pub(crate) connection: Option<u64>,
    pub(crate) next_request: u64,
    pub(crate) pace: Pace,
    pub(crate) owed: BTreeMap<RequestId, OutCopy>,
    /// Withdrawn or lost copies that may still be answered.
    pub(crate) given_up: BTreeMap<RequestId, Moment>,
    /// Something was heard, or nothing was owed, last then.
    pub(crate) quiet_since: Moment,
    pub(crate) looked_at: bool,
    pub(crate) silent: bool,
}

pub(crate) struct Links(pub(crate) Vec<Link>);

impl Ways for Links {
    fn tie_delay(&self, node: NodeId) -> Duration {
        self.0.iter().find(|link| link.node == node).map_or(Duration::from_millis(10), |link| link.pace.tie_delay())
    }

    fn one_way(&self, node: NodeId) -> Option<Duration> {
        self.0.iter().find(|link| link.node == node).and_then(|link| link.pace.one_way())
    }
}

impl Client {
    /// An echo arrives.
    pub fn pong(&mut self, node: usize, connection: u64, now: Moment) {
        self.heard(node, connection, now);
    }

    pub(crate) fn heard(&mut self, node: usize, connection: u64, now: Moment) {
        let link = &mut self.links.0[node];
        if link.connection == Some(connection) {
            link.quiet_since = now;
            link.silent = false;
        }
    }

    /// A connection is up.
    pub fn link_up(&mut self, node: usize, connection: u64, now: Moment) {
        let link = &mut self.links.0[node];
        link.connection = Some(connection);
        link.quiet_since = now;
        link.silent = false;
    }

    /// A connection is gone: nothing that was owed on it comes any more.
    pub fn link_lost(&mut self, node: usize, connection: u64, now: Moment, out: &mut Vec<ClientOut>) {
        if self.links.0[node].connection != Some(connection) {
            return;
        }
        self.links.0[node].connection = None;
        let replica = self.links.0[node].node;
        self.give_up_owed(node, now);
        self.links.0[node].given_up.clear();
        self.tell_all(Event::LinkLost { replica }, now, out);
    }

    /// While an answer is owed: pings, and judges silence.
    pub fn look_at_link(&mut self, node: usize, now: Moment, out: &mut Vec<ClientOut>) {
        let link = &mut self.links.0[node];
        link.looked_at = false;
        let Some(connection) = link.connection else { return };
        if link.owed.is_empty() && !link.silent {
            return;
        }
        out.push(ClientOut::Send { node, connection, message: ToNode::Ping });
        self.look_later(node, now, out);
        let link = &mut self.links.0[node];
        let silent = now.since(link.quiet_since) >= link.pace.silence_limit();
        if silent && !link.owed.is_empty() && self.planted != Some(Planted::NoSilenceRule) {
            link.silent = true;
            let replica = link.node;
            self.silence_owed(node, now);
            self.tell_all(Event::LinkSilent { replica }, now, out);
        }
    }

    pub(crate) fn look_later(&mut self, node: usize, now: Moment, out: &mut Vec<ClientOut>) {
        let link = &mut self.links.0[node];
        if !link.looked_at {
            link.looked_at = true;
            out.push(ClientOut::LookAtLink { at: now + link.pace.ping_every(), node });
        }
    }

    /// The copies owed by a lost link are not answered any more: one failure per view, as the client counts it.
    fn give_up_owed(&mut self, node: usize, now: Moment) {
        let replica = self.links.0[node].node;
        let mut told = BTreeSet::new();
        for copy in std::mem::take(&mut self.links.0[node].owed).into_values() {
            self.counters.unanswered += 1;
            if let Some(state) = self.reads.get(&copy.read) {
                self.views[state.view].copy_gone(replica, copy.kind);
                if told.insert(state.view) {
                    self.views[state.view].link_failed(replica, now);
                }
            }
        }
    }

    /// The copies owed by a silent link are still owed; their views stop counting on them.
    fn silence_owed(&mut self, node: usize, now: Moment) {
        let link = &self.links.0[node];
        let mut told = BTreeSet::new();
        for copy in link.owed.values() {
            if let Some(state) = self.reads.get(&copy.read).filter(|state| told.insert(state.view)) {
                self.views[state.view].link_failed(link.node, now);
            }
        }
    }
}

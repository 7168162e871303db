//! The watcher of a simulated world: it sees everything at once and holds it against the invariants.
//!
//! Each invariant has a name and says where it comes from. The watcher changes nothing in the world.

use crate::sim::client::EndedRead;
use crate::sim::wire::{CopySight, Sight};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tiedkv_client::copies::{End, GiveUp, Outcome};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, ReadId, RequestId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// One outcome per read, by its deadline (docs/tie-protocol.md, property P1).
    OneOutcome,
    /// No read ends in an error while a good replica exists (property P2).
    NoLostRead,
    /// A copy ended by a peer, or asked to yield, leaves a started copy of its tie that goes on (property P3).
    SomebodyGoesOn,
    /// Nothing is left at rest (property P4).
    NothingLeft,
    /// Two copies of a tie run at once only for the flight of two cancels, or with an excuse (property P5).
    DuplicateHasExcuse,
    /// Each cancel belongs to a copy that started (property P7).
    CancelFollowsStart,
    /// After its withdraw arrived no copy waits or starts (property PW, rule R14).
    WithdrawHolds,
    /// No copy meets one of its own tie on one node (property PX).
    NoMeeting,
    /// A tie and number is sent once (rule R5).
    SentOnce,
    /// A node is silent only about what was withdrawn or ended by a named peer (rule R8).
    NoSilence,
    /// A copy whose named peer had cancelled it before it came does not queue (the table, first column).
    EarlyCancelHolds,
    /// A stall keeps its worker to its end: one start per worker and stall (what a stall belongs to).
    StallKeepsWorker,
    /// An answer is not older than what was asked for (levels).
    FreshEnough,
    /// Counters balance on both sides at rest.
    CountersBalance,
    /// Extra copies stay within the budget.
    WithinBudget,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// When.
    pub at: Moment,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.rule, self.at.as_micros(), self.what)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Waiting,
    Running {
        since: Moment,
    },
    /// Runs, but was asked to yield: what it runs from then on is the device's doing, not the protocol's.
    Yielding {
        since: Moment,
        asked: Moment,
    },
    /// Nobody waits for it any more, or its node or link is gone: it may have gone on.
    Lost,
    Answered {
        started: bool,
    },
    /// Ended by a peer.
    Ended,
}

#[derive(Clone, Debug)]
struct Seen {
    node: NodeId,
    life: Life,
    number: CopyNumber,
}

#[derive(Debug, Default)]
struct TieSeen {
    copies: Vec<Seen>,
    /// Why a duplicate of this tie is nobody's fault.
    excuse: Option<&'static str>,
    started: Vec<NodeId>,
    members: Vec<NodeId>,
}

/// A time in which a node cannot be counted on.
#[derive(Clone, Copy, Debug)]
struct BadTime {
    node: NodeId,
    from: Moment,
    to: Moment,
}

/// The watcher.
#[derive(Debug)]
pub struct Watch {
    on: bool,
    nodes: Vec<NodeId>,
    ties: BTreeMap<TieId, TieSeen>,
    /// Withdraws that arrived.
    withdrawn: BTreeSet<(NodeId, u64, RequestId)>,
    /// Cancels that arrived: when first.
    arrived: BTreeMap<(NodeId, NodeId, TieId, u8), Moment>,
    bad: Vec<BadTime>,
    ended: BTreeSet<ReadId>,
    stalled: BTreeMap<(NodeId, (u16, usize)), Moment>,
    /// Twice the longest flight that a cancel may take without being late on purpose.
    pub flight_max: Duration,
    /// What did not hold.
    pub violations: Vec<Violation>,
}

/// Early cancels have no effect after this long on the node, and no copy should come that late.
const EARLY_CANCEL_FOR: Duration = Duration::from_millis(400);

impl Watch {
    /// Watches these nodes.
    pub fn new(on: bool, nodes: Vec<NodeId>) -> Self {
        Self {
            on,
            nodes,
            ties: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            arrived: BTreeMap::new(),
            bad: Vec::new(),
            ended: BTreeSet::new(),
            stalled: BTreeMap::new(),
            flight_max: Duration::from_millis(2),
            violations: Vec::new(),
        }
    }

    /// Writes a violation down.
    pub fn broken(&mut self, rule: Rule, at: Moment, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(Violation { rule, at, what });
        }
    }

    /// `node` cannot be counted on in this time; its ties have an excuse.
    pub fn bad_time(&mut self, node: NodeId, from: Moment, to: Moment) {
        self.bad.push(BadTime { node, from, to });
    }

    /// A node lost all memory.
    pub fn crashed(&mut self, node: NodeId) {
        for tie in self.ties.values_mut() {
            for copy in tie.copies.iter_mut().filter(|copy| copy.node == node) {
                if !matches!(copy.life, Life::Ended | Life::Answered { .. }) {
                    copy.life = Life::Lost;
                }
            }
            if tie.members.contains(&node) {
                tie.excuse.get_or_insert("a member crashed");
            }
        }
        self.stalled.retain(|(of, _), _| *of != node);
        self.arrived.retain(|(at, ..), _| *at != node);
    }

    /// A client sends a tied copy.
    pub fn tie_sent(&mut self, tie: &Tie, now: Moment) {
        if !self.on {
            return;
        }
        let seen = self.ties.entry(tie.id).or_default();
        if seen.members.is_empty() {
            seen.members = tie.members.to_vec();
        }
        let again = seen.copies.iter().any(|copy| copy.number == tie.number);
        let node = tie.holder().unwrap_or(NodeId(0));
        seen.copies.push(Seen { node, life: Life::Waiting, number: tie.number });
        if again {
            self.broken(Rule::SentOnce, now, format!("{} number {}", tie.id, tie.number.0));
        }
    }

    /// A cancel of this tie was lost, doubled, late or hit a node that was away: duplicates are excused.
    pub fn excuse(&mut self, tie: TieId, why: &'static str) {
        if self.on
            && let Some(tie) = self.ties.get_mut(&tie)
        {
            tie.excuse.get_or_insert(why);
        }
    }

    /// A cancel arrived at a node and was taken.
    pub fn cancel_arrived(&mut self, at: NodeId, from: NodeId, cancel: &Cancel, now: Moment) {
        if self.on {
            self.arrived.entry((at, from, cancel.tie, cancel.number.0)).or_insert(now);
        }
    }

    /// A withdraw, or the loss of a connection, is noticed by a node.
    pub fn withdraw_arrived(&mut self, node: NodeId, connection: u64, requests: &[RequestId]) {
        if self.on {
            self.withdrawn.extend(requests.iter().map(|request| (node, connection, *request)));
        }
    }

    /// A node tells.
    pub fn saw(&mut self, node: NodeId, sight: &Sight, now: Moment) {
        if !self.on {
            return;
        }
        match sight {
            Sight::Queued(copy) => {
                self.not_withdrawn(node, copy, "queued", now);
                self.no_early_cancel(node, copy, now);
            }
            Sight::DroppedEarly(copy) | Sight::Cancelled(copy) => {
                self.set(node, copy, Life::Ended);
                self.somebody_goes_on(node, copy, now);
            }
            Sight::YieldAsked(copy) => {
                self.life(node, copy, |life| match life {
                    Life::Running { since } => Life::Yielding { since, asked: now },
                    other => other,
                });
                self.somebody_goes_on(node, copy, now);
            }
            Sight::Yielded(copy) => {
                self.overlap(node, copy, now);
                self.set(node, copy, Life::Ended);
                self.somebody_goes_on(node, copy, now);
            }
            Sight::Met(copy) => {
                self.broken(Rule::NoMeeting, now, format!("{copy:?} on {node}"));
            }
            Sight::Started(copy) => {
                self.not_withdrawn(node, copy, "started", now);
                self.set(node, copy, Life::Running { since: now });
                if let Some(tie) = copy.tie.and_then(|(tie, _)| self.ties.get_mut(&tie)) {
                    tie.started.push(node);
                }
            }
            Sight::StalledStart { place, until } => {
                let before = self.stalled.insert((node, *place), *until);
                if before.is_some_and(|before| before > now) {
                    self.broken(Rule::StallKeepsWorker, now, format!("{node} lane and worker {place:?}"));
                }
            }
            Sight::Withdrawn(copy) => {
                self.overlap(node, copy, now);
                self.set(node, copy, Life::Lost);
            }
            Sight::Answered { copy, good, started, code, position, need } => {
                self.overlap(node, copy, now);
                self.set(node, copy, Life::Answered { started: *started });
                if *good && position < need {
                    self.broken(Rule::FreshEnough, now, format!("{node} served {position}, asked {need}"));
                }
                let _: &Option<ErrorCode> = code;
            }
            Sight::Vanished(copy) => self.broken(Rule::NoSilence, now, format!("{copy:?} on {node}")),
            Sight::CancelSent { to, cancel } => {
                let started = self.ties.get(&cancel.tie).is_some_and(|tie| tie.started.contains(&node));
                if !started {
                    self.broken(Rule::CancelFollowsStart, now, format!("{node} to {to}: {cancel:?}"));
                }
            }
        }
    }

    /// A read ended. `began` to now is the time in which a replica had to be good all along.
    pub fn read_ended(&mut self, read: &EndedRead, now: Moment) {
        if !self.on {
            return;
        }
        if !self.ended.insert(read.read) {
            self.broken(Rule::OneOutcome, now, format!("{} ended twice", read.read));
        }
        if now > read.race.plan().deadline {
            self.broken(Rule::OneOutcome, now, format!("{} ended after its deadline", read.read));
        }
        if let Some((position, need)) = read.position
            && position < need
        {
            self.broken(Rule::FreshEnough, now, format!("{} got {position}, asked {need}", read.read));
        }
        let Outcome::GaveUp(why) = read.outcome else { return };
        let refused = |node: &NodeId| {
            let bad = |end: End| matches!(end, End::Refused(_) | End::Failed(_) | End::LinkLost | End::LinkSilent);
            read.race.copies().iter().any(|copy| copy.replica == *node && bad(copy.end))
        };
        let good: Vec<NodeId> = self
            .nodes
            .iter()
            .copied()
            .filter(|node| !refused(node) && !self.bad_within(*node, read.began, now))
            .collect();
        if let Some(node) = good.first() {
            let tried: Vec<String> =
                read.race.copies().iter().map(|c| format!("{} {:?} {:?}", c.replica, c.kind, c.end)).collect();
            let what = format!(
                "{} {:?} although {node} was good; policy {}; tried {tried:?}",
                read.read, why, read.policy
            );
            self.broken(Rule::NoLostRead, now, what);
        }
        if matches!(why, GiveUp::FixTheCall(_)) {
            self.broken(Rule::NoMeeting, now, format!("{} was told to fix its call", read.read));
        }
    }

    fn bad_within(&self, node: NodeId, from: Moment, to: Moment) -> bool {
        self.bad.iter().any(|bad| bad.node == node && bad.from <= to && bad.to >= from)
    }

    fn not_withdrawn(&mut self, node: NodeId, copy: &CopySight, what: &str, now: Moment) {
        if self.withdrawn.contains(&(node, copy.connection, copy.request)) {
            self.broken(Rule::WithdrawHolds, now, format!("{copy:?} {what} on {node}"));
        }
    }

    fn no_early_cancel(&mut self, node: NodeId, copy: &CopySight, now: Moment) {
        let Some((tie, number)) = copy.tie else { return };
        let Some(seen) = self.ties.get(&tie) else { return };
        let early = (0_u8..).zip(&seen.members).any(|(peer_number, peer)| {
            peer_number != number.0
                && self
                    .arrived
                    .get(&(node, *peer, tie, peer_number))
                    .is_some_and(|at| now.since(*at) < EARLY_CANCEL_FOR)
        });
        if early {
            self.broken(Rule::EarlyCancelHolds, now, format!("{copy:?} queued on {node}"));
        }
    }

    fn life(&mut self, node: NodeId, copy: &CopySight, change: impl Fn(Life) -> Life) {
        if let Some((tie, number)) = copy.tie
            && let Some(seen) = self.ties.get_mut(&tie)
            && let Some(copy) = seen.copies.iter_mut().find(|copy| copy.number == number && copy.node == node)
        {
            copy.life = change(copy.life);
        }
    }

    fn set(&mut self, node: NodeId, copy: &CopySight, life: Life) {
        self.life(node, copy, |_| life);
    }

    fn somebody_goes_on(&mut self, node: NodeId, copy: &CopySight, now: Moment) {
        let Some((tie, _)) = copy.tie else { return };
        let Some(seen) = self.ties.get(&tie) else { return };
        let goes_on = |copy: &Seen| {
            matches!(copy.life, Life::Running { .. } | Life::Answered { started: true })
                || (copy.life == Life::Lost && seen.started.contains(&copy.node))
        };
        if !seen.copies.iter().any(goes_on) {
            let lives: Vec<_> = seen.copies.iter().map(|copy| (copy.node, copy.life)).collect();
            self.broken(Rule::SomebodyGoesOn, now, format!("{tie} ended on {node}: {lives:?}"));
        }
    }

    /// A running copy ends: how long did another of its tie run beside it?
    fn overlap(&mut self, node: NodeId, copy: &CopySight, now: Moment) {
        let Some((tie, number)) = copy.tie else { return };
        let Some(seen) = self.ties.get(&tie) else { return };
        let span = |life: Life| match life {
            Life::Running { since } => Some((since, now)),
            Life::Yielding { since, asked } => Some((since, asked)),
            _ => None,
        };
        let own = seen.copies.iter().find(|copy| copy.number == number).and_then(|copy| span(copy.life));
        let Some((own, own_end)) = own else { return };
        let others = seen.copies.iter().filter(|copy| copy.number != number).filter_map(|copy| span(copy.life));
        let longest = others.map(|(other, end)| own_end.min(end).since(own.max(other))).max();
        let Some(longest) = longest else { return };
        if longest > self.flight_max && seen.excuse.is_none() {
            let members = seen.members.clone();
            let away = members.iter().any(|member| self.bad_within(*member, own - longest, now));
            if !away {
                self.broken(
                    Rule::DuplicateHasExcuse,
                    now,
                    format!("{tie} ran twice for {longest:?} beside the copy on {node}"),
                );
            }
        }
    }

    /// Whose tie it is: for strangers' cancels.
    pub fn any_tie(&self, at: usize) -> Option<TieId> {
        let count = self.ties.len();
        if count == 0 { None } else { self.ties.keys().nth_back(at % count.min(8)).copied() }
    }

    /// Scopes a stranger's cancel.
    pub fn forged(tie: TieId, caller: CallerId, number: u8) -> Cancel {
        Cancel { caller, tie, number: CopyNumber(number) }
    }
}

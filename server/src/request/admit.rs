//! Admission: what a copy must satisfy before it may queue, and the caps per caller and per connection. Pure.
//!
//! Reaching a bound is an answer, at once. Knows no tie table and no lane: a full lane answers for itself.

use crate::storage::key::check_key;
use foldhash::fast::RandomState;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, RequestId, ShardId};
use tiedkv_protocol::limits::STALE_BOUND_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::multi_get;
use tiedkv_protocol::request::{CopyKind, ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::Failure;
use tiedkv_protocol::tie::{BadTie, Tie};

/// What a copy is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// This node.
    pub node: NodeId,
    /// The shard this node holds.
    pub shard: ShardId,
    /// The members of the shard, sorted.
    pub members: &'a [NodeId],
    /// Longest time left.
    pub time_left_max: Duration,
}

/// Why a tie is wrong for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongTie {
    /// Its bytes alone break a rule.
    #[error(transparent)]
    Bad(#[from] BadTie),
    /// The copy's own number does not name this node.
    #[error("copy number {number} of this tie is meant for {holder}, it arrived at {node}")]
    NotMine {
        /// The copy's number.
        number: u8,
        /// Whom the tie names for it.
        holder: NodeId,
        /// Who received it.
        node: NodeId,
    },
    /// A node that is no member of the shard.
    #[error("the tie names {0}, which is no member of the shard")]
    Stranger(NodeId),
    /// A copy of this kind races with nobody.
    #[error("a copy of kind {0} carries no tie")]
    Kind(&'static str),
}

/// Checks a tie against the node that received it: names nobody twice, at most 3, all members of the shard, and
/// this node exactly where the copy's number says.
///
/// # Errors
/// Names the first rule that is broken, and by which node.
pub fn check_tie(tie: &Tie, kind: CopyKind, rules: &Rules<'_>) -> Result<(), WrongTie> {
    tie.check()?;
    if kind.is_extra() {
        return Err(WrongTie::Kind(kind.name()));
    }
    if let Some(holder) = tie.holder().filter(|holder| *holder != rules.node) {
        return Err(WrongTie::NotMine { number: tie.number.0, holder, node: rules.node });
    }
    match tie.members.iter().find(|member| rules.members.binary_search(member).is_err()) {
        Some(stranger) => Err(WrongTie::Stranger(*stranger)),
        None => Ok(()),
    }
}

/// Checks a copy. Returns the time left that it is given: what it asks for, cut to the bound.
///
/// # Errors
/// The typed answer.
pub fn check(request: &ReadRequest, rules: &Rules<'_>) -> Result<Duration, Failure> {
    if request.shard != rules.shard {
        let message = format!("shard {} is not known here, this node holds {}", request.shard, rules.shard);
        return Err(Failure::new(ErrorCode::NoShard, message));
    }
    match &request.operation {
        ReadOperation::Get { key } => {
            check_key(key).map_err(|bad| Failure::new(ErrorCode::OverLimit, bad.to_string()))?;
        }
        ReadOperation::Scan(page) => page.check()?,
        ReadOperation::MultiGet { keys } => multi_get::check(keys)?,
    }
    if let Some(tie) = &request.tie {
        check_tie(tie, request.kind, rules).map_err(|wrong| Failure::new(ErrorCode::BadTie, wrong.to_string()))?;
    }
    if let ReadLevel::Stale { bound_us: Some(bound) } = request.level
        && Duration::from_micros(bound) > STALE_BOUND_MAX
    {
        return Err(Failure::new(ErrorCode::OverLimit, "a staleness bound is at most one hour"));
    }
    if request.time_left_us == 0 {
        return Err(Failure::new(ErrorCode::Expired, "the copy arrived with no time left"));
    }
    Ok(Duration::from_micros(request.time_left_us).min(rules.time_left_max))
}

/// Caps of one node; 0 copies per second means no cap of the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most copies of one caller in flight.
    pub caller_in_flight_max: u32,
    /// Most copies of one connection in flight.
    pub connection_in_flight_max: u32,
    /// Most copies per second of one caller; the burst is a tenth of a second's worth, at least one.
    pub caller_rate_max: u32,
}

/// Withdraws of copies that did not arrive, remembered per connection.
const WITHDRAWN_EARLY_MAX: usize = 256;

/// Why a copy does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIn {
    /// A copy with this request id is in flight on this connection.
    SameRequest,
    /// The client withdrew it before it arrived: it ends silently.
    Withdrawn,
    /// The caller has as many copies in flight as it may: this many.
    CallerFull(u32),
    /// The connection has as many copies in flight as it may: this many.
    ConnectionFull(u32),
    /// The caller sends faster than it may: try again after this.
    TooFast(Duration),
}

/// Copies in flight by connection and request, and the caps. `H` is the handle of a copy.
#[derive(Debug)]
pub struct Desk<H> {
    caps: Caps,
    callers: HashMap<CallerId, Account, RandomState>,
    connections: HashMap<u64, Line<H>, RandomState>,
}

#[derive(Debug)]
struct Account {
    in_flight: u32,
    connections: u32,
    /// Copies that may come at once, in nanoseconds of the rate (a bucket that fills with time).
    paid_until: Moment,
}

#[derive(Debug)]
struct Line<H> {
    caller: CallerId,
    copies: HashMap<RequestId, H, RandomState>,
    withdrawn_early: HashSet<RequestId, RandomState>,
    withdrawn_order: VecDeque<RequestId>,
}

impl<H> Desk<H> {
    /// An empty desk.
    pub fn new(caps: Caps) -> Self {
        Self { caps, callers: HashMap::default(), connections: HashMap::default() }
    }

    /// Lets a copy in and keeps its handle until [`Desk::leave`].
    ///
    /// # Errors
    /// Why not; nothing is kept then.
    pub fn enter(
        &mut self,
        now: Moment,
        caller: CallerId,
        connection: u64,
        request: RequestId,
        handle: H,
    ) -> Result<(), NotIn> {
        let account = self.callers.entry(caller).or_insert(Account {
            in_flight: 0,
            connections: 0,
            paid_until: Moment::ZERO,
        });
        let line = self.connections.entry(connection).or_insert_with(|| {
            account.connections += 1;
            Line {
                caller,
                copies: HashMap::default(),
                withdrawn_early: HashSet::default(),
                withdrawn_order: VecDeque::new(),
            }
        });
        if line.withdrawn_early.remove(&request) {
            line.withdrawn_order.retain(|withdrawn| *withdrawn != request);
            return Err(NotIn::Withdrawn);
        }
        if account.in_flight >= self.caps.caller_in_flight_max {
            return Err(NotIn::CallerFull(self.caps.caller_in_flight_max));
        }
        if line.copies.len() >= self.caps.connection_in_flight_max as usize {
            return Err(NotIn::ConnectionFull(self.caps.connection_in_flight_max));
        }
        let Entry::Vacant(place) = line.copies.entry(request) else { return Err(NotIn::SameRequest) };
        account.pay(now, self.caps.caller_rate_max)?;
        account.in_flight += 1;
        place.insert(handle);
        Ok(())
    }

    /// A copy ended. Its handle, unless its connection was lost before.
    pub fn leave(&mut self, connection: u64, request: RequestId) -> Option<H> {
        let line = self.connections.get_mut(&connection)?;
        let handle = line.copies.remove(&request)?;
        if let Some(account) = self.callers.get_mut(&line.caller) {
            account.in_flight = account.in_flight.saturating_sub(1);
        }
        Some(handle)
    }

    /// The copy that a withdraw means; one that is not here is remembered in case its withdraw overtook it.
    pub fn withdraw(&mut self, connection: u64, request: RequestId) -> Option<&H> {
        let line = self.connections.get_mut(&connection)?;
        if !line.copies.contains_key(&request) {
            if line.withdrawn_order.len() >= WITHDRAWN_EARLY_MAX
                && let Some(oldest) = line.withdrawn_order.pop_front()
            {
                line.withdrawn_early.remove(&oldest);
            }
            if line.withdrawn_early.insert(request) {
                line.withdrawn_order.push_back(request);
            }
            return None;
        }
        line.copies.get(&request)
    }

    /// The connection is gone: forgets it and returns the handles of its copies, which have all left.
    pub fn hang_up(&mut self, connection: u64) -> Vec<H> {
        let Some(line) = self.connections.remove(&connection) else { return Vec::new() };
        if let Entry::Occupied(mut account) = self.callers.entry(line.caller) {
            let open = account.get_mut();
            open.in_flight = open.in_flight.saturating_sub(line.copies.len() as u32);
            open.connections = open.connections.saturating_sub(1);
            // A caller that comes back at once gets a fresh burst: a tenth of a second's worth.
            if open.connections == 0 {
                account.remove();
            }
        }
        line.copies.into_values().collect()
    }

    /// Copies in flight.
    pub fn in_flight(&self) -> usize {
        self.connections.values().map(|line| line.copies.len()).sum()
    }

    /// Callers and connections that are known now.
    pub fn known(&self) -> (usize, usize) {
        (self.callers.len(), self.connections.len())
    }
}

impl Account {
    /// A virtual-scheduling bucket (GCRA, ITU-T I.371): each copy costs one interval, a burst may run ahead.
    fn pay(&mut self, now: Moment, rate_max: u32) -> Result<(), NotIn> {
        if rate_max == 0 {
            return Ok(());
        }
        let interval = Duration::from_secs(1) / rate_max;
        let burst = Duration::from_millis(100).max(interval);
        let from = self.paid_until.max(now);
        let ahead = (from + interval).since(now);
        if ahead > burst {
            return Err(NotIn::TooFast(ahead - burst));
        }
        self.paid_until = from + interval;
        Ok(())
    }
}

#[cfg(test)]
#[path = "admit_test.rs"]
mod tests;

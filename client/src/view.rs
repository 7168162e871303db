//! A handle with its own session, randomness, load estimates and budget over shared connections.

use crate::choose::TableWays;
use crate::clock;
use crate::copies::{Actions, Event};
use crate::delete_range::delete_range;
use crate::engine::{Asked, Engine, EngineSettings, Replica};
use crate::engine_host::Suppressed;
use crate::error::Error;
use crate::fanout::MultiGet;
use crate::operation::Operation;
use crate::options::{ReadOptions, WriteOptions};
use crate::race::Race;
use crate::report::{Read, Value, WriteReport};
use crate::scan::{self, Scan, ScanOptions, ScanRange, ScanToken};
use crate::shared::{Shared, random_u128};
use crate::switchboard::Switchboard;
use crate::tally::{Slot, SlotSet};
use crate::tied_read::{OneRead, tied_read};
use crate::topology::Table;
use crate::write;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position, PositionToken, SHARD_ZERO, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::WriteOperation;

/// A light handle over a client's connections; see [`Client::view`](crate::Client::view). Cheap to clone; clones
/// share everything.
#[derive(Clone, Debug)]
pub struct View {
    inner: Arc<ViewInner>,
}

/// What the clones of one view share.
#[derive(Debug)]
pub(crate) struct ViewInner {
    pub(crate) shared: Arc<Shared>,
    /// The position that the session has seen.
    seen: AtomicU64,
    pub(crate) own: Mutex<Own>,
}

/// A view's own randomness and estimates.
#[derive(Debug)]
pub(crate) struct Own {
    /// Not for secrets: they come from the operating system ([`random_u128`]).
    pub(crate) rng: SmallRng,
    pub(crate) engine: Engine,
    /// The members that the engine knows.
    nodes: SmallVec<[NodeId; 4]>,
    /// The version of switches and ceiling that the engine knows.
    board: Option<u64>,
    /// The last losses of links, each by its reason, which all copies that the link owed share.
    losses: SmallVec<[Arc<str>; 4]>,
    /// Of which slots it says that the delay of hedges and rescues is too long.
    too_long: SlotSet,
}

/// How many losses of links a view remembers: more than links are lost together.
const LOSSES_KEPT: usize = 16;

impl Own {
    fn new(rng: SmallRng, settings: EngineSettings) -> Self {
        let engine = Engine::new(settings, clock::now());
        let too_long = SlotSet::default();
        Self { rng, engine, nodes: SmallVec::new(), board: None, losses: SmallVec::new(), too_long }
    }

    /// Whether this view says of a slot that its delay is too long; true if that is news.
    pub(crate) fn says_too_long(&mut self, slot: Slot, too_long: bool) -> bool {
        self.too_long.set(slot, too_long)
    }

    /// Tells the engine what changed beside this view's own reads: members, switches and ceiling, what nodes said last.
    pub(crate) fn sync(&mut self, replicas: &[Replica<'_>], table: &Table, board: &Switchboard, now: Moment) {
        if !self.nodes.iter().copied().eq(replicas.iter().map(|replica| replica.node)) {
            self.nodes = replicas.iter().map(|replica| replica.node).collect();
            self.engine.members(&self.nodes);
        }
        self.obey(board, now);
        let newest = self.engine.control.ceiling().version;
        for peer in &table.peers {
            let said = peer.without_old_ceiling(peer.flags(), newest);
            self.engine.heard(peer.node, said, table.pairs_of_replicas(peer.unhealthy_pairs()));
        }
    }

    /// Takes over switches and ceiling if they changed.
    fn obey(&mut self, board: &Switchboard, now: Moment) {
        let version = board.version();
        if self.board != Some(version) {
            self.board = Some(version);
            let (switches, ceiling) = board.in_force();
            self.engine.control.switch(switches);
            self.engine.ceiling(ceiling, now);
        }
    }

    /// A link to `node` was lost that owed a copy of this view: one failure, however many copies it owed.
    pub(crate) fn link_lost(&mut self, node: NodeId, reason: Arc<str>, now: Moment) {
        if self.losses.iter().any(|known| Arc::ptr_eq(known, &reason)) {
            return;
        }
        if self.losses.len() >= LOSSES_KEPT {
            self.losses.remove(0);
        }
        self.losses.push(reason);
        self.engine.link_failed(node, now);
    }

    /// Answers one event of a race: its actions are appended to `actions`. Gives the extra copies that were not sent.
    pub(crate) fn ask(
        &mut self,
        race: &mut Race,
        (event, now): (Event, Moment),
        asked: Asked,
        ways: &TableWays<'_>,
        board: &Switchboard,
        actions: &mut Actions,
    ) -> SmallVec<[Suppressed; 4]> {
        self.obey(board, now);
        let mut tie_id = || TieId(random_u128());
        let mut host = self.engine.host(asked, ways, &mut tie_id, &mut self.rng);
        race.on_event(event, now, &mut host, actions);
        self.engine.take_suppressed()
    }
}

impl Drop for ViewInner {
    fn drop(&mut self) {
        let tallies = &self.shared.connections().counters.tallies;
        for slot in self.own.get_mut().too_long.iter() {
            tallies.of(slot).delay_too_long.fetch_sub(1, Relaxed);
        }
    }
}

impl ViewInner {
    /// The position that the session has seen.
    pub(crate) fn seen(&self) -> Position {
        Position(self.seen.load(Relaxed))
    }

    /// The session has seen this.
    pub(crate) fn saw(&self, position: Position) {
        self.seen.fetch_max(position.0, Relaxed);
    }

    /// The token of a position of our cluster and shard.
    pub(crate) fn token_of(&self, position: Position) -> PositionToken {
        PositionToken { cluster: self.shared.cluster(), shard: SHARD_ZERO, position }
    }

    /// Checks that a token speaks of our cluster and shard.
    ///
    /// # Errors
    /// Names what does not fit.
    pub(crate) fn check_token(&self, token: PositionToken) -> Result<Position, Error> {
        let cluster = self.shared.cluster();
        if token.cluster != cluster {
            let message = format!("the token is of cluster {}, this client of {cluster}", token.cluster);
            return Err(Error::call(ErrorCode::BadToken, message));
        }
        if token.shard != SHARD_ZERO {
            let message = format!("the token is of shard {}; only {SHARD_ZERO} exists", token.shard);
            return Err(Error::call(ErrorCode::BadToken, message));
        }
        Ok(token.position)
    }
}

impl View {
    /// The view of a new client: its randomness comes from the operating system.
    pub(crate) fn first(shared: Arc<Shared>) -> Self {
        Self::with(shared, SmallRng::from_os_rng())
    }

    fn with(shared: Arc<Shared>, rng: SmallRng) -> Self {
        let own = Mutex::new(Own::new(rng, shared.config().engine));
        Self { inner: Arc::new(ViewInner { shared, seen: AtomicU64::new(0), own }) }
    }

    pub(crate) fn inner(&self) -> &Arc<ViewInner> {
        &self.inner
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn sibling(&self, seed: u64) -> View {
        Self::with(self.inner.shared.clone(), SmallRng::seed_from_u64(seed))
    }

    /// As [`Client::get`](crate::Client::get).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Value>, Error> {
        Ok(self.get_with(key, ReadOptions::default()).await?.value)
    }

    /// As [`Client::get_with`](crate::Client::get_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn get_with(&self, key: impl Into<Bytes>, options: ReadOptions) -> Result<Read, Error> {
        let (key, operation, began) = (key.into(), Operation::Get, clock::now());
        tied_read(&self.inner, OneRead { key, options: &options, operation, call: None, began }).await
    }

    /// As [`Client::multi_get`](crate::Client::multi_get).
    pub fn multi_get<K: Into<Bytes>>(&self, keys: impl IntoIterator<Item = K>) -> MultiGet {
        MultiGet::new(self.inner.clone(), keys.into_iter().map(Into::into).collect())
    }

    /// As [`Client::scan`](crate::Client::scan).
    ///
    /// # Errors
    /// When an option is out of its bounds.
    pub fn scan(&self, range: &ScanRange, options: ScanOptions) -> Result<Scan, Error> {
        scan::scan(&self.inner, range, options)
    }

    /// As [`Client::resume`](crate::Client::resume).
    ///
    /// # Errors
    /// When the token is of another cluster, or an option is out of its bounds.
    pub fn resume(&self, token: ScanToken, options: ScanOptions) -> Result<Scan, Error> {
        scan::resume(&self.inner, token, options)
    }

    /// As [`Client::count`](crate::Client::count).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn count(&self, range: &ScanRange, options: ReadOptions) -> Result<u64, Error> {
        scan::count(&self.inner, range, options).await
    }

    /// As [`Client::exists`](crate::Client::exists).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws every copy.
    pub async fn exists(&self, key: impl Into<Bytes>, options: ReadOptions) -> Result<bool, Error> {
        scan::exists(&self.inner, key.into(), options).await
    }

    /// As [`Client::put_with`](crate::Client::put_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn put_with(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<WriteReport, Error> {
        write::write(&self.inner, WriteOperation::Put { key: key.into() }, value.into(), options).await
    }

    /// As [`Client::delete_with`](crate::Client::delete_with).
    ///
    /// # Errors
    /// See [`Error::caller_move`].
    ///
    /// # Cancel safety
    /// A write whose future is dropped may still be applied.
    pub async fn delete_with(&self, key: impl Into<Bytes>, options: WriteOptions) -> Result<WriteReport, Error> {
        write::write(&self.inner, WriteOperation::Delete { key: key.into() }, Bytes::new(), options).await
    }

    /// As [`Client::delete_range`](crate::Client::delete_range).
    ///
    /// # Errors
    /// See [`Error::caller_move`]; what was removed stays removed, and calling again goes on.
    ///
    /// # Cancel safety
    /// Some keys may be removed; deletes that are out may still be applied.
    pub async fn delete_range(
        &self,
        range: &ScanRange,
        options: ScanOptions,
        progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        delete_range(&self.inner, range, options, progress).await
    }

    #[cfg(test)]
    pub(crate) fn extras_out(&self) -> u32 {
        self.inner.own.lock().engine.extras_out()
    }

    /// What this view's session has seen.
    pub fn token(&self) -> PositionToken {
        self.inner.token_of(self.inner.seen())
    }

    /// Makes this view's session not read before `token`.
    ///
    /// # Errors
    /// When the token is of another cluster or shard.
    pub fn observe(&self, token: PositionToken) -> Result<(), Error> {
        self.inner.saw(self.inner.check_token(token)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Pace, PaceSettings};
    use crate::peer::Peer;
    use tiedkv_protocol::hello::{Ceiling, Member, Mode, Topology};
    use tiedkv_protocol::response::{Service, flags};

    #[test]
    fn what_an_old_ceiling_makes_a_node_say_does_not_count_once_a_newer_one_is_known() {
        let member = Member {
            node: NodeId(2),
            zone: String::new(),
            client_address: "a:1".to_owned(),
            peer_address: String::new(),
            cancel_address: String::new(),
            learner: false,
        };
        let peer = Arc::new(Peer::new(member.clone(), Pace::new(PaceSettings::default())));
        let topology = Topology { version: 1, shard: SHARD_ZERO, members: vec![member], leader: None };
        let table = Table::new(topology, vec![peer.clone()]);
        let board = Switchboard::default();
        let mut own = Own::new(SmallRng::seed_from_u64(1), EngineSettings::default());
        let obeyed = |own: &mut Own| {
            own.sync(&[Replica { node: NodeId(2), zone: "", down: false }], &table, &board, clock::now());
            (own.engine.gate.ties_off(), own.engine.gate.no_extra_copies())
        };
        let off = Ceiling { version: 1, mode: Mode::Off, ..Ceiling::default() };
        peer.heard_ceiling(&off);
        board.learn_ceiling(off);
        peer.heard_flags(off.flags() | flags::BUSY, 0);
        assert_eq!(obeyed(&mut own), (true, true));
        // Another node tells that it was taken back; this one follows late.
        let on = Ceiling { version: 2, ..Ceiling::default() };
        board.learn_ceiling(on);
        assert_eq!(obeyed(&mut own), (false, false));
        let answer = Service {
            node: NodeId(2),
            started: true,
            queue_wait_us: 0,
            service_time_us: 0,
            queue_depth: 0,
            flags: peer.flags(),
            unhealthy_pairs: 0,
        };
        assert_eq!(table.without_old_ceiling(answer, 1).flags, off.flags() | flags::BUSY);
        assert_eq!(table.without_old_ceiling(answer, 2).flags, flags::BUSY, "what it says of itself counts");
        // It knows the newest and says so all the same: that is its own judgement.
        peer.heard_ceiling(&on);
        assert_eq!(obeyed(&mut own), (true, true));
    }

    #[test]
    fn a_lost_link_is_one_failure_however_many_copies_it_owed() {
        let mut own = Own::new(SmallRng::seed_from_u64(1), EngineSettings::default());
        own.engine.members(&[NodeId(1), NodeId(2), NodeId(3)]);
        let now = clock::now();
        let reason: Arc<str> = "gone".into();
        (0..9).for_each(|_| own.link_lost(NodeId(1), reason.clone(), now));
        assert_eq!(own.engine.probation.on_probation(), 0);
        // The same words of another loss are another loss.
        (0..4).for_each(|_| own.link_lost(NodeId(1), "gone".into(), now));
        assert_eq!(own.engine.probation.on_probation(), 1);
        (0..40).for_each(|_| own.link_lost(NodeId(1), "gone".into(), now));
        assert_eq!(own.losses.len(), LOSSES_KEPT);
    }
}

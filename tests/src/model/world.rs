//! The state of the model: client, links, servers, messages on their way, and what became of each copy.

use super::config::{Config, Lag};
use super::properties::Property;
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use tiedkv_client::copies::{CopyIndex, Plan};
use tiedkv_client::race::Race;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::tie::Tie;
use tiedkv_server::request::copy_state::{Phase, StateCell};
use tiedkv_server::request::lane::{Lane, Waiting};
use tiedkv_server::request::set_aside::SetAside;
use tiedkv_server::request::tie::{CopyName, TieSettings, TieTable};

pub(super) const CALLER: CallerId = CallerId(1);
/// All steps happen at this moment; time passes by steps that say so.
pub(super) const NOW: Moment = Moment(0);
/// Deadlines of copies.
pub(super) const DEADLINE: Moment = Moment(1_000_000_000);
/// A moment at which everything is over.
pub(super) const LATE: Moment = Moment(u64::MAX);

/// Which copy of which read: how the client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Copy {
    pub(super) read: u8,
    pub(super) index: CopyIndex,
}

/// The handle of a copy inside the shipped registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Handle {
    pub(super) phase: Phase,
    pub(super) copy: Copy,
    pub(super) connection: u8,
}

impl StateCell for Handle {
    fn step<R>(&mut self, step: impl Fn(Phase) -> (Phase, R)) -> R {
        self.phase.step(step)
    }

    fn phase(&self) -> Phase {
        self.phase
    }
}

/// What waits in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Item {
    Job,
    Copy { name: CopyName, copy: Copy, chunk: bool },
}

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Idle,
    Job,
    /// Popped, not started.
    InHand(Waiting<Item>),
    Running {
        item: Item,
        extra: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Health {
    Up,
    Crashed,
    Hung,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Serves {
    Now,
    Later,
    Never,
}

/// One server: the shipped rooms and one worker.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) health: Health,
    pub(super) serves: Serves,
    pub(super) table: TieTable<Handle>,
    pub(super) lane: Lane<Item>,
    pub(super) aside: SetAside<Item>,
    pub(super) work: Work,
    /// Dead connections that it has not noticed.
    pub(super) unnoticed: Vec<u8>,
    /// Copies between look-up and insertion (planted).
    pub(super) half: Vec<CopyMessage>,
}

impl Server {
    pub(super) fn new(serves: Serves) -> Self {
        Self {
            health: Health::Up,
            serves,
            table: TieTable::new(TieSettings::of_stripes(1)),
            lane: Lane::new(8),
            aside: SetAside::new(4, Position(u64::from(serves == Serves::Now))),
            work: Work::Idle,
            unnoticed: Vec::new(),
            half: Vec::new(),
        }
    }
}

impl Hash for Server {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.health, self.serves, &self.work, &self.unnoticed, &self.half).hash(state);
        self.table.hash(state);
        self.lane.live().hash(state);
        // Places, not tickets: two lanes with the same order are the same.
        let in_lane = self.lane.iter().map(|(_, extra, ticket, item)| (ticket, 0_u8, extra, *item));
        let aside = self.aside.iter().map(|(_, waiting)| (waiting.ticket, 1, waiting.extra, waiting.item));
        let mut all: Vec<_> = in_lane.chain(aside).collect();
        all.sort_unstable();
        for (_, place, extra, item) in all {
            (place, extra, item).hash(state);
        }
    }
}

/// A copy on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CopyMessage {
    pub(super) copy: Copy,
    pub(super) name: CopyName,
    pub(super) tie: Option<Tie>,
    pub(super) extra: bool,
    pub(super) connection: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ToServer {
    Copy(CopyMessage),
    Withdraw(CopyName),
}

/// The link between the client and one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) connection: u8,
    /// The wire carries; false after a crash or a loss.
    pub(super) alive: bool,
    /// The client believes that it carries.
    pub(super) trusted: bool,
    pub(super) to_server: Vec<ToServer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Said {
    Good,
    Failed,
    Refused,
    Duplicate,
}

impl Said {
    pub(super) fn code(self) -> ErrorCode {
        match self {
            Self::Duplicate => ErrorCode::Duplicate,
            Self::Failed => ErrorCode::Storage,
            Self::Good | Self::Refused => ErrorCode::Busy,
        }
    }
}

/// An answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Reply {
    pub(super) server: u8,
    pub(super) connection: u8,
    pub(super) copy: Copy,
    pub(super) said: Said,
}

/// A cancel on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CancelMessage {
    pub(super) to: u8,
    pub(super) from: NodeId,
    pub(super) cancel: Cancel,
}

/// What became of a copy, as somebody who sees everything knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    OnWire,
    /// Queued or set aside.
    Waits,
    /// Started, not asked to stop.
    Running,
    /// Started, asked to yield.
    Yielding,
    /// Withdrawn, dropped early or stopped because of a cancel.
    EndedByPeer,
    /// Answered after its start.
    Answered,
    /// Answered without a start.
    Refused,
    /// Lost with a connection or server, or withdrawn, before its start.
    Vanished,
    /// The same after its start.
    VanishedStarted,
}

/// A copy that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) copy: Copy,
    pub(super) name: CopyName,
    pub(super) server: u8,
    pub(super) connection: u8,
    pub(super) fate: Fate,
}

/// What is left of each fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budgets {
    pub(super) crash: u8,
    pub(super) restart: u8,
    pub(super) connection_loss: u8,
    pub(super) hang: u8,
    pub(super) fail: u8,
    pub(super) busy: u8,
    pub(super) loss: u8,
    pub(super) stranger: u8,
    pub(super) wrong_clock: u8,
    pub(super) drop: u8,
    pub(super) tokens: u8,
}

/// The whole state.
#[derive(Clone, Debug)]
pub struct World {
    pub(super) read: u8,
    pub(super) race: Arc<Race>,
    pub(super) finished: u8,
    pub(super) next_tie: u8,
    pub(super) links: Vec<Link>,
    pub(super) servers: Vec<Arc<Server>>,
    pub(super) replies: Vec<Reply>,
    pub(super) cancels: Vec<CancelMessage>,
    pub(super) budgets: Budgets,
    /// No good replica any more, by server.
    pub(super) tainted: u8,
    /// P5 is excused in this run.
    pub(super) excused: bool,
    /// Which server has taken a peer's cancel of which tie: bit 4 x tie + server.
    pub(super) told: u64,
    pub(super) sent: Vec<Sent>,
    /// A property that a step broke.
    pub(super) broken: Option<Property>,
    /// Fingerprints of the parts that rarely change: race, then servers.
    prints: Vec<u64>,
}

pub(super) fn node(server: usize) -> NodeId {
    NodeId(server as u64 + 1)
}

pub(super) fn server_of(node: NodeId) -> usize {
    node.0 as usize - 1
}

fn print(part: &impl Hash) -> u64 {
    FixedState::with_seed(7).hash_one(part)
}

impl World {
    /// All starting points: one per combination of lags and jobs ahead; the first read has begun.
    pub(super) fn initial(config: &Config) -> Vec<Self> {
        let n = config.servers;
        let lags: Vec<Vec<Serves>> = match config.lag {
            Lag::None => vec![vec![Serves::Now; n]],
            Lag::OnlyLastServes => {
                vec![(0..n).map(|s| if s + 1 == n { Serves::Now } else { Serves::Never }).collect()]
            }
            Lag::Any => {
                let all = [Serves::Now, Serves::Later, Serves::Never];
                (0..3_usize.pow(n as u32))
                    .map(|i| (0..n).map(|s| all[i / 3_usize.pow(s as u32) % 3]).collect())
                    .collect()
            }
        };
        let jobs = if config.jobs { 1_u8 << n } else { 1 };
        let mut worlds = Vec::new();
        for lag in &lags {
            for job in 0..jobs {
                worlds.push(Self::one_initial(config, lag, job));
            }
        }
        worlds
    }

    fn one_initial(config: &Config, lag: &[Serves], jobs: u8) -> Self {
        let servers = lag.iter().enumerate().map(|(s, serves)| {
            let mut server = Server::new(*serves);
            if jobs >> s & 1 == 1 {
                let class = tiedkv_protocol::request::Class::Interactive;
                let _ = server.lane.push(Item::Job, class, false, |_| false);
            }
            Arc::new(server)
        });
        let link = Link { connection: 0, alive: true, trusted: true, to_server: Vec::new() };
        let mut world = Self {
            read: 0,
            race: Arc::new(Race::new(plan(config))),
            finished: 0,
            next_tie: 0,
            links: vec![link; config.servers],
            servers: servers.collect(),
            replies: Vec::new(),
            cancels: Vec::new(),
            budgets: Budgets {
                crash: config.crash,
                restart: config.restart,
                connection_loss: config.connection_loss,
                hang: config.hang,
                fail: config.fail,
                busy: config.busy,
                loss: config.loss,
                stranger: config.stranger,
                wrong_clock: config.wrong_clock,
                drop: config.drop,
                tokens: config.tokens,
            },
            tainted: 0,
            excused: false,
            told: 0,
            sent: Vec::new(),
            broken: None,
            prints: Vec::new(),
        };
        super::client::begin(config, &mut world);
        world.prints =
            std::iter::once(print(&*world.race)).chain(world.servers.iter().map(|s| print(&**s))).collect();
        world
    }

    /// Brings the state into its one form after a step from `before`.
    pub(super) fn seal(&mut self, before: &World) {
        self.replies.sort_unstable();
        self.cancels.sort_unstable();
        if !Arc::ptr_eq(&self.race, &before.race) {
            self.prints[0] = print(&*self.race);
        }
        for (index, server) in self.servers.iter().enumerate() {
            if !Arc::ptr_eq(server, &before.servers[index]) {
                self.prints[index + 1] = print(&**server);
            }
        }
    }

    /// 64 bits that stand for the state.
    pub(super) fn fingerprint(&self) -> u64 {
        print(self)
    }

    pub(super) fn server(&mut self, index: usize) -> &mut Server {
        Arc::make_mut(&mut self.servers[index])
    }

    pub(super) fn set_fate(&mut self, copy: Copy, fate: Fate) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.copy == copy) {
            sent.fate = fate;
        }
    }

    pub(super) fn fate(&self, copy: Copy) -> Option<Fate> {
        self.sent.iter().find(|sent| sent.copy == copy).map(|sent| sent.fate)
    }

    pub(super) fn taint(&mut self, server: usize) {
        self.tainted |= 1 << server;
    }

    /// The bit of `told` for a tie on a server.
    pub(super) fn told_bit(tie: TieId, server: usize) -> u64 {
        1_u64.checked_shl(4 * tie.0 as u32 + server as u32).unwrap_or(0)
    }

    pub(super) fn break_rule(&mut self, property: Property) {
        self.broken.get_or_insert(property);
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.prints.hash(state);
        (self.read, self.finished, self.next_tie, self.tainted, self.excused, self.told, self.broken).hash(state);
        (&self.links, &self.replies, &self.cancels, &self.budgets, &self.sent).hash(state);
    }
}

pub(super) fn plan(config: &Config) -> Plan {
    Plan {
        order: (0..config.servers).map(node).collect(),
        width: config.width,
        hedge: false,
        rescue: config.rescue,
        deadline: LATE,
        naive: false,
    }
}

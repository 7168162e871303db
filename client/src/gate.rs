//! When not to tie: judged per read, with hysteresis, each reason counted.
//!
//! A tie pays when copies often wait and a cancel is much shorter than the work it saves. What it judges by comes
//! from replies; a tie hides the waits that it avoided, so a tied read's wait is taken as the shortest of its
//! queues. It never widens a policy. The switch and the operator's ceiling are [`crate::control`]'s.

use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::KEYS_TOGETHER_MAX;
use tiedkv_protocol::response::{Service, flags};

/// Why a read whose policy would tie went with fewer copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotTied {
    /// The client's switch or the operator's ceiling says off.
    SwitchedOff,
    /// Decided and counted only.
    Observing,
    /// The ceiling allows fewer copies.
    Ceiling,
    /// One replica: there is nothing to race.
    OneReplica,
    /// A node asks for no ties.
    TiesOff,
    /// Copies hardly ever wait.
    LittleWait,
    /// One way takes too long compared with the service.
    LongWay,
    /// Too little time is left for a second copy to help.
    LittleTime,
    /// The cancel channel between the replicas is down or slow.
    UnhealthyPair,
    /// Of the share that runs untied, so that "without" stays known.
    HoldOut,
    /// Later copies stopped winning: observed for a while.
    NotWinning,
}

impl NotTied {
    /// All reasons.
    pub const ALL: [NotTied; 11] = [
        Self::SwitchedOff,
        Self::Observing,
        Self::Ceiling,
        Self::OneReplica,
        Self::TiesOff,
        Self::LittleWait,
        Self::LongWay,
        Self::LittleTime,
        Self::UnhealthyPair,
        Self::HoldOut,
        Self::NotWinning,
    ];

    /// The name used in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SwitchedOff => "switched-off",
            Self::Observing => "observing",
            Self::Ceiling => "ceiling",
            Self::OneReplica => "one-replica",
            Self::TiesOff => "ties-off",
            Self::LittleWait => "little-wait",
            Self::LongWay => "long-way",
            Self::LittleTime => "little-time",
            Self::UnhealthyPair => "unhealthy-pair",
            Self::HoldOut => "hold-out",
            Self::NotWinning => "not-winning",
        }
    }
}

/// Thresholds; each pair is (goes on, goes off).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSettings {
    /// Share of copies that wait longer than half a service time: ties on from the first, off below the second.
    /// Default 0.05 and 0.03.
    pub wait_share: (f64, f64),
    /// One way over service time: ties off from the first, on again below the second. Default 0.3 and 0.2.
    pub way_share: (f64, f64),
    /// The way counts only when at least this share waits. Default 0.1.
    pub loaded: f64,
    /// Below this many samples the gate is open. Default 50.
    pub samples_min: u32,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self { wait_share: (0.05, 0.03), way_share: (0.3, 0.2), loaded: 0.1, samples_min: 50 }
    }
}

/// A yes or no that changes at two different levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latch(pub(crate) bool);

impl Latch {
    pub(crate) fn update(&mut self, value: f64, (rise, fall): (f64, f64)) -> bool {
        if value >= rise {
            self.0 = true;
        } else if value < fall {
            self.0 = false;
        }
        self.0
    }
}

/// What a node said of itself last.
#[derive(Clone, Copy, Debug)]
struct Said {
    node: NodeId,
    flags: u8,
    unhealthy_pairs: u64,
}

/// What is asked of the gate for one read.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// One way to the first replica, if known.
    pub one_way: Option<Duration>,
    /// How long after copy 0 copy 1 would go out.
    pub tie_delay: Duration,
    /// Time left for the read.
    pub time_left: Duration,
}

/// The gate of one client view.
#[derive(Clone, Debug)]
pub struct Gate {
    settings: GateSettings,
    /// Smoothed share of untied, and of tied (2 and 3), reads that waited for long.
    waited: [Share; 3],
    service: f64,
    /// Median of what a key takes among others, in microseconds: outliers of a mean are many times a get in memory.
    typical: f64,
    /// It comes from keys that shared a copy: gets that come alone take longer, and only bound it.
    typical_of_shared: bool,
    ties_pay: Latch,
    long_way: Latch,
    said: SmallVec<[Said; 4]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    share: f64,
    samples: u32,
}

impl Gate {
    /// Open until it knows better.
    pub fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            waited: [Share::default(); 3],
            service: 0.0,
            typical: 0.0,
            typical_of_shared: false,
            ties_pay: Latch(true),
            long_way: Latch(false),
            said: SmallVec::new(),
        }
    }

    /// A good answer of a read whose copies raced `width` wide.
    pub fn answered(&mut self, width: u8, service: &Service) {
        let seconds = f64::from(service.service_time_us) / 1e6;
        self.service = if self.service == 0.0 { seconds } else { self.service + 0.02 * (seconds - self.service) };
        let micros = f64::from(service.service_time_us);
        if !self.typical_of_shared || micros < self.typical {
            self.learn_typical(micros);
        }
        let waited = f64::from(service.queue_wait_us) / 1e6 > self.service / 2.0;
        let slot = usize::from(width.clamp(1, 3)) - 1;
        self.waited[slot].add(waited);
        // The estimates of other widths age with the reads that could have fed them.
        for (other, share) in self.waited.iter_mut().enumerate() {
            if other != slot {
                share.samples = share.samples.saturating_sub(u32::from(share.samples > SAMPLES_MAX / 2));
            }
        }
    }

    /// Any answer: what the node says of itself.
    pub fn heard(&mut self, node: NodeId, node_flags: u8, unhealthy_pairs: u64) {
        let now = Said { node, flags: node_flags, unhealthy_pairs };
        match self.said.iter_mut().find(|said| said.node == node) {
            Some(said) => *said = now,
            None => self.said.push(now),
        }
    }

    /// Forgets nodes that are not members any more.
    pub fn members(&mut self, nodes: &[NodeId]) {
        self.said.retain(|said| nodes.contains(&said.node));
    }

    /// Expected P(wait > S/2) of an untied copy; `None` while unknown.
    pub fn wait_share(&self) -> Option<f64> {
        let mut best: Option<(u32, f64)> = None;
        for (width, waited) in (1_i32..).zip(&self.waited) {
            if waited.samples >= self.settings.samples_min
                && best.is_none_or(|(samples, _)| waited.samples > samples)
            {
                // The shortest of n independent queues is long only if all are.
                best = Some((waited.samples, waited.share.powf(1.0 / f64::from(width))));
            }
        }
        best.map(|(_, share)| share)
    }

    /// A node asks for no ties: obeyed whether or not reads are judged.
    pub fn ties_off(&self) -> bool {
        self.any_says(flags::TIES_OFF)
    }

    /// More than half of the replicas say that their workers are busy over 80 % of the time.
    pub fn busy(&self) -> bool {
        let busy = self.said.iter().filter(|said| said.flags & flags::BUSY != 0).count();
        busy * 2 > self.said.len()
    }

    /// Why tying this read does not pay, if so.
    pub fn closed(&mut self, question: Question) -> Option<NotTied> {
        let service = Duration::from_secs_f64(self.service);
        if question.time_left < question.tie_delay + service {
            return Some(NotTied::LittleTime);
        }
        let wait_share = self.wait_share()?;
        if !self.ties_pay.update(wait_share, self.settings.wait_share) {
            return Some(NotTied::LittleWait);
        }
        let way = question.one_way?.as_secs_f64() / self.service.max(1e-9);
        let long = self.long_way.update(way, self.settings.way_share);
        (long && wait_share >= self.settings.loaded).then_some(NotTied::LongWay)
    }

    /// Keys that shared a copy were served in this time, all of them.
    pub fn keys_served(&mut self, keys: usize, service_time: Duration) {
        self.typical_of_shared = true;
        self.learn_typical(service_time.as_secs_f64() * 1e6 / keys.max(1) as f64);
    }

    fn learn_typical(&mut self, micros: f64) {
        self.typical = match self.typical {
            0.0 => micros,
            known if micros > known => known * TYPICAL_STEP,
            known => known / TYPICAL_STEP,
        }
        .max(TYPICAL_MIN);
    }

    /// How many keys of one call may share a copy: as many as are read within a round trip, so that none waits for the
    /// others longer than a copy of its own would have been under way. 1 while ties pay (each key is a tie of its own
    /// then) or nothing is known. `tied`: its policy ties.
    pub fn keys_together(&self, tied: bool, one_way: Option<Duration>) -> usize {
        let (Some(wait_share), Some(one_way)) = (self.wait_share(), one_way) else { return 1 };
        let long = self.long_way.0 && wait_share >= self.settings.loaded;
        if tied && self.ties_pay.0 && !long {
            return 1;
        }
        let keys = 2.0 * one_way.as_secs_f64() * 1e6 / self.typical.max(TYPICAL_MIN);
        (keys as usize).clamp(1, KEYS_TOGETHER_MAX)
    }

    /// True if a node asks for no hedges, rescues and shadows.
    pub fn no_extra_copies(&self) -> bool {
        self.any_says(flags::NO_EXTRA_COPIES)
    }

    /// True if `node` asks for no first copies: draining or its storage is suspect.
    pub fn wants_none(&self, node: NodeId) -> bool {
        let asks = flags::DRAINING | flags::STORAGE_SUSPECT;
        self.said.iter().any(|said| said.node == node && said.flags & asks != 0)
    }

    /// True if either of two nodes says that its cancels do not reach the other well. `members` is the topology,
    /// sorted.
    pub fn pair_unhealthy(&self, one: NodeId, other: NodeId, members: &[NodeId]) -> bool {
        let says = |from: NodeId, to: NodeId| {
            let bit = members.iter().position(|node| *node == to).filter(|bit| *bit < 64);
            bit.is_some_and(|bit| {
                self.said.iter().any(|said| said.node == from && said.unhealthy_pairs >> bit & 1 == 1)
            })
        };
        says(one, other) || says(other, one)
    }

    fn any_says(&self, flag: u8) -> bool {
        self.said.iter().any(|said| said.flags & flag != 0)
    }
}

const SAMPLES_MAX: u32 = 1_000;
/// Nodes report whole microseconds.
const TYPICAL_MIN: f64 = 0.5;
/// By how much one answer moves the median.
const TYPICAL_STEP: f64 = 1.05;

impl Share {
    /// A running mean that becomes an exponential one of 1/300.
    fn add(&mut self, yes: bool) {
        self.samples = (self.samples + 1).min(SAMPLES_MAX);
        let weight = 1.0 / f64::from(self.samples.min(300));
        self.share += weight * (f64::from(u8::from(yes)) - self.share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(queue_wait_us: u32, service_time_us: u32) -> Service {
        Service {
            node: NodeId(1),
            started: true,
            queue_wait_us,
            service_time_us,
            queue_depth: 0,
            flags: 0,
            unhealthy_pairs: 0,
        }
    }

    fn question() -> Question {
        Question {
            one_way: Some(Duration::from_micros(100)),
            tie_delay: Duration::from_micros(300),
            time_left: Duration::from_secs(1),
        }
    }

    #[test]
    fn open_while_unknown_closed_when_nothing_waits_open_again_with_hysteresis() {
        let mut gate = Gate::new(GateSettings::default());
        assert_eq!(gate.closed(question()), None);
        (0..300).for_each(|_| gate.answered(1, &service(0, 5_000)));
        assert_eq!(gate.closed(question()), Some(NotTied::LittleWait));
        let feed = |gate: &mut Gate, share: u32| {
            (0..2_000_u32).for_each(|i| gate.answered(1, &service(if i % 100 < share { 9_000 } else { 0 }, 5_000)));
        };
        feed(&mut gate, 4);
        assert_eq!(gate.closed(question()), Some(NotTied::LittleWait), "4 % opens nothing");
        feed(&mut gate, 20);
        assert_eq!(gate.closed(question()), None);
        feed(&mut gate, 4);
        assert_eq!(gate.closed(question()), None, "4 % closes nothing");
    }

    #[test]
    fn a_tie_that_works_does_not_close_the_gate() {
        // Each of two queues is long with 30 %: both are with 9 %.
        let mut gate = Gate::new(GateSettings::default());
        (0..2_000_u32).for_each(|i| gate.answered(2, &service(if i % 100 < 9 { 9_000 } else { 0 }, 5_000)));
        let share = gate.wait_share().unwrap();
        assert!((0.25..0.36).contains(&share), "{share}");
        assert_eq!(gate.closed(question()), None);
    }

    #[test]
    fn a_long_way_closes_it_under_load() {
        let mut gate = Gate::new(GateSettings::default());
        (0..500_u32).for_each(|i| gate.answered(1, &service(if i % 5 == 0 { 9_000 } else { 0 }, 5_000)));
        let far = Question { one_way: Some(Duration::from_micros(1_600)), ..question() };
        assert_eq!(gate.closed(far), Some(NotTied::LongWay));
        let nearer = Question { one_way: Some(Duration::from_micros(1_200)), ..question() };
        assert_eq!(gate.closed(nearer), Some(NotTied::LongWay), "hysteresis");
        assert_eq!(gate.closed(question()), None);
    }

    #[test]
    fn keys_travel_together_only_where_no_tie_pays_and_all_are_read_within_a_round_trip() {
        let way = Some(Duration::from_micros(30));
        let mut gate = Gate::new(GateSettings::default());
        assert_eq!(gate.keys_together(true, way), 1, "nothing is known");
        (0..300).for_each(|i| gate.answered(1, &service(0, if i % 100 == 0 { 9_000 } else { 2 })));
        assert_eq!(gate.keys_together(true, way), 1, "no read has asked the gate");
        assert_eq!(gate.closed(question()), Some(NotTied::LittleWait));
        let together = gate.keys_together(true, way);
        assert!((25..=35).contains(&together), "{together}: an outlier counts once");
        assert_eq!(gate.keys_together(true, None), 1);
        (0..100).for_each(|_| gate.keys_served(20, Duration::from_micros(20)));
        (0..100).for_each(|_| gate.answered(1, &service(0, 20)));
        let together = gate.keys_together(true, way);
        assert!((55..=64).contains(&together), "{together}: a get that comes alone takes longer");
        (0..100).for_each(|_| gate.keys_served(20, Duration::from_micros(40)));
        (0..300).for_each(|_| gate.keys_served(20, Duration::from_millis(100)));
        assert_eq!(gate.keys_together(true, way), 1, "each takes longer than the way");
        (0..2_000_u32).for_each(|i| gate.answered(1, &service(if i % 5 == 0 { 900 } else { 0 }, 1)));
        assert_eq!(gate.closed(Question { one_way: None, ..question() }), None);
        assert_eq!(gate.keys_together(true, way), 1, "ties pay again");
        assert!(gate.keys_together(false, way) > 30, "untied anyway");
    }

    #[test]
    fn little_time_and_what_nodes_say() {
        let mut gate = Gate::new(GateSettings::default());
        gate.answered(1, &service(0, 5_000));
        let late = Question { time_left: Duration::from_millis(5), ..question() };
        assert_eq!(gate.closed(late), Some(NotTied::LittleTime));
        gate.heard(NodeId(2), flags::TIES_OFF | flags::BUSY, 0);
        gate.heard(NodeId(1), 0, 0);
        assert!(gate.ties_off() && !gate.busy(), "one of two is busy");
        gate.heard(NodeId(1), flags::BUSY, 0);
        assert!(gate.busy());
        gate.heard(NodeId(2), flags::NO_EXTRA_COPIES | flags::DRAINING, 0b001);
        assert!(!gate.ties_off());
        assert!(gate.no_extra_copies() && gate.wants_none(NodeId(2)) && !gate.wants_none(NodeId(1)));
        let members = [NodeId(1), NodeId(2), NodeId(3)];
        assert!(gate.pair_unhealthy(NodeId(1), NodeId(2), &members));
        assert!(!gate.pair_unhealthy(NodeId(2), NodeId(3), &members));
        gate.members(&[NodeId(1)]);
        assert!(!gate.no_extra_copies());
    }
}

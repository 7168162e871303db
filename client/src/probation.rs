//! Replicas that fail or are slow for long: no first copies, shadow reads, and back with hysteresis.
//!
//! Never more than half of a shard's replicas are on probation. Losers of a race count neither as errors nor as
//! slow; a replica that loses every race it is given a start in, for long, is slow. It says whom to avoid;
//! [`crate::select`] puts them last, and the race still asks them when nobody else is left.

use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;

/// When a replica goes on probation and when it comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbationSettings {
    /// Failures or lost links in a row. Default 5.
    pub failures: u32,
    /// Slow: its smoothed latency is over this multiple of the other replicas' median. Default 4.0.
    pub slow_factor: f64,
    /// ... for this long. Default 2 s.
    pub slow_for: Duration,
    /// At least this long on probation; doubles with each time up to 30 s. Default 1 s.
    pub stay_min: Duration,
    /// Good answers to shadow reads in a row until it is back. Default 5.
    pub good_shadows: u32,
    /// A shadow read goes out this often. Default 200 ms.
    pub shadow_every: Duration,
    /// After one storage error a replica gets no first copies for this long. Default 5 s.
    pub storage_suspect_for: Duration,
}

impl Default for ProbationSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            slow_factor: 4.0,
            slow_for: Duration::from_secs(2),
            stay_min: Duration::from_secs(1),
            good_shadows: 5,
            shadow_every: Duration::from_millis(200),
            storage_suspect_for: Duration::from_secs(5),
        }
    }
}

/// Longest stay on probation before shadows may bring a replica back.
const STAY_MAX: Duration = Duration::from_secs(30);
/// A shadow read that is out for longer than this no longer keeps the next one back: its answer may be lost.
const SHADOW_LOST_AFTER: Duration = Duration::from_secs(10);
/// Fewer first copies than these that came to nothing are no silence: a healthy replica loses some races.
const SILENT_COPIES_MIN: u32 = 20;

#[derive(Clone, Debug, Default)]
struct Record {
    failures: u32,
    latency: f64,
    samples: u32,
    slow_since: Option<Moment>,
    /// On probation since.
    since: Option<Moment>,
    times: u32,
    good_shadows: u32,
    shadow_at: Moment,
    /// Shadow copies and samples that are out to it.
    shadows_out: u32,
    /// Its last good answer.
    good_at: Option<Moment>,
    /// Its last answer of any kind.
    spoke_at: Option<Moment>,
    /// First copies sent after that, whose reads ended without a word of it, and when the first of them was sent.
    silent: u32,
    silent_since: Option<Moment>,
    storage_suspect_until: Moment,
    ejected: bool,
}

/// What happened to a copy, as far as it says something of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A good answer after this long.
    Good(Duration),
    /// It failed after the start, or its link was lost or fell silent.
    Failed,
    /// Its storage failed.
    StorageFailed,
}

/// The replicas of one shard and who of them is on probation.
#[derive(Clone, Debug)]
pub struct Probation {
    settings: ProbationSettings,
    /// By node: few, and looked through by each read.
    records: SmallVec<[(NodeId, Record); 4]>,
}

impl Probation {
    /// All are trusted.
    pub fn new(settings: ProbationSettings) -> Self {
        Self { settings, records: SmallVec::new() }
    }

    /// The replicas there are; forgets others.
    pub fn members(&mut self, nodes: &[NodeId]) {
        self.records.retain(|(node, _)| nodes.contains(node));
        for node in nodes {
            if let Err(place) = self.records.binary_search_by_key(node, |(known, _)| *known) {
                self.records.insert(place, (*node, Record::default()));
            }
        }
    }

    /// A copy on `node` ended in a way that speaks of the node. Not for refusals, not for losers.
    pub fn observe(&mut self, node: NodeId, sign: Sign, now: Moment) {
        let suspect_for = self.settings.storage_suspect_for;
        if let Sign::Good(latency) = sign {
            self.good(node, latency, now);
        } else if let Some(record) = self.record_mut(node) {
            record.failures = record.failures.saturating_add(1);
            record.good_shadows = 0;
            if sign == Sign::StorageFailed {
                record.storage_suspect_until = now + suspect_for;
            }
        }
        self.judge(node, now);
    }

    /// True if `node` should come last: on probation, ejected, or its storage is suspect.
    pub fn avoid(&self, node: NodeId, now: Moment) -> bool {
        self.record(node)
            .is_some_and(|record| record.ejected || record.since.is_some() || now < record.storage_suspect_until)
    }

    /// A copy on `node` was answered in a way that says no more of it than that it answers.
    pub fn spoke(&mut self, node: NodeId, now: Moment) {
        if let Some(record) = self.record_mut(node) {
            record.spoke(now);
        }
    }

    /// A read ended `waited` after its first copy went to `node`, without a word of it. One such copy says nothing: it
    /// lost its race, or was cancelled by its peer. Many in a row do, if `node` answered nobody for as long as it takes
    /// to be slow while others answered, and usually in far less time: it hangs, though its links are alive.
    pub fn silent(&mut self, node: NodeId, waited: Duration, now: Moment) {
        let sent = now - waited;
        let settings = self.settings;
        let others = self.median_of_others(node);
        let others_good_at = self.others(node).filter_map(|record| record.good_at).max();
        let Some(record) = self.record_mut(node) else { return };
        if record.spoke_at.is_some_and(|at| at >= sent) {
            return;
        }
        record.silent = record.silent.saturating_add(1);
        let since = record.silent_since.map_or(sent, |known| known.min(sent));
        record.silent_since = Some(since);
        let silence = now.since(since);
        let far_longer = others.is_some_and(|median| silence.as_secs_f64() > settings.slow_factor * median);
        let others_answered = others_good_at.is_some_and(|at| at > since);
        if record.silent >= SILENT_COPIES_MIN && silence >= settings.slow_for && far_longer && others_answered {
            record.slow_since = Some(since);
            self.judge(node, now);
        }
    }

    /// The untied copy of a read was out for `waited` on `node` and was never answered. That speaks of the node only
    /// if others answered meanwhile, and in far less time: in an overload of all it says nothing.
    pub fn unanswered(&mut self, node: NodeId, waited: Duration, now: Moment) {
        let since = now - waited;
        let others_answered = self.others(node).any(|record| record.good_at.is_some_and(|at| at > since));
        let factor = self.settings.slow_factor;
        let far_longer = |median: f64| waited.as_secs_f64() > factor * median;
        if others_answered && self.median_of_others(node).is_some_and(far_longer) {
            self.observe(node, Sign::Failed, now);
        }
    }

    /// A shadow copy or a sample went out to `node`.
    pub fn shadow_sent(&mut self, node: NodeId) {
        if let Some(record) = self.record_mut(node) {
            record.shadows_out = record.shadows_out.saturating_add(1);
        }
    }

    /// It is no longer out.
    pub fn shadow_gone(&mut self, node: NodeId) {
        if let Some(record) = self.record_mut(node) {
            record.shadows_out = record.shadows_out.saturating_sub(1);
        }
    }

    /// Shadow copies and samples that are out to `node`.
    pub fn shadows_out(&self, node: NodeId) -> u32 {
        self.record(node).map_or(0, |record| record.shadows_out)
    }

    /// A replica on probation that a shadow read is due for; each call that names one books it. One that is out keeps
    /// the next one back: they would pile up at a replica that hangs.
    pub fn shadow_due(&mut self, now: Moment) -> Option<NodeId> {
        let every = self.settings.shadow_every;
        let room = |record: &Record| record.shadows_out == 0 || record.shadow_at + SHADOW_LOST_AFTER <= now;
        let due =
            |record: &Record| record.since.is_some() && !record.ejected && record.shadow_at <= now && room(record);
        let (node, record) = self.records.iter_mut().find(|(_, record)| due(record))?;
        record.shadow_at = now + every;
        Some(*node)
    }

    /// An operator takes `node` out for reads, or restores it (then it begins anew). More than half may be ejected:
    /// it is an order.
    pub fn eject(&mut self, node: NodeId, out: bool) {
        if let Some(record) = self.record_mut(node).filter(|record| record.ejected != out) {
            *record = Record { ejected: out, ..Record::default() };
        }
    }

    /// The replicas there are.
    pub fn nodes(&self) -> SmallVec<[NodeId; 8]> {
        self.records.iter().map(|(node, _)| *node).collect()
    }

    /// Replicas on probation now.
    pub fn on_probation(&self) -> usize {
        self.records.iter().filter(|(_, record)| record.since.is_some()).count()
    }

    fn record(&self, node: NodeId) -> Option<&Record> {
        self.records.iter().find(|(known, _)| *known == node).map(|(_, record)| record)
    }

    fn record_mut(&mut self, node: NodeId) -> Option<&mut Record> {
        self.records.iter_mut().find(|(known, _)| *known == node).map(|(_, record)| record)
    }

    fn others(&self, node: NodeId) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |(other, _)| *other != node).map(|(_, record)| record)
    }

    fn good(&mut self, node: NodeId, latency: Duration, now: Moment) {
        let Some(record) = self.record_mut(node) else { return };
        record.spoke(now);
        record.failures = 0;
        record.good_at = Some(now);
        let seconds = latency.as_secs_f64();
        let first = record.samples == 0;
        record.latency = if first { seconds } else { record.latency + 0.1 * (seconds - record.latency) };
        record.samples = record.samples.saturating_add(1);
        let (known, smoothed) = (record.is_known(), record.latency);
        let slow = known && self.far_slower(node, smoothed);
        let Some(record) = self.record_mut(node) else { return };
        record.slow_since = if slow { record.slow_since.or(Some(now)) } else { None };
        if record.since.is_some() {
            record.good_shadows = if slow { 0 } else { record.good_shadows + 1 };
        }
    }

    fn judge(&mut self, node: NodeId, now: Moment) {
        let settings = self.settings;
        let Some(record) = self.record(node) else { return };
        match record.since {
            None if record.is_bad(&settings, now) && self.on_probation() < self.records.len() / 2 => {
                if let Some(record) = self.record_mut(node) {
                    record.since = Some(now);
                    record.times = record.times.saturating_add(1);
                    record.good_shadows = 0;
                    record.shadow_at = now + settings.shadow_every;
                }
            }
            Some(since) if record.is_well(&settings, now.since(since)) => {
                if let Some(record) = self.record_mut(node) {
                    (record.since, record.slow_since) = (None, None);
                }
            }
            _ => {}
        }
    }

    /// Over the factor of the others' median. Over that of none of them, as a rule: then no median is asked for.
    fn far_slower(&self, node: NodeId, seconds: f64) -> bool {
        let over = |latency: f64| seconds > self.settings.slow_factor * latency;
        let over_any = self.others(node).any(|other| other.is_known() && over(other.latency));
        over_any && self.median_of_others(node).is_some_and(over)
    }

    fn median_of_others(&self, node: NodeId) -> Option<f64> {
        let mut known: SmallVec<[f64; 8]> =
            self.others(node).filter(|other| other.is_known()).map(|other| other.latency).collect();
        known.sort_unstable_by(f64::total_cmp);
        known.get(known.len() / 2).copied()
    }
}

impl Record {
    fn spoke(&mut self, now: Moment) {
        self.spoke_at = Some(now);
        (self.silent, self.silent_since) = (0, None);
    }

    fn is_bad(&self, settings: &ProbationSettings, now: Moment) -> bool {
        let slow = self.slow_since.is_some_and(|since| now.since(since) >= settings.slow_for);
        self.failures >= settings.failures || slow
    }

    /// It may come back after having stayed for so long.
    fn is_well(&self, settings: &ProbationSettings, stayed: Duration) -> bool {
        let doubled = settings.stay_min.saturating_mul(1 << self.times.saturating_sub(1).min(8));
        self.good_shadows >= settings.good_shadows && stayed >= doubled.min(STAY_MAX)
    }

    /// Enough answers to compare its latency.
    fn is_known(&self) -> bool {
        self.samples >= 10
    }
}

#[cfg(test)]
#[path = "probation_test.rs"]
mod tests;

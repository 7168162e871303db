//! The order in which the replicas of a shard are asked.
//!
//! Random by default: ties then find the shortest of several queues by themselves, and clients do not herd.
//! Power of two (Mitzenmacher 2001) and C3 (Suresh et al., NSDI 2015, cubic replica ranking) serve untied reads.
//! A refusal comes fast and leaves no copy out, so that who refuses everything looks idle: bad answers count as copies
//! that are still out (the "sinkhole" of Least-Loaded Round Robin, *Site Reliability Engineering*, chapter 20).
//! It ranks; whether a replica may get a copy at all is decided by the race, what is measured comes from replies.

use crate::copies::Order;
use crate::race::note;
use rand::Rng;
use rand::seq::SliceRandom;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::Service;

/// How the first replica is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Uniformly.
    #[default]
    Random,
    /// The better of two random ones by own copies out (bad answers weigh as such) + reported depth.
    PowerOfTwo,
    /// By C3's score.
    C3,
}

/// What one client view knows of the load of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Own copies out.
    pub outstanding: u32,
    /// Reported depth of the queue, smoothed.
    pub depth: f64,
    /// Latency as seen, smoothed, seconds.
    pub latency: f64,
    /// Reported service time, smoothed, seconds.
    pub service: f64,
    /// Good answers seen.
    pub answers: u32,
    /// Bad answers seen lately, as of `bad_at`: each weighs as a copy that is out. At most 16, halved every second.
    pub bad_answers: f64,
    /// When they were counted.
    pub bad_at: Moment,
}

/// A replica with fewer good answers than this is unknown.
const KNOWN_AFTER: u32 = 3;
/// Most own copies out at an unknown replica before it ranks behind those that are known.
const PROBES_OUT_MAX: u32 = 2;

/// Most that bad answers may weigh: a replica that refused for long is asked again some seconds after it stopped.
const BAD_ANSWERS_MAX: f64 = 16.0;
/// What bad answers weigh is halved in this time.
const BAD_ANSWERS_HALF_LIFE: Duration = Duration::from_secs(1);
/// Below this they are forgotten.
const BAD_ANSWERS_MIN: f64 = 0.05;

/// Weight of a new sample in the smoothed values (C3 uses 0.1 of the old; a client view here sees fewer samples).
const NEW_SAMPLE: f64 = 0.3;

impl Load {
    /// An answer came after `latency`, with what the node reports.
    pub fn answered(&mut self, latency: Duration, service: &Service) {
        let first = self.answers == 0;
        self.answers = self.answers.saturating_add(1);
        let mix = |old: f64, new: f64| if first { new } else { old + NEW_SAMPLE * (new - old) };
        self.depth = mix(self.depth, f64::from(service.queue_depth));
        self.service = mix(self.service, f64::from(service.service_time_us) / 1e6);
        self.latency = mix(self.latency, latency.as_secs_f64());
    }

    /// A bad answer came: a refusal or a failure.
    pub fn answered_badly(&mut self, now: Moment) {
        let before = self.as_of(now).bad_answers;
        self.bad_answers = (before + 1.0).min(BAD_ANSWERS_MAX);
        self.bad_at = self.bad_at.max(now);
    }

    /// The same now: what bad answers weigh has decayed.
    #[must_use]
    pub fn as_of(self, now: Moment) -> Self {
        if self.bad_answers <= 0.0 {
            return self;
        }
        let halvings = now.since(self.bad_at).as_secs_f64() / BAD_ANSWERS_HALF_LIFE.as_secs_f64();
        let left = self.bad_answers * (-halvings).exp2();
        let bad_answers = if left < BAD_ANSWERS_MIN { 0.0 } else { left };
        Self { bad_answers, bad_at: self.bad_at.max(now), ..self }
    }

    /// Own copies out and what weighs as such.
    fn out(&self) -> f64 {
        f64::from(self.outstanding) + self.bad_answers
    }

    /// Too little is known to rank it, and it has as many probes out as it may, or refused some of them lately.
    pub fn probed_enough(&self) -> bool {
        self.answers < KNOWN_AFTER && self.out() > f64::from(PROBES_OUT_MAX - 1)
    }

    /// Own copies out, what weighs as such, and the reported depth: lower is better.
    pub fn queue(&self) -> f64 {
        self.out() + self.depth
    }

    /// C3's score: latency - service + (1 + out x clients + depth)^3 x service; lower is better.
    pub fn c3(&self, clients: f64) -> f64 {
        let queue = 1.0 + self.out() * clients + self.depth;
        self.latency - self.service + queue.powi(3) * self.service
    }
}

/// One replica as the choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Which.
    pub node: NodeId,
    /// Its failure domain; empty when zones are not used.
    pub zone: &'a str,
    /// Its load.
    pub load: Load,
    /// Comes last: storage suspect, draining, on probation, or its link is down.
    pub avoid: bool,
}

/// Orders the replicas: those to avoid last, zones not used yet before used ones, then by `choice`. Where loads rank,
/// a replica of which little is known is tried with a few copies and then waits behind the known ones for what they
/// tell. `clients` is
/// C3's weight of own copies: how many views like this one share the replicas.
pub fn order(choice: Choice, clients: f64, candidates: &[Candidate<'_>], rng: &mut impl Rng) -> Order {
    if choice == Choice::Random && candidates.iter().all(|one| !one.avoid && one.zone.is_empty()) {
        // As a rule: nothing is to be ranked, and every order is as good.
        let mut order = Order::new();
        candidates.iter().for_each(|candidate| note(&mut order, candidate.node));
        order.shuffle(rng);
        return order;
    }
    let mut rest: SmallVec<[&Candidate<'_>; 4]> = SmallVec::new();
    for candidate in candidates {
        if rest.iter().all(|known| known.node != candidate.node) {
            rest.push(candidate);
        }
    }
    rest.shuffle(rng);
    match choice {
        Choice::Random => rest.sort_by_key(|replica| replica.avoid),
        Choice::PowerOfTwo => {
            rest.sort_by_key(|replica| (replica.avoid, replica.load.probed_enough()));
            if let [first, second, ..] = rest.as_slice()
                && (first.avoid, first.load.probed_enough()) == (second.avoid, second.load.probed_enough())
                && second.load.queue() < first.load.queue()
            {
                rest.swap(0, 1);
            }
        }
        Choice::C3 => rest.sort_by(|one, other| {
            let rank = |replica: &Candidate<'_>| (replica.avoid, replica.load.probed_enough());
            rank(one).cmp(&rank(other)).then(one.load.c3(clients).total_cmp(&other.load.c3(clients)))
        }),
    }
    by_zones(&rest)
}

/// Among replicas that are not to be avoided, one of a zone not used yet goes before one of a used zone.
fn by_zones(ranked: &[&Candidate<'_>]) -> Order {
    if ranked.iter().all(|replica| replica.zone.is_empty()) {
        return ranked.iter().map(|replica| replica.node).collect();
    }
    let mut order = Order::new();
    let mut zones: SmallVec<[&str; 4]> = SmallVec::new();
    for avoid in [false, true] {
        let mut rest: SmallVec<[&Candidate<'_>; 4]> =
            ranked.iter().filter(|replica| replica.avoid == avoid).copied().collect();
        while !rest.is_empty() {
            let next = rest.iter().position(|replica| !zones.contains(&replica.zone)).unwrap_or(0);
            let replica = rest.remove(next);
            if !replica.zone.is_empty() {
                zones.push(replica.zone);
            }
            order.push(replica.node);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn load() -> impl Strategy<Value = Load> {
        (0_u32..20, 0.0_f64..30.0, 0.0_f64..0.5, 0.0_f64..0.1, 0_u32..6, 0.0_f64..16.0).prop_map(
            |(outstanding, depth, latency, service, answers, bad_answers)| Load {
                outstanding,
                depth,
                latency,
                service,
                answers,
                bad_answers,
                bad_at: Moment::ZERO,
            },
        )
    }

    fn place(order: &Order, node: NodeId) -> usize {
        order.iter().position(|one| *one == node).unwrap()
    }

    fn candidates(loads: &[Load]) -> Vec<Candidate<'static>> {
        (1..)
            .zip(loads)
            .map(|(n, load)| Candidate { node: NodeId(n), zone: "", load: *load, avoid: false })
            .collect()
    }

    proptest! {
        #[test]
        fn slower_or_more_loaded_never_ranks_better(
            loads in prop::collection::vec(load(), 2..6),
            which in 0_usize..6,
            (more, deeper, slower) in (0_u32..5, 0.0_f64..5.0, 0.0_f64..0.3),
            seed: u64,
        ) {
            let which = which % loads.len();
            for choice in [Choice::Random, Choice::PowerOfTwo, Choice::C3] {
                let mut worse = candidates(&loads);
                worse[which].load.outstanding += more;
                worse[which].load.depth += deeper;
                worse[which].load.latency += slower;
                worse[which].load.service += slower;
                let node = worse[which].node;
                let before = order(choice, 3.0, &candidates(&loads), &mut StdRng::seed_from_u64(seed));
                let after = order(choice, 3.0, &worse, &mut StdRng::seed_from_u64(seed));
                prop_assert!(place(&after, node) >= place(&before, node), "{choice:?}: {before:?} {after:?}");
            }
        }

        #[test]
        fn a_replica_that_refuses_never_ranks_better_than_the_same_one_that_does_not(
            loads in prop::collection::vec(load(), 2..6),
            which in 0_usize..6,
            (refusals_ms, later_ms) in (prop::collection::vec(0_u64..4_000, 1..40), 0_u64..8_000),
            seed: u64,
        ) {
            let which = which % loads.len();
            let at = |ms: u64| Moment::ZERO + Duration::from_millis(ms);
            let mut refusing = loads.clone();
            // In the order of their arrival or not: answers of several links overtake each other.
            refusals_ms.iter().for_each(|ms| refusing[which].answered_badly(at(*ms)));
            prop_assert!(refusing[which].bad_answers <= BAD_ANSWERS_MAX);
            let now = at(4_000 + later_ms);
            for choice in [Choice::Random, Choice::PowerOfTwo, Choice::C3] {
                let rank = |loads: &[Load]| {
                    let now: Vec<Load> = loads.iter().map(|load| load.as_of(now)).collect();
                    let order = order(choice, 3.0, &candidates(&now), &mut StdRng::seed_from_u64(seed));
                    place(&order, NodeId(which as u64 + 1))
                };
                prop_assert!(rank(&refusing) >= rank(&loads), "{choice:?}");
            }
        }

        #[test]
        fn every_replica_stands_once_and_avoided_ones_last(
            loads in prop::collection::vec((load(), any::<bool>(), 0_usize..3), 1..7),
            seed: u64,
        ) {
            let zones = ["", "a", "b"];
            let mut all: Vec<Candidate<'_>> = (1..).zip(&loads)
                .map(|(n, (load, avoid, zone))| Candidate {
                    node: NodeId(n), zone: zones[*zone], load: *load, avoid: *avoid,
                })
                .collect();
            all.push(all[0]);
            let plain: Vec<Candidate<'_>> =
                all.iter().map(|one| Candidate { zone: "", avoid: false, ..*one }).collect();
            let plain = order(Choice::Random, 1.0, &plain, &mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(plain.len(), loads.len());
            for choice in [Choice::Random, Choice::PowerOfTwo, Choice::C3] {
                let order = order(choice, 1.0, &all, &mut StdRng::seed_from_u64(seed));
                let mut sorted = order.to_vec();
                sorted.sort();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), loads.len());
                let avoided: Vec<bool> =
                    order.iter().map(|node| all[(node.0 - 1) as usize].avoid).collect();
                prop_assert!(avoided.is_sorted(), "{:?}", avoided);
            }
        }
    }

    #[test]
    fn other_zones_come_first() {
        let zones = ["a", "a", "b", "b", "c"];
        let all: Vec<Candidate<'_>> = (1..)
            .zip(zones)
            .map(|(n, zone)| Candidate { node: NodeId(n), zone, load: Load::default(), avoid: false })
            .collect();
        for seed in 0..100 {
            let order = order(Choice::Random, 1.0, &all, &mut StdRng::seed_from_u64(seed));
            let first: std::collections::BTreeSet<&str> =
                order[..3].iter().map(|node| zones[(node.0 - 1) as usize]).collect();
            assert_eq!(first.len(), 3, "{order:?}");
        }
    }

    #[test]
    fn an_unknown_replica_gets_a_few_probes_and_no_crowd() {
        let known = Load { answers: 9, latency: 0.009, service: 0.005, depth: 3.0, ..Load::default() };
        for choice in [Choice::PowerOfTwo, Choice::C3] {
            let mut loads = [known, known, Load::default()];
            let mut rng = StdRng::seed_from_u64(5);
            let mut probes = 0;
            for _ in 0..200 {
                if order(choice, 1.0, &candidates(&loads), &mut rng)[0] == NodeId(3) {
                    loads[2].outstanding += 1;
                    probes += 1;
                }
            }
            assert_eq!(probes, PROBES_OUT_MAX, "{choice:?}");
        }
    }

    #[test]
    fn who_refuses_at_once_is_no_idle_replica_and_is_asked_again_when_it_stops() {
        let known = Load { answers: 9, latency: 0.009, service: 0.005, depth: 1.0, ..Load::default() };
        let at = |ms: u64| Moment::ZERO + Duration::from_millis(ms);
        for choice in [Choice::PowerOfTwo, Choice::C3] {
            for mut refusing in [Load { depth: 0.0, ..known }, Load::default()] {
                let mut rng = StdRng::seed_from_u64(5);
                let mut first = |load: Load| {
                    let loads = candidates(&[known, known, load]);
                    let orders = (0..100).map(|_| order(choice, 1.0, &loads, &mut rng)[0]);
                    orders.filter(|node| *node == NodeId(3)).count()
                };
                assert!(first(refusing) > 0, "{choice:?}: idle");
                (0..1_000).for_each(|n| refusing.answered_badly(at(n)));
                assert_eq!(first(refusing.as_of(at(1_000))), 0, "{choice:?}: it refused everything");
                assert!(first(refusing.as_of(at(10_000))) > 0, "{choice:?}: long ago");
                assert_eq!(refusing.as_of(at(10_000)).queue(), refusing.depth);
            }
        }
    }

    #[test]
    fn random_is_uniform() {
        let all = candidates(&[Load::default(); 3]);
        let mut rng = StdRng::seed_from_u64(3);
        let mut first = [0_u32; 4];
        (0..3_000).for_each(|_| first[order(Choice::Random, 1.0, &all, &mut rng)[0].0 as usize] += 1);
        assert!(first[1..].iter().all(|count| (900..1_100).contains(count)), "{first:?}");
    }
}

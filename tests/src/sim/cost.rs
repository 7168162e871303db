//! What the pure rooms of the client cost per read: decide, pace, race, account. No network, no waiting. Time and
//! allocations.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use tiedkv_client::clock;
use tiedkv_client::copies::{Actions, Answer, CopyIndex, Event, Timer};
use tiedkv_client::engine::{Asked, Engine, EngineSettings, Replica, Ways};
use tiedkv_client::learn::Ended;
use tiedkv_client::pace::{Pace, PaceSettings};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::race::Race;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Service;

struct Known(Vec<(NodeId, Pace)>);

impl Ways for Known {
    fn tie_delay(&self, node: NodeId) -> Duration {
        self.0.iter().find(|(known, _)| *known == node).map_or(Duration::ZERO, |(_, pace)| pace.tie_delay())
    }
    fn one_way(&self, node: NodeId) -> Option<Duration> {
        self.0.iter().find(|(known, _)| *known == node).and_then(|(_, pace)| pace.one_way())
    }
}

/// Mean wall time and allocations per read over `reads` reads of this policy, each sent as all its copies; copy 0 wins.
/// `allocated` counts the allocations of the process.
pub fn per_read(policy: ReadPolicy, reads: u32, allocated: impl Fn() -> u64) -> (Duration, f64) {
    let nodes: Vec<NodeId> = (1..=3).map(NodeId).collect();
    let mut rng = StdRng::seed_from_u64(1);
    let mut ids = StdRng::seed_from_u64(2);
    let mut now = Moment::ZERO;
    let mut settings = EngineSettings::default();
    // Copy 1 never wins here; it is not to be rested for that.
    settings.wins.won_min = 0.0;
    let mut engine = Engine::new(settings, now);
    engine.members(&nodes);
    let mut ways = Known(nodes.iter().map(|node| (*node, Pace::new(PaceSettings::default()))).collect());
    let replicas: Vec<Replica<'_>> =
        nodes.iter().map(|node| Replica { node: *node, zone: "", down: false }).collect();
    let mut actions = Actions::new();
    let asked = Asked { gated: true, ..policy.into() };
    let (mut started, mut before) = (clock::now(), allocated());
    // What is made once, such as estimators, is made in the first reads.
    let warm_up = reads / 10;
    for number in 0..reads + warm_up {
        if number == warm_up {
            (started, before) = (clock::now(), allocated());
        }
        let decision = engine.decide(asked, now + Duration::from_secs(1), &replicas, &ways, now, &mut rng);
        let mut race = Race::new(decision.plan.clone());
        let mut tie_id = || TieId(ids.random());
        let mut host = engine.host(asked, &ways, &mut tie_id, &mut rng);
        race.on_event(Event::Begin, now, &mut host, &mut actions);
        while let Some(at) = race.armed(Timer::NextCopy) {
            race.on_event(Event::Timer(Timer::NextCopy), at, &mut host, &mut actions);
        }
        now = now + Duration::from_millis(9);
        let answer = Event::Answer { copy: CopyIndex(0), answer: Answer::Good };
        race.on_event(answer, now, &mut host, &mut actions);
        actions.clear();
        let latency = Duration::from_micros(9_200);
        for (number, copy) in race.copies().iter().enumerate() {
            engine.copy_sent(copy.replica, copy.kind);
            engine.copy_gone(copy.replica, copy.kind);
            if number == 0 {
                let service = answer_of(copy.replica);
                let (wait, served) = (Duration::from_micros(4_000), Duration::from_micros(5_000));
                if let Some((_, pace)) = ways.0.iter_mut().find(|(node, _)| *node == copy.replica) {
                    pace.record(latency, wait, served, now);
                }
                engine.answered(latency, &service, None, now);
                engine.read_ended(asked, &Ended::of(&race, &decision), latency, Some(&service), now);
            }
        }
        debug_assert!(race.copies().iter().all(|copy| copy.kind != CopyKind::Hedge));
    }
    let counted = reads.max(1);
    (clock::now().since(started) / counted, (allocated() - before) as f64 / f64::from(counted))
}

fn answer_of(node: NodeId) -> Service {
    Service {
        node,
        started: true,
        queue_wait_us: 4_000, // often enough to keep the gate open
        service_time_us: 5_000,
        queue_depth: 0,
        flags: 0,
        unhealthy_pairs: 0,
    }
}

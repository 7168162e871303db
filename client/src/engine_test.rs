//! Tests of the engine: what a view decides, and that it learns.

use super::*;
use crate::control::Switch;
use crate::copies::{Actions, Answer, CopyIndex, Event, Host};
use crate::learn::Ended;
use crate::operation::Operation;
use crate::race::Race;
use crate::wins::WinsSettings;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::Ceiling;
use tiedkv_protocol::response::{Service, flags};

const MS: Duration = Duration::from_millis(1);

struct Same(Duration);

impl Ways for Same {
    fn tie_delay(&self, _: NodeId) -> Duration {
        self.0
    }
    fn one_way(&self, _: NodeId) -> Option<Duration> {
        Some(self.0 / 2)
    }
}

const WAYS: Same = Same(Duration::from_micros(200));

fn replicas(down: &[u64]) -> Vec<Replica<'static>> {
    (1..=3).map(|n| Replica { node: NodeId(n), zone: "", down: down.contains(&n) }).collect()
}

fn service(node: u64, node_flags: u8) -> Service {
    Service {
        node: NodeId(node),
        started: true,
        queue_wait_us: 4_000,
        service_time_us: 5_000,
        queue_depth: 1,
        flags: node_flags,
        unhealthy_pairs: 0,
    }
}

fn judged(policy: ReadPolicy) -> Asked {
    Asked { gated: true, ..policy.into() }
}

struct View {
    gated: bool,
    engine: Engine,
    rng: StdRng,
    now: Moment,
}

impl View {
    fn new(settings: EngineSettings) -> Self {
        let mut engine = Engine::new(settings, Moment::ZERO);
        engine.members(&[NodeId(1), NodeId(2), NodeId(3)]);
        Self { gated: settings.gate.is_some(), engine, rng: StdRng::seed_from_u64(11), now: Moment::ZERO }
    }

    fn decide(&mut self, policy: ReadPolicy, down: &[u64]) -> Decision {
        let deadline = self.now + MS * 1_000;
        let asked = Asked { gated: self.gated, ..policy.into() };
        self.engine.decide(asked, deadline, &replicas(down), &WAYS, self.now, &mut self.rng)
    }

    /// One read that the first copy answers well after `latency`.
    fn read(&mut self, policy: ReadPolicy, latency: Duration) -> Decision {
        let decision = self.decide(policy, &[]);
        let first = decision.plan.order[0];
        let mut race = Race::new(decision.plan.clone());
        let mut actions = Actions::new();
        let mut tie_id = || TieId(7);
        let asked = Asked { gated: self.gated, ..policy.into() };
        let mut host = self.engine.host(asked, &WAYS, &mut tie_id, &mut self.rng);
        race.on_event(Event::Begin, self.now, &mut host, &mut actions);
        self.now = self.now + latency;
        let good = Event::Answer { copy: CopyIndex(0), answer: Answer::Good };
        race.on_event(good, self.now, &mut host, &mut actions);
        self.engine.copy_sent(first, CopyKind::First);
        let service = service(first.0, 0);
        self.engine.answered(latency, &service, None, self.now);
        self.engine.copy_gone(first, CopyKind::First);
        self.engine.read_ended(asked, &Ended::of(&race, &decision), latency, Some(&service), self.now);
        decision
    }
}

#[test]
fn by_default_a_read_is_tied_and_a_share_is_held_out() {
    let mut view = View::new(EngineSettings::default());
    // Copies win nothing in this made-up world.
    view.engine.wins = Wins::new(WinsSettings { won_min: 0.0, ..WinsSettings::default() });
    let decisions: Vec<Decision> = (0..4_000).map(|_| view.read(ReadPolicy::default(), MS * 9)).collect();
    let held = decisions.iter().filter(|decision| decision.hold_out).count();
    assert!((20..70).contains(&held), "{held} of 4000 are held out");
    assert!(decisions.iter().all(|decision| decision.hold_out || decision.plan.width == 2));
    assert_eq!(view.engine.not_tied(NotTied::HoldOut), held as u64);
    assert_eq!(view.engine.load(NodeId(1)).outstanding, 0);
}

#[test]
fn delays_are_learned_from_reads() {
    let mut view = View::new(EngineSettings::default());
    let policy = ReadPolicy::HEDGED;
    assert!(view.engine.latency(Sort::default(), policy.shape).is_none());
    (0..400_u32).for_each(|i| drop(view.read(policy, if i % 10 == 0 { MS * 40 } else { MS * 5 })));
    let learned = view.engine.latency(Sort::default(), policy.shape).unwrap();
    assert!(learned.hedge_delay() > MS * 37 && learned.hedge_delay() < MS * 43);
}

#[test]
fn the_switch_the_ceiling_and_the_nodes_are_obeyed() {
    let mut view = View::new(EngineSettings { hold_out: 0.0, ..EngineSettings::default() });
    let policy = ReadPolicy { rescue: true, ..ReadPolicy::TIED3 };
    assert_eq!(view.decide(policy, &[]).plan.width, 3);
    view.engine.ceiling(Ceiling { version: 1, copies_max: 2, ..Ceiling::default() }, Moment::ZERO);
    let cut = view.decide(policy, &[]);
    assert_eq!((cut.plan.width, cut.not_tied), (2, Some(NotTied::Ceiling)));
    view.engine.answered(MS, &service(2, flags::TIES_OFF | flags::NO_EXTRA_COPIES), None, view.now);
    let off = view.decide(policy, &[]);
    assert_eq!((off.plan.width, off.plan.rescue, off.not_tied), (1, false, Some(NotTied::TiesOff)));
    view.engine.control.switch([Switch::OBSERVE; 3]);
    let observed = view.decide(policy, &[]);
    assert_eq!((observed.plan.width, observed.plan.rescue), (1, false));
    assert_eq!(observed.not_tied, Some(NotTied::Observing));
}

#[test]
fn replicas_to_avoid_are_asked_last() {
    let mut view = View::new(EngineSettings::default());
    let code = Some(ErrorCode::Storage);
    view.engine.answered(MS, &service(3, 0), code, view.now);
    for _ in 0..50 {
        assert_eq!(view.decide(ReadPolicy::TIED2, &[]).plan.order[2], NodeId(3), "a storage error");
        assert_ne!(view.decide(ReadPolicy::TIED2, &[1]).plan.order[0], NodeId(1), "a link that is down");
    }
}

#[test]
fn a_pair_without_cancels_is_not_tied() {
    let mut view = View::new(EngineSettings { hold_out: 0.0, ..EngineSettings::default() });
    // Node 1 says that its cancels reach neither 2 nor 3; 2 and 3 are fine with each other.
    let lonely = Service { unhealthy_pairs: 0b110, ..service(1, 0) };
    view.engine.answered(MS, &lonely, None, view.now);
    let mut seen = [0_u32; 2];
    for _ in 0..200 {
        let decision = view.decide(ReadPolicy::TIED2, &[]);
        if decision.plan.order[0] == NodeId(1) {
            assert_eq!((decision.plan.width, decision.not_tied), (1, Some(NotTied::UnhealthyPair)));
            seen[0] += 1;
        } else {
            assert_eq!((decision.plan.width, decision.plan.order[2]), (2, NodeId(1)));
            seen[1] += 1;
        }
    }
    assert!(seen[0] > 30 && seen[1] > 80, "{seen:?}");
}

#[test]
fn without_the_gate_nothing_narrows_a_policy() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    for _ in 0..500 {
        let decision = view.read(ReadPolicy::TIED2, MS);
        assert_eq!((decision.plan.width, decision.not_tied, decision.hold_out), (2, None, false));
    }
}

#[test]
fn sixty_four_views_do_not_herd_onto_the_next_replica() {
    // Replica 1 is slow and deep; every view has learned it. The others must share what it loses.
    for choice in [Choice::Random, Choice::PowerOfTwo, Choice::C3] {
        let mut first = [0_u32; 4];
        for seed in 0..64 {
            let settings = EngineSettings { choice, clients: 64.0, ..EngineSettings::default() };
            let mut view = View::new(settings);
            view.rng = StdRng::seed_from_u64(seed);
            for node in 1..=3 {
                let slow = Service { queue_depth: if node == 1 { 20 } else { 1 }, ..service(node, 0) };
                view.engine.answered(if node == 1 { MS * 90 } else { MS * 9 }, &slow, None, view.now);
            }
            (0..30).for_each(|_| first[view.decide(ReadPolicy::UNTIED, &[]).plan.order[0].0 as usize] += 1);
        }
        let others = first[2].max(first[3]) as f64 / first[2].min(first[3]) as f64;
        assert!(others < 1.25, "{choice:?}: {first:?}");
        assert!(choice == Choice::Random || first[1] < first[2], "{choice:?}: {first:?}");
    }
}

#[test]
fn nodes_that_ask_for_no_ties_are_obeyed_without_the_gate_too() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    view.engine.answered(MS, &service(2, flags::TIES_OFF | flags::NO_EXTRA_COPIES), None, view.now);
    let decision = view.decide(ReadPolicy::TIED3.with_rescue(), &[]);
    assert_eq!((decision.plan.width, decision.plan.rescue), (1, false));
    assert_eq!(decision.not_tied, Some(NotTied::TiesOff));
}

#[test]
fn a_switch_holds_for_reads_under_way() {
    let mut view = View::new(EngineSettings::default());
    let asked = judged(ReadPolicy::TIED2.with_rescue());
    let token = |view: &mut View| {
        let mut tie_id = || TieId(7);
        let mut host = view.engine.host(asked, &WAYS, &mut tie_id, &mut view.rng);
        (host.token(CopyKind::Rescue, Moment::ZERO), host.width_max())
    };
    assert_eq!(token(&mut view), (true, 3));
    view.engine.ceiling(Ceiling { version: 1, mode: Mode::Off, ..Ceiling::default() }, Moment::ZERO);
    assert_eq!(token(&mut view), (false, 1));
    assert_eq!(view.engine.take_suppressed().as_slice(), [Suppressed::SwitchedOff]);
    view.engine.ceiling(Ceiling { version: 2, copies_max: 2, ..Ceiling::default() }, Moment::ZERO);
    assert_eq!(token(&mut view), (true, 2));
}

#[test]
fn hedges_stay_away_under_strain_and_rescues_do_not() {
    let mut view = View::new(EngineSettings::default());
    let token = |view: &mut View, kind| {
        let mut tie_id = || TieId(7);
        let mut host = view.engine.host(ReadPolicy::HEDGED.into(), &WAYS, &mut tie_id, &mut view.rng);
        host.token(kind, Moment::ZERO)
    };
    assert!(token(&mut view, CopyKind::Hedge));
    [1, 2].into_iter().for_each(|node| view.engine.heard(NodeId(node), flags::BUSY, 0));
    assert!(!token(&mut view, CopyKind::Hedge) && token(&mut view, CopyKind::Rescue));
    assert_eq!(view.engine.suppressed(Suppressed::NodesBusy), 1);
    [1, 2].into_iter().for_each(|node| view.engine.heard(NodeId(node), 0, 0));
    let refused = Service { started: false, ..service(1, 0) };
    (0..30).for_each(|_| view.engine.answered(MS, &refused, Some(ErrorCode::Busy), view.now));
    assert!(!token(&mut view, CopyKind::Hedge));
    assert_eq!(view.engine.suppressed(Suppressed::ErrorsHigh), 1);
}

#[test]
fn a_replica_that_refuses_at_once_is_not_taken_for_an_idle_one() {
    for choice in [Choice::PowerOfTwo, Choice::C3] {
        let mut view = View::new(EngineSettings { choice, ..EngineSettings::default() });
        for node in 1..=3 {
            (0..5).for_each(|_| view.engine.answered(MS * 9, &service(node, 0), None, view.now));
        }
        // It refuses and has none out, the others work.
        [2, 3].into_iter().for_each(|node| view.engine.copy_sent(NodeId(node), CopyKind::First));
        let first = |view: &mut View| {
            (0..100).filter(|_| view.decide(ReadPolicy::UNTIED, &[]).plan.order[0] == NodeId(1)).count()
        };
        assert!(first(&mut view) > 40, "{choice:?}: idle");
        let refused = Service { started: false, ..service(1, 0) };
        (0..5).for_each(|_| view.engine.answered(MS, &refused, Some(ErrorCode::Busy), view.now));
        assert_eq!(first(&mut view), 0, "{choice:?}: it refused");
        view.now = view.now + MS * 10_000;
        assert!(first(&mut view) > 40, "{choice:?}: long ago");
    }
}

#[test]
fn what_is_no_fault_of_a_replica_never_ranks_it_lower() {
    let mut view = View::new(EngineSettings::default());
    // Losers are withdrawn, late ones answer well, wrong calls are the caller's: a thousand of each.
    for _ in 0..1_000 {
        view.engine.copy_sent(NodeId(1), CopyKind::Tied);
        view.engine.copy_gone(NodeId(1), CopyKind::Tied);
        view.engine.answered(MS, &service(1, 0), None, view.now);
        let wrong_call = Service { started: false, ..service(1, 0) };
        view.engine.answered(MS, &wrong_call, Some(ErrorCode::OverLimit), view.now);
    }
    assert_eq!(view.engine.probation.on_probation(), 0);
    assert!(!view.engine.strain.errors_high());
    assert!(!view.engine.probation.avoid(NodeId(1), view.now));
    let load = view.engine.load(NodeId(1));
    assert_eq!((load.outstanding, load.bad_answers), (0, 0.0));
}

#[test]
fn an_operator_ejects_a_node_in_every_view() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    let mut ceiling = Ceiling { version: 1, ..Ceiling::default() };
    assert!(ceiling.ejected.eject(NodeId(2)));
    view.engine.ceiling(ceiling, Moment::ZERO);
    assert!((0..50).all(|_| view.decide(ReadPolicy::TIED2, &[]).plan.order[2] == NodeId(2)));
    view.engine.members(&[NodeId(1), NodeId(2), NodeId(3), NodeId(4)]);
    assert!(view.engine.probation.avoid(NodeId(2), view.now), "a change of members restores nobody");
    assert!(ceiling.ejected.restore(NodeId(2)));
    view.engine.ceiling(Ceiling { version: 2, ..ceiling }, Moment::ZERO);
    assert!((0..50).any(|_| view.decide(ReadPolicy::TIED2, &[]).plan.order[0] == NodeId(2)));
}

#[test]
fn an_observed_read_goes_untied_and_says_what_it_would_have_sent() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    view.engine.control.switch([Switch::OBSERVE; 3]);
    let policy = ReadPolicy::TIED2.with_rescue();
    let decision = view.read(policy, MS * 9);
    assert_eq!((decision.plan.width, decision.plan.rescue, decision.hold_out), (1, false, true));
    let observed = decision.observed.unwrap();
    assert_eq!((observed.width, observed.tie_delay), (2, WAYS.0));
    assert_eq!(observed.rescue_delay, Some(MS * 50), "the fallback while nothing is known");
    let tokens = view.engine.budget().tokens();
    let race = {
        let mut race = Race::new(decision.plan.clone());
        let mut tie_id = || TieId(7);
        let mut host = view.engine.host(policy.into(), &WAYS, &mut tie_id, &mut view.rng);
        let mut actions = Actions::new();
        race.on_event(Event::Begin, view.now, &mut host, &mut actions);
        race.on_event(
            Event::Answer { copy: CopyIndex(0), answer: Answer::Good },
            view.now,
            &mut host,
            &mut actions,
        );
        race
    };
    let ended = Ended::of(&race, &decision);
    let unsent = view.engine.read_ended(policy.into(), &ended, MS * 60, Some(&service(1, 0)), view.now);
    let kinds: Vec<CopyKind> = unsent.iter().map(|copy| copy.kind).collect();
    assert_eq!(kinds, [CopyKind::Tied, CopyKind::Rescue]);
    assert_eq!(view.engine.budget().tokens(), tokens, "nothing is spent");
    // What would have kept a copy from being sent is said of it too.
    view.engine.heard(NodeId(2), flags::NO_EXTRA_COPIES, 0);
    let unsent = view.engine.read_ended(policy.into(), &ended, MS * 60, Some(&service(1, 0)), view.now);
    assert_eq!(unsent.iter().map(|copy| copy.kind).collect::<Vec<_>>(), [CopyKind::Tied]);
}

#[test]
fn a_share_of_nothing_observes_every_read() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    let ceiling = Ceiling { version: 1, share_ppm: 0, ..Ceiling::default() };
    view.engine.ceiling(ceiling, view.now);
    (1..=3).for_each(|node| view.engine.heard(NodeId(node), ceiling.flags(), 0));
    for _ in 0..100 {
        let decision = view.decide(ReadPolicy::TIED2.with_rescue(), &[]);
        assert_eq!((decision.plan.width, decision.plan.rescue), (1, false));
        assert_eq!(decision.not_tied, Some(NotTied::Observing));
        let observed = decision.observed.unwrap();
        assert_eq!((observed.width, observed.rescue_delay.is_some()), (2, true));
    }
}

#[test]
fn a_policy_that_wins_nothing_is_only_observed_for_a_while() {
    let mut view = View::new(EngineSettings { hold_out: 0.0, ..EngineSettings::default() });
    let mut tied = 0;
    let resting = (0..2_000).any(|_| {
        let asked = judged(ReadPolicy::TIED2);
        let decision = view.decide(ReadPolicy::TIED2, &[]);
        let mut race = Race::new(decision.plan.clone());
        let mut tie_id = || TieId(7);
        let mut host = view.engine.host(asked, &WAYS, &mut tie_id, &mut view.rng);
        let mut actions = Actions::new();
        race.on_event(Event::Begin, view.now, &mut host, &mut actions);
        let timer = crate::copies::Timer::NextCopy;
        race.on_event(Event::Timer(timer), view.now + MS, &mut host, &mut actions);
        view.now = view.now + MS * 9;
        race.on_event(
            Event::Answer { copy: CopyIndex(0), answer: Answer::Good },
            view.now,
            &mut host,
            &mut actions,
        );
        tied += race.copies().len() - 1;
        view.engine.read_ended(asked, &Ended::of(&race, &decision), MS * 9, Some(&service(1, 0)), view.now);
        decision.not_tied == Some(NotTied::NotWinning)
    });
    assert!(resting && tied == 400, "{tied} second copies won nothing");
    assert_eq!(view.decide(ReadPolicy::TIED2, &[]).plan.width, 1);
    view.now = view.now + MS * 31_000;
    assert_eq!(view.decide(ReadPolicy::TIED2, &[]).plan.width, 2, "and tries again");
}

#[test]
fn the_keys_of_a_call_share_its_extra_copies() {
    let mut view = View::new(EngineSettings::default());
    let call = view.engine.open_call(20);
    let asked = Asked {
        sort: Sort { operation: Operation::MultiGet, ..Sort::default() },
        call: Some(call),
        ..ReadPolicy::HEDGED.into()
    };
    let mut tie_id = || TieId(7);
    let mut host = view.engine.host(asked, &WAYS, &mut tie_id, &mut view.rng);
    assert!(host.token(CopyKind::Hedge, Moment::ZERO), "20 x 5 % is one");
    assert!(!host.token(CopyKind::Hedge, Moment::ZERO));
    assert_eq!(view.engine.suppressed(Suppressed::CallSpent), 1);
    view.engine.close_call(call);
    assert_eq!(view.engine.budget().tokens(), 9);
}

#[test]
fn what_the_answers_of_a_call_earn_beyond_the_burst_is_its_own() {
    let mut view = View::new(EngineSettings::default());
    let policy = ReadPolicy::HEDGED;
    let asked = Asked { call: Some(view.engine.open_call(1_000)), ..policy.into() };
    let decision = view.decide(policy, &[]);
    let mut race = Race::new(decision.plan.clone());
    let mut tie_id = || TieId(7);
    let mut host = view.engine.host(asked, &WAYS, &mut tie_id, &mut view.rng);
    let mut actions = Actions::new();
    race.on_event(Event::Begin, view.now, &mut host, &mut actions);
    let good = Event::Answer { copy: CopyIndex(0), answer: Answer::Good };
    race.on_event(good, view.now, &mut host, &mut actions);
    let ended = Ended::of(&race, &decision);
    for _ in 0..1_000 {
        view.engine.read_ended(asked, &ended, MS, Some(&service(1, 0)), view.now);
    }
    let mut host = view.engine.host(asked, &WAYS, &mut tie_id, &mut view.rng);
    let taken = (0..100).filter(|_| host.token(CopyKind::Hedge, Moment::ZERO)).count();
    assert_eq!(taken, 50, "1,000 x 5 %");
    assert_eq!(view.engine.suppressed(Suppressed::CallSpent), 50);
    assert_eq!(view.engine.budget().tokens(), 10, "the burst is left to others");
}

#[test]
fn shadows_that_are_never_answered_keep_no_hedge_away() {
    let mut view = View::new(EngineSettings::default());
    (0..100).for_each(|_| view.engine.copy_sent(NodeId(1), CopyKind::Shadow));
    assert_eq!(view.engine.extras_out(), 0);
    let mut tie_id = || TieId(7);
    let mut host = view.engine.host(ReadPolicy::HEDGED.into(), &WAYS, &mut tie_id, &mut view.rng);
    assert!(host.token(CopyKind::Hedge, Moment::ZERO));
    assert!(!view.engine.sample_token(NodeId(1), Moment::ZERO), "many are out to it");
    assert!(view.engine.sample_token(NodeId(2), Moment::ZERO));
}

#[test]
fn a_refusal_and_a_page_end_the_silence_of_a_replica() {
    type Speak = fn(&mut Engine, Moment);
    let refuse: Speak = |engine, now| {
        let refused = Service { started: false, ..service(1, 0) };
        engine.answered(MS, &refused, Some(ErrorCode::Busy), now);
    };
    let page: Speak = |engine, now| engine.page_answered(&service(1, 0), now);
    for (speak, found) in [(None, true), (Some(refuse), false), (Some(page), false)] {
        let mut engine = View::new(EngineSettings::default()).engine;
        for step in 0..300 {
            let now = Moment::ZERO + MS * 10 * step;
            engine.answered(MS, &service(2, 0), None, now);
            if let Some(speak) = speak.filter(|_| step == 150) {
                speak(&mut engine, now);
            }
            engine.probation.silent(NodeId(1), MS, now);
        }
        assert_eq!(engine.probation.on_probation() == 1, found);
    }
}

#[test]
fn a_replica_that_lets_untied_reads_run_into_their_deadline_goes_on_probation() {
    let mut view = View::new(EngineSettings { gate: None, ..EngineSettings::default() });
    let policy = ReadPolicy::UNTIED;
    let mut missed = 0;
    for _ in 0..200 {
        let decision = view.decide(policy, &[]);
        let first = decision.plan.order[0];
        if first != NodeId(1) {
            view.engine.answered(MS * 5, &service(first.0, 0), None, view.now);
            continue;
        }
        let mut race = Race::new(decision.plan.clone());
        let mut actions = Actions::new();
        let mut tie_id = || TieId(7);
        let mut host = view.engine.host(policy.into(), &WAYS, &mut tie_id, &mut view.rng);
        race.on_event(Event::Begin, view.now, &mut host, &mut actions);
        // Others are answered meanwhile.
        let (begun, deadline) = (view.now, decision.plan.deadline);
        for node in [2, 3] {
            view.engine.answered(MS * 5, &service(node, 0), None, begun + MS * 500);
        }
        let mut host = view.engine.host(policy.into(), &WAYS, &mut tie_id, &mut view.rng);
        race.on_event(Event::Timer(crate::copies::Timer::Deadline), deadline, &mut host, &mut actions);
        view.now = deadline;
        let ended = Ended::of(&race, &decision);
        view.engine.read_ended(policy.into(), &ended, deadline.since(begun), None, deadline);
        missed += 1;
    }
    assert!(view.engine.probation.avoid(NodeId(1), view.now));
    assert!(missed < 20, "{missed}: then it is asked last");
}

//! Worked examples of the policies: exact times in the pure rooms, and the same once over real QUIC.

use crate::control::Switch;
use crate::copies::{Action, Actions, Answer, CopyIndex, Event, Outcome};
use crate::engine::{Engine, EngineSettings, Replica, Ways};
use crate::fake_node::{Deed, FakeCluster};
use crate::options::{Level, ReadOptions};
use crate::policy::ReadPolicy;
use crate::race::Race;
use crate::test_support::{connect_with as connect, run, stale as options, until};
use crate::{CopyFate, Operation};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;

const MS: Duration = Duration::from_millis(1);

struct Near;

impl Ways for Near {
    fn tie_delay(&self, _: NodeId) -> Duration {
        MS
    }
    fn one_way(&self, _: NodeId) -> Option<Duration> {
        Some(MS / 2)
    }
}

/// What one read came to: when, won by which copy, copies sent, copies withdrawn.
type Played = (Duration, u16, usize, usize);

/// Plays one read whose copies take these times, in order of sending; a hedge goes out at `hedge_at`.
fn play(policy: ReadPolicy, hedge_at: Duration, takes: &[Duration]) -> Played {
    let mut settings = EngineSettings::default();
    settings.latency.hedge_fixed = Some(hedge_at);
    settings.latency.rescue_fixed = Some(hedge_at);
    let mut engine = Engine::new(settings, Moment::ZERO);
    let nodes = [NodeId(1), NodeId(2), NodeId(3)];
    engine.members(&nodes);
    let replicas = nodes.map(|node| Replica { node, zone: "", down: false });
    let mut rng = StdRng::seed_from_u64(1);
    let deadline = Moment::ZERO + MS * 5_000;
    let decision = engine.decide(policy.into(), deadline, &replicas, &Near, Moment::ZERO, &mut rng);
    let mut race = Race::new(decision.plan);
    let mut answers: Vec<(Moment, CopyIndex)> = Vec::new();
    let (mut now, mut withdrawn, mut event) = (Moment::ZERO, 0, Event::Begin);
    loop {
        let mut actions = Actions::new();
        let mut tie_id = || TieId(7);
        let mut host = engine.host(policy.into(), &Near, &mut tie_id, &mut rng);
        race.on_event(event, now, &mut host, &mut actions);
        for action in actions {
            match action {
                Action::Send(send) => answers.push((now + takes[usize::from(send.copy.0)], send.copy)),
                Action::Withdraw(copies) => withdrawn += copies.len(),
                Action::Arm { .. } | Action::Finish(_) => {}
            }
        }
        if let Some(outcome) = race.outcome() {
            let Outcome::Won(copy) = outcome else { panic!("{outcome:?}") };
            return (now.since(Moment::ZERO), copy.0, race.copies().len(), withdrawn);
        }
        answers.sort();
        let (timer, due) = race.next_due().unwrap();
        (now, event) = match answers.first().copied() {
            Some((at, copy)) if at <= due => {
                answers.remove(0);
                (at, Event::Answer { copy, answer: Answer::Good })
            }
            _ => (due, Event::Timer(timer)),
        };
    }
}

#[test]
fn a_backup_of_24_ms_at_30_ms_makes_54_of_180() {
    assert_eq!(play(ReadPolicy::UNTIED, MS * 30, &[MS * 180]), (MS * 180, 0, 1, 0));
    assert_eq!(play(ReadPolicy::HEDGED, MS * 30, &[MS * 180, MS * 24]), (MS * 54, 1, 2, 1));
    assert_eq!(play(ReadPolicy::HEDGED, MS * 30, &[MS * 20]), (MS * 20, 0, 1, 0), "in time: no second copy");
}

#[test]
fn a_stalled_replica_costs_the_delay_and_the_other_answer() {
    assert_eq!(play(ReadPolicy::HEDGED, MS * 50, &[MS * 1_000, MS * 12]), (MS * 62, 1, 2, 1));
    // A rescue does the same for a tie whose winner stalls.
    let rescued = play(ReadPolicy::TIED2.with_rescue(), MS * 50, &[MS * 1_000, MS * 2_000, MS * 12]);
    assert_eq!(rescued, (MS * 62, 2, 3, 2));
}

#[test]
fn of_500_and_20_ms_the_second_wins_and_the_first_is_withdrawn() {
    assert_eq!(play(ReadPolicy::HEDGED, MS * 50, &[MS * 500, MS * 20]), (MS * 70, 1, 2, 1));
}

#[test]
#[cfg(feature = "bench-policies")]
fn what_only_measures_withdraws_nothing_and_sends_at_once() {
    assert_eq!(play(ReadPolicy::DUPLICATE, MS * 50, &[MS * 500, MS * 20]), (MS * 20, 1, 2, 0));
    assert_eq!(play(ReadPolicy::HEDGED_UNBUDGETED, MS * 50, &[MS * 500, MS * 20]), (MS * 70, 1, 2, 0));
}

#[test]
fn the_example_of_500_and_20_ms_over_quic() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match request.kind {
            CopyKind::Hedge => Deed::Answer(MS * 20),
            _ => Deed::Answer(MS * 500),
        });
        let client = connect(&cluster, |config| {
            config.policy = ReadPolicy::HEDGED;
            config.engine.latency.hedge_fixed = Some(MS * 50);
        })
        .await;
        // Other tests share the machine: the fastest of some tries counts.
        let mut fastest = Duration::MAX;
        for _ in 0..4 {
            let report = client.get_with("k", options(ReadPolicy::HEDGED)).await.unwrap().report;
            assert_eq!((report.kind, report.copies.len()), (CopyKind::Hedge, 2));
            assert_eq!((&report.copies[0].fate, &report.copies[1].fate), (&CopyFate::Unanswered, &CopyFate::Won));
            fastest = fastest.min(report.latency);
        }
        assert!(fastest >= MS * 70 && fastest < MS * 90, "{fastest:?}");
        until("the withdraws arrive", || cluster.withdrawn() == 4).await;
        let stats = client.stats();
        let hedged = stats.of(Operation::Get, ReadPolicy::HEDGED).unwrap();
        assert_eq!((hedged.extra_rate(), hedged.extra_win_rate()), (1.0, 1.0));
        assert!(hedged.extra_path.quantile(0.5).unwrap() < MS * 60, "its own way, not the read's");
    });
}

#[test]
fn a_delay_is_too_long_as_long_as_a_view_that_lives_says_so() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match request.kind {
            CopyKind::First => Deed::Answer(MS * 200),
            _ => Deed::Answer(Duration::ZERO),
        });
        let client = connect(&cluster, |config| {
            config.policy = ReadPolicy::HEDGED;
            config.engine.latency.hedge_fixed = Some(MS);
            config.engine.budget.ratio = 1.0;
        })
        .await;
        let too_long =
            || client.stats().of(Operation::Get, ReadPolicy::HEDGED).is_some_and(|stats| stats.delay_too_long);
        let (one, other) = (client.view(1), client.view(2));
        for _ in 0..80 {
            one.get_with("k", options(ReadPolicy::HEDGED)).await.unwrap();
        }
        assert!(too_long(), "the hedges of one view always win");
        other.get_with("k", options(ReadPolicy::HEDGED)).await.unwrap();
        assert!(too_long(), "another view that knows nothing does not take it back");
        drop(one);
        until("nobody says so any more", || !too_long()).await;
    });
}

#[test]
fn an_observed_client_sends_nothing_extra_counts_and_predicts_and_compares_samples() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        // By turns, not by the number of the read, which is random: of 120 draws one in fifty is too few for a p95.
        let turns = AtomicUsize::new(0);
        cluster.script(move |_, request| match request.kind {
            CopyKind::First if turns.fetch_add(1, Relaxed).is_multiple_of(10) => Deed::Answer(MS * 60),
            _ => Deed::Answer(MS * 5),
        });
        let client = connect(&cluster, |config| {
            config.tie_delay_floor = MS * 10;
            config.tie_delay_cap = MS * 10;
        })
        .await;
        client.policy().set(Switch { sample: 1.0, ..Switch::OBSERVE }).unwrap();
        for _ in 0..120 {
            let report = client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap().report;
            assert_eq!((report.copies.len(), report.not_tied), (1, Some(crate::gate::NotTied::Observing)));
        }
        until("the samples are compared", || client.stats().outstanding.total() == 0).await;
        let stats = client.stats();
        let observed = stats.of(Operation::Get, ReadPolicy::TIED2).unwrap();
        let late = 120 / 10;
        let unsent = observed.unsent.of(CopyKind::Tied) as usize;
        assert!(unsent >= late && unsent < 120, "{unsent} of {late} late ones");
        assert_eq!(observed.unsent_after.quantile(0.5).map(|after| after >= MS * 10), Some(true));
        assert_eq!((observed.with.count(), observed.without.count()), (0, 120));
        // One in ten is late, and both of two are with one in a hundred: p95 is spared.
        let gain = observed.predicted_gain(0.95).unwrap();
        assert!(gain > MS * 5, "{gain:?}");
        let shadows = cluster.reads().iter().filter(|(_, read)| read.kind == CopyKind::Shadow).count() as u64;
        assert!(
            shadows >= 8.min(late as u64) && observed.samples == shadows,
            "{} of {shadows}: the budget holds",
            observed.samples
        );
        assert!(shadows <= 10 + 6 + 1 && observed.samples_stale == 0);
        assert!(stats.balanced());
    });
}

#[test]
fn a_replica_that_contradicts_is_found_by_samples() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, _| Deed::Answer(MS * 15));
        // Version 1 of the key at a position that is later on one node without the value there.
        cluster.nodes[0].state.lock().values.insert("k".into(), "v".into());
        let client = connect(&cluster, |config| {
            config.tie_delay_floor = MS;
            config.tie_delay_cap = MS;
        })
        .await;
        client.policy().set(Switch { sample: 1.0, ..Switch::OBSERVE }).unwrap();
        for _ in 0..12 {
            client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
        }
        until("the samples are compared", || client.stats().outstanding.total() == 0).await;
        let stats = client.stats();
        let observed = stats.of(Operation::Get, ReadPolicy::TIED2).unwrap();
        assert!(observed.samples_stale > 0 && observed.samples > observed.samples_stale, "{observed:?}");
    });
}

#[test]
fn a_watched_file_switches_a_live_client_within_a_second_and_calls_under_way_too() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        cluster.script(|_, request| match request.kind {
            CopyKind::First => Deed::Silence,
            _ => Deed::Answer(MS),
        });
        let file = cluster.folder.path().join("switches");
        let client = connect(&cluster, |config| {
            config.tied_file = Some(file.clone());
            config.engine.latency.rescue_fixed = Some(MS * 1_500);
        })
        .await;
        let control = client.policy();
        client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
        // Under way when the switch is turned: its rescue is suppressed, the deadline ends it.
        let running = ReadOptions { deadline: Some(MS * 2_500), ..options(ReadPolicy::UNTIED.with_rescue()) };
        let under_way = client.get_with("k", running);
        let turned = async {
            std::fs::write(&file, "mode = off\n").unwrap();
            let began = crate::clock::now();
            until("the file is read", || control.in_force(Operation::Get) == Switch::OFF).await;
            let took = crate::clock::now().since(began);
            assert!(took < MS * 1_000, "{took:?}");
            let options = ReadOptions { deadline: Some(MS * 50), ..options(ReadPolicy::TIED2) };
            assert_eq!(client.get_with("k", options).await.unwrap_err().copies().len(), 1);
        };
        let (ended, ()) = tokio::join!(under_way, turned);
        assert_eq!(ended.unwrap_err().copies().len(), 1, "no rescue after the switch");
        assert!(client.stats().suppressed[crate::engine_host::Suppressed::SwitchedOff as usize] > 0);
        // What is wrong leaves in force what held; what is gone says nothing.
        std::fs::write(&file, "mode = of\n").unwrap();
        tokio::time::sleep(MS * 600).await;
        assert_eq!(control.in_force(Operation::Get), Switch::OFF);
        std::fs::remove_file(&file).unwrap();
        until("the file is gone", || control.in_force(Operation::Get) == Switch::ON).await;
        client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap();
    });
}

#[test]
fn by_default_a_read_is_judged_and_one_that_names_its_policy_is_not() {
    run(async {
        let cluster = FakeCluster::start(3).await;
        let client = connect(&cluster, |_| {}).await;
        let stale = ReadOptions { level: Some(Level::Stale { bound: None }), ..ReadOptions::default() };
        let mut last = None;
        for _ in 0..80 {
            last = client.get_with("k", stale.clone()).await.unwrap().report.not_tied;
        }
        // Nothing waits here: tying does not pay.
        assert_eq!(last, Some(crate::gate::NotTied::LittleWait));
        let stats = client.stats();
        let judged = stats.of(Operation::Get, ReadPolicy::default()).unwrap();
        let held_out = judged.not_tied[crate::gate::NotTied::HoldOut as usize];
        let cut = judged.not_tied.iter().sum::<u64>() - held_out;
        assert!(cut > 0 && judged.cut.count() == cut, "{cut} went untied, {} are apart", judged.cut.count());
        let (with, without) = (judged.with.count(), judged.without.count());
        assert_eq!(with + without + cut, 80, "{with} with, {without} without");
        let report = client.get_with("k", options(ReadPolicy::TIED2)).await.unwrap().report;
        assert_eq!(report.not_tied, None);
        let asked = ReadOptions { gate: Some(true), ..options(ReadPolicy::TIED2) };
        assert!(client.get_with("k", asked).await.unwrap().report.not_tied.is_some());
    });
}

#[test]
#[ignore = "long: a million reads over real QUIC"]
fn a_million_cancelled_reads_leave_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = FakeCluster::start(3).await;
        // A node answers every shadow copy: nobody withdraws one.
        cluster.script(|_, request| match (request.kind, request.read.0 % 3) {
            (CopyKind::Shadow, _) | (_, 2) => Deed::Answer(Duration::ZERO),
            (_, 0) => Deed::Answer(MS),
            _ => Deed::Silence,
        });
        let client = connect(&cluster, |_| {}).await;
        let views: Vec<crate::View> = (0..16).map(|seed| client.view(seed)).collect();
        for round in 0..500_u64 {
            let mut reads = tokio::task::JoinSet::new();
            for number in 0..2_000_u64 {
                let view = views[(number % 16) as usize].clone();
                let wait = Duration::from_micros((round * 31 + number) % 3_000);
                reads.spawn(async move {
                    let read = view.get_with("k", options(ReadPolicy::TIED2.with_rescue()));
                    drop(tokio::time::timeout(wait, read).await);
                });
            }
            while reads.join_next().await.is_some() {}
            cluster.nodes.iter().for_each(|node| node.state.lock().reads.clear());
        }
        until("the shadows are answered", || client.stats().outstanding.total() == 0).await;
        let stats = client.stats();
        assert_eq!((stats.reads, stats.outstanding.total()), (1_000_000, 0));
        assert!(stats.reads_dropped > 300_000 && stats.balanced(), "{stats:?}");
        let connections = client.view.shared().connections();
        assert_eq!(
            connections.table().peers.iter().filter_map(|peer| peer.link()).map(|link| link.owed()).sum::<usize>(),
            0
        );
        for view in &views {
            assert_eq!(view.extras_out(), 0);
        }
    });
}

//! Random walks of a race over all events: whatever happens, its rules hold.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Walk {
    Answer(u16, u8),
    Lost(u64),
    Silent(u64),
    Fire(usize),
    Drop,
}

fn walk() -> impl Strategy<Value = Walk> {
    prop_oneof![
        8 => (0_u16..12, 1_u8..40).prop_map(|(copy, what)| Walk::Answer(copy, what)),
        2 => (1_u64..6).prop_map(Walk::Lost),
        2 => (1_u64..6).prop_map(Walk::Silent),
        8 => (0_usize..4).prop_map(Walk::Fire),
        1 => (0_u8..30).prop_map(|n| if n == 0 { Walk::Drop } else { Walk::Fire(0) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_the_rules_hold(
        replicas in 1_u64..6,
        width in 1_u8..4,
        extras in prop_oneof![Just(""), Just("hedge"), Just("rescue"), Just("hedge rescue")],
        tokens in 0_u32..6,
        steps in prop::collection::vec(walk(), 0..60),
    ) {
        let order: Vec<NodeId> = (1..=replicas).map(NodeId).collect();
        let mut drive = Drive::new(&order, width, extras, tokens);
        let mut finishes = 0;
        let mut ids = std::collections::BTreeSet::new();
        let mut failed = std::collections::BTreeSet::new();
        drive.event(Event::Begin);
        for step in std::iter::once(None).chain(steps.into_iter().map(Some)) {
            match step {
                None => {}
                Some(Walk::Answer(copy, what)) => {
                    let Some(sent) = drive.race.copies().get(usize::from(copy)).copied() else { continue };
                    match what {
                        1 => drive.answer(copy, Answer::Good),
                        2 => drive.answer(copy, Answer::FixTheCall { code: ErrorCode::BadTie }),
                        15 => drive.answer(copy, unknown_members()),
                        3..15 => {
                            if !sent.end.is_answer() && drive.race.outcome().is_none() {
                                failed.insert(sent.replica);
                            }
                            drive.fail(copy)
                        }
                        _ => drive.refuse(copy),
                    };
                }
                Some(Walk::Lost(node)) => { drive.event(Event::LinkLost { replica: NodeId(node) }); }
                Some(Walk::Silent(node)) => { drive.event(Event::LinkSilent { replica: NodeId(node) }); }
                Some(Walk::Fire(index)) => {
                    if drive.race.armed(Timer::ALL[index]).is_some() { drive.fire(Timer::ALL[index]); } else { continue }
                }
                Some(Walk::Drop) => { drive.event(Event::Dropped); }
            }
            let race = &drive.race;
            finishes += drive.actions.iter().filter(|action| matches!(action, Action::Finish(_))).count();
            prop_assert_eq!(finishes, usize::from(race.outcome().is_some()), "one outcome (P1)");
            for action in &drive.actions {
                let Action::Send(send) = action else { continue };
                prop_assert!(!failed.contains(&send.replica), "a failed replica is not asked again");
                let Some(tie) = &send.tie else { continue };
                prop_assert!(tie.check().is_ok() && tie.width > 1, "{:?}", tie);
                prop_assert_eq!(tie.holder(), Some(send.replica));
                prop_assert!(ids.insert((tie.id, tie.number)), "an id and number is sent once (R5)");
            }
            drive.actions.clear();
            if race.outcome().is_none() {
                prop_assert!(race.armed(Timer::Deadline).is_some());
                let out = race.copies().iter().filter(|copy| copy.end == End::Out).count();
                prop_assert!(out <= READ_COPIES_OUT_MAX + race.fresh_ties(), "{out} out");
                prop_assert!(
                    race.any_unsuspected_lives() || race.armed(Timer::Backoff).is_some(),
                    "somebody can be counted on, or a rule is pending (R3, R7)"
                );
            } else {
                prop_assert_eq!(race.next_due(), None);
            }
        }
        let spent = tokens - drive.host.tokens;
        let paid = drive.race.copies().iter().filter(|copy| copy.tie.is_none()).count();
        prop_assert!(paid <= spent as usize, "every extra copy was paid for");
    }
}

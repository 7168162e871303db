//! What is kept, what is forgotten, and that replicas agree.

use super::*;
use crate::raft::types::{Change, digest};
use bytes::Bytes;
use proptest::prelude::*;

fn command(sequence: u64, value: u8, stamp_ms: u64, floor: u64) -> Command {
    let change = Change::Put { key: Bytes::from_static(b"k"), value: Bytes::from(vec![value]) };
    let key = WriteKey { caller: CallerId(1), client: ClientId(u128::from(sequence % 3)), sequence };
    Command { stamp_ms, key, floor: Position(floor), digest: digest(&change), change }
}

/// Nothing is persisted.
fn nowhere(_: &WriteKey, _: RangeInclusive<u64>) -> Result<Option<(Position, Record)>, ErrorCode> {
    Ok(None)
}

/// Decides, and keeps what is new as applied.
fn decide(outcomes: &mut Outcomes, position: Position, command: &Command) -> Verdict {
    decide_beside(outcomes, &[], position, command)
}

/// As [`decide`], with records that are persisted, in order of position.
fn decide_beside(
    outcomes: &mut Outcomes,
    records: &[(Position, Record)],
    position: Position,
    command: &Command,
) -> Verdict {
    let look = |key: &WriteKey, within: RangeInclusive<u64>| {
        assert!(within.clone().count() as u64 <= PLACE_LEN, "{within:?}");
        let lies = |record: &&(Position, Record)| within.contains(&record.0.0) && record.1.key == *key;
        Ok::<_, ErrorCode>(records.iter().find(lies).copied())
    };
    let verdict = outcomes.decide(command, look).unwrap();
    if let Verdict::Apply(record) = verdict {
        outcomes.keep(position, &record);
    }
    verdict
}

#[test]
fn a_repeat_that_comes_late_is_answered_from_its_record_and_memory_does_not_grow() {
    let mut outcomes = Outcomes::new(OutcomeLimits::default(), Position(0));
    let mut records: Vec<(Position, Record)> = Vec::new();
    let all = 4 * RECENT as u64;
    for number in 1..=all {
        // Pairs come in the wrong order.
        let sequence = number ^ 1;
        let verdict =
            decide_beside(&mut outcomes, &records, Position(number), &command(sequence, 1, 10, number - 1));
        let Verdict::Apply(record) = verdict else { panic!("{sequence} is new: {verdict:?}") };
        records.push((Position(number), record));
    }
    let in_memory: usize = outcomes.clients.values().map(|client| client.recent.len()).sum();
    let places: usize = outcomes.clients.values().flat_map(|client| client.older.values().map(SmallVec::len)).sum();
    assert_eq!((in_memory, outcomes.recent.len(), outcomes.len()), (RECENT, RECENT, all));
    assert!(places as u64 <= all / PLACE_LEN * 6, "{places} places of {all}");
    for sequence in [3, 700, all / 2, all - RECENT as u64, all - 5] {
        let position = sequence ^ 1;
        let again = command(sequence, 1, 20, 0);
        let verdict = decide_beside(&mut outcomes, &records, Position(all + 1), &again);
        assert_eq!(verdict, Verdict::Repeat(Repeat::Applied(Version(position))), "{sequence}");
        let other = decide_beside(&mut outcomes, &records, Position(all + 1), &command(sequence, 2, 20, 0));
        assert_eq!(other, Verdict::Refuse(ErrorCode::KeyReused), "{sequence}");
    }
    let failed = outcomes.decide(&command(3, 1, 20, 0), |_, _| Err(ErrorCode::Storage));
    assert_eq!(failed, Err(ErrorCode::Storage), "the disk's error is no new write");
}

#[test]
fn a_repeat_is_answered_another_body_refused() {
    let mut outcomes = Outcomes::new(OutcomeLimits::default(), Position(0));
    assert!(matches!(decide(&mut outcomes, Position(5), &command(1, 1, 10, 0)), Verdict::Apply(_)));
    let again = decide(&mut outcomes, Position(6), &command(1, 1, 11, 0));
    assert_eq!(again, Verdict::Repeat(Repeat::Applied(Version(5))));
    let other = decide(&mut outcomes, Position(7), &command(1, 2, 12, 0));
    assert_eq!(other, Verdict::Refuse(ErrorCode::KeyReused));
}

#[test]
fn keys_older_than_what_is_kept_are_expired_and_newer_ones_are_not() {
    let limits = OutcomeLimits { count_max: 2_000, age_max_ms: u64::MAX };
    let mut outcomes = Outcomes::new(limits, Position(0));
    for number in 1..=10_000 {
        assert!(matches!(
            decide(&mut outcomes, Position(number), &command(number, 1, 5, number - 1)),
            Verdict::Apply(_)
        ));
    }
    assert!(outcomes.len() <= 2_000 + u64::from(RUN_LEN));
    let forgotten = outcomes.forgotten();
    assert!(forgotten.0 >= 7_000);
    let expired = Verdict::Refuse(ErrorCode::KeyExpired);
    assert_eq!(decide(&mut outcomes, Position(10_001), &command(1, 1, 5, 0)), expired);
    assert_eq!(decide(&mut outcomes, Position(10_002), &command(20_000, 1, 5, forgotten.0 - 1)), expired);
    assert!(matches!(
        decide(&mut outcomes, Position(10_003), &command(20_000, 1, 5, forgotten.0)),
        Verdict::Apply(_)
    ));
    let kept = decide(&mut outcomes, Position(10_004), &command(9_999, 1, 5, 0));
    assert_eq!(kept, Verdict::Repeat(Repeat::Applied(Version(9_999))));
}

#[test]
fn outcomes_age_by_log_time_alone() {
    let limits = OutcomeLimits { count_max: 1_000, age_max_ms: 600_000 };
    let mut outcomes = Outcomes::new(limits, Position(0));
    decide(&mut outcomes, Position(1), &command(1, 1, 1_000, 0));
    let at_the_edge = decide(&mut outcomes, Position(2), &command(1, 1, 601_000, 0));
    assert_eq!(at_the_edge, Verdict::Repeat(Repeat::Applied(Version(1))));
    let later = decide(&mut outcomes, Position(3), &command(1, 1, 601_001, 0));
    assert_eq!(later, Verdict::Refuse(ErrorCode::KeyExpired));
}

#[test]
fn a_refusal_by_the_state_is_kept_and_comes_back_from_its_record() {
    let mut outcomes = Outcomes::new(OutcomeLimits::default(), Position(0));
    let Ok(Verdict::Apply(mut record)) = outcomes.decide(&command(1, 1, 10, 0), nowhere) else { panic!("not new") };
    record.code = ErrorCode::ConditionFailed as u16;
    outcomes.keep(Position(5), &record);
    let refused = Verdict::Repeat(Repeat::Refused(ErrorCode::ConditionFailed));
    assert_eq!(outcomes.decide(&command(1, 1, 11, 0), nowhere), Ok(refused));
    let mut restored = Outcomes::new(OutcomeLimits::default(), Position(0));
    restored.restore(Position(5), &Record::decode(&record.encode()).unwrap());
    assert_eq!(restored.decide(&command(1, 1, 11, 0), nowhere), Ok(refused));
}

#[test]
fn bytes_of_a_record_are_golden() {
    let record = Record {
        key: WriteKey { caller: CallerId(0x0102), client: ClientId(0x0304), sequence: 5 },
        digest: 6,
        stamp_ms: 7,
        code: 8,
    };
    let bytes = record.encode();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "01020100000000000000000000000000000403000000000000000000000000000005000000000000000600000000000000\
         07000000000000000800"
    );
    assert_eq!(Record::decode(&bytes), Some(record));
    assert_eq!(Record::decode(&bytes[1..]), None);
    let mut newer = bytes;
    newer[0] = 2;
    assert_eq!(Record::decode(&newer), None);
}

proptest! {
    /// A replica that restarted or was filled from a snapshot at any moment decides as one that never stopped, and as
    /// one that keeps everything in memory.
    #[test]
    fn replicas_agree_whenever_one_restarts(
        steps in prop::collection::vec((0u64..40, 0u8..2, 0u64..4_000, 0u64..400), 1..300),
        restart in 0usize..300,
    ) {
        let limits = OutcomeLimits { count_max: 20, age_max_ms: 60_000 };
        let small = |forgotten| Outcomes { recent_max: 3, ..Outcomes::new(limits, forgotten) };
        let mut whole = Outcomes::new(limits, Position(0));
        let (mut steady, mut moved) = (small(Position(0)), small(Position(0)));
        let mut records = Vec::new();
        let mut stamp = 0;
        for (index, (sequence, value, pause, behind)) in steps.into_iter().enumerate() {
            stamp += pause;
            let position = Position(index as u64 + 1);
            let command = command(sequence, value, stamp, position.0.saturating_sub(behind));
            if index == restart {
                moved = small(moved.forgotten());
                for (position, record) in &records {
                    moved.restore(*position, record);
                }
            }
            let verdict = decide(&mut whole, position, &command);
            prop_assert_eq!(decide_beside(&mut steady, &records, position, &command), verdict);
            prop_assert_eq!(decide_beside(&mut moved, &records, position, &command), verdict);
            prop_assert_eq!(moved.forgotten(), steady.forgotten());
            prop_assert_eq!(moved.len(), steady.len());
            if let Verdict::Apply(record) = verdict {
                records.push((position, record));
            }
        }
    }
}

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

/// Decides, and keeps what is new as applied.
fn decide(outcomes: &mut Outcomes, position: Position, command: &Command) -> Verdict {
    let verdict = outcomes.decide(command);
    if let Verdict::Apply(record) = verdict {
        outcomes.keep(position, &record);
    }
    verdict
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
    let Verdict::Apply(mut record) = outcomes.decide(&command(1, 1, 10, 0)) else { panic!("not new") };
    record.code = ErrorCode::ConditionFailed as u16;
    outcomes.keep(Position(5), &record);
    let refused = Verdict::Repeat(Repeat::Refused(ErrorCode::ConditionFailed));
    assert_eq!(outcomes.decide(&command(1, 1, 11, 0)), refused);
    let mut restored = Outcomes::new(OutcomeLimits::default(), Position(0));
    restored.restore(Position(5), &Record::decode(&record.encode()).unwrap());
    assert_eq!(restored.decide(&command(1, 1, 11, 0)), refused);
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
    /// A replica that restarted or was filled from a snapshot at any moment decides as one that never stopped.
    #[test]
    fn replicas_agree_whenever_one_restarts(
        steps in prop::collection::vec((0u64..40, 0u8..2, 0u64..4_000, 0u64..400), 1..300),
        restart in 0usize..300,
    ) {
        let limits = OutcomeLimits { count_max: 20, age_max_ms: 60_000 };
        let mut steady = Outcomes::new(limits, Position(0));
        let mut moved = Outcomes::new(limits, Position(0));
        let mut records = Vec::new();
        let mut stamp = 0;
        for (index, (sequence, value, pause, behind)) in steps.into_iter().enumerate() {
            stamp += pause;
            let position = Position(index as u64 + 1);
            let command = command(sequence, value, stamp, position.0.saturating_sub(behind));
            if index == restart {
                moved = Outcomes::new(limits, moved.forgotten());
                for (position, record) in &records {
                    moved.restore(*position, record);
                }
            }
            let verdict = decide(&mut steady, position, &command);
            prop_assert_eq!(decide(&mut moved, position, &command), verdict);
            prop_assert_eq!(moved.forgotten(), steady.forgotten());
            prop_assert_eq!(moved.len(), steady.len());
            if let Verdict::Apply(record) = verdict {
                records.push((position, record));
            }
        }
    }
}

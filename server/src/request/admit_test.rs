//! Admission: every bound is reached once, and every wrong tie is named.

use super::*;
use bytes::Bytes;
use smallvec::smallvec;
use tiedkv_protocol::ids::{Position, ReadId, SHARD_ZERO, TieId};
use tiedkv_protocol::limits::KEY_BYTES_MAX;
use tiedkv_protocol::request::Class;
use tiedkv_protocol::tie::{CopyNumber, Members};

const MEMBERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn rules() -> Rules<'static> {
    Rules { node: NodeId(2), shard: SHARD_ZERO, members: &MEMBERS, time_left_max: Duration::from_secs(60) }
}

fn tie(number: u8, members: Members) -> Tie {
    Tie { id: TieId(7), number: CopyNumber(number), width: members.len() as u8, members }
}

fn request(tie: Option<Tie>) -> ReadRequest {
    ReadRequest {
        request: RequestId(1),
        shard: SHARD_ZERO,
        read: ReadId(1),
        kind: CopyKind::First,
        tie,
        level: ReadLevel::Session { seen: Position(0) },
        class: Class::Interactive,
        time_left_us: 1_000,
        operation: ReadOperation::Get { key: Bytes::from_static(b"key") },
    }
}

fn tie_answer(tie: Tie) -> String {
    let failure = check(&request(Some(tie)), &rules()).expect_err("a wrong tie");
    assert_eq!(failure.code, ErrorCode::BadTie);
    failure.message
}

#[test]
fn a_good_copy_gets_its_time_cut_to_the_bound() {
    let mut copy = request(Some(tie(1, smallvec![NodeId(1), NodeId(2), NodeId(3)])));
    assert_eq!(check(&copy, &rules()), Ok(Duration::from_millis(1)));
    copy.time_left_us = u64::MAX;
    assert_eq!(check(&copy, &rules()), Ok(Duration::from_secs(60)));
    copy.time_left_us = 0;
    assert_eq!(check(&copy, &rules()).map_err(|f| f.code), Err(ErrorCode::Expired));
}

#[test]
fn wrong_ties_are_named() {
    let four = smallvec![NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
    assert!(tie_answer(tie(1, four)).contains("1 to 3 members, this one names 4"));
    assert!(tie_answer(tie(1, smallvec![NodeId(1), NodeId(2), NodeId(1)])).contains("names n1 twice"));
    assert!(tie_answer(tie(1, smallvec![NodeId(1), NodeId(2), NodeId(9)])).contains("n9, which is no member"));
    // Its own number names another node: the copy went astray, or names this node as a peer of itself.
    assert!(tie_answer(tie(0, smallvec![NodeId(1), NodeId(2)])).contains("meant for n1, it arrived at n2"));
    assert!(tie_answer(tie(2, smallvec![NodeId(1), NodeId(2)])).contains("copy number 2"));
    let mut rescue = request(Some(tie(1, smallvec![NodeId(1), NodeId(2)])));
    rescue.kind = CopyKind::Rescue;
    assert_eq!(check(&rescue, &rules()).map_err(|f| f.code), Err(ErrorCode::BadTie));
}

#[test]
fn keys_levels_and_shards_out_of_bounds_are_typed() {
    let code = |change: &dyn Fn(&mut ReadRequest)| {
        let mut copy = request(None);
        change(&mut copy);
        check(&copy, &rules()).map_err(|failure| failure.code)
    };
    let key = |bytes: usize| ReadOperation::Get { key: Bytes::from(vec![b'k'; bytes]) };
    assert_eq!(code(&|copy| copy.operation = key(0)), Err(ErrorCode::OverLimit));
    assert_eq!(code(&|copy| copy.operation = key(KEY_BYTES_MAX + 1)), Err(ErrorCode::OverLimit));
    assert!(code(&|copy| copy.operation = key(KEY_BYTES_MAX)).is_ok());
    assert_eq!(code(&|copy| copy.shard = ShardId(1)), Err(ErrorCode::NoShard));
    assert!(code(&|copy| copy.level = ReadLevel::Stale { bound_us: Some(5) }).is_ok());
    assert_eq!(code(&|copy| copy.level = ReadLevel::Stale { bound_us: Some(u64::MAX) }), Err(ErrorCode::OverLimit));
    assert!(code(&|copy| copy.level = ReadLevel::Stale { bound_us: None }).is_ok());
}

fn desk(caller: u32, connection: u32, rate: u32) -> Desk<u64> {
    Desk::new(Caps { caller_in_flight_max: caller, connection_in_flight_max: connection, caller_rate_max: rate })
}

fn enter(desk: &mut Desk<u64>, now: Moment, caller: u128, connection: u64, request: u64) -> Result<(), NotIn> {
    desk.enter(now, CallerId(caller), connection, RequestId(request), request)
}

#[test]
fn caps_in_flight_count_per_caller_and_per_connection() {
    let (mut desk, now) = (desk(3, 2, 0), Moment::ZERO);
    assert_eq!(enter(&mut desk, now, 1, 10, 1), Ok(()));
    assert_eq!(enter(&mut desk, now, 1, 10, 1), Err(NotIn::SameRequest));
    assert_eq!(enter(&mut desk, now, 1, 10, 2), Ok(()));
    assert_eq!(enter(&mut desk, now, 1, 10, 3), Err(NotIn::ConnectionFull(2)));
    assert_eq!(enter(&mut desk, now, 1, 11, 1), Ok(()));
    assert_eq!(enter(&mut desk, now, 1, 12, 1), Err(NotIn::CallerFull(3)));
    assert_eq!(enter(&mut desk, now, 2, 20, 1), Ok(()));
    assert_eq!(desk.leave(10, RequestId(1)), Some(1));
    assert_eq!(desk.leave(10, RequestId(1)), None);
    assert_eq!(enter(&mut desk, now, 1, 12, 1), Ok(()));
    assert_eq!(desk.in_flight(), 4);
}

#[test]
fn a_lost_connection_takes_its_copies_and_its_account_along() {
    let (mut desk, now) = (desk(3, 3, 0), Moment::ZERO);
    (1..=3).for_each(|request| assert_eq!(enter(&mut desk, now, 1, 10, request), Ok(())));
    let mut gone = desk.hang_up(10);
    gone.sort_unstable();
    assert_eq!(gone, [1, 2, 3]);
    assert_eq!((desk.hang_up(10), desk.in_flight(), desk.known()), (vec![], 0, (0, 0)));
    assert_eq!(enter(&mut desk, now, 1, 11, 1), Ok(()));
}

#[test]
fn a_withdraw_that_overtook_its_copy_ends_it() {
    let (mut desk, now) = (desk(1_000, 1_000, 0), Moment::ZERO);
    assert_eq!(enter(&mut desk, now, 1, 10, 1), Ok(()));
    assert_eq!(desk.withdraw(10, RequestId(1)), Some(&1));
    assert_eq!(desk.withdraw(10, RequestId(2)), None);
    assert_eq!(enter(&mut desk, now, 1, 10, 2), Err(NotIn::Withdrawn));
    assert_eq!(enter(&mut desk, now, 1, 10, 2), Ok(()));
    // Bounded: the oldest are forgotten.
    (100..100 + WITHDRAWN_EARLY_MAX as u64 + 1)
        .for_each(|request| assert_eq!(desk.withdraw(10, RequestId(request)), None));
    assert_eq!(enter(&mut desk, now, 1, 10, 100), Ok(()));
    assert_eq!(enter(&mut desk, now, 1, 10, 101), Err(NotIn::Withdrawn));
}

#[test]
fn the_rate_cap_lets_a_burst_through_and_tells_when_to_come_back() {
    let (mut desk, mut now) = (desk(10_000, 10_000, 100), Moment(5_000_000_000));
    let admitted = (0..50).filter(|request| enter(&mut desk, now, 1, 10, *request).is_ok()).count();
    assert_eq!(admitted, 10, "a tenth of a second's worth");
    let Err(NotIn::TooFast(wait)) = enter(&mut desk, now, 1, 10, 60) else { panic!("over the rate") };
    now = now + wait;
    assert_eq!(enter(&mut desk, now, 1, 10, 61), Ok(()));
    let later = now + Duration::from_secs(3);
    let admitted = (100..400).filter(|request| enter(&mut desk, later, 1, 10, *request).is_ok()).count();
    assert_eq!(admitted, 10);
    assert_eq!(enter(&mut desk, later, 2, 20, 1), Ok(()), "another caller has its own");
}

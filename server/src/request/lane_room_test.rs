//! Who is woken for what joins a lane, also while a stall holds it back; jobs that find it full.

use super::*;
use crate::request::doors::{Caller, ReplySink};
use crate::request::held::{Admission, HeldPage};
use crate::request::test_support::read;
use crate::storage::device::ModelledConfig;
use crate::storage::disturbance::{DevicePhase, LaneName};
use crate::storage::scan::PageProgress;
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::ids::{CallerId, NodeId};
use tiedkv_protocol::request::{Class, Disturbance, ReadRequest};
use tiedkv_protocol::response::ReadReply;
use tiedkv_protocol::scan::{Columns, PageRequest};

const MS: Duration = Duration::from_millis(1);
const MODEL: ModelledConfig = ModelledConfig { mean_service: MS, seed: 1, disturbance_allowed: true };

struct Nobody;

impl ReplySink for Nobody {
    fn read_reply(&self, _: ReadReply, _: Bytes) {}
}

fn room() -> LaneRoom {
    LaneRoom::new(3, 100, 8, Position(0))
}

fn join(room: &LaneRoom, request: u64, now: Moment) -> Option<usize> {
    match called(room, request, now, None) {
        Called::Nobody => None,
        Called::Worker(worker) => Some(worker),
        Called::Keeper => panic!("the lane is not brisk"),
    }
}

fn called(room: &LaneRoom, request: u64, now: Moment, brisk: Option<Duration>) -> Called {
    let caller = Caller { id: CallerId(7), connection: 1, replies: Arc::new(Nobody) };
    let admission = Admission { lane: 0, admitted: now, deadline: now + 1_000 * MS, barrier: None, page: None };
    match room.join(&Arc::new(HeldCopy::new(caller, read(request), admission)), now, brisk) {
        Joined::Queued { wake, .. } => wake,
        Joined::Full => panic!("there is room"),
    }
}

fn park(room: &LaneRoom, worker: usize, now: Moment) -> Option<Moment> {
    match room.next(worker, now) {
        Next::Park(until) => until,
        Next::Work(..) | Next::Shed(_) => panic!("nothing can start"),
    }
}

/// A moment within a stall, and the end of it.
fn stall(room: &LaneRoom) -> (Moment, Moment) {
    let lane = LaneName { node: NodeId(1), lane: 0, workers: 3 };
    let asked = Disturbance { stall_share: 0.5, stall_us: 100_000, ..Disturbance::default() };
    let shown = Disturbance { stall_after_start: true, ..asked.clone() };
    let pace = LaneDisturbance::new(&shown, &MODEL, lane, Moment(0), 0).pace;
    let at = (0..1_000).map(|step| Moment(0) + MS * step).find_map(|now| match pace.phase(now, MS) {
        DevicePhase::Stalled(end) if end.since(now) > 20 * MS => Some((now, end)),
        _ => None,
    });
    room.disturb(LaneDisturbance::new(&asked, &MODEL, lane, Moment(0), 0));
    at.expect("half of the time is stalled")
}

#[test]
fn lane_room_wakes_the_last_one_parked_once() {
    let room = room();
    assert_eq!((park(&room, 0, Moment(0)), park(&room, 1, Moment(0))), (None, None));
    assert_eq!([1, 2, 3].map(|request| join(&room, request, Moment(0))), [Some(1), Some(0), None]);
}

#[test]
fn lane_room_a_brisk_lane_leaves_what_comes_to_the_worker_awake_until_that_is_stuck() {
    let (room, read) = (room(), Some(Duration::from_micros(5)));
    (0..3).for_each(|worker| assert_eq!(park(&room, worker, Moment(0)), None));
    assert_eq!(room.look(Moment(0)), (Called::Nobody, None), "nobody is trusted with anything");
    assert_eq!(called(&room, 1, Moment(0), read), Called::Worker(2), "nobody is awake");
    assert_eq!(called(&room, 2, Moment(0), read), Called::Keeper, "left to the one on its way");
    assert_eq!(called(&room, 3, Moment(0), read), Called::Nobody);
    assert!(matches!(room.next(2, Moment(0)), Next::Work(_, _, Called::Nobody)));
    let now = Moment(0) + MS;
    assert_eq!(room.look(now), (Called::Nobody, Some(now + MS)), "it took one");
    assert_eq!(room.look(now), (Called::Worker(1), Some(now + MS)), "it is stuck, and two wait");
    assert!(matches!(room.next(1, now), Next::Work(..)));
    assert!(matches!(room.next(1, now), Next::Work(..)));
    assert_eq!(park(&room, 1, now), None);
}

fn page(request: u64, class: Class) -> Arc<HeldCopy> {
    let caller = Caller { id: CallerId(7), connection: 1, replies: Arc::new(Nobody) };
    let all = PageRequest {
        lo: Bytes::new(),
        hi: None,
        reverse: false,
        columns: Columns::Keys,
        rows_max: 1,
        bytes_max: 1,
    };
    let page = HeldPage::new(PageProgress::new(all), &Arc::default(), 1);
    let admission =
        Admission { lane: 0, admitted: Moment(0), deadline: Moment(0) + 1_000 * MS, barrier: None, page };
    Arc::new(HeldCopy::new(caller, ReadRequest { class, ..read(request) }, admission))
}

#[test]
fn lane_room_a_page_gives_way_once_to_what_goes_first_and_to_nothing_else() {
    let room = room();
    assert_eq!(park(&room, 0, Moment(0)), None);
    let scan = page(9, Class::Batch);
    assert!(matches!(room.join(&scan, Moment(0), None), Joined::Queued { wake: Called::Worker(0), .. }));
    assert!(matches!(room.next(0, Moment(0)), Next::Work(..)) && room.keeps_page(0));
    assert!(matches!(room.join_again(page(8, Class::Batch)), Called::Nobody), "its own class waits");
    assert!(room.keeps_page(0));
    assert_eq!(join(&room, 1, Moment(0)), Some(0), "an interactive read does not");
    assert!(!room.keeps_page(0));
    assert_eq!(join(&room, 2, Moment(0)), None, "it was told already");
    // The page queues again, and the two go first.
    assert_eq!(room.join_again(scan), Called::Nobody);
    for _ in 0..2 {
        assert!(matches!(room.next(0, Moment(0)), Next::Work(work, ..) if work.class == Class::Interactive));
    }
    assert!(matches!(room.next(0, Moment(0)), Next::Work(work, ..) if work.class == Class::Batch));
    assert!(room.keeps_page(0), "it may be told again");
}

#[test]
fn lane_room_a_page_is_not_waited_for() {
    let (room, brisk) = (room(), Some(Duration::from_micros(5)));
    (0..3).for_each(|worker| assert_eq!(park(&room, worker, Moment(0)), None));
    let copy = page(9, Class::Interactive);
    assert!(matches!(room.join(&copy, Moment(0), brisk), Joined::Queued { wake: Called::Worker(2), .. }));
    assert_eq!(called(&room, 1, Moment(0), brisk), Called::Keeper);
    assert!(matches!(room.next(2, Moment(0)), Next::Work(_, _, Called::Worker(1))), "a get waits behind the page");
    assert!(matches!(room.next(1, Moment(0)), Next::Work(..)));
    assert_eq!(park(&room, 1, Moment(0)), None);
    assert_eq!(called(&room, 2, Moment(0), brisk), Called::Worker(1), "only the page's worker is awake");
}

#[test]
fn lane_room_a_stall_wakes_each_worker_at_most_once_and_holds_none_back_after_it() {
    let room = room();
    let (now, end) = stall(&room);
    (0..3).for_each(|worker| assert_eq!(park(&room, worker, now), None, "nothing waits"));
    assert_eq!(join(&room, 1, now), Some(2));
    assert_eq!(park(&room, 2, now), Some(end), "it has to know when to look again");
    // The one that waits for the end of the stall is not woken again: the next gets its turn.
    assert_eq!(join(&room, 2, now), Some(1));
    assert_eq!(park(&room, 1, now), Some(end));
    assert_eq!(join(&room, 3, now), Some(0));
    assert_eq!(park(&room, 0, now), Some(end));
    assert_eq!(join(&room, 4, now), None, "all look at the end of the stall");
    (0..3).for_each(|worker| assert!(matches!(room.next(worker, end), Next::Work(..)), "each finds work"));
}

#[test]
fn lane_room_jobs_that_find_no_room_are_counted() {
    let room = LaneRoom::new(1, 1, 8, Position(0));
    let lane = LaneName { node: NodeId(1), lane: 0, workers: 1 };
    let asked = Disturbance { jobs_load: 0.9, ..Disturbance::default() };
    room.disturb(LaneDisturbance::new(&asked, &MODEL, lane, Moment(0), 0));
    join(&room, 1, Moment(0));
    assert_eq!(room.jobs_dropped(), 0);
    assert!(matches!(room.next(0, Moment(0) + 100 * MS), Next::Work(..)), "the copy, which came first");
    assert!(room.jobs_dropped() > 10, "of about 90 jobs none had a place");
}

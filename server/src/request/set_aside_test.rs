//! Bounds and order of the copies set aside.

use super::super::lane::{Lane, Pushed, Ticket};
use super::*;
use tiedkv_protocol::request::Class;

fn waiting(item: u32) -> Waiting<u32> {
    Waiting { item, class: Class::Interactive, extra: false, ticket: Ticket(u64::from(item)) }
}

fn position(n: u64) -> Need {
    Need::Position(Position(n))
}

fn none(_: &u32) -> bool {
    false
}

fn items(mut next: impl FnMut() -> Option<Waiting<u32>>) -> Vec<u32> {
    std::iter::from_fn(|| next().map(|waiting| waiting.item)).collect()
}

#[test]
fn set_aside_gives_out_in_order_of_need_what_is_applied() {
    let mut aside = SetAside::new(10, Position(5));
    for (item, need) in [(1, 9), (2, 7), (3, 8), (4, 7)] {
        assert_eq!(aside.insert(waiting(item), position(need), Moment(100), none), Inserted::Waits);
    }
    assert!(items(|| aside.applied(Position(6))).is_empty());
    assert_eq!(items(|| aside.applied(Position(8))), [2, 4, 3]);
    assert_eq!(items(|| aside.applied(Position(20))), [1]);
    assert!(aside.is_empty() && aside.next_expiry().is_none());
}

#[test]
fn set_aside_does_not_miss_what_came_between_look_and_insert() {
    let mut aside = SetAside::new(10, Position(5));
    assert!(items(|| aside.applied(Position(9))).is_empty());
    assert_eq!(aside.insert(waiting(1), position(9), Moment(100), none), Inserted::Servable(waiting(1)));
    assert!(items(|| aside.barrier_answered(3)).is_empty());
    assert_eq!(aside.insert(waiting(2), Need::Barrier(3), Moment(100), none), Inserted::Servable(waiting(2)));
    assert_eq!(aside.insert(waiting(2), Need::Barrier(4), Moment(100), none), Inserted::Waits);
}

#[test]
fn set_aside_expires_by_time_whatever_is_needed() {
    let mut aside = SetAside::new(10, Position(0));
    for (item, need, until) in [(1, 5, 30), (2, 9, 10), (3, 7, 20)] {
        assert_eq!(aside.insert(waiting(item), position(need), Moment(until), none), Inserted::Waits);
    }
    assert_eq!(aside.next_expiry(), Some(Moment(10)));
    assert_eq!(items(|| aside.expired(Moment(20))), [2, 3]);
    assert_eq!(aside.next_expiry(), Some(Moment(30)));
    assert_eq!(items(|| aside.applied(Position(9))), [1]);
}

#[test]
fn set_aside_full_hands_the_copy_back_and_withdrawn_ones_take_no_place() {
    let mut aside = SetAside::new(2, Position(0));
    for item in [1, 2] {
        assert_eq!(aside.insert(waiting(item), position(5), Moment(100), none), Inserted::Waits);
    }
    assert_eq!(aside.insert(waiting(3), position(5), Moment(100), none), Inserted::Full(waiting(3)));
    assert_eq!(aside.insert(waiting(3), position(5), Moment(100), |item| *item == 1), Inserted::Waits);
    assert_eq!(items(|| aside.applied(Position(5))), [2, 3]);
}

#[test]
fn set_aside_barriers_are_answered_in_order() {
    let mut aside = SetAside::new(10, Position(0));
    for (item, barrier) in [(1, 2), (2, 1), (3, 3)] {
        assert_eq!(aside.insert(waiting(item), Need::Barrier(barrier), Moment(100), none), Inserted::Waits);
    }
    assert_eq!(aside.insert(waiting(4), position(1), Moment(100), none), Inserted::Waits);
    assert_eq!(items(|| aside.barrier_answered(2)), [2, 1]);
    assert_eq!(items(|| aside.applied(Position(1))), [4]);
    assert_eq!(aside.len(), 1);
}

#[test]
fn set_aside_copy_returns_to_its_place_in_the_lane() {
    let mut lane = Lane::new(10);
    for item in 1..=3 {
        assert_eq!(lane.push(item, Class::Interactive, false, none), Pushed::Queued);
    }
    let mut aside = SetAside::new(10, Position(0));
    assert_eq!(aside.insert(lane.pop(none).unwrap(), position(4), Moment(100), none), Inserted::Waits);
    assert_eq!(lane.pop(none).unwrap().item, 2);
    lane.put_back(aside.applied(Position(4)).unwrap());
    assert_eq!(items(|| lane.pop(none)), [1, 3]);
}

#[test]
fn set_aside_drain_returns_all() {
    let mut aside = SetAside::new(10, Position(0));
    assert_eq!(aside.insert(waiting(1), position(4), Moment(100), none), Inserted::Waits);
    assert_eq!(aside.drain().len(), 1);
    assert!(aside.is_empty() && aside.next_expiry().is_none());
}

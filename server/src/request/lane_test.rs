//! Order, shares, shedding and bounds of a lane.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const I: Class = Class::Interactive;

fn none(_: &u32) -> bool {
    false
}

fn pop(lane: &mut Lane<u32>) -> Option<u32> {
    lane.pop(none).map(|waiting| waiting.item)
}

fn lane_of(items: &[(u32, Class, bool)]) -> Lane<u32> {
    let mut lane = Lane::new(1000);
    for (item, class, extra) in items {
        assert_eq!(lane.push(*item, *class, *extra, none), Pushed::Queued);
    }
    lane
}

#[test]
fn lane_is_fifo_within_a_class_and_extra_copies_come_last() {
    let mut lane = lane_of(&[(9, I, true), (1, I, false), (2, I, false), (8, I, true)]);
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut lane)).collect();
    assert_eq!(order, [1, 2, 9, 8]);
}

#[test]
fn lane_serves_higher_classes_first() {
    let mut lane = lane_of(&[(3, Class::Background, false), (2, Class::Batch, false), (1, I, false)]);
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut lane)).collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn lane_gives_each_waiting_lower_class_a_twentieth() {
    let mut lane = Lane::new(10_000);
    for n in 0..2000 {
        for class in CLASSES {
            assert_eq!(lane.push(n, class, false, none), Pushed::Queued);
        }
    }
    let mut since = [0; 3];
    for _ in 0..2000 {
        let served = lane.pop(none).unwrap().class as usize;
        for (class, gap) in since.iter_mut().enumerate() {
            *gap = if class == served { 0 } else { *gap + 1 };
            assert!(*gap < POPS_PER_LOWER as i32 || class == 0, "class {class} waited {gap} pops");
        }
        assert!(since[0] <= 2, "the interactive class keeps the rest");
    }
}

#[test]
fn lane_gives_waiting_extra_copies_a_twentieth_of_their_class() {
    let mut lane = Lane::new(10_000);
    for n in 0..400 {
        assert_eq!(lane.push(n, I, n < 10, none), Pushed::Queued);
    }
    let extra = (0..200).filter(|_| lane.pop(none).unwrap().extra).count();
    assert_eq!(extra, 10);
}

#[test]
fn lane_full_refuses_extra_copies_and_sheds_the_youngest_of_the_lowest_class() {
    let mut lane = Lane::new(3);
    assert_eq!(lane.push(1, I, false, none), Pushed::Queued);
    assert_eq!(lane.push(2, Class::Batch, true, none), Pushed::Queued);
    assert_eq!(lane.push(3, I, true, none), Pushed::Queued);
    assert_eq!(lane.push(4, I, true, none), Pushed::Refused(4));
    assert_eq!(lane.push(5, I, false, none), Pushed::QueuedInsteadOf(2));
    assert_eq!(lane.push(6, I, false, none), Pushed::QueuedInsteadOf(3));
    assert_eq!(lane.push(7, I, false, none), Pushed::Refused(7));
    assert_eq!(lane.live(), 3);
}

#[test]
fn lane_withdrawn_entries_take_no_place() {
    let mut lane = lane_of(&[(1, I, false), (2, I, false), (3, I, false)]);
    lane.waiting_max = 3;
    assert_eq!(lane.push(4, I, false, none), Pushed::Refused(4));
    lane.withdrawn();
    let withdrawn = |item: &u32| *item == 2;
    assert_eq!((lane.live(), lane.len()), (2, 3));
    assert_eq!(lane.push(4, I, false, withdrawn), Pushed::Queued);
    let order: Vec<_> = std::iter::from_fn(|| lane.pop(withdrawn)).map(|w| w.item).collect();
    assert_eq!(order, [1, 3, 4]);
    assert_eq!((lane.live(), lane.len(), lane.withdrawn), (0, 0, 0));
}

#[test]
fn lane_counts_are_right_in_whatever_order_withdrawer_and_worker_report() {
    let mut lane = lane_of(&[(1, I, false), (2, I, false)]);
    // Popped while live; withdrawn before its start; the worker reports first.
    assert_eq!(pop(&mut lane), Some(1));
    lane.dropped();
    lane.withdrawn();
    assert_eq!(lane.live(), 1);
}

#[test]
fn lane_memory_is_bounded_however_much_is_withdrawn() {
    let mut lane = Lane::new(8);
    for n in 0..100_000 {
        assert_eq!(lane.push(n, I, false, |item| *item < n), Pushed::Queued, "{n}");
        lane.withdrawn();
        assert!(lane.len() <= 64, "{}", lane.len());
    }
}

#[test]
fn lane_puts_an_entry_back_to_its_original_place() {
    let mut lane = lane_of(&[(1, I, false), (2, I, false), (3, I, false), (9, I, true)]);
    let first = lane.pop(none).unwrap();
    let second = lane.pop(none).unwrap();
    lane.put_back(second);
    lane.put_back(first);
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut lane)).collect();
    assert_eq!(order, [1, 2, 3, 9]);
}

#[test]
fn lane_next_chunks_go_to_the_end_and_are_never_refused_or_shed() {
    let mut lane = lane_of(&[(1, I, true), (2, I, false)]);
    lane.waiting_max = 2;
    assert_eq!(pop(&mut lane), Some(2));
    assert_eq!(pop(&mut lane), Some(1));
    lane.push_again(1, I);
    lane.push_again(2, I);
    lane.push_again(3, I);
    assert_eq!(lane.push(4, I, false, none), Pushed::Refused(4));
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut lane)).collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn lane_drain_returns_all() {
    let mut lane = lane_of(&[(1, I, true), (2, Class::Batch, false), (3, I, false)]);
    let mut all = lane.drain();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
    assert!(lane.is_empty());
}

proptest! {
    /// Against a plain list: nothing is lost or served twice, the bound holds, the live count is exact.
    #[test]
    fn lane_agrees_with_a_plain_list(steps in proptest::collection::vec((0..5_u8, 0..3_usize, any::<bool>(), any::<u32>()), 0..300)) {
        let mut lane = Lane::new(10);
        let mut alive: HashSet<u32> = HashSet::new();
        let mut next = 0;
        for (step, class, extra, choice) in steps {
            match step {
                0 | 1 => {
                    next += 1;
                    let pushed = lane.push(next, CLASSES[class], extra, |item| !alive.contains(item));
                    match pushed {
                        Pushed::Queued => { prop_assert!(alive.len() < 10); alive.insert(next); }
                        Pushed::QueuedInsteadOf(shed) => {
                            prop_assert!(!extra && alive.remove(&shed));
                            alive.insert(next);
                        }
                        Pushed::Refused(item) => prop_assert!(item == next && alive.len() >= 10),
                    }
                }
                2 => {
                    let popped = lane.pop(|item| !alive.contains(item));
                    prop_assert_eq!(popped.is_some(), !alive.is_empty());
                    if let Some(waiting) = popped {
                        prop_assert!(alive.contains(&waiting.item));
                        if choice % 2 == 0 { lane.put_back(waiting) } else { alive.remove(&waiting.item); }
                    }
                }
                _ => {
                    let mut sorted: Vec<_> = alive.iter().copied().collect();
                    sorted.sort_unstable();
                    if let Some(item) = sorted.get(choice as usize % sorted.len().max(1)) {
                        alive.remove(item);
                        lane.withdrawn();
                    }
                }
            }
            prop_assert_eq!(lane.live(), alive.len());
        }
    }
}

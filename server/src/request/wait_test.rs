//! Waits are precise, parked, cut short only where the device allows.

use super::*;
use crate::storage::device::ModelledConfig;
use crate::storage::disturbance::{LaneDisturbance, LaneName};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::Disturbance;

const MS: Duration = Duration::from_millis(1);
const NEVER: Moment = Moment(u64::MAX);

fn quiet() -> Pace {
    LaneDisturbance::quiet().pace
}

fn operation(left: Duration) -> Operation {
    Operation { from: clock::now(), left, chunk_max: Duration::from_secs(10), deadline: NEVER }
}

/// Always within a stall that ends in `left` or less, struck after the start.
fn stalled() -> (Pace, Moment) {
    let asked =
        Disturbance { stall_share: 0.5, stall_us: 200_000, stall_after_start: true, ..Disturbance::default() };
    let model = ModelledConfig { mean_service: MS, seed: 0, disturbance_allowed: true };
    let name = LaneName { node: NodeId(1), lane: 0, workers: 1 };
    let pace = LaneDisturbance::new(&asked, &model, name, clock::now(), 0).pace;
    loop {
        let now = clock::now();
        match pace.phase(now, MS) {
            DevicePhase::Stalled(end) if end.since(now) > 100 * MS => return (pace, end),
            _ => std::thread::yield_now(),
        }
    }
}

#[test]
fn an_operation_takes_its_service_time() {
    let parker = Parker::new();
    let began = clock::now();
    assert_eq!(operate(&parker, &quiet(), operation(5 * MS), || Told::GoOn).left, Left::Done);
    assert!(clock::now().since(began) >= 5 * MS);
}

#[test]
fn an_interrupt_ends_the_service_part() {
    let (parker, stop) = (Parker::new(), AtomicBool::new(false));
    let unparker = parker.unparker().clone();
    let began = clock::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stop.store(true, SeqCst);
            unparker.unpark();
        });
        let told = || if stop.load(SeqCst) { Told::Stop } else { Told::GoOn };
        let spent = operate(&parker, &quiet(), operation(Duration::from_secs(10)), told);
        assert_eq!(spent, Spent { left: Left::Stopped, stalled: Duration::ZERO });
    });
    assert!(clock::now().since(began) < Duration::from_secs(5));
}

#[test]
fn an_interrupt_does_not_end_a_stall() {
    let parker = Parker::new();
    let (pace, stall_end) = stalled();
    parker.unparker().unpark();
    let spent = operate(&parker, &pace, operation(MS), || Told::Stop);
    assert!(spent.left == Left::Stopped && spent.stalled > 10 * MS, "{spent:?}");
    assert!(clock::now() >= stall_end);
}

#[test]
fn a_closing_node_does_not_wait_for_a_stall() {
    let parker = Parker::new();
    let (pace, stall_end) = stalled();
    assert_eq!(operate(&parker, &pace, operation(MS), || Told::Close).left, Left::Stopped);
    assert!(clock::now() < stall_end);
}

#[test]
fn chunks_and_deadlines_cut() {
    let parker = Parker::new();
    let chunked = Operation { chunk_max: 2 * MS, ..operation(5 * MS) };
    assert_eq!(operate(&parker, &quiet(), chunked, || Told::GoOn).left, Left::Chunk(3 * MS));
    let from = clock::now();
    let late = Operation { from, deadline: from + 2 * MS, ..operation(5 * MS) };
    assert_eq!(operate(&parker, &quiet(), late, || Told::GoOn).left, Left::Overdue);
    assert_eq!(operate(&parker, &quiet(), operation(Duration::ZERO), || Told::Stop).left, Left::Done);
}

#[test]
fn an_operation_that_gives_way_does_so_behind_a_piece_and_keeps_what_is_left() {
    let (parker, asked) = (Parker::new(), AtomicBool::new(false));
    let unparker = parker.unparker().clone();
    let whole = Duration::from_secs(10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            asked.store(true, SeqCst);
            unparker.unpark();
        });
        let told = || if asked.load(SeqCst) { Told::GiveWay } else { Told::GoOn };
        let spent = operate(&parker, &quiet(), operation(whole), told);
        let Left::Chunk(left) = spent.left else { panic!("{spent:?}") };
        let served = whole - left;
        assert!(served >= PIECE && served < Duration::from_secs(5), "{served:?}");
        assert_eq!(served.as_nanos() % PIECE.as_nanos(), 0, "{served:?}");
    });
    // What is shorter than a piece is simply served.
    assert_eq!(operate(&parker, &quiet(), operation(PIECE / 2), || Told::GiveWay).left, Left::Done);
}

/// Prints what a wait overshoots; the bound is loose because CI machines are busy.
#[test]
fn overshoot_is_small() {
    let parker = Parker::new();
    sharpen_timers();
    let mut over: Vec<u64> = (0..200)
        .map(|_| {
            let asked = operation(2 * MS);
            let _ = operate(&parker, &quiet(), asked, || Told::GoOn);
            clock::now().since(asked.from + 2 * MS).as_micros() as u64
        })
        .collect();
    over.sort_unstable();
    println!("overshoot of a 2 ms wait: p50 {} us, p99 {} us", over[100], over[198]);
    assert!(over[100] < 10_000, "p50 {} us", over[100]);
}

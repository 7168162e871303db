//! Is there one order of the calls of a key, each at one moment between its begin and its end, that explains all
//! answers? (Wing and Gong, "Testing and verifying concurrent objects", 1993, with the cache of Lowe, "Testing for
//! linearizability", 2017.) A call of unknown outcome may take effect at any time after its begin, or never.
//!
//! A key is checked by itself: linearizability is local (Herlihy and Wing 1990, theorem 1).

use super::history::{Asked, Call, Came, Freshness, Value, Violation, by_key};
use std::collections::HashSet;

/// Checks every key of a history. Reads that were not asked to be linearizable take no part.
pub fn violations(calls: &[Call]) -> Vec<Violation> {
    by_key(calls).into_iter().filter_map(|(key, calls)| violation(key, &calls)).collect()
}

fn violation(key: u32, calls: &[Call]) -> Option<Violation> {
    let calls: Vec<Call> = calls.iter().filter(|call| takes_part(call)).copied().collect();
    if is_linearizable(&calls) {
        return None;
    }
    let core = smallest_prefix(&calls);
    let shown: Vec<String> = core.iter().rev().take(12).rev().map(|call| format!("    {call:?}")).collect();
    let what =
        format!("key {key}: no order explains {} calls; the last of them:\n{}", core.len(), shown.join("\n"));
    Some(Violation { promise: "linearizable", what })
}

fn takes_part(call: &Call) -> bool {
    match call.asked {
        Asked::Read => call.freshness == Freshness::Linearizable && call.came != Came::Unknown,
        _ => true,
    }
}

/// The shortest history that is wrong already: cut at the end of a call. Calls that had not ended count as unknown.
fn smallest_prefix(calls: &[Call]) -> Vec<Call> {
    let mut ends: Vec<u64> =
        calls.iter().filter(|call| call.came != Came::Unknown).map(|call| call.ended).collect();
    ends.sort_unstable();
    let cut = |end: u64| -> Vec<Call> {
        let begun = calls.iter().filter(|call| call.began <= end);
        let known = begun.map(|call| match call.ended <= end || call.came == Came::Unknown {
            true => *call,
            false => Call { came: Came::Unknown, ..*call },
        });
        known.filter(|call| !(call.is_read() && call.came == Came::Unknown)).collect()
    };
    // Longer histories of a wrong one are wrong too.
    let first = ends.partition_point(|end| is_linearizable(&cut(*end)));
    ends.get(first).map_or_else(|| calls.to_vec(), |end| cut(*end))
}

/// What a call does to a key that is `state`: its new state, or `None` if its answer cannot have come from there.
fn step(call: &Call, state: Option<Value>) -> Option<Option<Value>> {
    match (call.asked, call.came) {
        (Asked::Read, Came::Found(found)) => (found == state).then_some(state),
        (Asked::Put(value), Came::Done | Came::Unknown) => Some(Some(value)),
        (Asked::Delete, Came::Done | Came::Unknown) => Some(None),
        (Asked::CompareAndSet(expect, value), Came::Done) => (expect == state).then_some(Some(value)),
        (Asked::CompareAndSet(expect, value), Came::Unknown) => {
            Some(if expect == state { Some(value) } else { state })
        }
        (Asked::CompareAndSet(expect, _), Came::Unmet(shown)) => {
            (shown == state && expect != state).then_some(state)
        }
        _ => None,
    }
}

/// Begin or end of a call in the list of what is not in the order yet.
#[derive(Clone, Copy)]
struct Event {
    call: usize,
    end: bool,
}

/// A doubly linked list over a vector: `links[i]` are the neighbours of event `i`; the last index is the head.
struct List {
    next: Vec<usize>,
    previous: Vec<usize>,
}

impl List {
    fn new(length: usize) -> Self {
        let next = (0..=length).map(|index| if index == length { 0 } else { index + 1 }).collect();
        let previous = (0..=length).map(|index| if index == 0 { length } else { index - 1 }).collect();
        Self { next, previous }
    }

    fn remove(&mut self, index: usize) {
        let (before, after) = (self.previous[index], self.next[index]);
        self.next[before] = after;
        self.previous[after] = before;
    }

    /// Undoes the removal that was done last.
    fn restore(&mut self, index: usize) {
        let (before, after) = (self.previous[index], self.next[index]);
        self.next[before] = index;
        self.previous[after] = index;
    }
}

/// The calls of one key, all of which take part.
pub fn is_linearizable(calls: &[Call]) -> bool {
    let mut events: Vec<(u64, Event)> = Vec::with_capacity(2 * calls.len());
    for (call, it) in calls.iter().enumerate() {
        events.push((it.began, Event { call, end: false }));
        if it.came != Came::Unknown {
            events.push((it.ended, Event { call, end: true }));
        }
    }
    // At the same moment begins come first: such calls overlap.
    events.sort_by_key(|(at, event)| (*at, event.end));
    let events: Vec<Event> = events.into_iter().map(|(_, event)| event).collect();
    let head = events.len();
    let mut place = vec![[head; 2]; calls.len()];
    for (index, event) in events.iter().enumerate() {
        place[event.call][usize::from(event.end)] = index;
    }
    let owed = calls.iter().filter(|call| call.came != Came::Unknown).count();
    let mut list = List::new(events.len());
    let mut done = vec![0_u64; calls.len().div_ceil(64)];
    let (mut state, mut left) = (None, owed);
    let mut seen: HashSet<(Vec<u64>, Option<Value>)> = HashSet::new();
    let mut order: Vec<(usize, Option<Value>)> = Vec::new();
    let mut at = list.next[head];
    loop {
        if left == 0 {
            return true;
        }
        if at != head && !events[at].end {
            let call = events[at].call;
            if let Some(after) = step(&calls[call], state) {
                done[call / 64] |= 1 << (call % 64);
                if seen.insert((done.clone(), after)) {
                    order.push((call, state));
                    state = after;
                    list.remove(place[call][0]);
                    if place[call][1] != head {
                        list.remove(place[call][1]);
                        left -= 1;
                    }
                    at = list.next[head];
                    continue;
                }
                done[call / 64] &= !(1 << (call % 64));
            }
            at = list.next[at];
            continue;
        }
        // An end whose call is not in the order, or nothing is left to try: take back the last choice.
        let Some((call, before)) = order.pop() else { return false };
        if place[call][1] != head {
            list.restore(place[call][1]);
            left += 1;
        }
        list.restore(place[call][0]);
        done[call / 64] &= !(1 << (call % 64));
        state = before;
        at = list.next[place[call][0]];
    }
}

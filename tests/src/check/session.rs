//! What positions and versions must say, whatever the level: sessions go forward and see their own writes, a value and
//! its position come from one view, bounds of staleness hold, no version comes twice.
//!
//! Versions are positions of writes, so these are exact checks and cost no search. Writes of unknown outcome are
//! used as little as possible: they may or may not be there.

use super::history::{Asked, Call, Came, Freshness, Value, Violation};
use std::collections::{BTreeMap, HashMap};

/// Checks all calls of a history.
pub fn violations(calls: &[Call]) -> Vec<Violation> {
    let mut found = Vec::new();
    let answered: Vec<&Call> = calls.iter().filter(|call| call.came != Came::Unknown).collect();
    versions_are_unique(&answered, &mut found);
    views_are_whole(&answered, &unknown_deletes(calls), &mut found);
    sessions_go_forward(&answered, &mut found);
    nothing_is_too_old(&answered, &mut found);
    found
}

fn add(found: &mut Vec<Violation>, promise: &'static str, what: String) {
    found.push(Violation { promise, what });
}

/// Versions of one key name one write each.
fn versions_are_unique(calls: &[&Call], found: &mut Vec<Violation>) {
    let mut makers: HashMap<(u32, u64), &Call> = HashMap::new();
    for call in calls.iter().filter(|call| call.made().is_some()) {
        if let Some(other) = makers.insert((call.key, call.version), call) {
            add(found, "versions never repeat", format!("{other:?}\n    {call:?}"));
        }
    }
}

/// When the first delete of each key began that may or may not have been applied.
fn unknown_deletes(calls: &[Call]) -> HashMap<u32, u64> {
    let mut began = HashMap::new();
    for call in calls.iter().filter(|call| call.came == Came::Unknown && matches!(call.asked, Asked::Delete)) {
        let first = began.entry(call.key).or_insert(call.began);
        *first = call.began.min(*first);
    }
    began
}

/// A read at a position shows the newest write up to there: value, version and position come from one view.
fn views_are_whole(calls: &[&Call], unknown_deletes: &HashMap<u32, u64>, found: &mut Vec<Violation>) {
    let mut writes: HashMap<u32, BTreeMap<u64, Option<Value>>> = HashMap::new();
    for call in calls {
        if let Some(made) = call.made() {
            writes.entry(call.key).or_default().insert(call.version, made);
        }
    }
    for call in calls {
        let (Asked::Read, Came::Found(value)) = (call.asked, call.came) else { continue };
        let Some(writes) = writes.get(&call.key) else { continue };
        if call.version > call.position {
            add(found, "value and position come from one view", format!("a version above the position: {call:?}"));
            continue;
        }
        let newest = writes.range(..=call.position).next_back();
        if let Some((newer, made)) = newest.filter(|(newest, _)| **newest > call.version) {
            // An absent key has no version: only a newer value disproves it, and a delete of unknown outcome may have
            // come after that.
            let deleted = unknown_deletes.get(&call.key).is_some_and(|began| *began < call.ended);
            if value.is_some() || (made.is_some() && !deleted) {
                let what = format!("version {newer} ({made:?}) was acknowledged, but {call:?}");
                add(found, "value and position come from one view", what);
            }
        }
        if let (Some(value), Some(made)) = (value, writes.get(&call.version))
            && *made != Some(value)
        {
            add(found, "a version names one value", format!("{made:?} was written, but {call:?}"));
        }
    }
}

/// What a session asks with a token is not answered from before it.
fn sessions_go_forward(calls: &[&Call], found: &mut Vec<Violation>) {
    let mut by_session: BTreeMap<u32, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        by_session.entry(call.session).or_default().push(call);
    }
    for calls in by_session.values_mut() {
        calls.sort_by_key(|call| call.began);
        let mut seen = 0;
        for call in calls {
            if call.is_read() && call.freshness == Freshness::Session && call.position < seen {
                add(found, "sessions go forward", format!("position {seen} was seen before {call:?}"));
            }
            // A stale read promises nothing to its session, also not that it goes on from there.
            if !matches!(call.freshness, Freshness::Stale(_)) {
                seen = seen.max(call.position);
            }
        }
    }
}

/// Linearizable reads are not older than any write acknowledged before they began, bounded ones than the bound.
fn nothing_is_too_old(calls: &[&Call], found: &mut Vec<Violation>) {
    // Greatest version acknowledged up to a moment.
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    let mut writes: Vec<&&Call> = calls.iter().filter(|call| call.made().is_some()).collect();
    writes.sort_by_key(|call| call.ended);
    let mut newest = 0;
    for write in writes {
        newest = newest.max(write.version);
        acknowledged.insert(write.ended, newest);
    }
    for call in calls.iter().filter(|call| call.is_read()) {
        let (slack, promise) = match call.freshness {
            Freshness::Linearizable => (0, "linearizable"),
            Freshness::Stale(Some(bound)) => (bound, "a bound of staleness holds"),
            Freshness::Session | Freshness::Stale(None) => continue,
        };
        let before = call.began.saturating_sub(slack);
        if let Some((_, newest)) = acknowledged.range(..before).next_back()
            && *newest > call.position
        {
            add(found, promise, format!("version {newest} was acknowledged in time, but {call:?}"));
        }
    }
}

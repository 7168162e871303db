//! What must hold in every step, each with its source; and the trace by which two runs are compared.

use super::runtime::now_ns;
use super::types::LogId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tiedkv_protocol::ids::Position;
use tiedkv_server::raft::types::Answer;

/// The one watch of a world.
pub type SharedWatch = Arc<Mutex<Watch>>;

/// What is wrong, by the promise that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which promise.
    pub promise: &'static str,
    /// By what.
    pub what: String,
}

struct Applied {
    id: LogId,
    payload: u64,
    answer: String,
}

/// See the head of this room.
#[derive(Default)]
pub struct Watch {
    /// In which life its node first led a term.
    leaders: BTreeMap<(u64, u64), u64>,
    applied: BTreeMap<u64, Applied>,
    reached: BTreeMap<u64, u64>,
    broken: Vec<Broken>,
    trace: DefaultHasher,
    /// Entries applied, over all nodes.
    pub steps: u64,
    /// Snapshots installed.
    pub installs: u64,
    /// Terms led.
    pub terms: u64,
}

impl Watch {
    /// A node acts as the leader of a term. Election safety (Raft, figure 3): at most one leader in a term. openraft's
    /// terms are pairs of term and candidate, so that is: no pair is led in two lives of its node, which would have
    /// voted twice.
    pub fn leads(&mut self, term: u64, node: u64, life: u64) {
        let first = *self.leaders.entry((term, node)).or_insert_with(|| {
            self.terms += 1;
            life
        });
        if first != life {
            self.add("one leader in a term", format!("{node} leads term {term} in its lives {first} and {life}"));
        }
    }

    /// A node applies an entry. State machine safety (Raft, figure 3): all apply the same at the same index, so applied
    /// sequences are prefixes of each other; and what it comes to is the same on all, also when it is applied again
    /// after a crash.
    pub fn applied(&mut self, node: u64, id: LogId, payload: &str, answer: &Answer) {
        self.steps += 1;
        let answer = format!("{answer:?}");
        (now_ns(), node, id.index, payload, &answer).hash(&mut self.trace);
        let before = self.reached.insert(node, id.index);
        if before.is_some_and(|before| id.index != before + 1) {
            self.add("applied in order", format!("{node} applies {} after {before:?}", id.index));
        }
        let mut hash = DefaultHasher::new();
        payload.hash(&mut hash);
        let payload = hash.finish();
        match self.applied.get(&id.index) {
            None => drop(self.applied.insert(id.index, Applied { id, payload, answer })),
            Some(first) if first.id != id || first.payload != payload => {
                let what = format!("index {}: {:?} was applied, {node} applies {id:?}", id.index, first.id);
                self.add("committed entries never change", what);
            }
            Some(first) if first.answer != answer => {
                let what =
                    format!("index {}: it came to {}, on {node} it comes to {answer}", id.index, first.answer);
                self.add("the same outcome everywhere", what);
            }
            Some(_) => {}
        }
    }

    /// A node's state was replaced.
    pub fn installed(&mut self, node: u64, position: Position) {
        self.installs += 1;
        (now_ns(), node, position.0, "installed").hash(&mut self.trace);
        self.reached.insert(node, position.0);
    }

    /// A node starts again from this position.
    pub fn restarted(&mut self, node: u64, position: Position) {
        (now_ns(), node, position.0, "restarted").hash(&mut self.trace);
        if position.0 == 0 {
            self.reached.remove(&node);
        } else {
            self.reached.insert(node, position.0);
        }
    }

    /// Anything else that happened.
    pub fn note(&mut self, what: impl Hash) {
        now_ns().hash(&mut self.trace);
        what.hash(&mut self.trace);
    }

    /// Something is wrong.
    pub fn add(&mut self, promise: &'static str, what: String) {
        // The first ones say it.
        if self.broken.len() < 8 {
            self.broken.push(Broken { promise, what });
        }
    }

    /// All that is wrong.
    pub fn broken(&self) -> &[Broken] {
        &self.broken
    }

    /// The trace so far.
    pub fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// What is wrong, as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Broken { promise, what } in &self.broken {
            // Into a string: cannot fail.
            let _ = writeln!(text, "\"{promise}\": {what}");
        }
        text
    }
}

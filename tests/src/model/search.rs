//! Breadth-first search with 64-bit fingerprints; a violation comes with its shortest trace.
//!
//! Own, because stateright's checkers replace a discovery by later, longer ones. A state is kept whole only while
//! it is on the frontier; afterwards only its fingerprint and its parent's remain.

use super::TieModel;
use super::config::Config;
use super::properties::{Property, check};
use super::step::Step;
use super::world::World;
use foldhash::fast::FixedState;
use stateright::Model;
use std::collections::{HashMap, HashSet};
use std::mem::Discriminant;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Different states seen.
    pub states: usize,
    /// Steps of the longest shortest way; of an incomplete search, the depth to which all states were looked at.
    pub depth: usize,
    /// All reachable states were seen.
    pub complete: bool,
    /// Kinds of steps that were taken.
    pub kinds: HashSet<Discriminant<Step>>,
    /// The property that failed, with the steps that lead there.
    pub violation: Option<(Property, Vec<Step>)>,
}

type Seen = HashMap<u64, u64, FixedState>;

/// Explores all states of `config`, at most about `states_max` of them, until a property fails.
pub fn explore(config: &Config, states_max: usize) -> Report {
    let model = TieModel::new(config.clone());
    let mut seen: Seen = HashMap::default();
    let mut frontier: Vec<(u64, World)> = Vec::new();
    for world in model.init_states() {
        let print = world.fingerprint();
        if seen.insert(print, 0).is_none() {
            frontier.push((print, world));
        }
    }
    let (mut depth, mut steps, mut kinds) = (0_usize, Vec::new(), HashSet::new());
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (print, world) in std::mem::take(&mut frontier) {
            // Looked at here and not once per depth: one depth can hold half of all states, and all of them in memory.
            if seen.len() > states_max {
                let depth = depth.saturating_sub(1);
                return Report { states: seen.len(), depth, complete: false, kinds, violation: None };
            }
            let mut at_rest = true;
            steps.clear();
            model.actions(&world, &mut steps);
            for step in steps.iter().copied() {
                let Some(after) = model.next_state(&world, step) else { continue };
                let after_print = after.fingerprint();
                if after_print == print {
                    continue;
                }
                at_rest &= !step.is_fair();
                kinds.insert(std::mem::discriminant(&step));
                if let std::collections::hash_map::Entry::Vacant(vacant) = seen.entry(after_print) {
                    vacant.insert(print);
                    next.push((after_print, after));
                }
            }
            if let Some(property) = check(config, &world, at_rest) {
                let violation = Some((property, trace(&model, &seen, print)));
                return Report { states: seen.len(), depth, complete: false, kinds, violation };
            }
        }
        frontier = next;
        depth += usize::from(!frontier.is_empty());
    }
    Report { states: seen.len(), depth, complete: true, kinds, violation: None }
}

/// The steps from a starting point to the state with this fingerprint.
fn trace(model: &TieModel, seen: &Seen, last: u64) -> Vec<Step> {
    let mut prints = vec![last];
    while let Some(parent) = prints.last().and_then(|print| seen.get(print)).copied().filter(|parent| *parent != 0)
    {
        prints.push(parent);
    }
    prints.reverse();
    let Some(first) = prints.first().copied() else { return Vec::new() };
    let Some(mut world) = model.init_states().into_iter().find(|world| world.fingerprint() == first) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    for print in prints.into_iter().skip(1) {
        let mut possible = Vec::new();
        model.actions(&world, &mut possible);
        let found = possible.into_iter().find_map(|step| {
            let after = model.next_state(&world, step)?;
            (after.fingerprint() == print).then_some((step, after))
        });
        let Some((step, after)) = found else { break };
        steps.push(step);
        world = after;
    }
    steps
}

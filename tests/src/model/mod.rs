//! Exhaustive search over the shipped rooms of the tie: every order of events, every fault within a budget.
//!
//! The rooms are `tiedkv_server::request::{tie, recent_ties, lane, set_aside}` and `tiedkv_client::race`; this
//! module only carries messages between them, injects faults and checks properties. Planted faults change what the
//! carrier does, never the rooms. Properties, rules and findings are named as in `docs/tie-protocol.md` and in
//! `tests/README.md`.
//!
//! | file | job |
//! |---|---|
//! | `config` | what one search explores: servers, width, faults, planted bug |
//! | `world` | the state: client, links, servers, messages on their way, what became of each copy |
//! | `client`, `server` | carry events into the shipped rooms and their outcomes out of them |
//! | `step` | which steps are possible, which of them are fair |
//! | `properties` | P1-P7, PS, PW, PX |
//! | `search` | breadth-first search with fingerprints; shortest trace of a violation |
//! | `rows` | the named searches: what holds, and which planted bug is found |

mod client;
pub mod config;
mod properties;
pub mod rows;
pub mod search;
mod server;
mod step;
mod world;

use config::Config;
use stateright::Model;
use step::Step;
use world::World;

pub use properties::Property;

/// The tie as a model: one client, two or three servers, faults within budgets.
#[derive(Clone, Debug)]
pub struct TieModel {
    config: Config,
}

impl TieModel {
    /// The model that explores `config`.
    pub fn new(config: Config) -> Self {
        Self { config }
    }
}

impl Model for TieModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        World::initial(&self.config)
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        step::possible(&self.config, world, actions);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        step::take(&self.config, &mut next, step);
        next.seal(world);
        Some(next)
    }
}

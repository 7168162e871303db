//! What tests share. The tests themselves are in `tests/main.rs` (rules, model, simulation) and `tests/cluster`.

pub mod check;
pub mod model;
pub mod nemesis;
pub mod powercut;
pub mod raftsim;
pub mod sim;

//! Where a replica's data lives, behind [`StateStore`](state_store::StateStore).

pub mod device;
pub mod state_store;

//! Where a replica's data lives, behind [`StateStore`](state_store::StateStore).

pub mod device;
pub mod fjall_store;
pub mod state_store;
pub mod view;

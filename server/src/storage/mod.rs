//! Where a replica's data lives, behind [`StateStore`](state_store::StateStore), and what a read of it costs.

pub mod atomic;
pub mod device;
pub mod disturbance;
pub mod expiry;
pub mod fjall_store;
mod hot_rows;
pub mod key;
pub mod memory;
pub mod ordered_map;
pub mod scan;
mod spaces;
pub mod state_store;
mod unlocked;
pub mod view;

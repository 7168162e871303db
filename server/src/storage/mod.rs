//! Where a replica's data lives, behind [`StateStore`](state_store::StateStore), and what a read of it costs.

pub mod device;
<<<<<<< HEAD
pub mod fjall_store;
=======
pub mod disturbance;
pub mod key;
pub mod memory;
pub mod ordered_map;
>>>>>>> 225a0ee (Admission, storage health, start records, in-memory store, modelled device (pure rooms))
pub mod state_store;
pub mod view;

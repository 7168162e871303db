//! The path of a request through a node, and the doors to its neighbours.

pub mod doors;

//! Disks that fail: power cuts, replayed from the journal of `tests/powercut/powercut.c` to a folder that a disk may hold
//! after one, and nodes whose disk fails or is slow.

pub mod library;
pub mod replay;
pub mod victim;

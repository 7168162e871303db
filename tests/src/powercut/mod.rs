//! A power cut, replayed: from the journal of `tests/powercut/powercut.c` to the folder that a disk may hold after it.

pub mod replay;
pub mod victim;

//! Unit tests of `set_aside`.

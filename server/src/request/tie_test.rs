//! Unit tests of `tie`.

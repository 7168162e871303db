//! Unit tests of `lane`.

//! Unit tests of `recent_ties`.

//! The named searches.

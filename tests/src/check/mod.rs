//! Histories of calls and what is wrong with them: a linearizability checker and a checker of sessions and views.
//!
//! Pure: fed with what callers saw and when, by the nemesis and by tests. It sends nothing and reads no clock.

pub mod history;
pub mod linear;
pub mod session;

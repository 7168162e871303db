//! The checkers of histories, checked: against stateright's tester and a table of bad histories.

mod against_stateright;
mod bad_histories;

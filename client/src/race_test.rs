//! Tests of the race.

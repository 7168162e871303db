//! When a call for many keys may end: whole, or from some moment on with a share of its keys.
//!
//! Counts keys; knows no value and no clock.

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// Most keys of one call.
pub const KEYS_MAX: usize = 10_000;

/// A share of keys that is enough from some time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partial {
    /// Over 0.0, below 1.0.
    pub share: f64,
    /// After the call began; before its deadline.
    pub by: Duration,
}

/// Why a partial answer cannot be asked for so.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BadPartial {
    /// Not a share that leaves anything out.
    #[error(
        "a share of {0} asks for no partial answer: want more than 0 and less than 1 (leave it out for all keys)"
    )]
    Share(f64),
    /// It would never be looked at.
    #[error("a partial answer by {0:?} has no effect: the deadline of {1:?} is not later")]
    By(Duration, Duration),
}

impl Partial {
    /// Whether it can have an effect in a call with this deadline.
    ///
    /// # Errors
    /// Says why not.
    pub fn check(self, deadline: Duration) -> Result<Self, BadPartial> {
        if !(self.share > 0.0 && self.share < 1.0) {
            return Err(BadPartial::Share(self.share));
        }
        if self.by >= deadline {
            return Err(BadPartial::By(self.by, deadline));
        }
        Ok(self)
    }
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completeness {
    keys: usize,
    answered: usize,
    failed: usize,
    /// Keys that are enough, and from when on.
    enough: Option<(usize, Moment)>,
}

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Wait,
    /// Every key was answered.
    Whole,
    /// Enough were: give what came.
    Partial,
    /// Too many keys failed: it can become neither whole nor enough.
    Hopeless,
}

impl Completeness {
    /// A call for `keys` keys that begins now.
    pub fn new(keys: usize, partial: Option<Partial>, began: Moment) -> Self {
        let enough = partial.map(|partial| {
            // At least the share, and at least one.
            let wanted = (keys as f64 * partial.share - 1e-9).ceil().max(1.0) as usize;
            (wanted.min(keys), began + partial.by)
        });
        Self { keys, answered: 0, failed: 0, enough }
    }

    /// A key was answered.
    pub fn answered(&mut self) {
        self.answered += 1;
    }

    /// A key ended with an error.
    pub fn failed(&mut self) {
        self.failed += 1;
    }

    /// What to do now.
    pub fn verdict(&self, now: Moment) -> Verdict {
        if self.answered == self.keys {
            return Verdict::Whole;
        }
        match self.enough {
            Some((enough, by)) if self.answered >= enough && now >= by => Verdict::Partial,
            Some((enough, _)) if self.keys - self.failed >= enough => {
                // Nobody is left to wait for.
                if self.answered + self.failed == self.keys { Verdict::Partial } else { Verdict::Wait }
            }
            Some(_) => Verdict::Hopeless,
            None if self.failed > 0 => Verdict::Hopeless,
            None => Verdict::Wait,
        }
    }

    /// When to look again although nothing happens.
    pub fn look_at(&self, now: Moment) -> Option<Moment> {
        self.enough.map(|(_, by)| by).filter(|by| *by > now)
    }

    /// Share of keys answered; 1 for a call for none.
    pub fn share(&self) -> f64 {
        if self.keys == 0 { 1.0 } else { self.answered as f64 / self.keys as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn by_50(keys: usize) -> Completeness {
        Completeness::new(keys, Some(Partial { share: 0.99, by: MS * 50 }), Moment::ZERO)
    }

    #[test]
    fn a_share_is_enough_from_its_moment_on() {
        let mut call = by_50(100);
        (0..99).for_each(|_| call.answered());
        assert_eq!(call.verdict(Moment::ZERO + MS * 49), Verdict::Wait);
        assert_eq!(call.look_at(Moment::ZERO), Some(Moment::ZERO + MS * 50));
        assert_eq!(call.verdict(Moment::ZERO + MS * 50), Verdict::Partial);
        assert!((call.share() - 0.99).abs() < 1e-12);
        call.answered();
        assert_eq!(call.verdict(Moment::ZERO), Verdict::Whole);
    }

    #[test]
    fn failures_end_it_as_soon_as_nothing_can_come_of_it() {
        let mut whole = Completeness::new(3, None, Moment::ZERO);
        assert_eq!(whole.verdict(Moment::ZERO), Verdict::Wait);
        whole.failed();
        assert_eq!(whole.verdict(Moment::ZERO), Verdict::Hopeless);
        let mut call = by_50(100);
        call.failed();
        (0..99).for_each(|_| call.answered());
        assert_eq!(call.verdict(Moment::ZERO), Verdict::Partial, "nobody is left to wait for");
        call = by_50(100);
        (0..2).for_each(|_| call.failed());
        assert_eq!(call.verdict(Moment::ZERO), Verdict::Hopeless);
    }

    #[test]
    fn what_can_have_no_effect_is_refused() {
        let refused = |share, by| Partial { share, by }.check(MS * 500).unwrap_err().to_string();
        assert!(refused(1.0, MS).contains("no partial answer"));
        assert!(refused(f64::NAN, MS).contains("no partial answer"));
        assert!(refused(0.9, MS * 500).contains("has no effect"));
    }

    proptest! {
        #[test]
        fn a_partial_answer_never_has_less_than_its_share(
            keys in 1_usize..500, share in 0.01_f64..0.999, answered in 0_usize..500, failed in 0_usize..500, late: bool,
        ) {
            let mut call = Completeness::new(keys, Some(Partial { share, by: MS }), Moment::ZERO);
            (0..answered.min(keys)).for_each(|_| call.answered());
            (0..failed.min(keys - answered.min(keys))).for_each(|_| call.failed());
            let now = if late { Moment::ZERO + MS } else { Moment::ZERO };
            match call.verdict(now) {
                Verdict::Whole => prop_assert_eq!(call.share(), 1.0),
                Verdict::Partial => prop_assert!(call.share() >= share - 1e-9 && call.share() < 1.0),
                Verdict::Wait | Verdict::Hopeless => {}
            }
        }
    }
}

//! What the calls of a run do, in which shares. Pure.

use rand::Rng;
use std::fmt;
use std::str::FromStr;

/// One kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read of one key.
    Get,
    /// A call for several keys.
    MultiGet,
    /// A write of one key.
    Put,
    /// Some rows from a key on.
    Scan,
}

impl Op {
    /// All, in the order of figures.
    pub const ALL: [Op; 4] = [Self::Get, Self::MultiGet, Self::Put, Self::Scan];

    /// As in `--mix`, tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::MultiGet => "multi_get",
            Self::Put => "put",
            Self::Scan => "scan",
        }
    }
}

/// A name that is no kind of call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no kind of call: want get, multi_get, put or scan")]
pub struct BadOp(String);

impl FromStr for Op {
    type Err = BadOp;

    fn from_str(text: &str) -> Result<Self, BadOp> {
        Self::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| BadOp(text.to_owned()))
    }
}

/// Weights of the kinds: `get=90,put=10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// In the order of [`Op::ALL`].
    weights: [u32; 4],
}

/// A text that is no mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no mix: want KIND=WEIGHT,..., KIND one of get, multi_get, put, scan, each at most once, WEIGHT 0 to 1000000, one of them above 0"
)]
pub struct BadMix(String);

impl Mix {
    /// All calls do the same.
    pub const fn only(op: Op) -> Self {
        let mut weights = [0; 4];
        weights[op as usize] = 1;
        Self { weights }
    }

    /// Share of one kind, 0.0 to 1.0.
    pub fn share(&self, op: Op) -> f64 {
        f64::from(self.weights[op as usize]) / f64::from(self.all())
    }

    /// Draws what a call does.
    pub fn draw(&self, rng: &mut impl Rng) -> Op {
        let mut left = rng.random_range(0..self.all());
        for op in Op::ALL {
            let weight = self.weights[op as usize];
            if left < weight {
                return op;
            }
            left -= weight;
        }
        Op::Get
    }

    fn all(&self) -> u32 {
        self.weights.iter().sum()
    }
}

impl FromStr for Mix {
    type Err = BadMix;

    fn from_str(text: &str) -> Result<Self, BadMix> {
        let bad = || BadMix(text.to_owned());
        let mut weights: [Option<u32>; 4] = [None; 4];
        for pair in text.split(',') {
            let (name, weight) = pair.split_once('=').ok_or_else(bad)?;
            let op: Op = name.parse().map_err(|_| bad())?;
            let weight = weight.parse().ok().filter(|weight| *weight <= 1_000_000).ok_or_else(bad)?;
            if weights[op as usize].replace(weight).is_some() {
                return Err(bad());
            }
        }
        let mix = Self { weights: weights.map(Option::unwrap_or_default) };
        if mix.all() == 0 { Err(bad()) } else { Ok(mix) }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Op::ALL.into_iter().filter(|op| self.weights[*op as usize] > 0);
        let pairs: Vec<String> = used.map(|op| format!("{}={}", op.name(), self.weights[op as usize])).collect();
        f.write_str(&pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn texts_are_read_and_told_again() {
        let mix: Mix = "put=10,get=85,scan=5".parse().unwrap();
        assert_eq!(mix.to_string(), "get=85,put=10,scan=5");
        assert_eq!((mix.share(Op::Put), mix.share(Op::MultiGet)), (0.10, 0.0));
        assert_eq!(Mix::only(Op::Put).to_string(), "put=1");
        assert_eq!("multi_get".parse(), Ok(Op::MultiGet));
        assert!("puts".parse::<Op>().is_err());
        for wrong in ["", "get", "get=0", "get=1,get=2", "del=1", "get=-1", "get=1000001"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn calls_are_drawn_by_their_weights() {
        let mix: Mix = "get=70,multi_get=10,put=15,scan=5".parse().unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        let mut seen = [0u32; 4];
        for _ in 0..100_000 {
            seen[mix.draw(&mut rng) as usize] += 1;
        }
        for op in Op::ALL {
            let share = f64::from(seen[op as usize]) / 1e5;
            assert!((share - mix.share(op)).abs() < 0.01, "{}: {share}", op.name());
        }
    }
}

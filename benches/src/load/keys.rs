//! Which key a call takes: all alike, or few of them often (Zipf). Pure.
//!
//! Zipf by the method of Gray et al. ("Quickly generating billion-record synthetic databases", SIGMOD 1994), as in
//! YCSB: constant memory, exponent below 1.

use rand::Rng;
use std::str::FromStr;

/// How calls spread over the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// Every key as often as any other.
    Uniform,
    /// Key number n as often as n^-exponent; 0.0 to below 1.0.
    Zipf(f64),
}

/// A text that is no spread.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no distribution of keys: want uniform, zipf (exponent .99) or zipf:EXPONENT with 0 < EXPONENT < 1"
)]
pub struct BadSpread(String);

impl FromStr for Spread {
    type Err = BadSpread;

    fn from_str(text: &str) -> Result<Self, BadSpread> {
        let exponent = match text {
            "uniform" => return Ok(Self::Uniform),
            "zipf" => Ok(0.99),
            _ => text.strip_prefix("zipf:").unwrap_or("").parse(),
        };
        match exponent {
            Ok(exponent) if exponent > 0.0 && exponent < 1.0 => Ok(Self::Zipf(exponent)),
            _ => Err(BadSpread(text.to_owned())),
        }
    }
}

/// Draws key numbers below a count.
#[derive(Clone, Copy, Debug)]
pub struct KeyDraws {
    count: u64,
    zipf: Option<Zipf>,
}

#[derive(Clone, Copy, Debug)]
struct Zipf {
    exponent: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl KeyDraws {
    /// Draws below `count` (at least 1). Takes a moment for millions of keys and Zipf.
    pub fn new(spread: Spread, count: u64) -> Self {
        let count = count.max(1);
        let zipf = match spread {
            Spread::Uniform => None,
            Spread::Zipf(exponent) => {
                let zeta = |upto: u64| (1..=upto).map(|n| (n as f64).powf(-exponent)).sum::<f64>();
                let all = zeta(count);
                let eta = (1.0 - (2.0 / count as f64).powf(1.0 - exponent)) / (1.0 - zeta(2) / all);
                Some(Zipf { exponent, alpha: 1.0 / (1.0 - exponent), zeta: all, eta })
            }
        };
        Self { count, zipf }
    }

    /// One key number.
    pub fn draw(&self, rng: &mut impl Rng) -> u64 {
        let Some(zipf) = self.zipf.filter(|_| self.count > 2) else { return rng.random_range(0..self.count) };
        let uniform: f64 = rng.random();
        let scaled = uniform * zipf.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(zipf.exponent) {
            return 1;
        }
        let drawn = self.count as f64 * (zipf.eta * uniform - zipf.eta + 1.0).powf(zipf.alpha);
        (drawn as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn names_are_read() {
        assert_eq!("uniform".parse(), Ok(Spread::Uniform));
        assert_eq!("zipf:0.5".parse(), Ok(Spread::Zipf(0.5)));
        assert!("zipf:1.5".parse::<Spread>().is_err() && "even".parse::<Spread>().is_err());
    }

    #[test]
    fn zipf_has_the_shares_of_its_law() {
        let (count, exponent) = (1_000u64, 0.9);
        let draws = KeyDraws::new(Spread::Zipf(exponent), count);
        let mut rng = StdRng::seed_from_u64(7);
        let mut seen = vec![0u32; count as usize];
        for _ in 0..400_000 {
            seen[draws.draw(&mut rng) as usize] += 1;
        }
        let zeta: f64 = (1..=count).map(|n| (n as f64).powf(-exponent)).sum();
        for (key, wanted) in [(0, 1.0), (1, 2f64.powf(-exponent))] {
            let share = f64::from(seen[key]) / 400_000.0;
            assert!((share / (wanted / zeta) - 1.0).abs() < 0.03, "key {key}: {share}");
        }
        // The rest is an approximation: the upper half of the keys together.
        let upper: u32 = seen[500..].iter().sum();
        let wanted: f64 = (501..=count).map(|n| (n as f64).powf(-exponent)).sum::<f64>() / zeta;
        assert!((f64::from(upper) / 400_000.0 / wanted - 1.0).abs() < 0.1, "{upper}");
    }
}

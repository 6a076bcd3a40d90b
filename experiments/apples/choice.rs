//! The monkey's choice of a bucket, and the number of apples in each bucket at first.

use std::fmt;
use std::str::FromStr;

use super::poisson::below_normal;
use super::random::Random;

/// Median and spread of the log-normal sizes, in blocks of 4 KiB and as the standard deviation of the logarithm: small
/// files of 16 KiB, most below 4 MiB.
const SIZES: (f64, f64) = (4.0, 1.5);

/// The distribution over the buckets 1 to N from which the bucket of each day is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    /// All alike.
    Uniform,
    /// Normal around the middle, with a standard deviation of N / this; cut off at both sides.
    Normal(f64),
    /// In proportion to the bucket's number.
    Linear,
    /// The lower half of the buckets gets this many per cent of the days, each half evenly.
    Halves(f64),
    /// In proportion to 1 / number ^ this.
    Zipf(f64),
    /// As the sizes of small files: log-normal, the number being the size in blocks.
    LogNormal,
}

impl Choice {
    /// The default choices of the study.
    pub(crate) const ALL: [Self; 7] = [
        Self::Uniform,
        Self::Normal(6.0),
        Self::Normal(3.0),
        Self::Linear,
        Self::Halves(60.0),
        Self::Zipf(1.0),
        Self::LogNormal,
    ];

    /// The probability of each of `buckets` buckets; they add up to 1.
    pub(super) fn probabilities(self, buckets: u32) -> Vec<f64> {
        let count = f64::from(buckets);
        let weight = |number: u32| {
            let number = f64::from(number);
            match self {
                Self::Uniform => 1.0,
                Self::Normal(parts) => {
                    let distance = (number - (count + 1.0) / 2.0) / (count / parts);
                    (-0.5 * distance * distance).exp()
                }
                Self::Linear => number,
                Self::Halves(percent) => {
                    let lower = (count / 2.0).floor();
                    if number <= lower {
                        percent / 100.0 / lower
                    } else {
                        (1.0 - percent / 100.0) / (count - lower)
                    }
                }
                Self::Zipf(power) => number.powf(-power),
                Self::LogNormal => {
                    let up_to = |size: f64| below_normal((size / SIZES.0).ln() / SIZES.1);
                    // The last one has everything that is larger.
                    let end = if number == count { 1.0 } else { up_to(number) };
                    end - if number > 1.0 { up_to(number - 1.0) } else { 0.0 }
                }
            }
        };
        let weights: Vec<f64> = (1..=buckets).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Normal(parts) => write!(f, "normal-{parts}"),
            Self::Linear => f.write_str("linear"),
            Self::Halves(percent) => write!(f, "halves-{percent}"),
            Self::Zipf(power) => write!(f, "zipf-{power}"),
            Self::LogNormal => f.write_str("log-normal"),
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is none of uniform, normal-K (standard deviation N/K), linear, halves-P (P per cent for the \
                 lower half), zipf-S, log-normal"
            )
        };
        match text {
            "uniform" => return Ok(Self::Uniform),
            "linear" => return Ok(Self::Linear),
            "log-normal" => return Ok(Self::LogNormal),
            _ => {}
        }
        let (kind, number) = text.split_once('-').ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        match kind {
            "normal" if number > 0.0 && number <= 20.0 => Ok(Self::Normal(number)),
            "halves" if number > 0.0 && number < 100.0 => Ok(Self::Halves(number)),
            "zipf" if (0.0..=4.0).contains(&number) => Ok(Self::Zipf(number)),
            _ => Err(wrong()),
        }
    }
}

/// The number of apples in each bucket at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// All the same.
    Equal,
    /// In proportion to the probability of the bucket, at least one: the pools of an allocator if freed sizes have the
    /// distribution of allocated ones.
    Matched,
}

/// The buckets of one question.
pub(super) struct Orchard {
    /// How likely each is chosen.
    pub(super) probabilities: Vec<f64>,
    /// The apples of each bucket at first. The apples of bucket `n` (counted from 1) cost `n` each.
    pub(super) apples: Vec<u32>,
}

impl Orchard {
    pub(super) fn new(buckets: u32, apples: u32, choice: Choice, supply: Supply) -> Self {
        let probabilities = choice.probabilities(buckets);
        let all = f64::from(buckets) * f64::from(apples);
        let number = |probability: &f64| match supply {
            Supply::Equal => apples,
            Supply::Matched => (all * probability).round().clamp(1.0, f64::from(u32::MAX)) as u32,
        };
        Self { apples: probabilities.iter().map(number).collect(), probabilities }
    }

    /// All apples at first.
    pub(super) fn total(&self) -> u64 {
        self.apples.iter().map(|&apples| u64::from(apples)).sum()
    }

    /// Their value.
    pub(super) fn value(&self) -> f64 {
        self.apples.iter().zip(1u32..).map(|(&apples, price)| f64::from(apples) * f64::from(price)).sum()
    }
}

/// Draws buckets with the probabilities passed to it, each in constant time (Walker's alias method).
pub(super) struct Picker {
    /// Up to this, of 2^32, the place itself is meant, above it the other one.
    places: Vec<(u64, u32)>,
}

impl Picker {
    pub(super) fn new(probabilities: &[f64]) -> Self {
        let count = probabilities.len();
        let mut shares: Vec<f64> =
            probabilities.iter().map(|probability| probability * count as f64).collect();
        let mut places: Vec<(u64, u32)> = (0..count as u32).map(|place| (1 << 32, place)).collect();
        let (mut poor, mut rich): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&place| shares[place] < 1.0);
        while let (Some(&giver), Some(taker)) = (rich.last(), poor.pop()) {
            places[taker] = ((shares[taker] * (1u64 << 32) as f64) as u64, giver as u32);
            shares[giver] -= 1.0 - shares[taker];
            if shares[giver] < 1.0 {
                rich.pop();
                poor.push(giver);
            }
        }
        Self { places }
    }

    pub(super) fn pick(&self, random: &mut Random) -> usize {
        let bits = random.next();
        let place = (((bits >> 32) * self.places.len() as u64) >> 32) as usize;
        let (limit, other) = self.places[place];
        if bits & 0xFFFF_FFFF < limit { place } else { other as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_distribution() {
        // N p_max as computed independently of this code, by the allocator study (docs/sources.md).
        for (choice, most) in [
            (Choice::Uniform, 1.0),
            (Choice::Normal(6.0), 2.40),
            (Choice::Normal(3.0), 1.38),
            (Choice::Linear, 2.00),
            (Choice::Halves(60.0), 1.20),
            (Choice::Zipf(0.5), 16.4),
            (Choice::Zipf(1.0), 136.0),
            (Choice::LogNormal, 182.0),
        ] {
            let probabilities = choice.probabilities(1024);
            assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{choice}");
            let found = 1024.0 * probabilities.iter().copied().fold(0.0, f64::max);
            assert!((found / most - 1.0).abs() < 0.005, "{choice}: {found}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for choice in Choice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for wrong in ["", "normal", "normal-0", "normal-x", "halves-100", "zipf--1", "zipf-9", "other-1"] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_picker_keeps_the_probabilities() {
        let mut random = Random::new(3, 0);
        for choice in Choice::ALL {
            let probabilities = choice.probabilities(9);
            let picker = Picker::new(&probabilities);
            let draws = 100_000;
            let mut counts = [0f64; 9];
            (0..draws).for_each(|_| counts[picker.pick(&mut random)] += 1.0);
            for (count, probability) in counts.iter().zip(&probabilities) {
                let expected = f64::from(draws) * probability;
                assert!((count - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{choice}: {counts:?}");
            }
        }
    }

    #[test]
    fn matched_supplies_follow_the_choice() {
        let orchard = Orchard::new(4, 10, Choice::Linear, Supply::Matched);
        assert_eq!(orchard.apples, [4, 8, 12, 16]);
        assert_eq!((orchard.total(), orchard.value()), (40, 120.0));
        let rare = Orchard::new(1024, 1, Choice::Zipf(4.0), Supply::Matched);
        assert!(rare.apples.iter().all(|&apples| apples >= 1));
    }
}

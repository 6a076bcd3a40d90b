//! The intended send times of an open loop.
//!
//! The times depend on the rate, the distribution and the seed only, never on the server: a generator that asked the server for
//! permission would send less in the very moments that matter (Gil Tene, "How NOT to Measure Latency"; coordinated omission).
//! wrk2, his generator, sends at constant gaps. The default here is a Poisson process, the arrivals of many independent users:
//! constant gaps can fall into step with periodic work of the server.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use shoal_base::{Entropy, SeededEntropy};

/// The distribution of the gaps between intended times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Exponential gaps: independent users.
    Poisson,
    /// Equal gaps, as wrk2 has them.
    Constant,
}

impl fmt::Display for Arrivals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Poisson => "poisson",
            Self::Constant => "constant",
        })
    }
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "constant" => Ok(Self::Constant),
            _ => Err(format!("there are no arrivals {text:?}; there are poisson and constant")),
        }
    }
}

/// The intended times of a run, in order, since its start. Takes the same memory at any rate.
pub(super) struct Schedule {
    arrivals: Arrivals,
    gap_ns: f64,
    next_ns: f64,
    end: Duration,
    random: SeededEntropy,
}

impl Schedule {
    /// `rate` times a second for `time`.
    pub(super) fn new(rate: f64, time: Duration, arrivals: Arrivals, seed: u64) -> Self {
        let random = SeededEntropy::new(seed);
        let mut schedule = Self { arrivals, gap_ns: 1e9 / rate, next_ns: 0.0, end: time, random };
        if arrivals == Arrivals::Poisson {
            schedule.advance();
        }
        schedule
    }

    /// The next intended time; none at the end.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = Duration::from_nanos(self.next_ns as u64);
        (next < self.end).then_some(next)
    }

    /// The end of all times.
    pub(super) fn end(&self) -> Duration {
        self.end
    }

    /// Goes to the time after it.
    pub(super) fn advance(&mut self) {
        self.next_ns += match self.arrivals {
            Arrivals::Constant => self.gap_ns,
            Arrivals::Poisson => {
                // Above 0, so that its logarithm is finite.
                let uniform = ((self.random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                -uniform.ln() * self.gap_ns
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, seed: u64) -> Vec<Duration> {
        let mut schedule = Schedule::new(1000.0, Duration::from_secs(50), arrivals, seed);
        let mut times = Vec::new();
        while let Some(time) = schedule.next() {
            times.push(time);
            schedule.advance();
        }
        times
    }

    #[test]
    fn constant_times_are_a_gap_apart() {
        let times = times(Arrivals::Constant, 1);
        assert_eq!(times.len(), 50_000);
        for (number, time) in times.iter().enumerate() {
            assert_eq!(*time, Duration::from_millis(number as u64));
        }
    }

    #[test]
    fn poisson_times_have_the_rate_and_exponential_gaps() {
        let times_of_seed = |seed| times(Arrivals::Poisson, seed);
        let times = times_of_seed(1);
        assert_eq!(times, times_of_seed(1));
        assert_ne!(times, times_of_seed(2));
        assert!(times.is_sorted());
        // Six standard deviations of a Poisson count.
        assert!((times.len() as f64 - 50_000.0).abs() < 6.0 * 50_000_f64.sqrt(), "{}", times.len());
        // A gap exceeds the mean with probability 1/e.
        let longer = times.windows(2).filter(|pair| pair[1] - pair[0] > Duration::from_millis(1)).count();
        let share = longer as f64 / times.len() as f64;
        assert!((share - (-1_f64).exp()).abs() < 0.02, "{share}");
    }

    #[test]
    fn arrivals_are_read_by_name() {
        for arrivals in [Arrivals::Poisson, Arrivals::Constant] {
            assert_eq!(arrivals.to_string().parse(), Ok(arrivals));
        }
        assert!("uniform".parse::<Arrivals>().is_err());
    }
}

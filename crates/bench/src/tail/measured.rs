//! The figures of a run, for a comparison of servers.

use super::millis;
use super::record::{Figures, Second};

/// The latencies of a run at a fixed rate, in milliseconds from the intended send times.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Answered operations a second.
    pub per_second: f64,
    /// The p50, p90, p99 and p99.9.
    pub quantiles: [f64; 4],
    /// The longest.
    pub max: f64,
    /// The longest time without any answer while operations were due.
    pub stall: f64,
    /// The number of each second with operations, and its longest latency.
    pub seconds: Vec<(f64, f64)>,
}

impl Measured {
    pub(super) fn new(figures: &Figures, seconds: &[Second]) -> Self {
        let all = figures.all();
        let filled = seconds.iter().filter(|second| second.count > 0);
        Self {
            per_second: all.count() as f64 / figures.took.as_secs_f64().max(1e-9),
            quantiles: [500, 900, 990, 999].map(|permille| all.quantile_us(permille) / 1e3),
            max: millis(all.max()),
            stall: millis(figures.stall),
            seconds: filled.map(|second| (second.number as f64, millis(second.max))).collect(),
        }
    }
}

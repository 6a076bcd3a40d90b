//! The chart of a run, as an SVG file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_bench::plot::{Axis, BarChart};

use super::cases::{IMPLEMENTATIONS, Row};

/// The tests that represent the others: more names than these have no room below their bars.
const DRAWN: [&str; 7] =
    ["Prepend40", "Reply100", "Reply2000", "BasicCopy", "Copy", "Iterator5x5", "AppendSteady1"];

/// Draws the median of each of these tests and implementations that was measured.
///
/// # Errors
/// It cannot be drawn or written.
pub(super) fn write(rows: &[Row], directory: &Path) -> Result<PathBuf> {
    let is_of = |row: &Row, test: &str| row.test.strip_prefix("buffer") == Some(test);
    let tests: Vec<&str> = DRAWN.into_iter().filter(|test| rows.iter().any(|row| is_of(row, test))).collect();
    let time = Axis::new("time of an operation", "ns").log();
    let mut chart = BarChart::new("Message buffers: what an operation costs", "", time, &tests);
    for implementation in IMPLEMENTATIONS {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.implementation == implementation).collect();
        let median = |test: &&str| rows.iter().find(|row| is_of(row, test)).map(|row| row.median_ns);
        if !rows.is_empty() {
            chart.add(implementation, tests.iter().map(median));
        }
    }
    chart.write(directory, "message-buffer")
}

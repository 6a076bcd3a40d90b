//! The charts of a run, as SVG files.

use std::path::{Path, PathBuf};

use anyhow::Result;

use shoal_bench::grpc::{CASES, Row};
use shoal_bench::plot::{Axis, BarChart};

use super::VARIANTS;

/// Writes the charts for which there are figures to `directory`.
///
/// # Errors
/// They cannot be drawn or written.
pub(super) fn write(rows: &[Row], directory: &Path) -> Result<Vec<PathBuf>> {
    let cases: Vec<&str> =
        CASES.into_iter().filter(|case| rows.iter().any(|row| row.case == *case)).collect();
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let rate = Axis::new("calls or operations a second", "1/s").log();
    let cpu = Axis::new("processor time of the server a call", "us").log();
    let calls = chart("gRPC: calls a second", rate, &cases, rows, |row| Some(row.calls_per_s));
    let cost = chart("gRPC: processor time of the server", cpu, &cases, rows, |row| Some(row.cpu_us));
    Ok(vec![calls.write(directory, "grpc-calls")?, cost.write(directory, "grpc-cpu")?])
}

fn chart(
    title: &str,
    y: Axis,
    cases: &[&str],
    rows: &[Row],
    figure: impl Fn(&Row) -> Option<f64>,
) -> BarChart {
    let mut chart = BarChart::new(title, "", y, cases);
    for variant in VARIANTS {
        let find = |case: &str| rows.iter().find(|row| row.case == case && row.variant == variant);
        if rows.iter().any(|row| row.variant == variant) {
            chart.add(variant, cases.iter().map(|case| find(case).and_then(&figure)));
        }
    }
    chart
}

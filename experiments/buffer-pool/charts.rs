//! `--plot`: charts of the figures of a run.

use std::path::Path;

use anyhow::Result;
use shoal_bench::plot::{Axis, BarChart, LineChart, Mark};

use super::METRICS;

/// The figures of one case and variant.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) figures: Vec<Option<f64>>,
}

/// Frames of the cases with the sequential-aware simulator, as `--frames` is by default.
const LADDER: &[(&str, f64)] =
    &[("frames-24", 24.0), ("2024-lat1", 64.0), ("frames-128", 128.0), ("frames-640", 640.0)];

/// Bars by variant: name, case, metric, title.
const BARS: &[(&str, &str, &str, &str)] = &[
    ("pool-lat0", "2024-lat0", "ops_per_s", "No latency: operations a second"),
    ("pool-lat0-cpu", "2024-lat0", "ops_per_cpu_s", "No latency: operations a second of processor time"),
    ("pool-lat1-scans", "2024-lat1", "scan_qps", "1 ms, sequential-aware: scans a second"),
    ("pool-lat1-gets", "2024-lat1", "get_qps", "1 ms, sequential-aware: gets a second"),
    ("pool-score", "spring2023", "score", "Score of spring 2023"),
    ("pool-device", "device", "ops_per_s", "A real device: operations a second"),
];

fn figure(row: &Row, metric: &str) -> Option<f64> {
    let index = METRICS.iter().position(|known| known.name == metric)?;
    row.figures.get(index).copied().flatten()
}

/// Writes the charts of `rows` to SVG files in `directory`.
pub(crate) fn write(rows: &[Row], directory: &Path) -> Result<()> {
    for &(name, case, metric, title) in BARS {
        let rows: Vec<_> =
            rows.iter().filter(|row| row.case == case && figure(row, metric).is_some()).collect();
        if rows.len() < 2 {
            continue;
        }
        let variants: Vec<_> = rows.iter().map(|row| row.variant).collect();
        let mut chart = BarChart::new(title, "pool", Axis::new(metric, ""), &variants);
        chart.add(metric, rows.iter().map(|row| figure(row, metric)));
        chart.write(directory, name)?;
    }
    hit_rates(rows, directory)?;
    for (name, metric, title) in [
        ("pool-frames-scans", "scan_qps", "1 ms: scans a second by frames"),
        ("pool-frames-gets", "get_qps", "1 ms: gets a second by frames"),
    ] {
        ladder(rows, metric, title).map_or(Ok(()), |chart| chart.write(directory, name).map(drop))?;
    }
    Ok(())
}

fn hit_rates(rows: &[Row], directory: &Path) -> Result<()> {
    let cases = ["mix-1to1", "mix-4to1", "recorded"];
    let rates: Vec<_> = rows.iter().filter(|row| cases.contains(&row.case)).collect();
    let mut variants: Vec<_> = rates.iter().map(|row| row.variant).collect();
    variants.dedup();
    let mut seen = Vec::new();
    variants.retain(|variant| {
        !seen.contains(variant) && {
            seen.push(*variant);
            true
        }
    });
    if variants.len() < 2 {
        return Ok(());
    }
    let axis = Axis::new("part of the gets", "").with_zero();
    let mut chart = BarChart::new("Gets that find their page", "policy", axis, &variants);
    for case in cases {
        let of = |variant: &&str| {
            let row = rates.iter().find(|row| row.case == case && row.variant == *variant)?;
            figure(row, "get_hit_rate")
        };
        chart.add(case, variants.iter().map(of));
    }
    chart.write(directory, "pool-hit-rates").map(drop)
}

/// A line for each variant that has all sizes.
fn ladder(rows: &[Row], metric: &str, title: &str) -> Option<LineChart> {
    let mut chart = LineChart::new(title, Axis::new("frames", "").log(), Axis::new(metric, "").log());
    let mut lines = 0;
    let first = rows.iter().filter(|row| row.case == LADDER[0].0);
    for variant in first.map(|row| row.variant) {
        let of = |&(case, frames): &(&str, f64)| {
            let row = rows.iter().find(|row| row.case == case && row.variant == variant)?;
            Some((frames, figure(row, metric)?))
        };
        let values: Vec<_> = LADDER.iter().filter_map(of).collect();
        if values.len() == LADDER.len() {
            chart.add(variant, Mark::Line, values);
            lines += 1;
        }
    }
    (lines > 0).then_some(chart)
}

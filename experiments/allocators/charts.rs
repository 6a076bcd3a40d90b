//! The charts of a run, as SVG files drawn from its rows. A chart without measurements is not written.

use std::path::{Path, PathBuf};

use shoal_bench::plot::{Axis, BarChart, LineChart, Mark};

use super::cases::ALLOCATORS;
use super::figures::{Figures, Point};

/// A row of the table.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) figures: Figures,
}

/// The load that is shown by fill, by round and by latency.
const SEED: &str = "seed-16t-50";

/// The loads of each chart by case.
const ENDING: [&str; 6] =
    ["seed-2t-50", "seed-16t-50", "seed-16t-80", "shift-16t", "shift-16t-k4", "shift-4t-moving"];
const TIMED: [&str; 7] =
    ["seed-16t-50", "logn-1t", "churn-16t-95", "churn-16t-98", "drift-64g-90", "ceph-p90", "ceph-ageing"];
const HELD: [&str; 5] = ["seed-16t-50", "logn-1t", "churn-16t-95", "shift-16t", "ceph-p90"];

/// Writes every chart for which `rows` have figures to `directory`.
pub(crate) fn write(rows: &[Row], directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let lines = [
        ("space-seed-alloc", by_fill(rows)),
        ("space-seed-rounds", by_round(rows)),
        ("space-seed-seconds", by_second(rows)),
    ];
    for (name, chart) in lines {
        if let Some(chart) = chart {
            written.push(chart.write(directory, name)?);
        }
    }
    let bars = [
        ("space-utilisation", utilisation(rows)),
        ("space-alloc", alloc(rows)),
        ("space-latency", latency(rows)),
        ("space-memory", memory(rows)),
        ("space-network", network(rows)),
        ("space-client-server", client_server(rows)),
    ];
    for (name, chart) in bars {
        if let Some(chart) = chart {
            written.push(chart.write(directory, name)?);
        }
    }
    Ok(written)
}

fn find<'a>(rows: &'a [Row], case: &str, variant: &str) -> Option<&'a Figures> {
    rows.iter().find(|row| row.case == case && row.variant == variant).map(|row| &row.figures)
}

fn by_fill(rows: &[Row]) -> Option<LineChart> {
    let fill = Axis::new("fill", "%").with_zero();
    let chart = LineChart::new(
        "One allocation, the load of the LOSF article on 16 TiB",
        fill,
        Axis::new("mean", "ns").log(),
    );
    of_seed(rows, chart.legend(true, false), |point| (100.0 * point.fill, point.alloc_ns))
}

fn by_round(rows: &[Row]) -> Option<LineChart> {
    let free = Axis::new("free space", "%").with_zero();
    let rounds = Axis::new("rounds of 100,000 allocations", "").with_zero();
    let chart = LineChart::new("Free space by round, the load of the LOSF article on 16 TiB", rounds, free);
    of_seed(rows, chart, |point| (point.round as f64, 100.0 * (1.0 - point.fill)))
}

fn by_second(rows: &[Row]) -> Option<LineChart> {
    let free = Axis::new("free space", "%").with_zero();
    let seconds = Axis::new("processor time of all allocations", "s").log();
    let chart = LineChart::new("Free space by time, the load of the LOSF article on 16 TiB", seconds, free);
    of_seed(rows, chart.legend(true, true), |point| (point.alloc_s, 100.0 * (1.0 - point.fill)))
}

fn of_seed(rows: &[Row], mut chart: LineChart, place: impl Fn(&Point) -> (f64, f64)) -> Option<LineChart> {
    let mut has_any = false;
    for variant in ALLOCATORS {
        let points = find(rows, SEED, variant).map_or(&[][..], |figures| &figures.points);
        has_any |= points.len() > 1;
        let mark = if points.len() > 1 { Mark::Line } else { Mark::Points };
        chart.add(variant, mark, points.iter().map(&place));
    }
    has_any.then_some(chart)
}

/// Bars by case, a series for each allocator.
fn by_case(
    rows: &[Row],
    title: &str,
    y: Axis,
    cases: &[&str],
    get: impl Fn(&Figures) -> Option<f64>,
) -> Option<BarChart> {
    let mut chart = BarChart::new(title, "", y, cases);
    let mut has_any = false;
    for variant in ALLOCATORS {
        let values: Vec<Option<f64>> =
            cases.iter().map(|case| find(rows, case, variant).and_then(&get)).collect();
        has_any |= values.iter().any(Option::is_some);
        chart.add(variant, values);
    }
    has_any.then_some(chart)
}

fn utilisation(rows: &[Row]) -> Option<BarChart> {
    let percent = |figures: &Figures| figures.utilisation_at_first_failure.map(|share| 100.0 * share);
    let title = "Fill at the first request that no run serves";
    by_case(rows, title, Axis::new("fill", "%"), &ENDING, percent)
}

fn alloc(rows: &[Row]) -> Option<BarChart> {
    let y = Axis::new("mean, processor time", "ns").log();
    by_case(rows, "One allocation", y, &TIMED, |figures| figures.alloc.mean_ns())
}

fn memory(rows: &[Row]) -> Option<BarChart> {
    let mib =
        |figures: &Figures| (figures.memory_bytes > 0).then(|| figures.memory_bytes as f64 / 1_048_576.0);
    by_case(rows, "Memory of the allocator", Axis::new("memory", "MiB").log(), &HELD, mib)
}

fn latency(rows: &[Row]) -> Option<BarChart> {
    let y = Axis::new("one allocation", "ns").log();
    let mut chart = BarChart::new(
        "Latency, the load of the LOSF article on 16 TiB",
        "",
        y,
        &["p50", "p99", "p99.9", "max"],
    );
    let mut has_any = false;
    for variant in ALLOCATORS {
        let Some(figures) = find(rows, SEED, variant) else { continue };
        has_any = true;
        let quantiles = [500, 990, 999].map(|permille| figures.alloc.quantile_ns(permille));
        chart.add(variant, quantiles.into_iter().chain([figures.alloc.max_ns()]));
    }
    has_any.then_some(chart)
}

fn network(rows: &[Row]) -> Option<BarChart> {
    let of_case: Vec<&Row> = rows.iter().filter(|row| row.case == "network-10ms").collect();
    let names: Vec<&str> = of_case.iter().map(|row| row.variant).collect();
    let title = "Values of 256 KiB on a device of 10 ms that serves 32 requests at once, 64 clients";
    let mut chart = BarChart::new(title, "", Axis::new("values", "1/s"), &names);
    chart.add("reads", of_case.iter().map(|row| row.figures.reads_per_s));
    chart.add("writes", of_case.iter().map(|row| row.figures.writes_per_s));
    (!of_case.is_empty()).then_some(chart)
}

fn client_server(rows: &[Row]) -> Option<BarChart> {
    let of_case: Vec<&Row> = rows.iter().filter(|row| row.case == "client-server").collect();
    let names: Vec<&str> = of_case.iter().map(|row| row.variant).collect();
    let y = Axis::new("one allocation, waiting included", "ns").log();
    let mut chart = BarChart::new("Client and server", "", y, &names);
    chart.add("", of_case.iter().map(|row| row.figures.wall_allocs_per_s.map(|rate| 1e9 / rate)));
    (!of_case.is_empty()).then_some(chart)
}

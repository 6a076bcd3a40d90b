//! `bench cluster`: RAMCloud's clusterperf, by its names and with its meaning, over the Redis protocol.
//!
//! Objects have 100 bytes and keys 30, where a case does not say otherwise. Server and clients are threads of one process, the
//! server with one dispatch thread. Cases that end in "Dist" can be drawn as the distribution of their times. A time is from before a
//! command is sent until its reply was read. What is not comparable: RAMCloud's figures are those of a network without the
//! kernel; the bare echo beside a case says what this machine's costs.

mod bed;
mod cases;
mod link;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use shoal_device::IoMode;

use crate::histogram::Histogram;
use crate::machine;
use crate::plot::{Axis, LineChart, Mark};
use crate::report::{Metric, Report};
use crate::store::case::select;
use bed::Bed;

const METRICS: &[Metric] = &[
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "us_min", unit: "us", head: "min us" },
    Metric { name: "us_p50", unit: "us", head: "p50 us" },
    Metric { name: "us_p90", unit: "us", head: "p90 us" },
    Metric { name: "us_p99", unit: "us", head: "p99 us" },
    Metric { name: "us_p999", unit: "us", head: "p99.9 us" },
    Metric { name: "us_per_object", unit: "us", head: "us/object" },
    Metric { name: "mb_per_s", unit: "MB/s", head: "MB/s" },
];

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by RAMCloud's names, or by beginning and `*`; none: all.
    pub cases: Vec<String>,
    /// How long each row is measured; longer where it has too few operations by then.
    pub time: Duration,
    /// Objects of the cases that read or write random ones.
    pub objects: u64,
    /// Clients at most, where a case has several.
    pub clients: usize,
    /// The data file, which must not exist and is removed at the end; none: the store is in memory.
    pub data: Option<PathBuf>,
    /// How the device is driven.
    pub io: IoMode,
    /// Where charts and distributions go; none: there are none.
    pub plot: Option<PathBuf>,
}

/// What was measured of a row.
#[derive(Default)]
struct Row {
    times: Histogram,
    took: Duration,
    /// Objects of an operation.
    objects: usize,
    /// Bytes of values, of all operations.
    bytes: u64,
}

impl Row {
    fn figures(&self) -> Vec<Option<f64>> {
        let count = self.times.count() as f64;
        let at = |permille| (count > 0.0).then(|| self.times.quantile_us(permille));
        let seconds = self.took.as_secs_f64();
        vec![
            (seconds > 0.0).then(|| count / seconds),
            at(0),
            at(500),
            at(900),
            at(990),
            at(999),
            at(500).filter(|_| self.objects > 1).map(|us| us / self.objects as f64),
            (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds / 1e6),
        ]
    }
}

/// Where rows go.
struct Sink<'a> {
    report: Report<'a>,
    plot: Option<PathBuf>,
    /// Distributions of one case.
    drawn: Vec<(String, Histogram)>,
}

impl Sink<'_> {
    fn row(&mut self, case: &str, variant: &str, row: &Row) -> Result<()> {
        self.report.row(case, variant, &row.figures())?;
        if self.plot.is_some() {
            self.drawn.push((variant.into(), row.times.clone()));
        }
        Ok(())
    }

    /// Draws the distributions of a case, and writes them as lines of microseconds and share.
    fn draw(&mut self, case: &str) -> Result<()> {
        let drawn = std::mem::take(&mut self.drawn);
        let Some(folder) = &self.plot else { return Ok(()) };
        let mut chart = LineChart::new(
            &format!("{case}: share of operations within a time"),
            Axis::new("time", "us").log(),
            Axis::new("operations", "thousandths").from_zero(),
        );
        let mut text = String::from("variant,us,share\n");
        for (variant, times) in drawn.iter().filter(|(_, times)| times.count() > 0) {
            let points: Vec<_> =
                (1..=999).map(|permille| (times.quantile_us(permille), permille as f64)).collect();
            for (us, permille) in &points {
                text += &format!("{variant},{us:.3},{:.3}\n", permille / 1000.0);
            }
            chart.add(variant, Mark::Line, points);
        }
        let path = chart.write(folder, &format!("cluster-{case}"))?;
        std::fs::write(path.with_extension("csv"), text)?;
        self.report.fact("chart", &path.display().to_string())?;
        Ok(())
    }
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the store, a connection or the output failed.
pub fn run(options: &ClusterOptions, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> = cases::ALL.iter().map(|(name, _)| *name).collect();
    let wanted = select("case", &names, &options.cases)?;
    // Before this thread is kept on one core.
    let machine = machine::describe();
    let bed = Bed::new(options.data.as_deref(), options.io)?;
    let report = Report::new(out, "cluster", METRICS, options.json);
    let mut sink = Sink { report, plot: options.plot.clone(), drawn: Vec::new() };
    for (name, value) in [
        (
            "bench",
            "cluster: RAMCloud's clusterperf over the Redis protocol; one server thread, clients in the same process",
        ),
        ("machine", &machine),
        ("load average", &machine::load()),
        ("version", &options.version),
        ("store", bed.device),
        ("cores", if bed.is_pinned { "the server has core 1, the clients have core 0" } else { "shared" }),
        ("objects", &options.objects.to_string()),
        ("seconds a row", &options.time.as_secs_f64().to_string()),
    ] {
        sink.report.fact(name, value)?;
    }
    for (name, measure) in cases::ALL {
        if wanted.contains(name) {
            measure(&bed, options, &mut sink)?;
            sink.draw(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_gives_figures() {
        let folder = tempfile::tempdir().unwrap();
        let options = ClusterOptions {
            version: "test".into(),
            json: true,
            cases: Vec::new(),
            time: Duration::ZERO,
            objects: 200,
            clients: 2,
            data: None,
            io: IoMode::Auto,
            plot: Some(folder.path().into()),
        };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for (name, _) in cases::ALL {
            assert!(text.contains(&format!("\"case\":\"{name}")), "{name}: {text}");
        }
        let chart = std::fs::read_to_string(folder.path().join("cluster-readDist.svg")).unwrap();
        assert!(chart.contains("bare echo") && chart.contains("</svg>"));
        let text = std::fs::read_to_string(folder.path().join("cluster-readDist.csv")).unwrap();
        assert!(text.lines().count() > 900, "{text}");
    }
}

//! `clusterperf`: RAMCloud's clusterperf, by its names and with its meaning, over the Redis protocol.
//!
//! Objects have 100 bytes and keys 30, unless a case sets others. Server and clients are threads of one process, the server with one
//! dispatch thread. Cases whose names have a final "Dist" can be drawn as the distribution of their times. A time is from before a
//! command is sent until its reply was read. Not comparable: RAMCloud's figures are those of a network without the kernel; the bare
//! echo beside a case shows the cost of this machine's.

mod cases;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shoal_device::IoMode;

use crate::args::{io_mode, seconds};
use shoal_bench::cores::Cores;
use shoal_bench::histogram::Histogram;
use shoal_bench::machine;
use shoal_bench::plot::{Axis, LineChart, Mark};
use shoal_bench::redis::{Bed, Row, StoreLocation};
use shoal_bench::report::{Metric, Report};
use shoal_bench::select;

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

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterOptions {
    /// End within half a minute: a twentieth of a second a row, 20,000 objects.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case (basic, readDist, ...), or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that each row is measured [default: 1, with --quick 0.05].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// Objects of the cases that read or write random ones [default: 200000, with --quick 20000].
    #[arg(long, value_name = "N")]
    pub(crate) objects: Option<u64>,
    /// Clients at most, if a case has several.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) clients: usize,
    /// The data file: it must not exist, and is removed at the end [default: the store is in memory].
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// How to drive the device.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = io_mode)]
    pub(crate) io: IoMode,
    /// Folder for the distributions of times, as charts (SVG) and lines (CSV).
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

impl ClusterOptions {
    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs_f64(if self.quick { 0.05 } else { 1.0 }))
    }

    fn objects(&self) -> u64 {
        self.objects.unwrap_or(if self.quick { 20_000 } else { 200_000 })
    }
}

fn figures(row: &Row) -> Vec<Option<f64>> {
    let count = row.times.count() as f64;
    let at = |permille| (count > 0.0).then(|| row.times.quantile_us(permille));
    let seconds = row.took.as_secs_f64();
    vec![
        (seconds > 0.0).then(|| count / seconds),
        at(0),
        at(500),
        at(900),
        at(990),
        at(999),
        at(500).filter(|_| row.objects > 1).map(|us| us / row.objects as f64),
        (row.bytes > 0 && seconds > 0.0).then(|| row.bytes as f64 / seconds / 1e6),
    ]
}

/// Takes the rows.
struct Sink<'a> {
    report: Report<'a>,
    plot: Option<PathBuf>,
    /// Distributions of one case.
    drawn: Vec<(String, Histogram)>,
}

impl Sink<'_> {
    fn row(&mut self, case: &str, variant: &str, row: &Row) -> Result<()> {
        self.report.row(case, variant, &figures(row))?;
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
            Axis::new("operations", "thousandths").with_zero(),
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
pub(crate) fn run(options: &ClusterOptions, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> = cases::ALL.iter().map(|(name, _)| *name).collect();
    let wanted = select("case", &names, &options.cases)?;
    // Before this thread is kept on one core.
    let machine = machine::describe();
    let place = match &options.data {
        None => StoreLocation::Memory,
        Some(path) => StoreLocation::File(Some(path), options.io),
    };
    let bed = Bed::new(place)?;
    let report = Report::new(out, "cluster", METRICS, options.json);
    let mut sink = Sink { report, plot: options.plot.clone(), drawn: Vec::new() };
    for (name, value) in [
        (
            "bench",
            "cluster: RAMCloud's clusterperf over the Redis protocol; one server thread, clients in the same process",
        ),
        ("machine", &machine),
        ("load average", &machine::load()),
        ("version", crate::VERSION),
        ("store", if options.data.is_some() { "file" } else { "memory" }),
        ("cores", Cores::describe(bed.cores)),
        ("objects", &options.objects().to_string()),
        ("seconds a row", &options.time().as_secs_f64().to_string()),
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
    use crate::args::parsed;

    #[test]
    fn every_case_gives_figures() {
        let folder = tempfile::tempdir().unwrap();
        let options = ClusterOptions {
            plot: Some(folder.path().into()),
            ..parsed(&["--json", "--seconds", "0", "--objects", "200", "--clients", "2"])
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

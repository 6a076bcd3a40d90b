//! `allocators`: the store's disk-space allocator beside the seed's and others, on the seed's loads and on harder ones.
//!
//! Reading order: `allocator` (the interface), `reference` and `hybrid` (the allocators), `load` and `meter`, then the
//! cases: `seed`, `churn`, `shift` (with `pieces` and `moving`), `ceph`, `parallel`, `network`; `cases` names them.
//!
//! Everything happens in memory, without persistence. A row that does not finish in its time lacks figures: no
//! utilisation at the first failure, fewer turnovers.

mod allocator;
mod cases;
mod ceph;
mod charts;
mod churn;
mod figures;
mod hybrid;
mod load;
mod meter;
mod moving;
mod network;
mod own;
mod parallel;
mod pieces;
mod rebuild;
mod reference;
mod run;
mod seed;
mod service;
mod shift;
mod start;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use self::cases::{ALLOCATORS, CASES, make};
use self::charts::Row;
use self::figures::METRICS;
use self::run::Run;
use self::start::Start;
use crate::args::seconds;
use shoal_bench::machine;
use shoal_bench::report::Report;
use shoal_bench::select;

/// The time of a row of a quick run.
const ROW_QUICK: Duration = Duration::from_millis(500);

/// The default time of the measured part of a row, and before it of the preparation: the store's own finishes everywhere, and
/// the others may, too, if the case measures the end; a load without an end shows enough in less.
fn row_time(case: &str, variant: &str) -> Duration {
    let has_end = ["seed", "shift", "threads", "client"].iter().any(|name| case.starts_with(name));
    Duration::from_secs(match variant {
        "bitmap" => 4,
        "uncached" | "uncached-unsynced" | "uncached-in-process" => 10,
        "grouped" => 12,
        "hybrid" | "own" | "shared" => 180,
        _ if has_end => 40,
        _ => 12,
    })
}

/// A quick run's devices are smaller by this.
const SCALE_QUICK: u64 = 64;

const START: &str = "start";
const START_FREED_PERCENT: usize = 50;

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct SpaceOptions {
    /// End within a minute: devices 64 times smaller, half a second a row.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant (bitmap, grouped, pooled, pooled-bitmap, tree, hybrid, uncached, cached), or with a final `*` all that start with
    /// NAME; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds that a row may take, and as many for its preparation [default: by variant, with --quick 0.5].
    #[arg(long = "seconds", value_name = "N", value_parser = seconds)]
    pub(crate) time: Option<Duration>,
    /// The number of checks for the end that a row, and its preparation, may make: tests stop rows by this count.
    #[arg(skip)]
    pub(crate) looks: Option<u64>,
    /// Continue the seed's load from the free space that `shoal stat --dump-space` wrote to this file, instead of the cases.
    #[arg(long, value_name = "FILE", conflicts_with = "cases")]
    pub(crate) start: Option<PathBuf>,
    /// Write charts of the figures to this folder, as SVG files.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
}

/// Runs the cases and prints a row for each with each of its variants.
///
/// # Errors
/// A name that selects nothing, or the output.
pub(crate) fn run(options: &SpaceOptions, out: &mut dyn Write) -> Result<()> {
    run_scaled(options, if options.quick { SCALE_QUICK } else { 1 }, out)
}

fn run_scaled(options: &SpaceOptions, scale: u64, out: &mut dyn Write) -> Result<()> {
    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    let wanted = select("case", &names, &options.cases)?;
    let mut all: Vec<&str> = Vec::new();
    for &variant in CASES.iter().flat_map(|case| case.variants()) {
        if !all.contains(&variant) {
            all.push(variant);
        }
    }
    let variants = select("variant", &all, &options.variants)?;
    let time = |case: &str, variant: &str| match options.time {
        Some(time) => time,
        None if options.quick => ROW_QUICK,
        None => row_time(case, variant),
    };
    let mut report = Report::new(out, "space", METRICS, options.json);
    report.fact("version", crate::VERSION)?;
    report.fact("machine", &machine::describe())?;
    report.fact("load", &machine::load())?;
    report.fact("seed", &run::SEED.to_string())?;
    for case in ["seed", "churn"] {
        let times = all.iter().map(|variant| format!("{variant} {}", time(case, variant).as_secs_f64()));
        let what = format!("seconds a row at most, {case}");
        report.fact(&what, &times.collect::<Vec<_>>().join(", "))?;
    }
    report.fact(
        "devices",
        &if scale == 1 { "full size".into() } else { format!("1/{scale} of their names") },
    )?;
    let mut rows = Vec::new();
    let began = Instant::now();
    if let Some(path) = &options.start {
        let start = Start::read(path)?;
        for &variant in ALLOCATORS.iter().filter(|variant| variants.contains(variant)) {
            let allocator = make(variant, start.blocks);
            start.set(&*allocator);
            let mut run = Run::new(format!("{START} {variant}"), time(START, variant), options.looks, 1);
            let mut figures = seed::seed(&*allocator, START_FREED_PERCENT, 1, &mut run);
            figures.seconds = run.seconds();
            drop(run);
            report.row(START, variant, &figures.row())?;
            rows.push(Row { case: START, variant, figures });
        }
    }
    for case in CASES.iter().filter(|_| options.start.is_none()).filter(|case| wanted.contains(&case.name)) {
        for &variant in case.variants().iter().filter(|variant| variants.contains(variant)) {
            let time = time(case.name, variant);
            let mut run = Run::new(format!("{} {variant}", case.name), time, options.looks, scale);
            let io_time = time.min(Duration::from_secs(2));
            let mut figures = case.run(variant, &mut run, io_time)?;
            figures.seconds = run.seconds();
            drop(run);
            report.row(case.name, variant, &figures.row())?;
            rows.push(Row { case: case.name, variant, figures });
        }
    }
    report.fact("load", &machine::load())?;
    report.fact("seconds", &began.elapsed().as_secs().to_string())?;
    for path in options.plot.iter().map(|directory| charts::write(&rows, directory)) {
        for path in path? {
            report.fact("chart", &path.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    const SCALE_TEST: u64 = 2048;
    /// Rows end by this count.
    const LOOKS_TEST: u64 = 200;
    /// They would hang otherwise.
    const HANG: Duration = Duration::from_secs(600);

    /// A dump is run with every allocator.
    #[test]
    fn a_real_free_space_is_run_with_every_allocator() {
        let folder = tempfile::tempdir().unwrap();
        let (dump, other) = (folder.path().join("dump"), folder.path().join("other"));
        std::fs::write(
            &dump,
            "# shoal free space 1, block_bytes 4096, blocks 65536, group_blocks 1024\n100 5000\n30000 9000\n",
        )
        .unwrap();
        std::fs::write(&other, "100 5000\n").unwrap();
        let rows = |start| {
            let options =
                SpaceOptions { time: Some(HANG), start: Some(start), ..parsed(&["--quick", "--json"]) };
            let mut out = Vec::new();
            run(&options, &mut out).map(|()| {
                let text = String::from_utf8(out).unwrap();
                text.lines()
                    .map(|line| serde_json::from_str(line).unwrap())
                    .collect::<Vec<serde_json::Value>>()
            })
        };
        let started = rows(dump).unwrap();
        for variant in ALLOCATORS {
            let full = figure(&started, "start", variant, "utilisation_at_first_failure");
            assert!(full.is_some_and(|full| full > 0.78), "{variant}: {full:?}");
        }
        assert!(rows(other).is_err(), "this is no dump");
    }

    fn lines(cases: &[&str], variants: &[&str]) -> Vec<serde_json::Value> {
        let strings = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        let options = SpaceOptions {
            cases: strings(cases),
            variants: strings(variants),
            time: Some(HANG),
            looks: Some(LOOKS_TEST),
            ..parsed(&["--quick", "--json"])
        };
        let mut out = Vec::new();
        run_scaled(&options, SCALE_TEST, &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn figure(lines: &[serde_json::Value], case: &str, variant: &str, metric: &str) -> Option<f64> {
        let is_it = |line: &&serde_json::Value| {
            line["case"] == case && line["variant"] == variant && line["metric"] == metric
        };
        lines.iter().find(is_it).and_then(|line| line["value"].as_f64())
    }

    /// Every case runs with the store's allocator and returns the figures that its name promises.
    #[test]
    fn every_case_gives_its_figures() {
        let lines = lines(&[], &["hybrid", "uncached", "cached", "runs-1", "own"]);
        for case in CASES {
            let variant = match case.variants().last().copied().unwrap_or_default() {
                "runs-8" => "runs-1",
                "cached-in-process" => "cached",
                last => last,
            };
            let metric = match case.name {
                "network-10ms" => "read_ms",
                "rebuild-16t" => "rebuild_ns_per_extent",
                _ => "alloc_ns_mean",
            };
            assert!(
                figure(&lines, case.name, variant, metric).is_some_and(|value| value > 0.0),
                "{}",
                case.name
            );
        }
        assert!(figure(&lines, "seed-2t-50", "hybrid", "lease_alloc_ns_mean").is_some());
    }

    /// The references reproduce their known results, on small devices.
    #[test]
    fn the_seeds_results_are_seen_again() {
        let lines = lines(&["shift-4t-moving", "seed-2t-50"], &["pooled", "hybrid"]);
        let pooled = figure(&lines, "shift-4t-moving", "pooled", "utilisation_at_first_failure").unwrap();
        assert!((pooled - 0.2).abs() < 0.05, "a fifth of the device is left: {pooled}");
        let moving = figure(&lines, "shift-4t-moving", "hybrid", "utilisation_at_first_failure");
        assert!(moving.is_some_and(|moving| moving > 0.95), "{moving:?}");
        let seed = figure(&lines, "seed-2t-50", "pooled", "utilisation_at_first_failure");
        assert!(seed.is_none_or(|seed| seed > 0.95), "{seed:?}");
    }
}

//! `bench space`: the store's disk-space allocator beside the seed's and others, on the seed's loads and on harder ones.
//!
//! Reading order: `allocator` (the interface), `reference` and `hybrid` (what is compared), `load` and `meter`, then the
//! cases: `seed`, `churn`, `shift` (with `pieces` and `moving`), `ceph`, `parallel`, `network`; `cases` names them.
//!
//! Everything happens in memory, without persistence. A row that does not reach its end in its time says so by what is
//! missing: no utilisation at the first failure, fewer turnovers.

mod allocator;
mod cases;
mod ceph;
mod churn;
mod figures;
mod hybrid;
mod load;
mod meter;
mod moving;
mod network;
mod parallel;
mod pieces;
mod reference;
mod run;
mod seed;
mod shift;

use std::io::Write;
use std::time::Duration;

use anyhow::Result;

use self::cases::CASES;
use self::figures::METRICS;
use self::run::Run;
use crate::machine;
use crate::report::Report;
use crate::store::case::select;

/// A row's time, and that of the rows of a quick run.
const ROW: Duration = Duration::from_secs(60);
const ROW_QUICK: Duration = Duration::from_millis(500);

/// A quick run's devices are smaller by this.
const SCALE_QUICK: u64 = 64;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct SpaceOptions {
    /// Version of the program, for the header.
    pub version: String,
    /// All in less than a minute: devices 64 times smaller, half a second a row.
    pub quick: bool,
    /// JSON lines instead of a table.
    pub json: bool,
    /// Cases by name, or by beginning and `*`; none: all.
    pub cases: Vec<String>,
    /// Variants likewise.
    pub variants: Vec<String>,
    /// How long a row may take; none: 60 s, or half a second where it is to be quick.
    pub time: Option<Duration>,
}

/// Runs the cases and prints a row for each with each of its variants.
///
/// # Errors
/// A name that selects nothing, or the output.
pub fn run(options: &SpaceOptions, out: &mut dyn Write) -> Result<()> {
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
    let time = options.time.unwrap_or(if options.quick { ROW_QUICK } else { ROW });
    let mut report = Report::new(out, "space", METRICS, options.json);
    report.fact("version", &options.version)?;
    report.fact("machine", &machine::describe())?;
    report.fact("load", &machine::load())?;
    report.fact("seed", &run::SEED.to_string())?;
    report.fact("time a row", &format!("{} s", time.as_secs_f64()))?;
    report.fact(
        "devices",
        &if scale == 1 { "full size".into() } else { format!("1/{scale} of their names") },
    )?;
    for case in CASES.iter().filter(|case| wanted.contains(&case.name)) {
        for variant in case.variants().iter().filter(|variant| variants.contains(variant)) {
            let mut run = Run::new(format!("{} {variant}", case.name), time, scale);
            let io_time = time.min(Duration::from_secs(2));
            let figures = case.run(variant, &mut run, io_time)?;
            drop(run);
            report.row(case.name, variant, &figures.row())?;
        }
    }
    report.fact("load", &machine::load())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE_TEST: u64 = 2048;

    fn lines(cases: &[&str], variants: &[&str]) -> Vec<serde_json::Value> {
        let strings = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        let options = SpaceOptions {
            version: "test".into(),
            quick: true,
            json: true,
            cases: strings(cases),
            variants: strings(variants),
            time: Some(Duration::from_secs(1)),
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

    /// Every case runs with the store's allocator and gives what its name promises.
    #[test]
    fn every_case_gives_its_figures() {
        let lines = lines(&[], &["hybrid", "uncached", "cached", "runs-1"]);
        for case in CASES {
            let variant = case.variants().last().copied().unwrap_or_default();
            let variant = if variant == "runs-8" { "runs-1" } else { variant };
            let metric = if case.name == "network-10ms" { "read_ms" } else { "alloc_ns_mean" };
            assert!(
                figure(&lines, case.name, variant, metric).is_some_and(|value| value > 0.0),
                "{}",
                case.name
            );
        }
        assert!(figure(&lines, "seed-2t-50", "hybrid", "lease_alloc_ns_mean").is_some());
    }

    /// The references reproduce what they are known for, on small devices.
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

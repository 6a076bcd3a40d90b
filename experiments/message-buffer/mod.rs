//! `message-buffer`: the cost of the operations of Shoal's message buffer beside that of other buffers.
//!
//! The tests are RAMCloud's (`cases`). A slice is 20,000 iterations of one, and the slices of all tests and implementations
//! take turns, so that a disturbance hits all alike. The cases `refer-N` look for the length from which on a chunk is better
//! referred to than copied (`copy_or_refer`).

mod cases;
mod charts;
mod copy_or_refer;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use shoal_bench::report::{Metric, Report};
use shoal_bench::{machine, select};

/// Slices of each test and implementation.
const SLICES: u32 = 100;
const SLICES_QUICK: u32 = 5;

const METRICS: &[Metric] = &[
    Metric { name: "median_ns", unit: "ns", head: "median ns" },
    Metric { name: "best_ns", unit: "ns", head: "best ns" },
];

/// The cases to measure, and the way to.
#[derive(Args, Clone, Debug)]
pub(crate) struct BufferOptions {
    /// Few slices: end within seconds.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this case, or with a final `*` all that start with NAME; repeatable.
    #[arg(long = "case", value_name = "NAME")]
    pub(crate) cases: Vec<String>,
    /// Only this variant: shoal, bytes_mut, bytes_chain or vec, of refer-N copied, referred or referred-sent; repeatable.
    #[arg(long = "variant", value_name = "NAME")]
    pub(crate) variants: Vec<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a chart of the tests to this folder, as an SVG file.
    #[arg(long, value_name = "DIR")]
    pub(crate) plot: Option<PathBuf>,
    /// Slices of each test [default: 100, with --quick 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) slices: Option<u32>,
}

/// Measures and prints.
///
/// # Errors
/// A name that selects nothing; the output failed.
pub(crate) fn run(options: &BufferOptions, out: &mut dyn Write) -> Result<()> {
    let tests = cases::names();
    let lengths = copy_or_refer::BYTES.map(|bytes| (format!("refer-{bytes}"), bytes));
    let names: Vec<&str> =
        tests.iter().copied().chain(lengths.iter().map(|(name, _)| name.as_str())).collect();
    let wanted = select("case", &names, &options.cases)?;
    let variants = [&cases::IMPLEMENTATIONS[..], &copy_or_refer::VARIANTS].concat();
    let variants = select("variant", &variants, &options.variants)?;
    let slices = options.slices.unwrap_or(if options.quick { SLICES_QUICK } else { SLICES }) as usize;
    let mut report = Report::new(out, "buffer", METRICS, options.json);
    for (name, value) in [
        ("bench", "message-buffer: nanoseconds an operation"),
        ("machine", &machine::describe()),
        ("load average", &machine::load()),
        ("version", crate::VERSION),
        ("slices", &slices.to_string()),
    ] {
        report.fact(name, value)?;
    }
    let rows = cases::measure(slices, &wanted, &variants);
    for row in &rows {
        report.row(row.test, row.implementation, &[Some(row.median_ns), Some(row.best_ns)])?;
    }
    for (name, bytes) in &lengths {
        if !wanted.contains(&name.as_str()) {
            continue;
        }
        for (variant, ns) in copy_or_refer::VARIANTS.into_iter().zip(copy_or_refer::measure(slices, *bytes)) {
            if variants.contains(&variant) {
                report.row(name, variant, &[Some(ns), None])?;
            }
        }
    }
    if let Some(folder) = &options.plot {
        report.fact("chart", &charts::write(&rows, folder)?.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::parsed;

    #[test]
    fn every_case_gives_figures() {
        let options = parsed(&["--json", "--slices", "1"]);
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for name in cases::names().into_iter().chain(["refer-16", "refer-4096"]) {
            assert!(text.contains(&format!("\"case\":\"{name}\"")), "{name}: {text}");
        }
    }
}

//! The chart of a run, as an SVG file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use shoal_bench::plot::{Axis, BarChart};

use super::{CASES, VARIANTS};

/// Puts a second of a variant in a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) case: &'static str,
    pub(super) variant: &'static str,
    pub(super) per_s: f64,
}

/// Writes the chart to `directory`; none if none of the measured cases is one that all servers have.
///
/// # Errors
/// The chart cannot be drawn or written.
pub(super) fn write(rates: &[Rate], directory: &Path) -> Result<Option<PathBuf>> {
    let names = CASES.map(|case| case.name);
    let cases: Vec<&str> =
        names.into_iter().filter(|name| rates.iter().any(|rate| rate.case == *name)).collect();
    if cases.is_empty() {
        return Ok(None);
    }
    let mut chart = BarChart::new("Durable SETs", "", Axis::new("puts a second", "1/s").log(), &cases);
    for variant in VARIANTS {
        let of_variant = |case: &&str| {
            let rate = rates.iter().find(|rate| (rate.case, rate.variant) == (*case, variant))?;
            Some(rate.per_s)
        };
        if rates.iter().any(|rate| rate.variant == variant) {
            chart.add(variant, cases.iter().map(of_variant));
        }
    }
    chart.write(directory, "durable-put").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_the_variants_that_were_measured() {
        let folder = tempfile::tempdir().unwrap();
        let growth = Rate { case: "set-100b-beside-growth", variant: "shoal", per_s: 1.0 };
        assert!(write(&[growth], folder.path()).unwrap().is_none());
        let rate = |variant, per_s| Rate { case: "set-64k-c1", variant, per_s };
        let drawn = write(&[growth, rate("bare", 3_000.0), rate("shoal", 2_000.0)], folder.path()).unwrap();
        let text = std::fs::read_to_string(drawn.unwrap()).unwrap();
        let has = |name: &str| text.contains(name);
        assert!(has("bare") && has("shoal") && has("set-64k-c1"), "{text}");
        assert!(!has("redis") && !has("growth") && !has("set-64k-c50"), "{text}");
    }
}

//! The chart of a run: p50, p99 and the longest latency of each second.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::record::{Figures, Second};
use crate::plot::{Axis, LineChart, Mark};

/// In milliseconds.
pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The path of the chart of `run`: the wanted one if it is the only run, else with the run's name before the extension.
pub(super) fn path(wanted: &Path, run: &str, is_alone: bool) -> PathBuf {
    if is_alone {
        return wanted.to_owned();
    }
    let stem = wanted.file_stem().unwrap_or_default().to_string_lossy();
    let extension = wanted.extension().unwrap_or_default().to_string_lossy();
    let dot = if extension.is_empty() { "" } else { "." };
    wanted.with_file_name(format!("{stem}-{run}{dot}{extension}"))
}

/// Draws the seconds of a run at `rate` into the file at `path`.
///
/// # Errors
/// It cannot be drawn or written.
pub(super) fn draw(path: &Path, rate: f64, figures: &Figures, seconds: &[Second]) -> Result<()> {
    let all = figures.all();
    let title = format!(
        "At {rate:.0} operations a second p50 is {:.2} ms, p99 {:.2} ms, the longest {:.2} ms",
        all.quantile_us(500) / 1e3,
        all.quantile_us(990) / 1e3,
        millis(all.max())
    );
    let x = Axis::new("intended send time", "s");
    let y = Axis::new("latency from the intended send time", "ms").log();
    let mut chart = LineChart::new(&title, x, y).legend_beside();
    let curve = |figure: fn(&Second) -> f64| {
        let filled = seconds.iter().filter(|second| second.count > 0);
        filled.map(|second| (second.number as f64, figure(second))).collect::<Vec<_>>()
    };
    chart.add("longest", Mark::Line, curve(|second| millis(second.max)));
    chart.add("p99", Mark::Line, curve(|second| second.p99_us / 1e3));
    chart.add("p50", Mark::Line, curve(|second| second.p50_us / 1e3));
    fs::write(path, chart.svg()?).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_three_lines_and_names_its_axes() {
        let folder = tempfile::tempdir().unwrap();
        let mut figures = Figures::default();
        let seconds: Vec<Second> = (0..3)
            .map(|number| {
                let max = Duration::from_millis(10 + number);
                figures.latencies[0].record(max);
                Second { number, count: 1, p50_us: 500.0, p99_us: 900.0, max, ..Second::default() }
            })
            .collect();
        let path = folder.path().join("tail.svg");
        draw(&path, 1176.0, &figures, &seconds).unwrap();
        let text = fs::read_to_string(path).unwrap();
        for word in
            ["At 1176 operations", "send time [s]", "[ms], logarithmic scale", "longest", "p99", "p50"]
        {
            assert!(text.contains(word), "{word}");
        }
    }

    #[test]
    fn each_of_several_runs_has_a_separate_file() {
        let wanted = Path::new("a/b.svg");
        assert_eq!(path(wanted, "share-0.3", true), wanted);
        assert_eq!(path(wanted, "share-0.3", false), Path::new("a/b-share-0.3.svg"));
        assert_eq!(path(Path::new("b"), "r", false), Path::new("b-r"));
    }
}

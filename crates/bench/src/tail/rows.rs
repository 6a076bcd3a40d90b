//! The output of `bench tail`: a row for each second, and rows for each run.

use std::io::{self, Write};

use super::device::DeviceFigures;
use super::millis;
use super::record::{Figures, Kind, Second};
use crate::histogram::Histogram;
use crate::report::{Metric, Report};

/// Figures of a second, by the intended times.
const SECOND_METRICS: &[Metric] = &[
    Metric { name: "operations", unit: "1", head: "ops" },
    Metric { name: "p50_ms", unit: "ms", head: "p50 ms" },
    Metric { name: "p99_ms", unit: "ms", head: "p99 ms" },
    Metric { name: "max_ms", unit: "ms", head: "max ms" },
    Metric { name: "core_wait_ms", unit: "ms", head: "wait ms" },
];

/// Figures of a run.
const METRICS: &[Metric] = &[
    Metric { name: "due_per_s", unit: "1/s", head: "due/s" },
    Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
    Metric { name: "p50_ms", unit: "ms", head: "p50 ms" },
    Metric { name: "p90_ms", unit: "ms", head: "p90 ms" },
    Metric { name: "p99_ms", unit: "ms", head: "p99 ms" },
    Metric { name: "p999_ms", unit: "ms", head: "p99.9 ms" },
    Metric { name: "max_ms", unit: "ms", head: "max ms" },
    Metric { name: "stall_ms", unit: "ms", head: "stall ms" },
    Metric { name: "queued_percent", unit: "%", head: "queued %" },
    Metric { name: "core_percent", unit: "%", head: "core %" },
    Metric { name: "core_wait_ms", unit: "ms", head: "wait ms" },
    Metric { name: "calls_per_s", unit: "1/s", head: "calls/s" },
    Metric { name: "operations", unit: "1", head: "" },
    Metric { name: "unanswered", unit: "1", head: "lost" },
];

/// The table last printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    None,
    Seconds,
    Runs,
}

/// Prints rows; each change between seconds and runs starts a new table.
pub(super) struct Rows<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
    table: Table,
}

impl<'a> Rows<'a> {
    pub(super) fn new(out: &'a mut dyn Write, is_json: bool) -> Self {
        Self { out, is_json, table: Table::None }
    }

    pub(super) fn fact(&mut self, name: &str, value: &str) -> io::Result<()> {
        self.table = Table::None;
        Report::new(self.out, "tail", METRICS, self.is_json).fact(name, value)
    }

    fn row(&mut self, table: Table, case: &str, variant: &str, figures: &[Option<f64>]) -> io::Result<()> {
        let metrics = if table == Table::Seconds { SECOND_METRICS } else { METRICS };
        let mut report = Report::new(self.out, "tail", metrics, self.is_json);
        if self.table == table {
            report = report.without_heads();
        }
        self.table = table;
        report.row(case, variant, figures)
    }

    pub(super) fn second(&mut self, case: &str, second: &Second) -> io::Result<()> {
        let figures = [
            second.count as f64,
            second.p50_us / 1e3,
            second.p99_us / 1e3,
            millis(second.max),
            millis(second.core_wait),
        ];
        self.row(Table::Seconds, case, &format!("second-{}", second.number), &figures.map(Some))
    }

    /// The rows of a run at `rate`, or as fast as possible.
    pub(super) fn load(&mut self, case: &str, rate: Option<f64>, figures: &Figures) -> io::Result<()> {
        let all = figures.all();
        let [sets, gets] = [Kind::Set, Kind::Get].map(|kind| &figures.latencies[kind as usize]);
        let seconds = figures.took.as_secs_f64().max(1e-9);
        let per_s = |histogram: &Histogram| Some(histogram.count() as f64 / seconds);
        if sets.count() > 0 && gets.count() > 0 {
            for (name, histogram) in [("set", sets), ("get", gets)] {
                self.row(Table::Runs, case, name, &row(None, per_s(histogram), histogram))?;
            }
        }
        let name = match (sets.count(), gets.count()) {
            (_, 0) => "set",
            (0, _) => "get",
            _ => "all",
        };
        let mut cells = row(rate, per_s(&all), &all);
        cells[7] = Some(millis(figures.stall));
        cells[8] = Some(100.0 * figures.queued as f64 / all.count().max(1) as f64);
        cells[9] = Some(100.0 * figures.core_share);
        cells[10] = Some(millis(figures.core_wait));
        cells[13] = Some(figures.unanswered as f64);
        self.row(Table::Runs, case, name, &cells)?;
        if rate.is_some() {
            self.row(Table::Runs, case, "sent-late", &row(None, None, &figures.late))?;
        }
        Ok(())
    }

    /// The row of the device alone at `rate`.
    pub(super) fn device(
        &mut self,
        case: &str,
        name: &str,
        rate: f64,
        figures: &DeviceFigures,
    ) -> io::Result<()> {
        let seconds = figures.took.as_secs_f64().max(1e-9);
        let per_s = figures.latencies.count() as f64 / seconds;
        let mut cells = row(Some(rate), Some(per_s), &figures.latencies);
        cells[11] = Some(figures.calls as f64 / seconds);
        self.row(Table::Runs, case, name, &cells)
    }
}

/// Rates and latencies; the other cells are empty.
fn row(due_per_s: Option<f64>, ops_per_s: Option<f64>, latencies: &Histogram) -> Vec<Option<f64>> {
    let mut cells = vec![due_per_s, ops_per_s];
    cells.extend([500, 900, 990, 999].map(|permille| Some(latencies.quantile_us(permille) / 1e3)));
    cells.push(Some(millis(latencies.max())));
    cells.resize(METRICS.len(), None);
    cells[12] = Some(latencies.count() as f64);
    cells
}

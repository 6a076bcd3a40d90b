//! The output of figures: a table for people, plain lines for pipes, or one JSON object a line for programs.
//!
//! Every row is printed as soon as it is measured. A figure that a case does not measure is a dash, or no line.

use std::io::{self, Write};

use serde_json::{Value, json};

/// Width of a column of figures.
const WIDTH: usize = 9;

/// A figure of a benchmark for each case and variant.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in the JSON lines.
    pub name: &'static str,
    /// Its unit there.
    pub unit: &'static str,
    /// The column's head in the table; empty: the table leaves it out.
    pub head: &'static str,
}

/// The readers of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// People: a table.
    Table,
    /// Line-based tools: case, variant, name, value and unit of a figure on each line.
    Lines,
    /// Programs: one JSON object a line.
    Json,
}

/// Prints the figures of one benchmark.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    bench: &'static str,
    metrics: &'static [Metric],
    format: Format,
    has_heads: bool,
}

impl<'a> Report<'a> {
    /// A report of `bench`, with a column for each of `metrics`.
    pub fn new(out: &'a mut dyn Write, bench: &'static str, metrics: &'static [Metric], json: bool) -> Self {
        Self::formatted(out, bench, metrics, if json { Format::Json } else { Format::Table })
    }

    /// The same in any format.
    pub fn formatted(
        out: &'a mut dyn Write,
        bench: &'static str,
        metrics: &'static [Metric],
        format: Format,
    ) -> Self {
        Self { out, bench, metrics, format, has_heads: false }
    }

    /// The table continues one with the same columns.
    #[must_use]
    pub fn without_heads(mut self) -> Self {
        self.has_heads = true;
        self
    }

    /// A fact about the run as a whole: machine, load, version, parameters, seed.
    ///
    /// # Errors
    /// Those of the output.
    pub fn fact(&mut self, name: &str, value: &str) -> io::Result<()> {
        if self.format == Format::Json {
            writeln!(self.out, "{}", json!({ "bench": self.bench, "header": name, "value": value }))?;
        } else {
            writeln!(self.out, "# {name}: {value}")?;
        }
        self.out.flush()
    }

    /// The figures of one case and variant, one for each metric.
    ///
    /// # Errors
    /// Those of the output.
    pub fn row(&mut self, case: &str, variant: &str, figures: &[Option<f64>]) -> io::Result<()> {
        assert_eq!(figures.len(), self.metrics.len(), "a row has a place for every metric");
        if self.format != Format::Table {
            for (metric, figure) in self.metrics.iter().zip(figures) {
                let Some(value) = figure else { continue };
                if self.format == Format::Lines {
                    writeln!(self.out, "{case} {variant} {} {value} {}", metric.name, metric.unit)?;
                    continue;
                }
                let line: Value = json!({
                    "bench": self.bench, "case": case, "variant": variant,
                    "metric": metric.name, "value": value, "unit": metric.unit,
                });
                writeln!(self.out, "{line}")?;
            }
            return self.out.flush();
        }
        if !self.has_heads {
            self.has_heads = true;
            write!(self.out, "\n{:21} {:14}", "case", "variant")?;
            for metric in self.metrics.iter().filter(|metric| !metric.head.is_empty()) {
                write!(self.out, " {:>WIDTH$}", metric.head)?;
            }
            writeln!(self.out)?;
        }
        write!(self.out, "{case:21} {variant:14}")?;
        for (metric, figure) in self.metrics.iter().zip(figures) {
            if !metric.head.is_empty() {
                write!(self.out, " {:>WIDTH$}", shown(*figure))?;
            }
        }
        writeln!(self.out)?;
        self.out.flush()
    }
}

/// With a reasonable number of digits.
fn shown(figure: Option<f64>) -> String {
    match figure {
        None => "-".into(),
        Some(figure) if figure.abs() >= 100.0 => format!("{figure:.0}"),
        Some(figure) if figure.abs() >= 10.0 => format!("{figure:.1}"),
        Some(0.0) => "0".into(),
        Some(figure) if figure.abs() < 0.1 => format!("{figure:.4}"),
        Some(figure) => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &[Metric] = &[
        Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
        Metric { name: "p50_us", unit: "us", head: "p50 us" },
    ];

    #[test]
    fn a_table_has_one_head() {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, "b", METRICS, false);
        report.fact("seed", "1").unwrap();
        report.row("c1", "v", &[Some(1234.5), None]).unwrap();
        report.row("c2", "v", &[Some(0.0512), Some(12.34)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("ops/s").count(), 1, "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["c1", "v", "1234", "-"]), "{text}");
        assert!(lines.contains(&vec!["c2", "v", "0.0512", "12.3"]), "{text}");
    }

    #[test]
    fn lines_have_five_words_and_a_table_leaves_out_what_has_no_head() {
        const METRICS: &[Metric] = &[
            Metric { name: "ops_per_s", unit: "1/s", head: "ops/s" },
            Metric { name: "total_bytes", unit: "B", head: "" },
        ];
        let print = |format| {
            let mut out = Vec::new();
            let mut report = Report::formatted(&mut out, "b", METRICS, format);
            report.row("c", "v", &[Some(12.34), Some(7.0)]).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(Format::Lines), "c v ops_per_s 12.34 1/s\nc v total_bytes 7 B\n");
        let table = print(Format::Table);
        assert!(table.contains("12.3") && !table.contains("7") && !table.contains("total"), "{table}");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let mut out = Vec::new();
        let mut report = Report::new(&mut out, "b", METRICS, true);
        report.fact("seed", "1").unwrap();
        report.row("c", "v", &[Some(2.0), None]).unwrap();
        let lines: Vec<Value> =
            String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[1],
            json!({ "bench": "b", "case": "c", "variant": "v", "metric": "ops_per_s", "value": 2.0, "unit": "1/s" })
        );
    }
}

//! The log, the configuration, and the report for a support case.

use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};
use shoal_base::BLOCK_BYTES_U64;
use shoal_metrics::{Source, render};
use shoal_server::ReportSource;
use shoal_transfer::support_report::SupportReport;

use super::live::Sources;

/// The names of the texts of the program that runs the server.
const LOG: &str = "server.log";
const CONFIGURATION: &str = "configuration.toml";
/// Cells of the map in a report.
pub(super) const REPORT_CELLS: u64 = 1_024;

fn text_of(report: &ReportSource, name: &str) -> String {
    let found = report.texts().into_iter().find(|(found, _)| found == name);
    found.map_or_else(String::new, |(_, text)| text)
}

/// The last lines of the log, the newest last.
#[derive(Debug, Serialize)]
pub(super) struct LogDocument {
    lines: Vec<String>,
}

pub(super) fn log(report: &ReportSource, lines_max: usize) -> LogDocument {
    let text = text_of(report, LOG);
    let mut lines: Vec<String> = text.lines().rev().take(lines_max).map(str::to_owned).collect();
    lines.reverse();
    LogDocument { lines }
}

/// The options in force, and their defaults.
#[derive(Debug, Serialize)]
pub(super) struct ConfigDocument {
    options: Vec<OptionRow>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct OptionRow {
    name: String,
    value: String,
    default: Option<String>,
    is_default: bool,
}

pub(super) fn config(report: &ReportSource) -> ConfigDocument {
    let text = text_of(report, CONFIGURATION);
    let row = |line: &str| {
        if let Some((name, default)) = line.strip_prefix("# ").and_then(|line| line.split_once(": ")) {
            let [value, default] = [(); 2].map(|()| default.to_owned());
            return Some(OptionRow {
                name: name.to_owned(),
                value,
                default: Some(default),
                is_default: true,
            });
        }
        let (name, rest) = line.split_once(" = ")?;
        let (value, default) = match rest.rsplit_once("  # default: ") {
            Some((value, default)) => (value, Some(default.to_owned())),
            None => (rest, None),
        };
        let value = value.trim_matches('"').to_owned();
        Some(OptionRow { name: name.to_owned(), value, default, is_default: false })
    };
    ConfigDocument { options: text.lines().filter_map(row).collect() }
}

/// The archive of the report, gzipped, with the map of the space. Waits for the disk.
///
/// # Errors
/// None: an archive in memory has room.
pub(super) fn archive(sources: &Sources, map: &[u8], report: &ReportSource) -> anyhow::Result<Vec<u8>> {
    let mut archive = SupportReport::of_this_machine();
    let stat = sources.store.stat();
    let figure =
        |(name, unit, value): (&str, &str, u64)| json!({ "name": name, "unit": unit, "value": value });
    let figures: Vec<Value> = stat.figures().into_iter().map(figure).collect();
    let document = json!({
        "objects": stat.objects_with_log(),
        "blocks": stat.device_blocks,
        "block_bytes": BLOCK_BYTES_U64,
        "read_only": stat.poisoned,
        "figures": figures,
    });
    archive.add("figures.json", Ok(format!("{document:#}\n")));
    archive.add("space.json", Ok(String::from_utf8_lossy(map).into_owned() + "\n"));
    let source = Source {
        metrics: Arc::clone(&sources.metrics),
        store: Some(sources.store.clone()),
        is_ready: sources.health.ready().is_ok(),
    };
    archive.add("metrics.txt", render(&source, false).context("cannot write the metrics"));
    for (name, text) in report.texts() {
        archive.add(&name, Ok(text));
    }
    Ok(archive.write(Vec::new())?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(texts: &[(&str, &str)]) -> ReportSource {
        let texts: Vec<_> =
            texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        ReportSource::new(move || texts.clone())
    }

    #[test]
    fn the_last_lines_of_the_log_are_in_their_order() {
        let report = source(&[("other", "x"), (LOG, "one\ntwo\nthree\n")]);
        assert_eq!(log(&report, 2).lines, ["two", "three"]);
        assert_eq!(log(&report, 99).lines.len(), 3);
        assert_eq!(log(&ReportSource::default(), 5).lines, Vec::<String>::new());
    }

    #[test]
    fn options_are_those_of_the_configuration() {
        let text =
            "cache = \"4G\"  # default: 1G\n# insecure: not set\ns3-domain = [\"a.example\"]\n# slow: 1s\n\n";
        let row = |name: &str, value: &str, default: Option<&str>, is_default| OptionRow {
            name: name.to_owned(),
            value: value.to_owned(),
            default: default.map(str::to_owned),
            is_default,
        };
        let expected = [
            row("cache", "4G", Some("1G"), false),
            row("insecure", "not set", Some("not set"), true),
            row("s3-domain", "[\"a.example\"]", None, false),
            row("slow", "1s", Some("1s"), true),
        ];
        assert_eq!(config(&source(&[(CONFIGURATION, text)])).options, expected);
    }
}

//! The text of a scrape: the figures of one moment in the text format that Prometheus reads.
//!
//! `prometheus-client` writes OpenMetrics. A reader that does not ask for OpenMetrics gets the older text format, which
//! differs in its comments only: a counter's comments have `_total` in the name, and units have no lines.

use std::fmt::{self, Write};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use shoal_base::histogram::{BOUNDS_NS, Durations};

use crate::catalog::{CATALOG, Kind, MetricFamily, Samples, Value};
use crate::snapshot::{Snapshot, Source};

/// Returns true if a bound of durations is written: 1, 2.5 and 5 of each decade from 10 microseconds to 10 seconds are.
fn is_written(bound_ns: u64) -> bool {
    let mut leading = bound_ns;
    while leading >= 100 && leading.is_multiple_of(10) {
        leading /= 10;
    }
    bound_ns >= 10_000 && matches!(leading, 10 | 25 | 50)
}

/// The current figures as text: OpenMetrics, or the older text format.
///
/// # Errors
/// None: a string takes every character.
pub fn render(source: &Source, open_metrics: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(source.now())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    if open_metrics { Ok(text) } else { older(&text) }
}

/// Translates a text in OpenMetrics to the older text format.
fn older(text: &str) -> Result<String, fmt::Error> {
    let mut lines = String::with_capacity(text.len());
    let is_counter = |name: &str| {
        CATALOG.iter().copied().flatten().any(|it| it.stem() == name && it.kind == Kind::Counter)
    };
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            writeln!(lines, "{line}")?;
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        let (Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let total = if is_counter(name) { "_total" } else { "" };
        writeln!(lines, "# {what} {name}{total} {rest}")?;
    }
    Ok(lines)
}

struct Scrape(Snapshot);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in CATALOG.iter().copied().flatten() {
            let mut samples = Samples::default();
            (metric.read)(&self.0, &mut samples);
            if !samples.0.is_empty() {
                write_metric(&mut encoder, metric, samples)?;
            }
        }
        Ok(())
    }
}

/// The labels of a time series.
struct Labels<'a>(&'a [&'static str], &'a [String]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.iter().copied().zip(self.1.iter().map(String::as_str)).collect::<Vec<_>>().encode(encoder)
    }
}

fn write_metric(encoder: &mut DescriptorEncoder<'_>, metric: &MetricFamily, samples: Samples) -> fmt::Result {
    let unit = match metric.unit() {
        Some("seconds") => Some(Unit::Seconds),
        Some("bytes") => Some(Unit::Bytes),
        _ => None,
    };
    let stem = metric.stem();
    // The encoder adds the unit itself.
    let bare = metric.unit().and_then(|unit| stem.strip_suffix(unit)?.strip_suffix('_')).unwrap_or(stem);
    let kind = match metric.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut encoder = encoder.encode_descriptor(bare, metric.help, unit.as_ref(), kind)?;
    for (values, value) in samples.0 {
        if values.is_empty() {
            write_value(&mut encoder, metric.kind, value)?;
        } else {
            let labels = Labels(metric.labels, &values);
            write_value(&mut encoder.encode_family(&labels)?, metric.kind, value)?;
        }
    }
    Ok(())
}

fn write_value(encoder: &mut MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    match value {
        Value::Number(number) if kind == Kind::Counter => {
            encoder.encode_counter::<NoLabelSet, f64, f64>(&number, None)
        }
        Value::Number(number) => encoder.encode_gauge(&number),
        Value::Durations(durations) => {
            let (sum, count) = (durations.sum_ns as f64 / 1e9, durations.count());
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets_of(&durations), None)
        }
    }
}

/// The bounds that are written, each with the count of durations above the written bound before it.
fn buckets_of(durations: &Durations) -> Vec<(f64, u64)> {
    let (mut written, mut count) = (Vec::new(), 0);
    for (at, &bucket) in durations.buckets.iter().enumerate() {
        count += bucket;
        match BOUNDS_NS.get(at) {
            Some(&bound_ns) if is_written(bound_ns) => {
                written.push((bound_ns as f64 / 1e9, std::mem::take(&mut count)));
            }
            Some(_) => {}
            None => written.push((f64::INFINITY, count)),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::archive::ArchiveFigures;
    use crate::frontend::{Connections, MemoryParts, Metrics};
    use crate::request::{Operation, RefusalCause, RequestResult};

    fn store() -> shoal_engine::Store {
        shoal_storekit::StoreKit::new(8192).with_cache(8 << 20).in_memory()
    }

    fn source() -> Source {
        let metrics = Arc::new(Metrics::default());
        metrics.redis().watch_connections(Connections::default);
        metrics.set_memory(MemoryParts { total: 9, parts: vec![("store".into(), 5), ("slack".into(), 4)] });
        let _ = metrics.redis().add(Operation::Get, RequestResult::NotFound, 30_000, 7);
        metrics.set_archive(|| ArchiveFigures {
            state: "shipping",
            base_taken_seconds: Some(1.0),
            oldest_seconds: Some(1.0),
            ..ArchiveFigures::default()
        });
        metrics.grpc().watch_connections(|| Connections { open: 2, ..Connections::default() });
        Source { metrics, store: Some(store()), is_ready: true }
    }

    #[test]
    fn every_metric_is_written_with_its_labels() {
        let text = render(&source(), false).unwrap();
        for metric in CATALOG.iter().copied().flatten() {
            // A new store has no value for it yet.
            if metric.help.contains("absent if") && !text.contains(metric.name) {
                continue;
            }
            assert!(
                text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.word())),
                "{}: {text}",
                metric.name
            );
            assert!(text.contains(&format!("# HELP {} ", metric.name)), "{}", metric.name);
            let samples = text.lines().filter(|line| {
                let rest = line.strip_prefix(metric.name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_count"))
            });
            let samples: Vec<_> = samples.collect();
            assert!(!samples.is_empty() || metric.help.contains("absent if"), "{}", metric.name);
            for sample in samples {
                let labels: Vec<_> =
                    sample.split(['{', ',']).skip(1).filter_map(|part| part.split_once('=')).collect();
                let names: Vec<_> = labels.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, metric.labels, "{sample}");
            }
        }
        assert!(text.contains("shoal_request_duration_seconds_bucket{le=\"0.000025\",frontend=\"redis\",operation=\"get\",result=\"not_found\"} 0\n"), "{text}");
        assert!(text.contains("shoal_request_duration_seconds_bucket{le=\"+Inf\",frontend=\"redis\",operation=\"get\",result=\"not_found\"} 7\n"));
        assert!(text.contains("shoal_connections{frontend=\"grpc\"} 2"));
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
        let open = render(&source(), true).unwrap();
        assert!(open.contains("# UNIT shoal_sent_bytes bytes\n") && open.ends_with("# EOF\n"));
    }

    #[test]
    fn the_classes_of_space_are_the_cap() {
        let text = render(&source(), false).unwrap();
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        let of =
            |name: &str| text.lines().filter(|line| line.starts_with(name)).filter_map(value).sum::<f64>();
        assert_eq!(of("shoal_space_bytes{"), of("shoal_size_bytes "));
        assert!(of("shoal_size_bytes ") > 0.0);
    }

    #[test]
    fn process_metrics_exist_before_store_opens() {
        let source = Source { metrics: Arc::default(), store: None, is_ready: false };
        let text = render(&source, false).unwrap();
        assert!(
            text.contains("shoal_ready 0")
                && text.contains("process_threads")
                && !text.contains("shoal_objects")
        );
    }

    /// The dashboard, the alerts and their tests ask for metrics of the catalog.
    #[test]
    fn deployed_files_name_metrics_of_the_catalog() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        for file in
            ["grafana/shoal.json", "prometheus/alerts.yml", "prometheus/alerts_test.yml", "prometheus/try"]
        {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            let words = text.split(|at: char| !at.is_ascii_alphanumeric() && at != '_');
            let names = words.filter(|word| word.starts_with("shoal_") || word.starts_with("process_"));
            let names: BTreeSet<_> = names.collect();
            assert!(!names.is_empty(), "{file}");
            for name in names {
                let of_histogram = |metric: &MetricFamily| {
                    let part = name.strip_prefix(metric.name);
                    metric.kind == Kind::Histogram && matches!(part, Some("_bucket" | "_count" | "_sum"))
                };
                let is_known = CATALOG
                    .iter()
                    .copied()
                    .flatten()
                    .any(|metric| metric.name == name || of_histogram(metric));
                assert!(is_known, "{file}: there is no metric {name}");
            }
        }
    }

    /// The page has the metrics of the catalog with their help, in its order, and no others.
    #[test]
    fn the_page_lists_the_catalog() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/metrics.md");
        let page = fs::read_to_string(path).unwrap();
        let found: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("| `shoal_") || line.starts_with("| `process_"))
            .collect();
        let row = |metric: &MetricFamily| {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let unit = metric.unit().unwrap_or("");
            format!(
                "| `{}` | {} | {unit} | {} | {} |",
                metric.name,
                metric.kind.word(),
                labels.join(", "),
                metric.help
            )
        };
        let expected: Vec<_> = CATALOG.iter().copied().flatten().map(row).collect();
        let missing: Vec<_> = expected.iter().filter(|row| !found.contains(&row.as_str())).collect();
        assert!(
            missing.is_empty(),
            "docs/operate/metrics.md lacks these lines:\n{}",
            missing.iter().map(|row| format!("{row}\n")).collect::<String>()
        );
        assert_eq!(found, expected, "docs/operate/metrics.md has these lines, in this order");
        for (label, words) in [
            ("operation", Operation::ALL.iter().map(|it| it.word()).collect::<BTreeSet<_>>()),
            ("result", RequestResult::ALL.iter().map(|it| it.word()).collect()),
            ("cause", RefusalCause::ALL.iter().map(|it| it.word()).collect()),
        ] {
            let rows = page.lines().filter_map(|line| line.strip_prefix(&format!("| `{label}=\"")));
            let told: BTreeSet<_> = rows.filter_map(|row| row.split('"').next()).collect();
            assert_eq!(told, words, "docs/operate/metrics.md: the values of {label}");
        }
    }
}

//! Every metric: its name, type, labels, meaning and the source of its value, in one place.
//!
//! Names follow the conventions of Prometheus: the prefix `shoal_` (`process_` for figures that every process has), base units,
//! `_total` at the end of a counter. Each label has few values, all of them named in the code.

mod archive;
mod frontends;
mod process;
mod store;

use shoal_base::histogram::Durations;

use crate::snapshot::Snapshot;

/// The type of a metric in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from 0 at the start of the server.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts durations in buckets.
    Histogram,
}

impl Kind {
    /// Its word in the exposition format.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
pub struct MetricFamily {
    /// Its name, with its unit and, for a counter, `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, in one line.
    pub help: &'static str,
    /// Adds its values of a moment.
    pub(crate) read: fn(&Snapshot, &mut Samples),
}

impl MetricFamily {
    /// Its unit; none if it is a plain number.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        let name = self.stem();
        ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")))
    }

    /// Its name without `_total`.
    #[must_use]
    pub fn stem(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }
}

/// The value of one time series.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(f64),
    Durations(Box<Durations>),
}

/// The time series of one metric: the values of its labels, and its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<(Vec<String>, Value)>);

impl Samples {
    /// A metric without labels.
    pub(crate) fn one(&mut self, value: f64) {
        self.with([], value);
    }

    /// A metric without labels, as an integer.
    pub(crate) fn count(&mut self, value: u64) {
        self.one(value as f64);
    }

    /// A time series with these values of its labels.
    pub(crate) fn with<const LABELS: usize>(&mut self, labels: [&str; LABELS], value: f64) {
        self.0.push((labels.map(str::to_owned).into(), Value::Number(value)));
    }

    /// A time series of durations with these values of its labels.
    pub(crate) fn durations<const LABELS: usize>(&mut self, labels: [&str; LABELS], durations: &Durations) {
        self.0.push((labels.map(str::to_owned).into(), Value::Durations(Box::new(durations.clone()))));
    }
}

/// All metrics, in the order of the text.
pub const CATALOG: &[&[MetricFamily]] =
    &[frontends::METRICS, store::METRICS, archive::METRICS, process::METRICS];

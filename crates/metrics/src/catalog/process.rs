//! The metrics of the process, under the names that all programs use, and the server's readiness.

use super::{Kind, MetricFamily};

pub(super) const METRICS: &[MetricFamily] = &[
    MetricFamily {
        name: "shoal_ready",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the server takes requests of all kinds, as /readyz reports; 0 while it opens the store, is read-only, stops, or no write gets through",
        read: |now, samples| samples.count(u64::from(now.is_ready)),
    },
    MetricFamily {
        name: "shoal_build_info",
        kind: Kind::Gauge,
        labels: &["version"],
        help: "Always 1; the version of the server is in the label",
        read: |_, samples| samples.with([env!("CARGO_PKG_VERSION")], 1.0),
    },
    MetricFamily {
        name: "shoal_memory_limit_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "The memory limit of the server (`--memory`)",
        read: |now, samples| samples.count(now.memory.total),
    },
    MetricFamily {
        name: "shoal_memory_part_bytes",
        kind: Kind::Gauge,
        labels: &["part"],
        help: "The memory limit of each part of the server; their sum is at most shoal_memory_limit_bytes",
        read: |now, samples| {
            now.memory.parts.iter().for_each(|(part, bytes)| samples.with([part.as_str()], *bytes as f64));
        },
    },
    MetricFamily {
        name: "shoal_tls_certificate_expires_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "End of the validity of the TLS certificate in force, or of the one of its chain that expires first, in Unix time; absent if there is none",
        read: |now, samples| {
            if let Some(end_s) = now.certificate_end_s {
                samples.count(end_s);
            }
        },
    },
    MetricFamily {
        name: "process_cpu_seconds_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Processor time of the process, in the program and in the system",
        read: |now, samples| samples.one(now.process.user_seconds + now.process.system_seconds),
    },
    MetricFamily {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Memory of the process",
        read: |now, samples| samples.count(now.process.resident_bytes),
    },
    MetricFamily {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Address space of the process",
        read: |now, samples| samples.count(now.process.virtual_bytes),
    },
    MetricFamily {
        name: "process_open_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Open file descriptors",
        read: |now, samples| samples.count(now.process.open_files),
    },
    MetricFamily {
        name: "process_max_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Limit of file descriptors; absent if there is none",
        read: |now, samples| now.process.open_files_max.into_iter().for_each(|most| samples.count(most)),
    },
    MetricFamily {
        name: "process_threads",
        kind: Kind::Gauge,
        labels: &[],
        help: "Threads of the process",
        read: |now, samples| samples.count(now.process.threads),
    },
    MetricFamily {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Start time of the process, in Unix time",
        read: |now, samples| samples.one(now.process.started_s),
    },
];

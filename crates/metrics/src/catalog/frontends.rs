//! The metrics of the frontends: requests, bytes, connections, refusals.

use super::{Kind, MetricFamily};

pub(super) const METRICS: &[MetricFamily] = &[
    MetricFamily {
        name: "shoal_request_duration_seconds",
        kind: Kind::Histogram,
        labels: &["frontend", "operation", "result"],
        help: "Requests, from their arrival until their answer was passed to the connection",
        read: |now, samples| {
            for frontend in &now.frontends {
                for counts in &frontend.requests {
                    let labels = [frontend.name, counts.operation.word(), counts.result.word()];
                    samples.durations(labels, &counts.durations);
                }
            }
        },
    },
    MetricFamily {
        name: "shoal_received_bytes_total",
        kind: Kind::Counter,
        labels: &["frontend"],
        help: "Bytes of requests in the protocol, without the overhead of TLS",
        read: |now, samples| {
            now.frontends
                .iter()
                .for_each(|frontend| samples.with([frontend.name], frontend.received_bytes as f64));
        },
    },
    MetricFamily {
        name: "shoal_sent_bytes_total",
        kind: Kind::Counter,
        labels: &["frontend"],
        help: "Bytes of answers in the protocol, without the overhead of TLS",
        read: |now, samples| {
            now.frontends
                .iter()
                .for_each(|frontend| samples.with([frontend.name], frontend.sent_bytes as f64));
        },
    },
    MetricFamily {
        name: "shoal_connections",
        kind: Kind::Gauge,
        labels: &["frontend"],
        help: "Open connections",
        read: |now, samples| {
            for frontend in &now.frontends {
                samples.with([frontend.name], frontend.connections.open as f64);
            }
        },
    },
    MetricFamily {
        name: "shoal_connections_opened_total",
        kind: Kind::Counter,
        labels: &["frontend"],
        help: "Connections that were opened",
        read: |now, samples| {
            for frontend in &now.frontends {
                samples.with([frontend.name], frontend.connections.opened as f64);
            }
        },
    },
    MetricFamily {
        name: "shoal_refusals_total",
        kind: Kind::Counter,
        labels: &["frontend", "cause"],
        help: "Connections and requests that were refused or closed, by cause",
        read: |now, samples| {
            for frontend in &now.frontends {
                for (cause, count) in &frontend.refusals {
                    samples.with([frontend.name, cause.word()], *count as f64);
                }
            }
        },
    },
    MetricFamily {
        name: "shoal_audit_lines_lost_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Lines that the audit log lost; absent if there is no audit log",
        read: |now, samples| {
            if let Some(lost) = now.audit_lost {
                samples.one(lost as f64);
            }
        },
    },
    MetricFamily {
        name: "shoal_request_memory_bytes",
        kind: Kind::Gauge,
        labels: &["frontend"],
        help: "Memory of requests and answers in progress, including memory reserved for answers",
        read: |now, samples| {
            for frontend in &now.frontends {
                samples.with([frontend.name], frontend.connections.memory_bytes as f64);
            }
        },
    },
];

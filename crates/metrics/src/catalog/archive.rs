//! The metrics of the archive. They are absent without one.

use super::{Kind, MetricFamily, Samples};
use crate::archive::{ARCHIVE_STATES, ArchiveFigures};
use crate::snapshot::Snapshot;

/// Shows the archive's figures to `look` if there is an archive.
fn archive(now: &Snapshot, look: impl FnOnce(&ArchiveFigures)) {
    if let Some(figures) = &now.archive {
        look(figures);
    }
}

fn states(figures: &ArchiveFigures, samples: &mut Samples) {
    for state in ARCHIVE_STATES {
        samples.with([state], f64::from(u8::from(state == figures.state)));
    }
}

pub(super) const METRICS: &[MetricFamily] = &[
    MetricFamily {
        name: "shoal_archive_state",
        kind: Kind::Gauge,
        labels: &["state"],
        help: "1 for the state of the archive, 0 for the others; absent without an archive, as all metrics of it",
        read: |now, samples| archive(now, |figures| states(figures, samples)),
    },
    MetricFamily {
        name: "shoal_archive_lag_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Age of the oldest write that is durable here and not in the archive; 0 if there is none",
        read: |now, samples| archive(now, |figures| samples.one(figures.lag_seconds)),
    },
    MetricFamily {
        name: "shoal_archive_lag_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes of segments that are not in the archive yet",
        read: |now, samples| archive(now, |figures| samples.count(figures.lag_bytes)),
    },
    MetricFamily {
        name: "shoal_archive_version",
        kind: Kind::Gauge,
        labels: &[],
        help: "Version up to which every write is in the archive",
        read: |now, samples| archive(now, |figures| samples.count(figures.version)),
    },
    MetricFamily {
        name: "shoal_archive_spool_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes of the spool, which holds segments that wait for the bucket",
        read: |now, samples| archive(now, |figures| samples.count(figures.spool_bytes)),
    },
    MetricFamily {
        name: "shoal_archive_spool_limit_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes that the spool may have",
        read: |now, samples| archive(now, |figures| samples.count(figures.spool_bytes_max)),
    },
    MetricFamily {
        name: "shoal_archive_gaps_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Times that writes are in no log of the archive, so that a base was needed",
        read: |now, samples| archive(now, |figures| samples.count(figures.gaps)),
    },
    MetricFamily {
        name: "shoal_archive_segments_total",
        kind: Kind::Counter,
        labels: &["kind"],
        help: "Segments that the archive got, by kind",
        read: |now, samples| {
            archive(now, |figures| {
                for (kind, count) in figures.segments {
                    samples.with([kind], count as f64);
                }
            })
        },
    },
    MetricFamily {
        name: "shoal_archive_segment_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes of these segments",
        read: |now, samples| archive(now, |figures| samples.count(figures.segment_bytes)),
    },
    MetricFamily {
        name: "shoal_archive_requests_total",
        kind: Kind::Counter,
        labels: &["operation"],
        help: "Requests to the bucket, repeated ones too",
        read: |now, samples| {
            archive(now, |figures| {
                for (operation, count) in figures.requests {
                    samples.with([operation], count as f64);
                }
            })
        },
    },
    MetricFamily {
        name: "shoal_archive_request_failures_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Requests to the bucket that failed and were repeated, or that it refused",
        read: |now, samples| archive(now, |figures| samples.count(figures.failures)),
    },
    MetricFamily {
        name: "shoal_archive_ambiguous_total",
        kind: Kind::Counter,
        labels: &["outcome"],
        help: "Answers of the bucket that did not show whether a write was done, by the outcome that the object showed",
        read: |now, samples| {
            archive(now, |figures| {
                samples.with(["ours"], figures.ambiguous_ours as f64);
                samples.with(["foreign"], figures.ambiguous_foreign as f64);
            })
        },
    },
    MetricFamily {
        name: "shoal_archive_base_last_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Time of the newest base, in Unix time; absent if there is none",
        read: |now, samples| {
            archive(now, |figures| {
                if let Some(taken) = figures.base_taken_seconds {
                    samples.one(taken);
                }
            })
        },
    },
    MetricFamily {
        name: "shoal_archive_base_progress_bytes",
        kind: Kind::Gauge,
        labels: &["part"],
        help: "Bytes of the base that is being uploaded: those that the bucket has, and all by estimate; 0 while none is",
        read: |now, samples| {
            archive(now, |figures| {
                samples.with(["done"], figures.base_bytes as f64);
                samples.with(["all"], figures.base_bytes_expected as f64);
            })
        },
    },
    MetricFamily {
        name: "shoal_archive_log_since_base_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bytes of segments after the newest base, which a restore replays",
        read: |now, samples| archive(now, |figures| samples.count(figures.log_bytes_since_base)),
    },
    MetricFamily {
        name: "shoal_archive_oldest_timestamp_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Oldest moment to which the archive can restore, in Unix time; absent without a base",
        read: |now, samples| {
            archive(now, |figures| {
                if let Some(oldest) = figures.oldest_seconds {
                    samples.one(oldest);
                }
            })
        },
    },
];

//! Slow requests, connections and damage as documents.

use serde::Serialize;
use shoal_engine::{Store, StoreStat};
use shoal_metrics::{ArchiveFigures, Metrics, SlowEntry};
use shoal_transfer::text::show_key;

/// The slow requests.
#[derive(Debug, Serialize)]
pub(super) struct SlowDocument {
    /// Requests of this duration are slow; none: no request is.
    slow_ms: Option<f64>,
    /// The newest first.
    requests: Vec<SlowRow>,
}

#[derive(Debug, Serialize)]
struct SlowRow {
    at_ms: u64,
    frontend: &'static str,
    operation: String,
    /// Known only with an access log or an audit log.
    bucket: Option<String>,
    key: Option<String>,
    result: &'static str,
    total_us: u64,
    queue_us: u64,
    store_us: u64,
    log_us: u64,
    answer_us: u64,
    times: u64,
    peer: String,
}

pub(super) fn slow(metrics: &Metrics) -> SlowDocument {
    SlowDocument {
        slow_ms: metrics.slow().map(|slow| slow.as_secs_f64() * 1e3),
        requests: metrics.slow_requests().into_iter().map(SlowRow::from).collect(),
    }
}

impl From<SlowEntry> for SlowRow {
    fn from(entry: SlowEntry) -> Self {
        let (bucket, key) = entry.object.unzip();
        Self {
            at_ms: entry.at_ns / 1_000_000,
            frontend: entry.frontend,
            operation: entry.operation,
            bucket,
            key: key.map(|key| show_key(&key)),
            result: entry.result,
            total_us: entry.total_ns / 1_000,
            queue_us: entry.parts.queue_ns / 1_000,
            store_us: entry.parts.store_ns / 1_000,
            log_us: entry.parts.log_ns / 1_000,
            answer_us: entry.parts.answer_ns / 1_000,
            times: entry.times,
            peer: entry.peer.to_string(),
        }
    }
}

/// A stored key as text: `BUCKET/KEY`. The end of a range may be in the middle of one.
fn shown(stored: &[u8]) -> String {
    match stored.iter().position(|&byte| byte == 0) {
        Some(at) => format!("{}/{}", show_key(&stored[..at]), show_key(&stored[at + 1..])),
        None => show_key(stored),
    }
}

/// The connections of the frontends that serve.
#[derive(Debug, Serialize)]
pub(super) struct ConnectionsDocument {
    frontends: Vec<ConnectionsRow>,
}

#[derive(Debug, Serialize)]
struct ConnectionsRow {
    name: &'static str,
    open: u64,
    opened: u64,
    refused: u64,
    evicted: u64,
    overdue: u64,
    memory_bytes: u64,
    /// All refusals by cause, those of connections included.
    refusals: Vec<RefusalsRow>,
}

#[derive(Debug, Serialize)]
struct RefusalsRow {
    cause: &'static str,
    count: u64,
}

pub(super) fn connections(metrics: &Metrics) -> ConnectionsDocument {
    let row = |frontend: &shoal_metrics::FrontendMetrics| {
        let connections = frontend.connections().unwrap_or_default();
        let refusals = frontend.refusals().into_iter();
        ConnectionsRow {
            name: frontend.name(),
            open: connections.open,
            opened: connections.opened,
            refused: connections.refused,
            evicted: connections.evicted,
            overdue: connections.overdue,
            memory_bytes: connections.memory_bytes,
            refusals: refusals.map(|(cause, count)| RefusalsRow { cause: cause.word(), count }).collect(),
        }
    };
    ConnectionsDocument { frontends: metrics.serving().map(row).collect() }
}

/// The archive of the store.
#[derive(Debug, Serialize)]
pub(super) struct ArchiveDocument {
    /// `None`: the server archives nothing.
    archive: Option<ArchiveRow>,
}

#[derive(Debug, Serialize)]
struct ArchiveRow {
    state: &'static str,
    words: String,
    lag_s: f64,
    lag_bytes: u64,
    version: u64,
    spool_bytes: u64,
    spool_bytes_max: u64,
    gaps: u64,
    segment_bytes: u64,
    requests: u64,
    failures: u64,
    base_taken_s: Option<f64>,
    base_bytes: u64,
    base_bytes_expected: u64,
    log_bytes_since_base: u64,
    oldest_s: Option<f64>,
}

pub(super) fn archive(metrics: &Metrics) -> ArchiveDocument {
    let row = |figures: ArchiveFigures| ArchiveRow {
        state: figures.state,
        words: figures.words,
        lag_s: figures.lag_seconds,
        lag_bytes: figures.lag_bytes,
        version: figures.version,
        spool_bytes: figures.spool_bytes,
        spool_bytes_max: figures.spool_bytes_max,
        gaps: figures.gaps,
        segment_bytes: figures.segment_bytes,
        requests: figures.requests.iter().map(|(_, count)| count).sum(),
        failures: figures.failures,
        base_taken_s: figures.base_taken_seconds,
        base_bytes: figures.base_bytes,
        base_bytes_expected: figures.base_bytes_expected,
        log_bytes_since_base: figures.log_bytes_since_base,
        oldest_s: figures.oldest_seconds,
    };
    ArchiveDocument { archive: metrics.archive().map(row) }
}

/// The damage that the store knows of.
#[derive(Debug, Serialize)]
pub(super) struct DamageDocument {
    losses: Vec<LossesRow>,
    ranges: Vec<DamagedRow>,
}

#[derive(Debug, Serialize)]
struct LossesRow {
    kind: &'static str,
    count: u64,
}

/// Keys that cannot be read, from `from` up to before `to`.
#[derive(Debug, Serialize)]
struct DamagedRow {
    tablet: u16,
    from: String,
    /// None: up to the last key.
    to: Option<String>,
    block: u64,
    why: String,
}

/// Waits for the locks of tablets only.
pub(super) fn damage(store: &Store) -> DamageDocument {
    let StoreStat { losses, .. } = store.stat();
    let kinds = [("lost", losses.lost), ("reverted", losses.reverted), ("resurrected", losses.resurrected)];
    let row = |range: shoal_engine::DamagedRange| DamagedRow {
        tablet: range.tablet.0,
        from: shown(&range.from),
        to: range.to.as_deref().map(shown),
        block: range.block,
        why: range.why,
    };
    DamageDocument {
        losses: kinds
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| LossesRow { kind, count })
            .collect(),
        ranges: store.damage_met().into_iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use shoal_metrics::{Connections, Marks, Noted, RefusalCause, RequestLogs, SlowRequest};

    use super::*;

    #[test]
    fn slow_requests_have_the_parts_of_their_time() {
        let metrics = Metrics::new(true, Some(Duration::from_micros(2_500)), RequestLogs::default());
        let noted = Noted { bucket: "b".into(), key: vec![b'k', 0xff], keys: 1, caller: None };
        metrics.redis().say(&SlowRequest {
            operation: "SET",
            noted: Some(&noted),
            times: 3,
            result: "ok",
            peer: ([10, 0, 0, 1], 9).into(),
            marks: Marks { started_ns: 1_000, placed_ns: 3_000, done_ns: 6_000_000, ..Marks::default() },
            ended_ns: 6_004_000,
        });
        let document = serde_json::to_value(slow(&metrics)).unwrap();
        let mut row = document["requests"][0].clone();
        assert!(row["at_ms"].as_u64() > Some(1_600_000_000_000));
        row["at_ms"] = json!(0);
        let expected = json!({
            "at_ms": 0, "frontend": "redis", "operation": "SET", "bucket": "b", "key": "k\\xff", "result": "ok",
            "total_us": 6_004, "queue_us": 1, "store_us": 2, "log_us": 5_997, "answer_us": 4, "times": 3, "peer": "10.0.0.1:9",
        });
        assert_eq!((row, &document["slow_ms"]), (expected, &json!(2.5)));
        let none = serde_json::to_value(slow(&Metrics::default())).unwrap();
        assert_eq!(none, json!({ "slow_ms": null, "requests": [] }));
    }

    #[test]
    fn stored_keys_are_shown_with_their_bucket() {
        assert_eq!(["b", "b\0", "b\0k/\x01"].map(|key| shown(key.as_bytes())), ["b", "b/", "b/k/\\u{1}"]);
    }

    #[test]
    fn an_archive_shows_its_state_and_no_archive_shows_none() {
        let metrics = Metrics::default();
        assert_eq!(serde_json::to_value(archive(&metrics)).unwrap(), json!({ "archive": null }));
        metrics.set_archive(|| ArchiveFigures {
            state: "shipping",
            version: 7,
            requests: [("put", 2), ("get", 3), ("delete", 0), ("list", 0)],
            ..ArchiveFigures::default()
        });
        let row = serde_json::to_value(archive(&metrics)).unwrap()["archive"].clone();
        assert_eq!(
            (&row["state"], &row["version"], &row["requests"]),
            (&json!("shipping"), &json!(7), &json!(5))
        );
    }

    #[test]
    fn connections_are_those_of_frontends_that_serve() {
        let metrics = Metrics::default();
        metrics.s3().watch_connections(|| Connections {
            open: 4,
            opened: 9,
            refused: 1,
            ..Connections::default()
        });
        metrics.s3().add_refusal(RefusalCause::Credentials);
        let document = serde_json::to_value(connections(&metrics)).unwrap();
        let frontends = document["frontends"].as_array().unwrap();
        assert_eq!(
            (frontends.len(), &frontends[0]["open"], &frontends[0]["opened"]),
            (1, &json!(4), &json!(9))
        );
        let refusals = frontends[0]["refusals"].as_array().unwrap();
        let counts: Vec<_> = refusals.iter().filter(|row| row["count"] != 0).collect();
        let expected =
            [&json!({ "cause": "connections", "count": 1 }), &json!({ "cause": "credentials", "count": 1 })];
        assert_eq!(counts, expected);
    }
}

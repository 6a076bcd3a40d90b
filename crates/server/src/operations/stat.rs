//! Figures about the store and the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shoal_api::v1;
use shoal_base::BLOCK_BYTES;
use shoal_engine::Store;
use shoal_http::Capacity;
use shoal_metrics::{FrontendMetrics, Metrics, RequestCounts, Usage};

use crate::auth::Authenticated;
use crate::failure::Failure;

/// The server's counters.
pub(crate) struct Counters {
    pub(crate) started: Instant,
    pub(crate) requests: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), requests: AtomicU64::new(0) }
    }
}

/// The parts of the server that have figures.
pub(crate) struct ServerFigures<'a> {
    pub(crate) counters: &'a Counters,
    pub(crate) capacity: &'a Capacity,
    pub(crate) metrics: &'a Metrics,
}

pub(crate) fn stat(
    request: &Authenticated<v1::StatRequest>,
    server: &ServerFigures<'_>,
) -> Result<v1::StatResponse, Failure> {
    let ServerFigures { counters, capacity, metrics } = server;
    let opened = request.to_whole_store::<v1::Stat>()?;
    let (store, usage, refused) = (opened.stat(), capacity.usage(), capacity.flow().refused());
    let engine = store.figures().into_iter().map(|(name, unit, value)| figure(name, unit, value));
    Ok(v1::StatResponse {
        server_version: env!("CARGO_PKG_VERSION").into(),
        read_only_reason: store.poisoned.clone().unwrap_or_default(),
        uptime_ns: u64::try_from(counters.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        block_bytes: BLOCK_BYTES as u32,
        objects: store.objects_with_log(),
        blocks: store.device_blocks,
        free_blocks: store.free_blocks,
        figures: vec![
            figure("server.connections", "count", usage.open),
            figure("server.connections_refused", "count", usage.refused),
            figure("server.connections_evicted", "count", usage.evicted),
            figure("server.connections_overdue", "count", usage.overdue),
            figure("server.requests", "count", counters.requests.load(Ordering::Relaxed)),
            figure("server.requests_refused", "count", usage.memory_refusals),
            figure("server.refused_us", "us", refused.after_us.load(Ordering::Relaxed)),
            figure("server.refused_us_max", "us", refused.after_us_max.load(Ordering::Relaxed)),
            figure("server.bytes_in_flight", "bytes", usage.memory_bytes),
        ]
        .into_iter()
        .chain(figures_of_machine(opened))
        .chain(figures_of_memory(metrics))
        .chain(metrics.serving().flat_map(figures_of))
        .chain(engine)
        .collect(),
        frontends: metrics.serving().map(frontend).collect(),
    })
}

fn figure(name: &str, unit: &str, value: u64) -> v1::Figure {
    v1::Figure { name: name.into(), unit: unit.into(), value }
}

/// The process, as the system reports it, and the size that the store's file could have on its file system, if that is known.
fn figures_of_machine(store: &Store) -> Vec<v1::Figure> {
    let usage = Usage::now();
    let cpu_us = (usage.user_seconds + usage.system_seconds) * 1e6;
    let mut figures = vec![
        figure("process.cpu_us", "us", cpu_us as u64),
        figure("process.resident", "bytes", usage.resident_bytes),
        figure("process.threads", "count", usage.threads),
    ];
    let room = store.room_blocks().map(|blocks| blocks.saturating_mul(BLOCK_BYTES as u64));
    figures.extend(room.map(|bytes| figure("file_system.room", "bytes", bytes)));
    figures
}

/// The division of the server's memory.
fn figures_of_memory(metrics: &Metrics) -> Vec<v1::Figure> {
    let Some(memory) = metrics.memory() else { return Vec::new() };
    let parts = memory.parts.iter().map(|(part, bytes)| figure(&format!("memory.{part}"), "bytes", *bytes));
    std::iter::once(figure("memory.limit", "bytes", memory.total)).chain(parts).collect()
}

/// The figures of a frontend besides its requests.
fn figures_of(frontend: &FrontendMetrics) -> Vec<v1::Figure> {
    let connections = frontend.connections().unwrap_or_default();
    let (received, sent) = frontend.bytes();
    let name = |what: &str| format!("{}.{what}", frontend.name());
    let mut figures = vec![
        figure(&name("connections"), "count", connections.open),
        figure(&name("connections_opened"), "count", connections.opened),
        figure(&name("request_memory"), "bytes", connections.memory_bytes),
        figure(&name("received"), "bytes", received),
        figure(&name("sent"), "bytes", sent),
    ];
    // A figure is a number, so its name has the text.
    figures.extend(frontend.bucket().map(|bucket| figure(&name(&format!("bucket.{bucket}")), "count", 1)));
    let refusals = frontend.refusals().into_iter();
    figures.extend(
        refusals.map(|(cause, count)| figure(&name(&format!("refused_{}", cause.word())), "count", count)),
    );
    figures
}

fn frontend(metrics: &FrontendMetrics) -> v1::FrontendFigures {
    let request = |counts: RequestCounts| {
        let buckets = &counts.durations.buckets;
        let used = buckets.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        v1::RequestFigures {
            operation: counts.operation.word().into(),
            result: counts.result.word().into(),
            buckets: buckets.iter().take(used).copied().collect(),
            sum_ns: counts.durations.sum_ns,
        }
    };
    v1::FrontendFigures {
        name: metrics.name().into(),
        requests: metrics.requests().into_iter().map(request).collect(),
    }
}

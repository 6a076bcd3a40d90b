//! Figures about the store and the server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use shoal_api::v1;
use shoal_base::BLOCK_BYTES;

use crate::auth::Authenticated;
use crate::failure::Failure;
use crate::flow::Flow;

/// What the server counts.
pub(crate) struct Counters {
    pub(crate) started: Instant,
    pub(crate) connections: AtomicUsize,
    pub(crate) connections_refused: AtomicU64,
    /// Closed for a new one, before their other side had shown credentials; and because it did not in time.
    pub(crate) connections_evicted: AtomicU64,
    pub(crate) connections_overdue: AtomicU64,
    pub(crate) requests: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            connections: AtomicUsize::new(0),
            connections_refused: AtomicU64::new(0),
            connections_evicted: AtomicU64::new(0),
            connections_overdue: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }
}

pub(crate) fn stat(
    request: &Authenticated<v1::StatRequest>,
    counters: &Counters,
    flow: &Flow,
) -> Result<v1::StatResponse, Failure> {
    let (store, refused) = (request.store().stat(), flow.refused());
    let figure =
        |name: &str, unit: &str, value: u64| v1::Figure { name: name.into(), unit: unit.into(), value };
    let engine = store.figures().into_iter().map(|(name, unit, value)| figure(name, unit, value));
    Ok(v1::StatResponse {
        server_version: env!("CARGO_PKG_VERSION").into(),
        read_only_reason: store.poisoned.clone().unwrap_or_default(),
        uptime_ns: u64::try_from(counters.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        block_bytes: BLOCK_BYTES as u32,
        objects: store.objects,
        blocks: store.device_blocks,
        free_blocks: store.free_blocks,
        figures: vec![
            figure("server.connections", "count", counters.connections.load(Ordering::Relaxed) as u64),
            figure(
                "server.connections_refused",
                "count",
                counters.connections_refused.load(Ordering::Relaxed),
            ),
            figure(
                "server.connections_evicted",
                "count",
                counters.connections_evicted.load(Ordering::Relaxed),
            ),
            figure(
                "server.connections_overdue",
                "count",
                counters.connections_overdue.load(Ordering::Relaxed),
            ),
            figure("server.requests", "count", counters.requests.load(Ordering::Relaxed)),
            figure("server.requests_refused", "count", refused.count.load(Ordering::Relaxed)),
            figure("server.refused_us", "us", refused.after_us.load(Ordering::Relaxed)),
            figure("server.refused_us_max", "us", refused.after_us_max.load(Ordering::Relaxed)),
            figure("server.bytes_in_flight", "bytes", flow.bytes() as u64),
        ]
        .into_iter()
        .chain(engine)
        .collect(),
    })
}

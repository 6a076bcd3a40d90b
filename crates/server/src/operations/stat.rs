//! Figures about the store and the server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shoal_api::v1;
use shoal_base::BLOCK_BYTES;

use crate::admission::Admission;
use crate::auth::Authenticated;
use crate::call::message::Parted;
use crate::flow::Flow;

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

pub(crate) fn stat(
    request: &Authenticated<Parted<v1::StatRequest>>,
    counters: &Counters,
    admission: &Admission,
    flow: &Flow,
) -> v1::StatResponse {
    let (store, refused) = (request.store().stat(), flow.refused());
    let figure =
        |name: &str, unit: &str, value: u64| v1::Figure { name: name.into(), unit: unit.into(), value };
    let engine = store.figures().into_iter().map(|(name, unit, value)| figure(name, unit, value));
    v1::StatResponse {
        server_version: env!("CARGO_PKG_VERSION").into(),
        read_only_reason: store.poisoned.clone().unwrap_or_default(),
        uptime_ns: u64::try_from(counters.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        block_bytes: BLOCK_BYTES as u32,
        objects: store.objects,
        blocks: store.device_blocks,
        free_blocks: store.free_blocks,
        figures: vec![
            figure("server.connections", "count", admission.counts().0 as u64),
            figure("server.connections_refused", "count", admission.refused()),
            figure("server.connections_evicted", "count", admission.evicted()),
            figure("server.connections_overdue", "count", admission.overdue()),
            figure("server.requests", "count", counters.requests.load(Ordering::Relaxed)),
            figure("server.requests_refused", "count", refused.count.load(Ordering::Relaxed)),
            figure("server.refused_us", "us", refused.after_us.load(Ordering::Relaxed)),
            figure("server.refused_us_max", "us", refused.after_us_max.load(Ordering::Relaxed)),
            figure("server.bytes_in_flight", "bytes", flow.bytes() as u64),
        ]
        .into_iter()
        .chain(engine)
        .collect(),
    }
}

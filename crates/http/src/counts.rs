//! The connections of one frontend. Those of all frontends together are the capacity's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_metrics::{Connections, FrontendMetrics};

use crate::capacity::Capacity;

/// Counts of the connections of one frontend, since its start.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    open: AtomicU64,
    opened: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
    overdue: AtomicU64,
}

impl ConnectionCounts {
    /// Counts that `metrics` read, with the memory of `capacity`, which all frontends share, as long as that exists.
    pub(crate) fn watched_by(metrics: &FrontendMetrics, capacity: &Arc<Capacity>) -> Arc<Self> {
        let counts = Arc::<Self>::default();
        // The metrics outlive the server and must not keep its memory.
        let (watched, capacity) = (Arc::clone(&counts), Arc::downgrade(capacity));
        metrics.watch_connections(move || {
            let all = capacity.upgrade().map(|capacity| capacity.usage()).unwrap_or_default();
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            Connections {
                open: count(&watched.open),
                opened: count(&watched.opened),
                refused: count(&watched.refused),
                evicted: count(&watched.evicted),
                overdue: count(&watched.overdue),
                ..all
            }
        });
        counts
    }

    /// Counts a connection that found no room.
    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a new connection, which is open until the result is dropped.
    pub(crate) fn open(self: &Arc<Self>) -> CountedConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.opened.fetch_add(1, Ordering::Relaxed);
        CountedConnection(Arc::clone(self))
    }
}

/// A connection that is counted as open.
pub(crate) struct CountedConnection(Arc<ConnectionCounts>);

impl CountedConnection {
    /// Counts it as closed to make room for a new one.
    pub(crate) fn note_evicted(&self) {
        self.0.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts it as closed without credentials in time.
    pub(crate) fn note_overdue(&self) {
        self.0.overdue.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

//! The connections and the memory that all frontends of a server share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_metrics::Connections;

use crate::admission::Admission;
use crate::flow::Flow;
use crate::limits::ServerLimits;

/// The connections and the memory of a server. Frontends that get the same one share its limits: two of them take no more than one.
pub struct Capacity {
    pub(crate) admission: Arc<Admission>,
    flow: Flow,
    /// Each connection that runs its requests itself holds a clone.
    open: Arc<()>,
}

impl Capacity {
    /// As much as `limits` allow.
    #[must_use]
    pub fn new(limits: &ServerLimits) -> Arc<Self> {
        let flow = Flow::new(limits.bytes_in_flight_max, limits.connection_bytes_in_flight_max)
            .with_waiting(limits.connection_window_bytes, limits.waiting_bytes_max);
        Arc::new(Self { admission: Admission::new(limits.connections_max), flow, open: Arc::default() })
    }

    /// The bytes in flight.
    #[must_use]
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// The connections and the memory in use, and the refusals since the start.
    #[must_use]
    pub fn usage(&self) -> Connections {
        let (open, opened) = self.admission.counts();
        Connections {
            open: open as u64,
            opened,
            refused: self.admission.refused(),
            evicted: self.admission.evicted(),
            overdue: self.admission.overdue(),
            memory_refusals: self.flow.refused().count.load(Ordering::Relaxed),
            memory_bytes: self.flow.bytes() as u64,
        }
    }

    /// Counts a connection that runs its requests itself.
    pub(crate) fn open(&self) -> OpenConnection {
        OpenConnection(Arc::clone(&self.open))
    }
}

/// Counts a connection while it is open.
pub(crate) struct OpenConnection(Arc<()>);

impl OpenConnection {
    /// Returns true if no other connection is open.
    pub(crate) fn is_alone(&self) -> bool {
        // The capacity holds one.
        Arc::strong_count(&self.0) == 2
    }
}

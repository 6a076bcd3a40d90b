//! The figures of one moment, taken at a scrape: frontends, store and process.

use std::sync::Arc;

use shoal_engine::{Store, StoreStat};

use crate::archive::ArchiveFigures;
use crate::audit::AuditLog;
use crate::frontend::{Connections, FrontendMetrics, MemoryParts, Metrics};
use crate::process::Usage;
use crate::request::RefusalCause;
use crate::requests::RequestCounts;

/// The counts of one frontend.
pub(crate) struct FrontendSnapshot {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<RequestCounts>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) connections: Connections,
    pub(crate) refusals: Vec<(RefusalCause, u64)>,
}

impl FrontendSnapshot {
    fn of(frontend: &FrontendMetrics) -> Self {
        let (received_bytes, sent_bytes) = frontend.bytes();
        Self {
            name: frontend.name(),
            requests: frontend.requests(),
            received_bytes,
            sent_bytes,
            connections: frontend.connections().unwrap_or_default(),
            refusals: frontend.refusals(),
        }
    }
}

/// The figures of one moment.
pub(crate) struct Snapshot {
    pub(crate) is_ready: bool,
    pub(crate) frontends: Vec<FrontendSnapshot>,
    stat: Option<Box<StoreStat>>,
    pub(crate) process: Usage,
    pub(crate) memory: MemoryParts,
    /// The end of the TLS certificates, if there are some.
    pub(crate) certificate_end_s: Option<u64>,
    /// The archive's figures, if there is an archive.
    pub(crate) archive: Option<ArchiveFigures>,
    /// Lines that the audit log lost, if there is one.
    pub(crate) audit_lost: Option<u64>,
}

impl Snapshot {
    /// Shows the store's figures to `look` if the store is open.
    pub(crate) fn stat(&self, look: impl FnOnce(&StoreStat)) {
        if let Some(stat) = self.stat.as_deref() {
            look(stat);
        }
    }
}

/// The sources of a scrape's figures.
#[derive(Clone)]
pub struct Source {
    /// The counts of the frontends.
    pub metrics: Arc<Metrics>,
    /// The store, if it is open.
    pub store: Option<Store>,
    /// True if the server takes requests.
    pub is_ready: bool,
}

impl Source {
    /// Takes the current figures.
    pub(crate) fn now(&self) -> Snapshot {
        Snapshot {
            is_ready: self.is_ready,
            frontends: self.metrics.serving().map(FrontendSnapshot::of).collect(),
            stat: self.store.as_ref().map(|store| Box::new(store.stat())),
            process: Usage::now(),
            memory: self.metrics.memory().cloned().unwrap_or_default(),
            certificate_end_s: self.metrics.certificate_end_s(),
            archive: self.metrics.archive(),
            audit_lost: self.metrics.audit().map(AuditLog::lost),
        }
    }
}

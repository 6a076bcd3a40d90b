//! The counters of the server at one moment.

use std::sync::Arc;

use shoal_base::Clock;
use shoal_base::histogram::Durations;
use shoal_engine::{Store, StoreStat};
use shoal_metrics::{
    ArchiveFigures, Connections, FrontendMetrics, Health, MemoryParts, Metrics, Operation, RequestCounts,
    RequestResult, Usage,
};

/// The parts of the server that are read.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Health,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The counts of one frontend.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontendReading {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<RequestCounts>,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) connections: Connections,
    /// Refusals of all causes.
    pub(crate) refusals: u64,
}

impl FrontendReading {
    fn of(frontend: &FrontendMetrics) -> Self {
        let (received_bytes, sent_bytes) = frontend.bytes();
        Self {
            name: frontend.name(),
            requests: frontend.requests(),
            received_bytes,
            sent_bytes,
            connections: frontend.connections().unwrap_or_default(),
            refusals: frontend.refusals().iter().map(|(_, count)| count).sum(),
        }
    }
}

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The monotonic clock.
    pub(crate) at_ns: u64,
    /// The wall clock.
    pub(crate) wall_ns: u64,
    pub(crate) stat: StoreStat,
    /// The blocks that the data file could have with the free space of its file system.
    pub(crate) file_blocks_max: Option<u64>,
    pub(crate) frontends: Vec<FrontendReading>,
    pub(crate) usage: Usage,
    pub(crate) memory: MemoryParts,
    /// The second of the Unix epoch up to which the TLS certificates are valid, if there are some.
    pub(crate) certificate_end_s: Option<u64>,
    /// The archive, if there is one.
    pub(crate) archive: Option<ArchiveFigures>,
    /// The reason why the server does not take all requests.
    pub(crate) not_ready: Option<String>,
}

impl Reading {
    /// The counters now. Waits for the file system of the data file.
    pub(crate) fn take(sources: &Sources) -> Self {
        let Sources { store, metrics, health, clock } = sources;
        Self {
            at_ns: clock.monotonic_ns(),
            wall_ns: clock.wall_ns(),
            stat: store.stat(),
            file_blocks_max: store.room_blocks(),
            frontends: metrics.serving().map(FrontendReading::of).collect(),
            usage: Usage::brief(),
            memory: metrics.memory().cloned().unwrap_or_default(),
            certificate_end_s: metrics.certificate_end_s(),
            archive: metrics.archive(),
            not_ready: health.ready().err(),
        }
    }

    /// The durations of the requests of `operation` that were done, of all frontends together.
    pub(crate) fn durations(&self, operation: Operation) -> Durations {
        let mut sum = Durations::default();
        let all = self.frontends.iter().flat_map(|frontend| &frontend.requests);
        all.filter(|counts| counts.operation == operation && counts.result == RequestResult::Ok)
            .for_each(|counts| sum.merge(&counts.durations));
        sum
    }

    /// Refusals of all frontends.
    pub(crate) fn refusals(&self) -> u64 {
        self.frontends.iter().map(|frontend| frontend.refusals).sum()
    }
}

//! The counters of a running server, and the listener from which a Prometheus server reads them.
//!
//! In reading order: `request` names the operations and results of requests. `requests` counts requests: each thread in
//! separate cells, so that a count costs a few nanoseconds. `frontend` holds the counts of one frontend, and [`Metrics`] those
//! of all. `slow` writes the log's line of a slow request, with the parts of its time, `slow_ring` the last of them, and `audit` the log of all requests with their callers. `process` reads the system's figures of
//! the process. `snapshot` takes all figures at a scrape; `catalog` names every metric with type, unit and labels; `encode`
//! writes the text; `listen` answers on the listener of `--metrics`. `docs/operate/metrics.md` has the same list for people,
//! and a test compares the page with `catalog`.
//!
//! The figures of the store itself come from `Store::stat` at a scrape. A request passes only `requests` and the clock of
//! `frontend`, and no code of this crate waits for the store.

mod archive;
mod audit;
mod catalog;
mod encode;
mod frontend;
mod listen;
mod process;
mod request;
mod requests;
mod slow;
mod slow_ring;
mod snapshot;

pub use archive::{ARCHIVE_STATES, ArchiveFigures};
pub use audit::{AUDIT_LINES_QUEUED_MAX, AuditLog};
pub use catalog::{CATALOG, Kind, MetricFamily};
pub use encode::render;
pub use frontend::{Connections, FrontendMetrics, MemoryParts, Metrics, RequestLogs};
pub use listen::{Health, Listener, PATHS};
pub use process::Usage;
pub use request::{Operation, RefusalCause, RequestResult};
pub use requests::{RequestCounts, Requests};
pub use slow::{Marks, Noted, SlowParts, SlowRequest, Stage, mark, note_caller, note_key, with_marks};
pub use slow_ring::{SLOW_KEPT_MAX, SlowEntry};
pub use snapshot::Source;

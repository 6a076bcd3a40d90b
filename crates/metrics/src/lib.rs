//! What a server counts while it serves, and how a Prometheus server reads it.
//!
//! In reading order: `request` names what a request is and how it ends. `requests` counts requests: each thread in cells of
//! its own, so that a count costs a few nanoseconds. `frontend` is what one frontend counts, and [`Metrics`] is all of it.
//! `slow` says of a slow request where its time went. `process` is what the system says of the process. `catalog` names every
//! metric with type, unit and labels; `encode` fills it with figures at a scrape; `listen` answers on the listener of
//! `--metrics`. `docs/operate/metrics.md` has the same list for people, and a test holds the page to `catalog`.
//!
//! The figures of the store itself come from `Store::stat` at a scrape. Nothing here is on the way of a request but
//! `requests`, and nothing here waits for the store.

mod catalog;
mod encode;
mod frontend;
mod listen;
mod process;
mod request;
mod requests;
mod slow;

pub use catalog::{CATALOG, Kind, Metric};
pub use encode::{Source, render};
pub use frontend::{Connections, FrontendMetrics, Metrics};
pub use listen::{Health, Listener, PATHS};
pub use process::Usage;
pub use request::{Operation, RefusalCause, RequestResult};
pub use requests::{RequestCounts, Requests};
pub use slow::{Mark, Marks, SlowRequest, mark, note_key, with_marks};

//! The state of the store's background work. The work itself is in `maintenance/`.

use std::sync::Arc;

use shoal_base::sync::atomic::AtomicBool;
use shoal_common::event::Token;

use crate::store::expiring::{Expiring, ExpiryWalk};
use crate::store::standstill::Standstill;
use crate::store::threads::Worker;

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Maintenance {
    /// The store's threads; `None` if callers do their work.
    pub worker: Option<Arc<Worker>>,
    /// The token of the writer that makes space when there is none.
    pub room: Token<()>,
    /// The objects that expire next.
    pub expiring: Expiring,
    /// The walk that finds the expiring objects that are not remembered.
    pub walk: Token<ExpiryWalk>,
    /// True while a pass of a scrub is due or under way.
    pub scrub_runs: AtomicBool,
    /// Notices that no write gets through.
    pub standstill: Standstill,
}

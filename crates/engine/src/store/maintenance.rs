//! How far the store is with what it does by itself. The work is in `maintenance/` and `recovery/close.rs`.

use std::sync::Arc;

use crate::common::event::Token;
use crate::space::growth::Growth;
use crate::store::closing::Closing;
use crate::store::expiring::Expiring;
use crate::store::relocation::Relocation;
use crate::store::worker::Worker;

/// See the top of the file.
pub(crate) struct Maintenance {
    /// The store's threads; none where callers do their work.
    pub worker: Option<Arc<Worker>>,
    /// One apply at a time.
    pub applier: Token<()>,
    /// One writer at a time makes room where there is none.
    pub room: Token<()>,
    pub relocation: Relocation,
    /// Whether whole free groups are given back to the device.
    pub discard: bool,
    pub growth: Growth,
    /// One growth of the file at a time.
    pub grower: Token<()>,
    /// The objects whose time ends soonest.
    pub expiring: Expiring,
    pub closing: Closing,
}

impl Maintenance {
    /// Nothing is done yet. Relocation is `paused` until it is resumed; whole free groups go back to the device where `discard`.
    pub(crate) fn new(worker: Option<Arc<Worker>>, paused: bool, discard: bool) -> Self {
        Self {
            worker,
            applier: Token::new(()),
            room: Token::new(()),
            relocation: Relocation::new(paused),
            discard,
            growth: Growth::default(),
            grower: Token::new(()),
            expiring: Expiring::default(),
            closing: Closing::default(),
        }
    }
}

//! The state of the store's own work. The work itself is in `maintenance/` and `recovery/close.rs`.

use std::sync::Arc;

use crate::checkpoint::closing::Closing;
use crate::common::event::Token;
use crate::space::growth::Growth;
use crate::store::expiring::Expiring;
use crate::store::relocation::Relocation;
use crate::store::worker::Worker;

/// See the top of the file.
pub(crate) struct Maintenance {
    /// The store's threads; `None` if callers do their work.
    pub worker: Option<Arc<Worker>>,
    /// The token of the one apply.
    pub applier: Token<()>,
    /// The token of the one writer that makes space when there is none.
    pub room: Token<()>,
    pub relocation: Relocation,
    /// True if whole free groups are given back to the device.
    pub discard: bool,
    pub growth: Growth,
    /// The token of the one growth of the file.
    pub grower: Token<()>,
    /// The objects that expire next.
    pub expiring: Expiring,
    pub closing: Closing,
}

impl Maintenance {
    /// The state at the start. Relocation is `paused` until it is resumed; with `discard`, whole free groups go back to
    /// the device.
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

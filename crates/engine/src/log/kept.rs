//! Values whose frames stay in the pool when their record is durable.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_pool::{Filled, Pool};

use crate::common::units::{forget_units, units_of};
use crate::log::record::Record;

/// A value in filled frames, which become resident when it is durable.
pub(crate) struct Kept {
    frames: Filled,
    block: u64,
    stored: usize,
    checksums: Vec<u32>,
    /// The key's version before, where that is known.
    before: Option<Arc<Record>>,
}

impl Kept {
    pub(crate) fn new(frames: Filled, block: u64, stored: usize, checksums: Vec<u32>) -> Self {
        Self { frames, block, stored, checksums, before: None }
    }

    /// Says which record it takes the place of.
    pub(crate) fn supersedes(&mut self, before: Option<Arc<Record>>) {
        self.before = before;
    }

    /// Its version is durable. The one before leaves the pool: nobody asks for it but who found it already, and its frames are
    /// in the caches of the processor, while frames that nobody has used yet cost their first touch.
    pub(crate) fn stay(self, pool: &Pool, version: Lsn) {
        let Self { frames, block, stored, checksums, before } = self;
        pool.adopt(frames, units_of(block, stored, &checksums, version));
        if let Some(before) = before {
            before.owned().iter().for_each(|&run| forget_units(pool, run, before.lsn()));
        }
    }
}

//! Values whose frames stay in the pool once their record is durable.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_pool::{Filled, Pool};

use crate::common::units::{forget_units, units_of};
use crate::log::record::Record;

/// A value in filled frames, which become resident once it is durable.
pub(crate) struct Kept {
    frames: Filled,
    block: u64,
    stored: usize,
    checksums: Vec<u32>,
    /// The record of the key's previous version, if it is known.
    before: Option<Arc<Record>>,
}

impl Kept {
    pub(crate) fn new(frames: Filled, block: u64, stored: usize, checksums: Vec<u32>) -> Self {
        Self { frames, block, stored, checksums, before: None }
    }

    /// Sets the record that this one supersedes.
    pub(crate) fn supersedes(&mut self, before: Option<Arc<Record>>) {
        self.before = before;
    }

    /// Makes the durable version resident. The previous version leaves the pool: only readers that found it already
    /// need it, and its frames are in the processor's caches, while the first touch of unused frames is expensive.
    pub(crate) fn stay(self, pool: &Pool, version: Lsn) {
        let Self { frames, block, stored, checksums, before } = self;
        pool.adopt(frames, units_of(block, stored, &checksums, version));
        if let Some(before) = before {
            before.owned().iter().for_each(|&run| forget_units(pool, run, before.lsn()));
        }
    }
}

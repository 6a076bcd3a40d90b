//! Values whose frames stay in the pool, or leave it, once a record is durable.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::units::{forget_units, units_of};
use shoal_pool::{Filled, Pool};

use crate::record::Record;

/// The change of the pool when a record is durable: its value becomes resident, and the previous one leaves.
pub struct Kept {
    value: Option<KeptValue>,
    /// The record of the key's previous version, if it is known.
    before: Option<Arc<Record>>,
}

/// A value in filled frames.
struct KeptValue {
    frames: Filled,
    block: u64,
    stored: usize,
    checksums: Vec<u32>,
}

impl Kept {
    /// A value in `frames`, which becomes resident.
    #[inline]
    pub fn new(frames: Filled, block: u64, stored: usize, checksums: Vec<u32>) -> Self {
        Self { value: Some(KeptValue { frames, block, stored, checksums }), before: None }
    }

    /// For a record that only supersedes `before`; `None` if that has nothing in the pool.
    #[inline]
    pub fn of_superseded(before: &Arc<Record>) -> Option<Self> {
        (!before.owned().is_empty()).then(|| Self { value: None, before: Some(before.clone()) })
    }

    /// Sets the record that this one supersedes.
    #[inline]
    pub fn supersedes(&mut self, before: Option<Arc<Record>>) {
        self.before = before;
    }

    /// Makes the durable version resident. The previous version leaves the pool: only readers that found it already
    /// need it, and its frames are in the processor's caches, while the first touch of unused frames is expensive.
    pub(crate) fn stay(self, pool: &Pool, version: Lsn) {
        let Self { value, before } = self;
        if let Some(KeptValue { frames, block, stored, checksums }) = value {
            pool.adopt(frames, units_of(block, stored, &checksums, version));
        }
        if let Some(before) = before {
            assert!(before.lsn() < version, "a version supersedes an older one (R4)");
            before.owned().iter().for_each(|&run| forget_units(pool, run, before.lsn()));
        }
    }
}

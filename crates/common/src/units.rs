//! The units of values, as the pool knows them.

use shoal_base::limits::VALUE_UNIT_BYTES;
use shoal_base::{BLOCK_BYTES, Lsn, Run};
use shoal_pool::{Check, Pool, Unit, UnitId};

use crate::injected_bug::{Bug, injected};

/// The identity of a value's units in the pool (R11): its version, in a separate name space beside the pages'.
#[must_use]
#[inline]
pub fn identity(version: Lsn) -> u64 {
    if injected(Bug::IdentityIgnored) { 0 } else { version.0 }
}

/// The units of `stored` bytes from the start of `block` on, as readers of this version fetch them.
#[inline]
pub fn units_of(block: u64, stored: usize, checksums: &[u32], version: Lsn) -> impl Iterator<Item = Unit> {
    let starts = (0..stored).step_by(VALUE_UNIT_BYTES);
    starts.zip(checksums).map(move |(start, &crc)| Unit {
        id: UnitId { block: block + (start / BLOCK_BYTES) as u64, identity: identity(version) },
        check: Check::Bytes { offset: 0, bytes: (stored - start).min(VALUE_UNIT_BYTES) as u32, crc },
    })
}

/// Removes the units of this version in a run from the pool, if the value was laid out from the run's start.
#[inline]
pub fn forget_units(pool: &Pool, run: Run, version: Lsn) {
    for block in (run.block..run.end()).step_by(VALUE_UNIT_BYTES / BLOCK_BYTES) {
        pool.forget_unit(UnitId { block, identity: identity(version) });
    }
}

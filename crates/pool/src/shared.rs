//! The state that the handles of a pool and its requests in flight share, and the steps by which units enter and leave
//! the pool.
//!
//! It has no device: requests hold this state, and the last reference to a device must not be dropped on the device's
//! own threads.

use std::sync::Arc;

use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicUsize, Ordering};
use shoal_device::DeviceError;
use smallvec::SmallVec;

use crate::budget::IoBudget;
use crate::counters::{Alone, Stats};
use crate::damaged::DamagedPages;
use crate::latency::Latency;
use crate::memory::frame::{Frames, Stores};
use crate::memory::starve::Starving;
use crate::policy::{Draw, Policy, Scanned};
use crate::resident::pin::Pinned;
use crate::resident::slot::Residents;
use crate::table::load::{Ending, Load};
use crate::table::{ShardGuard, Table};
use crate::unit::{Hint, Unit};

pub(crate) struct Shared {
    pub(crate) residents: Arc<Residents>,
    pub(crate) table: Table,
    pub(crate) policy: Policy,
    pub(crate) draw: Alone<Draw>,
    pub(crate) stats: Stats,
    pub(crate) latency: Alone<Latency>,
    /// Blocks on their way by prefetches.
    pub(crate) prefetching: Alone<AtomicUsize>,
    /// Blocks on their way for scans.
    pub(crate) scanning: Alone<AtomicUsize>,
    /// Blocks of values that are on their way in.
    pub(crate) fresh: Alone<AtomicUsize>,
    pub(crate) writes: InPlaceWrites,
    /// Scans that read ahead.
    pub(crate) streams: AtomicUsize,
    pub(crate) pin_wait_ms: u64,
    pub(crate) damaged: DamagedPages,
    pub(crate) budget: IoBudget,
}

/// Writes of pages that change in place.
#[derive(Default)]
pub(crate) struct InPlaceWrites {
    /// Pages that are being written from their frames.
    pub(crate) from_frames: Alone<AtomicUsize>,
    /// Images that are being written from side buffers.
    pub(crate) from_side: Alone<AtomicUsize>,
    /// The memory of side buffers: a second store of frames.
    pub(crate) side: Option<Stores>,
    /// Flushes that wait for these writes.
    pub(crate) waiting: Arc<Starving>,
    /// The first error since the last flush.
    pub(crate) error: Mutex<Option<DeviceError>>,
    /// Pages are written ahead of need while fewer frames than this are free or being written.
    pub(crate) ready_frames: usize,
}

impl Shared {
    /// Names the frames' slot and puts it into the table and the policy. The caller then publishes the frames.
    pub(crate) fn enter(&self, frames: &Frames, unit: &Unit, hint: Hint, guard: &ShardGuard<'_>) {
        let index = frames.list().head;
        let slot = self.residents.slot(index);
        slot.name(unit);
        self.policy.entered(slot, index, hint);
        self.table.link(index, guard);
    }

    /// Completes a load: its unit is resident, pinned for each waiter, or out of the table.
    pub(crate) fn loaded(&self, load: &Arc<Load>, frames: Frames, failed: Option<Ending>) {
        let blocks = load.unit.blocks();
        let index = frames.list().head;
        let mut guard = self.table.lock(load.unit.id.block);
        guard.loads.retain(|other| !Arc::ptr_eq(other, load));
        let wakers = match failed {
            None => load.end(|hint, waiting| {
                self.policy.entered(self.residents.slot(index), index, hint);
                Ending::Loaded(self.residents.publish(frames, waiting))
            }),
            Some(ending) => {
                self.table.unlink(index, &guard);
                let wakers = load.end(|_, _| ending);
                drop(frames);
                wakers
            }
        };
        drop(guard);
        if load.is_prefetch {
            let before = self.prefetching.fetch_sub(blocks, Ordering::Relaxed);
            assert!(before >= blocks, "a prefetch ends once");
        }
        if load.is_scan {
            let before = self.scanning.fetch_sub(blocks, Ordering::Relaxed);
            assert!(before >= blocks, "a scan's load ends once");
        }
        self.residents.memory.starving.notify();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// The candidate that will be missed least.
    pub(crate) fn worst(&self, clean_only: bool) -> Option<u32> {
        let touched = self.residents.memory.free.touched();
        self.policy.victim(&self.residents.slots, touched, &self.draw, clean_only)
    }

    /// Claims the unit in this slot if it is not pinned and not dirty, and removes it from the table.
    fn claim(&self, index: u32) -> Option<Frames> {
        let frames = self.residents.claim(index)?;
        let guard = self.table.lock(self.residents.slot(index).block());
        self.table.unlink(index, &guard);
        drop(guard);
        self.stats.evictions.add(1);
        Some(frames)
    }

    /// Evicts the unit in this slot if it is not pinned and not dirty, and returns its frames.
    pub(crate) fn evict(&self, index: u32) -> Option<Frames> {
        let frames = self.claim(index)?;
        self.policy.left(self.residents.slot(index), index, true);
        Some(frames)
    }

    /// Evicts the page that a scan read before, for its next page; `true` means that the frame still counts as the
    /// scans'.
    pub(crate) fn reclaim(&self, entry: Scanned) -> Option<(Frames, bool)> {
        let slot = self.residents.slot(entry.index());
        if !Policy::is_scanned(slot, entry) {
            return None;
        }
        let frames = self.claim(entry.index())?;
        // Checked now that the slot cannot change: another unit may have taken it since.
        let counted = Policy::is_scanned(slot, entry) && frames.count() == 1;
        if counted {
            Policy::left_to_scan(slot);
        } else {
            self.policy.left(slot, entry.index(), true);
        }
        Some((frames, counted))
    }

    /// Removes the units of `block` that `is_wanted` selects from the table, pinned or not, except pages that change in
    /// place. Their frames are free when the last pin is gone; the caller drops the returned pins after the lock.
    pub(crate) fn retire(
        &self,
        block: u64,
        guard: &ShardGuard<'_>,
        is_wanted: impl Fn(&Unit) -> bool,
    ) -> SmallVec<[Pinned; 4]> {
        let doomed: SmallVec<[u32; 4]> = self
            .table
            .chain(block, guard)
            .filter(|&index| {
                let unit = self.residents.slot(index).unit();
                !unit.is_mutable() && is_wanted(&unit)
            })
            .collect();
        let pins: SmallVec<[Pinned; 4]> =
            doomed.into_iter().filter_map(|index| self.residents.pin(index)).collect();
        pins.iter().for_each(|pinned| self.retire_pinned(pinned, guard));
        pins
    }

    /// Takes a unit that the caller pinned out of the table.
    pub(crate) fn retire_pinned(&self, pinned: &Pinned, guard: &ShardGuard<'_>) {
        // The pin keeps evictions away, and units are retired under the lock only: this stays true.
        if pinned.slot().word.is_resident() {
            self.table.unlink(pinned.index(), guard);
            self.policy.left(pinned.slot(), pinned.index(), false);
            self.residents.condemn(pinned);
        }
    }

    /// Counts a write of `pages` pages.
    pub(crate) fn count_write(&self, result: &Result<(), DeviceError>, pages: usize) {
        match result {
            Ok(()) => {
                self.stats.writes.add(1);
                self.stats.blocks_written.add(pages as u64);
            }
            Err(_) => self.stats.write_errors.add(1),
        }
    }
}

//! Admission bounds the overlays of all tablets: a write that finds them full waits for an apply.
//!
//! From half of the limit on, applies run; at the limit, writes wait. Weakness: this is a step, not a smooth throttle
//! that follows the measured rate of applies.

use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_base::sync::atomic::{AtomicUsize, Ordering};

use crate::common::options::Tuning;
use crate::tablet::overlay::Growth;

/// The contents of all tablets' overlays, with their limits.
pub(crate) struct Admission {
    bytes: AtomicUsize,
    records: AtomicUsize,
    /// Batches of several records that wait for an apply to make room.
    waiting: AtomicUsize,
    /// The limit on bytes that the user wants; the log allows less where it is short.
    bytes_wanted: usize,
    /// Raised where the store grows, as the next one. A few writes that still see the old limit do no harm.
    bytes_max: AtomicUsize,
    records_max: AtomicUsize,
}

/// Records of all overlays at most: a fraction of a small store, where the pages of an apply need space beside the objects.
pub(crate) fn records_max(tuning: &Tuning, blocks_max: u64) -> usize {
    tuning.overlay_records_max.min((blocks_max / 16).max(16) as usize)
}

/// Bytes of all overlays at most: never above a third of the log, so that a frozen and an active overlay and the batches' padding fit
/// in it.
fn bytes_max(wanted: usize, log_blocks: u32) -> usize {
    wanted.min(log_blocks as usize * BLOCK_BYTES / 3)
}

/// A write batch's share of the overlays.
pub(crate) struct OverlayPermit {
    admission: Arc<Admission>,
    records: usize,
    bytes: usize,
}

impl Admission {
    /// Overlays of at most `bytes_wanted` bytes, or what a log of `log_blocks` blocks allows, and of `records_max` records.
    pub(crate) fn new(bytes_wanted: usize, log_blocks: u32, records_max: usize) -> Arc<Self> {
        let (bytes, records, waiting) = Default::default();
        let bytes_max = AtomicUsize::new(bytes_max(bytes_wanted, log_blocks));
        let records_max = AtomicUsize::new(records_max);
        Arc::new(Self { bytes, records, waiting, bytes_wanted, bytes_max, records_max })
    }

    fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn records_max(&self) -> usize {
        self.records_max.load(Ordering::Relaxed)
    }

    /// Sets the largest number of records of all overlays: for a store that grew.
    pub(crate) fn set_records_max(&self, records_max: usize) {
        self.records_max.store(records_max, Ordering::Relaxed);
    }

    /// Sets the bytes of all overlays at most: for a log that became longer.
    pub(crate) fn set_log_blocks(&self, log_blocks: u32) {
        self.bytes_max.store(bytes_max(self.bytes_wanted, log_blocks), Ordering::Relaxed);
    }

    /// Bits of the filter of an overlay, for as many records as it may get.
    pub(crate) fn filter_bits(&self) -> usize {
        self.records_max().min(self.bytes_max() / 256).max(64) * 2
    }

    /// Admits `records` records of `bytes` bytes in total, if they fit now. A batch above the limit is admitted only
    /// into empty overlays.
    pub(crate) fn try_admit(self: &Arc<Self>, records: usize, bytes: usize) -> Option<OverlayPermit> {
        let before = self.records.fetch_add(records, Ordering::AcqRel);
        let held = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before > 0 && (before + records > self.records_max() || held + bytes > self.bytes_max()) {
            self.release(records, bytes);
            return None;
        }
        Some(OverlayPermit { admission: self.clone(), records, bytes })
    }

    /// Releases the share of an applied overlay, or what a record did not use of its share.
    pub(crate) fn release(&self, records: usize, bytes: usize) {
        if records > 0 {
            let before = self.records.fetch_sub(records, Ordering::AcqRel);
            assert!(before >= records, "more records released than admitted (R3)");
        }
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "more bytes released than admitted (R3)");
    }

    /// Counts records that recovery puts into the overlays, without a limit.
    pub(crate) fn recovered(&self, records: usize, bytes: usize) {
        self.records.fetch_add(records, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The fill of the overlays in thousandths of the limit that is closer to being reached: bytes or records.
    pub(crate) fn fill_permille(&self) -> usize {
        let bytes = self.bytes.load(Ordering::Acquire).saturating_mul(1000) / self.bytes_max();
        let records = self.records.load(Ordering::Acquire).saturating_mul(1000) / self.records_max();
        bytes.max(records)
    }

    /// Notes that a batch of several records waits for room, until the result is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(&self.waiting)
    }

    /// Returns true if a batch waits for room and an apply could make some, however much is free: the batch may need
    /// all of it.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.records.load(Ordering::Acquire) > 0
    }

    /// Records and bytes in the overlays.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.records.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire))
    }
}

/// See [`Admission::wait`].
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OverlayPermit {
    /// Turns the permit into a share of the overlays, which grew by `growth`. The applies of the overlays release that
    /// share.
    pub(crate) fn keep(mut self, growth: &Growth) {
        assert!(growth.bytes <= self.bytes, "records take at most what was admitted");
        // The records stay counted. The unused part of the permit and the superseded records are released.
        let too_many = self.bytes - growth.bytes;
        self.admission.release(growth.dropped.records, too_many + growth.dropped.bytes);
        self.bytes = usize::MAX;
    }
}

impl Drop for OverlayPermit {
    fn drop(&mut self) {
        if self.bytes != usize::MAX {
            self.admission.release(self.records, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tablet::overlay::Size;

    #[test]
    fn bounds_and_gives_back() {
        let admission = Admission::new(100, 64, 3);
        let first = admission.try_admit(1, 60).unwrap();
        assert!(admission.try_admit(1, 60).is_none());
        let second = admission.try_admit(1, 40).unwrap();
        assert_eq!(admission.fill_permille(), 1000);
        first.keep(&Growth { bytes: 50, ..Growth::default() });
        drop(second);
        assert_eq!(admission.held(), (1, 50));
        let dropped = Size { records: 1, bytes: 50, promised: 0 };
        admission.try_admit(1, 40).unwrap().keep(&Growth { bytes: 30, dropped });
        assert_eq!(admission.held(), (1, 30), "it superseded the first");
        admission.release(1, 30);
        let large = admission.try_admit(2, 1000).unwrap();
        assert!(admission.try_admit(1, 1).is_none());
        drop(large);
        assert_eq!(admission.held(), (0, 0));
    }
}

//! Admission bounds the memtables of all tablets: a write that finds them full waits for an apply.
//!
//! From half of the limit on, applies run; at the limit, writes wait. An apply lends the room of its memtable as it brings that home
//! ([`Lent`]), so writers continue at its pace instead of stopping until it finishes. While an apply lends, batches that arrive after a
//! large one wait for it: they would take each piece of its room. Writes of one record take little room, so they pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shoal_common::options::Tuning;

use crate::Growth;

/// The memtables may exceed the limits by at most this fraction while an apply lends room.
const LENT_SHARE: usize = 4;

/// Steps in which an apply lends room.
pub const LENT_STEPS: usize = 128;

/// A batch that needs more than this fraction of the limits is large: one step never makes room for it.
const LARGE_SHARE: usize = LENT_SHARE * LENT_STEPS;

/// The place of a write that does not wait: after all that do.
const NO_PLACE: u64 = u64::MAX;

/// The writes that wait for room, in the order of arrival.
#[derive(Default)]
struct Line {
    next: u64,
    /// The places of large batches.
    large: BTreeSet<u64>,
}

/// The contents of all tablets' memtables, with their limits.
pub struct MemtableAdmission {
    bytes: AtomicUsize,
    records: AtomicUsize,
    /// Batches of several records that wait for an apply to make room.
    waiting: AtomicUsize,
    line: Mutex<Line>,
    /// The place of the first large batch in the line; [`NO_PLACE`] if none waits.
    first_large: AtomicU64,
    /// Applies that lend room, and the pauses after them.
    lending: AtomicUsize,
    /// The limit on bytes that the user wants; a short log allows less.
    bytes_wanted: usize,
    /// Raised when the store grows, like `records_max`. A few writes that still see the old limit do no harm.
    bytes_max: AtomicUsize,
    records_max: AtomicUsize,
}

/// Limit on the records of all memtables: a fraction of a small store, which needs space for the pages of an apply beside the objects.
pub fn records_max(tuning: &Tuning, blocks_max: u64) -> usize {
    tuning.memtable_records_max.min((blocks_max / 16).max(16) as usize)
}

/// Limit on the bytes of all memtables: never above a third of the log, so that a frozen and an active memtable and the batches' padding
/// fit in it.
fn bytes_max(wanted: usize, log_blocks: u32) -> usize {
    wanted.min(log_blocks as usize * BLOCK_BYTES / 3)
}

/// A write batch's share of the memtables.
pub struct MemtablePermit {
    admission: Arc<MemtableAdmission>,
    records: usize,
    bytes: usize,
}

impl MemtableAdmission {
    /// Memtables of at most `bytes_wanted` bytes, or fewer if a log of `log_blocks` blocks requires it, and of `records_max` records.
    pub fn new(bytes_wanted: usize, log_blocks: u32, records_max: usize) -> Arc<Self> {
        let (bytes, records, waiting, line, lending) = Default::default();
        let first_large = AtomicU64::new(NO_PLACE);
        let bytes_max = AtomicUsize::new(bytes_max(bytes_wanted, log_blocks));
        let records_max = AtomicUsize::new(records_max);
        Arc::new(Self {
            bytes,
            records,
            waiting,
            line,
            first_large,
            lending,
            bytes_wanted,
            bytes_max,
            records_max,
        })
    }

    /// The limit on the bytes in the memtables.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    fn records_max(&self) -> usize {
        self.records_max.load(Ordering::Relaxed)
    }

    /// Sets the limit on the records of all memtables, for a store that grew.
    pub fn set_records_max(&self, records_max: usize) {
        self.records_max.store(records_max, Ordering::Relaxed);
    }

    /// Sets the limit on the bytes of all memtables, for a log that became longer.
    pub fn set_log_blocks(&self, log_blocks: u32) {
        self.bytes_max.store(bytes_max(self.bytes_wanted, log_blocks), Ordering::Relaxed);
    }

    /// Bits of the filter of a memtable, for the number of records that it may get.
    pub fn filter_bits(&self) -> usize {
        self.records_max().min(self.bytes_max() / 256).max(64) * 2
    }

    /// Returns true for a batch that needs more room than an apply lends at a time.
    fn is_large(&self, records: usize, bytes: usize) -> bool {
        records > 1 && (records > self.records_max() / LARGE_SHARE || bytes > self.bytes_max() / LARGE_SHARE)
    }

    /// Returns true if a large batch comes before a batch with this place while an apply lends. Without an apply the line does not count: a
    /// large batch whose future is not polled would stop all others for ever.
    fn is_behind_large(&self, place: u64) -> bool {
        self.first_large.load(Ordering::Acquire) < place && self.lending.load(Ordering::Acquire) > 0
    }

    /// Admits `records` records of `bytes` bytes in total if they fit now; several records also need that no large batch waits. A batch
    /// above the limit is admitted only into empty memtables.
    #[inline]
    pub fn try_admit(self: &Arc<Self>, records: usize, bytes: usize) -> Option<MemtablePermit> {
        self.try_admit_at(NO_PLACE, records, bytes)
    }

    fn try_admit_at(self: &Arc<Self>, place: u64, records: usize, bytes: usize) -> Option<MemtablePermit> {
        if records > 1 && self.is_behind_large(place) {
            return None;
        }
        let before = self.records.fetch_add(records, Ordering::AcqRel);
        let held = self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before > 0 && (before + records > self.records_max() || held + bytes > self.bytes_max()) {
            self.release(records, bytes);
            return None;
        }
        Some(MemtablePermit { admission: self.clone(), records, bytes })
    }

    /// Releases the share of an applied memtable, or the part of its share that a record did not use.
    #[inline]
    pub fn release(&self, records: usize, bytes: usize) {
        if records > 0 {
            let before = self.records.fetch_sub(records, Ordering::AcqRel);
            assert!(before >= records, "more records released than admitted (R3)");
        }
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "more bytes released than admitted (R3)");
    }

    /// Counts records without a limit: recovery puts them into the memtables, or they are already there.
    #[inline]
    pub fn take(&self, records: usize, bytes: usize) {
        self.records.fetch_add(records, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The room that an apply may lend: that of a memtable of `records` records and `bytes` bytes.
    pub fn lend(self: &Arc<Self>, records: usize, bytes: usize) -> Lent {
        self.lending.fetch_add(1, Ordering::AcqRel);
        Lent { admission: self.clone(), records, bytes, lent_records: 0, lent_bytes: 0 }
    }

    /// The fill of the memtables in thousandths of the closer limit: bytes or records.
    #[inline]
    pub fn fill_permille(&self) -> usize {
        let bytes = self.bytes.load(Ordering::Acquire).saturating_mul(1000) / self.bytes_max();
        let records = self.records.load(Ordering::Acquire).saturating_mul(1000) / self.records_max();
        bytes.max(records)
    }

    /// Bytes that fit in the memtables until they are filled by `permille` thousandths.
    pub fn room_below(&self, permille: usize) -> usize {
        (self.bytes_max() / 1000 * permille).saturating_sub(self.bytes.load(Ordering::Acquire))
    }

    /// Puts a write of `records` records into the line for room, until the result is dropped.
    pub fn wait(self: &Arc<Self>, records: usize, bytes: usize) -> WaitingWrite<'_> {
        let is_large = self.is_large(records, bytes);
        let mut line = self.line.lock();
        let place = line.next;
        line.next += 1;
        if is_large {
            line.large.insert(place);
            self.note_first_large(&line);
        }
        drop(line);
        // One record never needs more than the half that an apply leaves free.
        self.waiting.fetch_add(usize::from(records > 1), Ordering::AcqRel);
        WaitingWrite { admission: self, place, is_large, records, bytes }
    }

    fn note_first_large(&self, line: &Line) {
        self.first_large.store(line.large.first().copied().unwrap_or(NO_PLACE), Ordering::Release);
    }

    /// Returns true if a batch waits for room and an apply could make some, regardless of the free room: the batch may need all of it.
    #[inline]
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.records.load(Ordering::Acquire) > 0
    }

    /// Records and bytes in the memtables.
    pub fn held(&self) -> (usize, usize) {
        (self.records.load(Ordering::Acquire), self.bytes.load(Ordering::Acquire))
    }
}

/// A write that waits for room. See [`MemtableAdmission::wait`].
pub struct WaitingWrite<'a> {
    admission: &'a Arc<MemtableAdmission>,
    place: u64,
    /// True for a large batch: when it leaves the line, the writes after it must be woken.
    pub is_large: bool,
    records: usize,
    bytes: usize,
}

impl WaitingWrite<'_> {
    /// Admits the write if it fits now; a batch also needs that no large one came before it.
    #[inline]
    pub fn try_admit(&self) -> Option<MemtablePermit> {
        self.admission.try_admit_at(self.place, self.records, self.bytes)
    }
}

impl Drop for WaitingWrite<'_> {
    fn drop(&mut self) {
        self.admission.waiting.fetch_sub(usize::from(self.records > 1), Ordering::AcqRel);
        if self.is_large {
            let mut line = self.admission.line.lock();
            line.large.remove(&self.place);
            self.admission.note_first_large(&line);
        }
    }
}

/// The room of a memtable that an apply brings home. If it is dropped early, because the apply failed, it takes the lent room back.
pub struct Lent {
    admission: Arc<MemtableAdmission>,
    records: usize,
    bytes: usize,
    lent_records: usize,
    lent_bytes: usize,
}

impl Lent {
    /// Lends the room of `done` of `parts` parts, at most a fraction of the limits; returns true if that is more than before.
    pub fn advance(&mut self, done: usize, parts: usize) -> bool {
        let share = |whole: usize, max: usize| {
            let lendable = whole.min(max / LENT_SHARE) as u128;
            (lendable * done as u128 / parts.max(1) as u128) as usize
        };
        let records = share(self.records, self.admission.records_max()).saturating_sub(self.lent_records);
        let bytes = share(self.bytes, self.admission.bytes_max()).saturating_sub(self.lent_bytes);
        self.admission.release(records, bytes);
        self.lent_records += records;
        self.lent_bytes += bytes;
        records > 0 || bytes > 0
    }

    /// The memtable is home: the rest of its room is free as well.
    pub fn end(mut self) {
        self.admission.release(self.records - self.lent_records, self.bytes - self.lent_bytes);
        (self.lent_records, self.lent_bytes) = (0, 0);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.admission.take(self.lent_records, self.lent_bytes);
        self.admission.lending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl MemtablePermit {
    /// Turns the permit into a share of the memtables, which grew by `growth`. The applies of the memtables release that share.
    pub fn keep(mut self, growth: &Growth) {
        assert!(growth.bytes <= self.bytes, "records take at most the admitted bytes");
        // The records stay counted. The unused part of the permit and the superseded records are released.
        let too_many = self.bytes - growth.bytes;
        self.admission.release(growth.dropped.records, too_many + growth.dropped.bytes);
        self.bytes = usize::MAX;
    }
}

impl Drop for MemtablePermit {
    fn drop(&mut self) {
        if self.bytes != usize::MAX {
            self.admission.release(self.records, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;

    #[test]
    fn bounds_and_gives_back() {
        let admission = MemtableAdmission::new(100, 64, 3);
        let first = admission.try_admit(1, 60).unwrap();
        assert!(admission.try_admit(1, 60).is_none());
        let second = admission.try_admit(1, 40).unwrap();
        assert_eq!(admission.fill_permille(), 1000);
        first.keep(&Growth { bytes: 50, ..Growth::default() });
        drop(second);
        assert_eq!(admission.held(), (1, 50));
        let dropped = Size { records: 1, bytes: 50, reserved_blocks: 0 };
        admission.try_admit(1, 40).unwrap().keep(&Growth { bytes: 30, dropped });
        assert_eq!(admission.held(), (1, 30), "it superseded the first");
        admission.release(1, 30);
        let large = admission.try_admit(2, 1000).unwrap();
        assert!(admission.try_admit(1, 1).is_none());
        drop(large);
        assert_eq!(admission.held(), (0, 0));
    }

    #[test]
    fn apply_lends_room_and_reclaims_it_on_failure() {
        let admission = MemtableAdmission::new(10_000, 64, 1_000);
        admission.take(800, 4_000);
        let mut lent = admission.lend(400, 2_000);
        assert!(lent.advance(1, 10) && !lent.advance(1, 10));
        assert_eq!(admission.held(), (775, 3_800));
        assert!(lent.advance(10, 10));
        assert_eq!(
            admission.held(),
            (550, 2_000),
            "a quarter of the records, and all bytes, which are fewer"
        );
        drop(lent);
        assert_eq!(admission.held(), (800, 4_000));
        let mut lent = admission.lend(400, 2_000);
        assert!(lent.advance(5, 10));
        lent.end();
        assert_eq!(admission.held(), (400, 2_000));
    }

    #[test]
    fn small_batches_queue_behind_large_one() {
        let admission = MemtableAdmission::new(100_000, 1_024, 10_000);
        admission.take(9_900, 4_000);
        let lent = admission.lend(100, 0);
        let before = admission.wait(2, 20);
        let large = admission.wait(200, 4_000);
        assert!(large.is_large && !before.is_large && large.try_admit().is_none());
        assert!(admission.try_admit(2, 20).is_none(), "it comes later");
        assert!(admission.wait(2, 20).try_admit().is_none() && admission.wait(200, 1).try_admit().is_none());
        assert!(admission.try_admit(1, 10).is_some() && admission.wait(1, 10).try_admit().is_some());
        drop(before.try_admit().unwrap());
        admission.release(100, 0);
        assert!(large.try_admit().is_some() && admission.try_admit(2, 20).is_none());
        // The line does not count without an apply.
        lent.end();
        assert!(admission.try_admit(2, 20).is_some());
        let _lent = admission.lend(0, 0);
        assert!(admission.try_admit(2, 20).is_none());
        drop(large);
        assert!(admission.try_admit(2, 20).is_some());
    }
}

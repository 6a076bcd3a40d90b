//! A record in memory: its encoded bytes, its number, and the wakers of its waiters.

use std::task::Waker;

use bytes::Bytes;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::{Lsn, Run, TabletId};
use smallvec::SmallVec;

use crate::format::{EncodedRecord, RecordKind};

/// The number of a record that the committer has not numbered yet.
pub const UNNUMBERED: u64 = u64::MAX;

/// The number of a record that found no room in the log, and never has an effect.
const REFUSED: u64 = u64::MAX - 1;

/// The number of a record that found no room in the log, and that a crash may bring back all the same.
const IN_DOUBT: u64 = u64::MAX - 2;

/// The end of a record that found no room in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It never has an effect.
    NoRoom,
    /// A crash may bring it back.
    InDoubt,
}

/// Records that [`fetch`] takes at a time: more than a processor has misses of its cache in flight, and all fit in its cache.
pub const FETCHED: usize = 32;

/// Reads the memory of records that are used next. The records of a memtable are scattered in memory: the processor waits for each
/// one that is not in its cache, but fetches several in parallel if they are read in a row.
pub fn fetch<'a>(records: impl Iterator<Item = &'a Record>) {
    let some = |record: &Record| record.bytes().first().copied().unwrap_or(0) ^ record.kind() as u8;
    std::hint::black_box(records.fold(0, |all, record| all ^ some(record)));
}

/// A record of the log, in flight or durable.
pub struct Record {
    encoded: EncodedRecord,
    /// Runs that the entry names: those of its value and its manifest.
    owned: SmallVec<[Run; 1]>,
    /// Blocks that are reserved for its apply.
    reserved_blocks: u64,
    /// Set once by the committer (release), before the batch is written; pairs with the acquire in `lsn_raw`.
    lsn: AtomicU64,
    /// The wakers of the writer, and of others that must not answer before this record is durable.
    wakers: Mutex<SmallVec<[Waker; 1]>>,
}

impl Record {
    /// A record that is about to be queued. The committer numbers it.
    #[inline]
    pub fn new(encoded: EncodedRecord) -> Self {
        Self::recovered(encoded, Lsn(UNNUMBERED))
    }

    /// A record found by recovery.
    #[inline]
    pub fn recovered(encoded: EncodedRecord, lsn: Lsn) -> Self {
        Self {
            encoded,
            owned: SmallVec::new(),
            reserved_blocks: 0,
            lsn: AtomicU64::new(lsn.0),
            wakers: Mutex::default(),
        }
    }

    /// Sets the runs that the entry names.
    pub fn own(&mut self, runs: impl IntoIterator<Item = Run>) {
        self.owned.extend(runs);
    }

    /// Sets the number of blocks that are reserved for its apply.
    #[inline]
    pub fn set_reserved_blocks(&mut self, blocks: u64) {
        self.reserved_blocks = blocks;
    }

    /// Blocks that are reserved for its apply.
    #[inline]
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks
    }

    /// Runs that the entry names.
    #[inline]
    pub fn owned(&self) -> &[Run] {
        &self.owned
    }

    /// The tablet that the log names.
    #[inline]
    pub fn tablet(&self) -> TabletId {
        self.encoded.tablet
    }

    /// The effect on the key.
    #[inline]
    pub fn kind(&self) -> RecordKind {
        self.encoded.kind
    }

    /// Returns true if the next record belongs to the same write batch.
    #[inline]
    pub fn continues(&self) -> bool {
        self.encoded.continues
    }

    /// See [`EncodedRecord::adopts`].
    #[inline]
    pub fn adopts(&self) -> bool {
        self.encoded.adopts
    }

    /// The record as the log has it.
    #[inline]
    pub fn bytes(&self) -> &Bytes {
        &self.encoded.bytes
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.encoded.key()
    }

    /// The entry's body, empty for a delete; shares the record's memory.
    #[inline]
    pub fn body(&self) -> Bytes {
        self.encoded.body()
    }

    /// As [`body`](Self::body), borrowed.
    #[inline]
    pub fn body_bytes(&self) -> &[u8] {
        self.encoded.body_bytes()
    }

    /// Bytes that the record takes in memory.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.encoded.bytes.len() + size_of::<Self>()
    }

    /// The number, or [`UNNUMBERED`].
    #[inline]
    pub fn lsn_raw(&self) -> u64 {
        self.lsn.load(Ordering::Acquire)
    }

    /// The number. The record must have one.
    #[inline]
    pub fn lsn(&self) -> Lsn {
        let lsn = self.lsn_raw();
        assert!(lsn < IN_DOUBT, "only numbered records are asked for their number");
        Lsn(lsn)
    }

    /// Refuses the record: it found no room. It loses its number, which durable numbers will pass.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        let number = if refusal == Refusal::NoRoom { REFUSED } else { IN_DOUBT };
        self.lsn.store(number, Ordering::Release);
    }

    /// The refusal of the record, if it found no room.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self.lsn_raw() {
            REFUSED => Some(Refusal::NoRoom),
            IN_DOUBT => Some(Refusal::InDoubt),
            _ => None,
        }
    }

    pub(crate) fn number(&self, lsn: Lsn) {
        let before = self.lsn.swap(lsn.0, Ordering::AcqRel);
        assert_eq!(before, UNNUMBERED, "a record is numbered once (R4)");
    }

    /// Returns true if the record has a number, up to `durable`.
    #[inline]
    pub fn is_durable(&self, durable: Lsn) -> bool {
        // UNNUMBERED, REFUSED and IN_DOUBT are above every number.
        self.lsn_raw() <= durable.0
    }

    /// Registers a waker that [`wake`](Self::wake) calls once.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for waker in wakers {
            waker.wake();
        }
    }
}

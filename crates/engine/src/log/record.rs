//! A record in memory: its encoded bytes and its number, in one piece of memory.
//!
//! Overlays hold some hundred thousand records, so a record has nothing that its encoded bytes say already, and nothing that only
//! its writer needs until it is durable: those who wait for it are in [`super::waiters`].

#![allow(unsafe_code)]

use std::iter::repeat_n;
use std::sync::Arc;

use bytes::Bytes;
use shoal_base::sync::atomic::{AtomicU64, Ordering};
use shoal_base::{Lsn, Run, TabletId};
use smallvec::SmallVec;

use crate::log::format::{RecordKind, body_of, fill_record, key_of, kind_of, record_bytes};
use crate::space::manager::Promise;

/// The number of a record that the committer has not numbered yet.
pub(crate) const UNNUMBERED: u64 = u64::MAX;

/// A longer record adds less to its leaf: its value goes somewhere else.
pub(crate) const LEAF_RECORD_BYTES_MAX: usize = 1_400;

/// The bit of a record's state that says whether somebody waits for it; the others are its number, all set where it has none.
const IS_AWAITED: u64 = 1 << 63;
const NUMBER: u64 = !IS_AWAITED;

/// Bytes of the two counts of an `Arc`.
const COUNTS_BYTES: usize = 16;

/// A record of the log, in flight or durable. Its memory is `u64`s, as [`Record::zeroed`] takes it.
#[repr(C)]
pub(crate) struct Record {
    /// Its number is set once by the committer (release), before the batch is written; pairs with the acquire in `lsn_raw`.
    state: AtomicU64,
    /// Runs that the entry names: its value's and its manifest's.
    owned: Option<Box<SmallVec<[Run; 1]>>>,
    /// Blocks that its apply was promised.
    promised: u32,
    encoded: [u8],
}

/// Bytes of a record in front of its encoded bytes.
const HEAD_BYTES: usize = 8 + 8 + 4;

/// The memory that the allocator of the binaries (mimalloc) takes for `bytes` bytes: multiples
/// of 16, and above 128 four sizes for each power of two.
pub(crate) fn allocated_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(16))
}

impl Record {
    /// A record that has no number yet. `body` is empty for a delete; `continues`: the record behind it belongs to the same
    /// write batch.
    pub(crate) fn new(
        kind: RecordKind,
        tablet: TabletId,
        key: &[u8],
        body: &[&[u8]],
        continues: bool,
        promised: u64,
    ) -> Arc<Self> {
        let body_bytes = body.iter().map(|part| part.len()).sum();
        Self::made(record_bytes(key.len(), body_bytes), UNNUMBERED, promised, |out| {
            fill_record(out, kind, tablet, key, body, continues);
        })
    }

    /// A record that recovery found.
    pub(crate) fn recovered(encoded: &[u8], lsn: Lsn, promised: u64) -> Arc<Self> {
        Self::made(encoded.len(), lsn.0, promised, |out| out.copy_from_slice(encoded))
    }

    fn made(bytes: usize, lsn: u64, promised: u64, fill: impl FnOnce(&mut [u8])) -> Arc<Self> {
        let mut record = Self::zeroed(bytes);
        let Some(made) = Arc::get_mut(&mut record) else { unreachable!("nobody else has it yet") };
        made.state = AtomicU64::new(lsn & NUMBER);
        made.promised = u32::try_from(promised).unwrap_or(u32::MAX);
        assert_eq!(u64::from(made.promised), promised, "a value has fewer blocks than that");
        fill(&mut made.encoded);
        record
    }

    /// A record all of whose bytes are zero, with room for `bytes` encoded bytes.
    fn zeroed(bytes: usize) -> Arc<Self> {
        let words = (HEAD_BYTES + bytes).div_ceil(size_of::<u64>());
        let memory: Arc<[u64]> = repeat_n(0, words).collect();
        let record = std::ptr::slice_from_raw_parts(Arc::into_raw(memory).cast::<u8>(), bytes) as *const Self;
        // SAFETY: the pointer is of `Arc::into_raw`, and so many words have the size and the alignment of a record with so many
        // encoded bytes: it ends with them, at the next border of eight bytes. All zeros are a record: a number, nothing owned.
        unsafe { Arc::from_raw(record) }
    }

    /// Says which runs the entry names; only before anybody else has the record.
    pub(crate) fn own(self: &mut Arc<Self>, runs: impl IntoIterator<Item = Run>) {
        let runs: SmallVec<[Run; 1]> = runs.into_iter().collect();
        if !runs.is_empty() {
            let Some(record) = Arc::get_mut(self) else { unreachable!("nobody else has it yet") };
            record.owned = Some(Box::new(runs));
        }
    }

    /// The promise to its apply.
    pub(crate) fn promised(&self) -> Promise {
        let leaf_bytes = self.encoded.len().min(LEAF_RECORD_BYTES_MAX) as u64;
        Promise { blocks: u64::from(self.promised), records: 1, leaf_bytes }
    }

    /// Runs that the entry names.
    pub(crate) fn owned(&self) -> &[Run] {
        self.owned.as_ref().map_or(&[], |runs| runs)
    }

    pub(crate) fn kind(&self) -> RecordKind {
        kind_of(&self.encoded)
    }

    /// As the log has it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.encoded
    }

    pub(crate) fn key(&self) -> &[u8] {
        key_of(&self.encoded)
    }

    /// The encoded bytes; shares the record's memory, for an allocation.
    pub(crate) fn shared(self: &Arc<Self>) -> Bytes {
        struct Shared(Arc<Record>);
        impl AsRef<[u8]> for Shared {
            fn as_ref(&self) -> &[u8] {
                &self.0.encoded
            }
        }
        Bytes::from_owner(Shared(self.clone()))
    }

    /// The entry's body, empty for a delete; as [`shared`](Self::shared).
    pub(crate) fn body(self: &Arc<Self>) -> Bytes {
        let body = self.body_bytes();
        if body.is_empty() { Bytes::new() } else { self.shared().slice_ref(body) }
    }

    /// As [`body`](Self::body), borrowed.
    pub(crate) fn body_bytes(&self) -> &[u8] {
        body_of(&self.encoded)
    }

    /// The memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let owned = self.owned.as_ref().map_or(0, |runs| {
            let spilled = if runs.spilled() { runs.capacity() * size_of::<Run>() } else { 0 };
            allocated_bytes(size_of_val(&**runs)) + allocated_bytes(spilled)
        });
        allocated_bytes(COUNTS_BYTES + size_of_val(self)) + owned
    }

    /// The number, or [`UNNUMBERED`].
    pub(crate) fn lsn_raw(&self) -> u64 {
        match self.state.load(Ordering::Acquire) & NUMBER {
            NUMBER => UNNUMBERED,
            number => number,
        }
    }

    /// The number. The record must have one.
    pub(crate) fn lsn(&self) -> Lsn {
        let lsn = self.lsn_raw();
        assert_ne!(lsn, UNNUMBERED, "only numbered records are asked for their number");
        Lsn(lsn)
    }

    pub(crate) fn number(&self, lsn: Lsn) {
        let before = self.state.fetch_and(lsn.0 | IS_AWAITED, Ordering::AcqRel);
        assert_eq!(before & NUMBER, NUMBER, "a record is numbered once");
    }

    pub(crate) fn is_durable(&self, durable: Lsn) -> bool {
        // UNNUMBERED is above every number.
        self.lsn_raw() <= durable.0
    }

    /// Somebody waits for it from now on; says whether somebody did before.
    pub(super) fn await_it(&self) -> bool {
        self.state.fetch_or(IS_AWAITED, Ordering::AcqRel) & IS_AWAITED != 0
    }

    /// Nobody waits for it any more; says whether somebody did.
    pub(super) fn end_waiting(&self) -> bool {
        self.state.fetch_and(NUMBER, Ordering::AcqRel) & IS_AWAITED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record's parts are where the constant says: what is counted is what the allocator was asked for.
    #[test]
    fn the_count_is_the_memory() {
        for bytes in [13, 20, 21, 27, 28, 29, 128, 148, 1_000, 16 << 10] {
            let record = Record::recovered(&vec![1; bytes], Lsn(1), 2);
            assert_eq!(size_of_val(&*record), (HEAD_BYTES + bytes).next_multiple_of(8));
            assert_eq!(align_of_val(&*record), align_of::<u64>());
            assert_eq!(record.memory_bytes(), allocated_bytes(COUNTS_BYTES + size_of_val(&*record)));
            assert_eq!((record.lsn(), record.promised().blocks, record.owned()), (Lsn(1), 2, &[][..]));
            assert_eq!(record.bytes(), vec![1; bytes]);
        }
        let sizes = [1, 16, 17, 128, 129, 160, 161, 192, 256, 257, 320, 513, 1_024];
        let taken = [16, 16, 32, 128, 160, 160, 192, 192, 256, 320, 320, 640, 1_024];
        assert_eq!(sizes.map(allocated_bytes), taken);
    }

    #[test]
    fn a_number_and_a_wait_do_not_disturb_each_other() {
        let body: [&[u8]; 2] = [b"bo", b"dy"];
        let mut record = Record::new(RecordKind::Put, TabletId(2), b"key", &body, false, 3);
        record.own([Run::new(5, 2), Run::new(9, 1)]);
        assert_eq!(record.owned(), [Run::new(5, 2), Run::new(9, 1)]);
        assert!(record.memory_bytes() > allocated_bytes(COUNTS_BYTES + size_of_val(&*record)));
        assert_eq!((record.lsn_raw(), record.is_durable(Lsn(u64::MAX >> 2))), (UNNUMBERED, false));
        assert!(!record.await_it() && record.await_it());
        assert_eq!(record.lsn_raw(), UNNUMBERED);
        record.number(Lsn(7));
        assert!(record.end_waiting() && !record.end_waiting());
        assert_eq!(
            (record.lsn(), record.is_durable(Lsn(6)), record.is_durable(Lsn(7))),
            (Lsn(7), false, true)
        );
        assert_eq!(
            (record.kind(), record.key(), &record.body()[..]),
            (RecordKind::Put, &b"key"[..], &b"body"[..])
        );
    }
}

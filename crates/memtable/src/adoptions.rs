//! Adoptions: the put of an object that an upload makes names runs of its parts, and the deletes of these parts in the same write batch
//! leave the runs to it (R44).
//!
//! The records of a write batch are in one memtable, and their numbers are consecutive: the put of a deleted part is the last put that
//! adopts before the delete. If a newer record superseded that put before its apply, nobody adopts the runs, and the apply frees them.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::hidden_key::is_part;
use shoal_common::injected_bug::{Bug, injected};
use shoal_log::Record;
use shoal_log::format::RecordKind;

/// The puts of a memtable that adopt, and the parts in it.
#[derive(Default)]
pub struct Adoptions {
    /// The numbers of the puts in order; true for one that is the newest record of its key.
    puts: Vec<(Lsn, bool)>,
    /// Puts of parts that were not applied before their runs are adopted, in the order of keys.
    parts: Vec<Arc<Record>>,
}

impl Adoptions {
    /// The adoptions of these puts, each with true if it is the newest record of its key.
    pub(crate) fn of(puts: impl Iterator<Item = (Lsn, bool)>) -> Self {
        let mut puts: Vec<_> = puts.collect();
        puts.sort_unstable();
        assert!(puts.is_sorted_by(|one, next| one.0 < next.0), "a put adopts once (R44)");
        Self { puts, parts: Vec::new() }
    }

    /// Returns true if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }

    /// Notes the newest put of a part before its delete.
    pub(crate) fn note_part(&mut self, part: &Arc<Record>) {
        assert!(part.kind() == RecordKind::Put && is_part(part.key()), "the runs of parts are adopted (R44)");
        self.parts.push(part.clone());
    }

    pub(crate) fn sort(&mut self) {
        self.parts.sort_unstable_by(|one, next| one.key().cmp(next.key()));
    }

    /// Returns true if the record deletes a part whose runs belong to an object that the apply writes.
    pub(crate) fn has(&self, record: &Record) -> bool {
        if record.kind() != RecordKind::Delete || !record.adopts() || injected(Bug::AdoptedFreed) {
            return false;
        }
        let before = self.puts.partition_point(|(put, _)| *put < record.lsn());
        before.checked_sub(1).is_some_and(|last| self.puts[last].1)
    }

    /// Returns true if the record deletes a part of the tree whose runs belong to an object that the apply writes.
    pub fn has_in_tree(&self, record: &Record) -> bool {
        let is_here = |key: &[u8]| self.parts.binary_search_by(|part| part.key().cmp(key)).is_ok();
        self.has(record) && !is_here(record.key())
    }

    /// The puts of parts that never reach the tree, and whose runs belong to an object that the apply writes.
    pub fn parts(&self) -> &[Arc<Record>] {
        &self.parts
    }
}

#[cfg(test)]
mod tests {
    use shoal_base::TabletId;
    use shoal_log::format::{RecordPlace, encode_placed};

    use super::*;
    use crate::testing::record;
    use crate::{Memtable, hash_of};

    const PARTS: [&[u8]; 3] = [b"\xFCb\0one", b"\xFCb\0three", b"\xFCb\0two"];

    fn adopting(kind: RecordKind, key: &[u8], lsn: u64) -> Arc<Record> {
        let place = RecordPlace { adopts: true, ..RecordPlace::default() };
        Arc::new(Record::recovered(encode_placed(kind, TabletId(0), key, &[], place), Lsn(lsn)))
    }

    fn insert(memtable: &Memtable, record: Arc<Record>) {
        let (hash, durable) = (hash_of(record.key()), Lsn(record.lsn().0 - 1));
        memtable.insert(&mut memtable.lock(), record, hash, durable);
    }

    /// A memtable with the parts one and two, of which one was sent twice, and with an object of all three; part three is in the tree.
    fn completed() -> Memtable {
        let memtable = Memtable::new(64, 0);
        for (key, lsn) in [(PARTS[0], 1), (PARTS[2], 2), (PARTS[0], 3)] {
            let mut part = Arc::into_inner(record(key, lsn)).unwrap();
            part.own([shoal_base::Run::new(lsn * 10, 1)]);
            insert(&memtable, Arc::new(part));
        }
        insert(&memtable, adopting(RecordKind::Put, b"b\0object", 4));
        (5..).zip(PARTS).for_each(|(lsn, key)| insert(&memtable, adopting(RecordKind::Delete, key, lsn)));
        memtable
    }

    fn numbers(records: &[Arc<Record>]) -> Vec<u64> {
        let mut numbers: Vec<u64> = records.iter().map(|record| record.lsn().0).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn the_runs_of_parts_pass_to_the_object() {
        let memtable = completed();
        memtable.lock().freeze();
        let adoptions = memtable.lock().adoptions(Lsn(9));
        assert_eq!(numbers(adoptions.parts()), [2, 3]);
        let in_tree = |key: &[u8]| adoptions.has_in_tree(&memtable.newest(key).unwrap());
        assert_eq!(PARTS.map(in_tree), [false, true, false]);
        assert_eq!(numbers(&memtable.lock().dropped(&adoptions)), [1], "the first part one");
    }

    /// Nobody adopts the runs: the apply frees all of them, as it does for other deletes.
    #[test]
    fn an_object_that_was_overwritten_adopts_nothing() {
        let memtable = completed();
        insert(&memtable, record(b"b\0object", 8));
        // Another upload is not mistaken for it.
        insert(&memtable, adopting(RecordKind::Put, b"b\0other", 9));
        memtable.lock().freeze();
        let adoptions = memtable.lock().adoptions(Lsn(9));
        assert!(adoptions.parts().is_empty());
        assert!(PARTS.iter().all(|key| !adoptions.has_in_tree(&memtable.newest(key).unwrap())));
        assert_eq!(numbers(&memtable.lock().dropped(&adoptions)), [1, 2, 3, 4]);
    }
}

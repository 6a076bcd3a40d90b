//! The keys of an overlay: lookups find them by hash, scans in order.
//!
//! A write finds its key with one probe of a table and one comparison. Scans want the keys in order: what was added since the
//! last one is put in order then, some at a time, so that the overlay's lock is never held for long. An apply sorts what is
//! frozen once, without this. Keys are never taken out. A key has its bytes in its records only.

use std::ops::{Bound, Deref};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::log::record::{Record, allocated_bytes};

/// Places of a new table.
const PLACES_LEAST: usize = 64;
/// Keys of a chunk: memory that is never moved, and never more than it needs but for the last one.
const CHUNK_KEYS: usize = 1024;
/// Keys of a piece of the order, at most.
const PIECE_KEYS: usize = 512;

/// The memory of a key at most, besides its records: its records' place, its places in a table that has just grown, and its number in two
/// pieces of the order that have just been one.
pub(super) const KEY_BYTES: usize =
    size_of::<Versions>() + 8 * 8 / 3 + 1 + 2 * size_of::<u32>() + APPLY_BYTES;

/// An apply takes 80 bytes for a record: its operation, and its place in their order. Of four tablets the frozen one has two fifths of
/// all records, of more a smaller share.
const APPLY_BYTES: usize = 80 * 2 / 5;

/// The records of one key, oldest first; never empty. Most keys that are overwritten have two: a durable one and one in flight.
pub(super) enum Versions {
    One(Arc<Record>),
    Several(Box<SmallVec<[Arc<Record>; 2]>>),
}

const _: () = assert!(size_of::<Versions>() == 16);

impl Versions {
    /// The memory of a key that has, or had, several records, besides them, roughly.
    pub(super) fn several_bytes() -> usize {
        allocated_bytes(size_of::<SmallVec<[Arc<Record>; 2]>>())
    }

    /// Adds a record that is newer than those that are there; says whether it takes [`Self::several_bytes`] from now on.
    pub(super) fn push(&mut self, record: Arc<Record>) -> bool {
        match self {
            Self::Several(all) => {
                all.push(record);
                false
            }
            Self::One(only) => {
                *self = Self::Several(Box::new(SmallVec::from_iter([only.clone(), record])));
                true
            }
        }
    }

    /// Takes the first `count` out, which are not all.
    pub(super) fn take_oldest(&mut self, count: usize) -> impl Iterator<Item = Arc<Record>> {
        assert!(count < self.len(), "a key keeps a record");
        let several = match self {
            Self::Several(all) if count > 0 => Some(all.drain(..count)),
            _ => None,
        };
        several.into_iter().flatten()
    }
}

impl Deref for Versions {
    type Target = [Arc<Record>];

    fn deref(&self) -> &[Arc<Record>] {
        match self {
            Self::One(record) => std::slice::from_ref(record),
            Self::Several(all) => all,
        }
    }
}

/// See the top of the file.
pub(super) struct Keys {
    /// In the order in which the keys came.
    chunks: Vec<Vec<Versions>>,
    count: usize,
    /// For each place nothing (zero), or the upper half of a key's hash and behind it one more than the key's number. A key lies in
    /// the place that the first bits of its hash say, or behind it where that is taken: so all are in the order of their hashes, but
    /// for what lies behind, and a larger table is filled from one end to the other.
    places: Box<[u64]>,
    /// The numbers of the keys with a number below `ordered`, in the order of the keys, in pieces that are not empty.
    order: Vec<Vec<u32>>,
    ordered: usize,
}

impl Keys {
    /// A table for about `count` keys.
    pub(super) fn new(count: usize) -> Self {
        Self {
            chunks: Vec::new(),
            count: 0,
            places: vec![0; (count * 2).next_power_of_two().max(PLACES_LEAST)].into(),
            order: Vec::new(),
            ordered: 0,
        }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn versions(&self, number: usize) -> &Versions {
        &self.chunks[number / CHUNK_KEYS][number % CHUNK_KEYS]
    }

    fn key(&self, number: usize) -> &[u8] {
        self.versions(number)[0].key()
    }

    /// The place at which the search for a hash begins.
    fn first_place(&self, tag: u32) -> usize {
        // The number of places is a power of two, and at least two.
        (u64::from(tag) >> (32 - self.places.len().trailing_zeros())) as usize
    }

    /// The place of a key and its number, or the place that the key would get.
    fn place_of(&self, hash: u64, key: &[u8]) -> (usize, Option<usize>) {
        let tag = (hash >> 32) as u32;
        let mut at = self.first_place(tag);
        loop {
            let place = self.places[at];
            if place == 0 {
                return (at, None);
            }
            let number = place as u32 as usize - 1;
            if (place >> 32) as u32 == tag && self.key(number) == key {
                return (at, Some(number));
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&Versions> {
        self.place_of(hash, key).1.map(|number| self.versions(number))
    }

    /// The records of `record`'s key, and `record` for the caller to add. For a new key, `record` becomes its first,
    /// and the result is `None`.
    pub(super) fn entry(&mut self, hash: u64, record: Arc<Record>) -> Option<(&mut Versions, Arc<Record>)> {
        let (at, found) = self.place_of(hash, record.key());
        if let Some(number) = found {
            return Some((&mut self.chunks[number / CHUNK_KEYS][number % CHUNK_KEYS], record));
        }
        if self.count.is_multiple_of(CHUNK_KEYS) {
            self.chunks.push(Vec::with_capacity(CHUNK_KEYS));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(Versions::One(record));
        }
        self.count += 1;
        assert!(self.count < u32::MAX as usize, "an overlay is bounded");
        self.places[at] = (hash >> 32 << 32) | self.count as u64;
        if self.count > self.places.len() / 4 * 3 {
            self.grow();
        }
        None
    }

    fn grow(&mut self) {
        let before = std::mem::take(&mut self.places);
        self.places = vec![0; before.len() * 2].into();
        for &place in before.iter().filter(|&&place| place != 0) {
            let mut at = self.first_place((place >> 32) as u32);
            while self.places[at] != 0 {
                at = (at + 1) & (self.places.len() - 1);
            }
            self.places[at] = place;
        }
    }

    /// The records of some of the keys with these numbers, from the first one on; none only where it does not exist.
    pub(super) fn of_numbers(&self, first: usize, count: usize) -> &[Versions] {
        let Some(chunk) = self.chunks.get(first / CHUNK_KEYS) else { return &[] };
        let first = (first % CHUNK_KEYS).min(chunk.len());
        &chunk[first..chunk.len().min(first.saturating_add(count))]
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Versions> {
        self.chunks.iter_mut().flatten()
    }

    /// Puts up to `limit` more keys in order. Returns true if the first `wanted` keys are in order.
    pub(super) fn order_some(&mut self, limit: usize, wanted: usize) -> bool {
        let end = self.count.min(self.ordered.saturating_add(limit));
        for number in self.ordered..end {
            let key = self.key(number);
            // The last piece that begins at or before the key; the first one where none does.
            let piece = self.first_piece(|first| first <= key).saturating_sub(1);
            let at = match self.order.get(piece) {
                Some(piece) => piece.partition_point(|&other| self.key(other as usize) < key),
                None => 0,
            };
            self.put_in_order(piece, at, number as u32);
        }
        self.ordered = end;
        self.ordered >= wanted.min(self.count)
    }

    /// The number of the pieces whose first key is such; those are the first ones.
    fn first_piece(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        self.order
            .partition_point(|piece| piece.first().is_some_and(|&first| is_before(self.key(first as usize))))
    }

    fn put_in_order(&mut self, piece: usize, at: usize, number: u32) {
        let Some(numbers) = self.order.get_mut(piece) else {
            let mut first = Vec::with_capacity(PIECE_KEYS);
            first.push(number);
            return self.order.push(first);
        };
        numbers.insert(at, number);
        if numbers.len() == PIECE_KEYS {
            let mut second = Vec::with_capacity(PIECE_KEYS);
            second.extend(numbers.drain(PIECE_KEYS / 2..));
            self.order.insert(piece + 1, second);
        }
    }

    /// The records of keys from `start` on, in order. Only once [all are](Self::order_some).
    pub(super) fn range<'a>(&'a self, start: Bound<&[u8]>) -> impl Iterator<Item = &'a Versions> {
        assert_eq!(self.ordered, self.count, "all keys are in order");
        let is_before = |key: &[u8]| match start {
            Bound::Included(start) => key < start,
            Bound::Excluded(start) => key <= start,
            Bound::Unbounded => false,
        };
        let piece = self.first_piece(is_before).saturating_sub(1);
        let first = self.order.get(piece);
        let at =
            first.map_or(0, |piece| piece.partition_point(|&number| is_before(self.key(number as usize))));
        let rest = self.order.iter().skip(piece + 1).flatten();
        let numbers = first.into_iter().flat_map(move |piece| &piece[at..]).chain(rest);
        numbers.map(|&number| self.versions(number as usize))
    }
}

/// Sorts records of different keys by their keys.
pub(super) fn sort_by_key(records: &mut Vec<Arc<Record>>) {
    let Some((first, rest)) = records.split_first() else { return };
    let shared = rest.iter().fold(first.key().len(), |shared, record| {
        let both = first.key()[..shared].iter().zip(record.key());
        both.take_while(|(a, b)| a == b).count()
    });
    // Most keys differ in the eight bytes after their common prefix: comparing those needs no access to the key.
    let mut numbers: Vec<(u64, u32)> =
        (0..).zip(&*records).map(|(number, record)| (word_at(record.key(), shared), number)).collect();
    let key = |number: u32| records[number as usize].key();
    numbers.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
    let mut unsorted: Vec<_> = std::mem::take(records).into_iter().map(Some).collect();
    records.extend(numbers.iter().filter_map(|&(_, number)| unsorted[number as usize].take()));
}

/// Eight bytes of a key from `at` on, as a number that compares as the bytes do. Zeros stand after the key's end, so
/// equal numbers do not mean equal keys.
fn word_at(key: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let bytes = &key[at..key.len().min(at + 8)];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use shoal_base::{Lsn, TabletId};

    use super::*;
    use crate::log::format::RecordKind;

    fn record(key: &[u8], lsn: u64) -> Arc<Record> {
        let record = Record::new(RecordKind::Put, TabletId(0), key, &[], false, 0);
        record.number(Lsn(lsn));
        record
    }

    /// Short keys with shared beginnings, so that one is the beginning of another, and so that words of eight bytes are
    /// equal.
    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop_oneof![Just(0_u8), Just(b'a'), Just(0xFF)];
        proptest::collection::vec(proptest::collection::vec(byte, 1..14), 0..300)
    }

    proptest! {
        #[test]
        fn finds_and_orders_as_a_map(keys in keys(), few_hashes in any::<bool>(), ordered in 0_usize..8) {
            // Few hashes, so that long rows of places are taken, also across the end of the table.
            let hash = |key: &[u8]| match few_hashes {
                true => (u64::MAX - (key.len() as u64 & 3)) << 32,
                false => shoal_base::hash::hash64(key),
            };
            let mut table = Keys::new(0);
            let mut model: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
            for (lsn, key) in (1..).zip(&keys) {
                if let Some((versions, record)) = table.entry(hash(key), record(key, lsn)) {
                    versions.push(record);
                }
                model.entry(key.clone()).or_default().push(lsn);
                table.order_some(ordered, 0);
            }
            prop_assert_eq!(table.len(), model.len());
            let lsns = |versions: &Versions| versions.iter().map(|record| record.lsn().0).collect::<Vec<_>>();
            for (key, wanted) in &model {
                prop_assert_eq!(table.get(hash(key), key).map(lsns), Some(wanted.clone()));
                let absent = [&key[..], b"!"].concat();
                prop_assert!(table.get(hash(&absent), &absent).is_none());
            }
            while !table.order_some(7, usize::MAX) {}
            let all: Vec<_> = table.range(Bound::Unbounded).map(lsns).collect();
            prop_assert_eq!(&all, &model.values().cloned().collect::<Vec<_>>());
            for key in keys.iter().take(8) {
                let behind: Vec<_> = table.range(Bound::Excluded(key)).map(lsns).collect();
                let wanted = model.range::<[u8], _>((Bound::Excluded(&key[..]), Bound::Unbounded));
                prop_assert_eq!(behind, wanted.map(|(_, lsns)| lsns.clone()).collect::<Vec<_>>());
            }
            let mut sorted: Vec<_> = table.of_numbers(0, usize::MAX).iter().map(|all| all[0].clone()).collect();
            sort_by_key(&mut sorted);
            let sorted: Vec<_> = sorted.iter().map(|record| record.key().to_vec()).collect();
            prop_assert_eq!(sorted, model.into_keys().collect::<Vec<_>>());
        }
    }

    /// Pieces of the order that are divided many times, chunks, and a table that grows: as a sorted list.
    #[test]
    fn many_keys_are_found_and_in_order() {
        let mut table = Keys::new(0);
        let mut keys: Vec<[u8; 8]> =
            (0..20_000_u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).collect();
        for (lsn, key) in (1..).zip(&keys) {
            assert!(table.entry(shoal_base::hash::hash64(key), record(key, lsn)).is_none());
            if lsn % 3_000 == 0 {
                table.order_some(usize::MAX, 0);
            }
        }
        assert!(table.order_some(usize::MAX, usize::MAX));
        assert!(table.order.iter().all(|piece| (1..PIECE_KEYS).contains(&piece.len())));
        keys.sort_unstable();
        let all: Vec<&[u8]> = table.range(Bound::Unbounded).map(|versions| versions[0].key()).collect();
        assert_eq!(all, keys.iter().map(|key| &key[..]).collect::<Vec<_>>());
        for at in (0..keys.len()).step_by(97) {
            let from: Vec<_> =
                table.range(Bound::Included(&keys[at])).take(3).map(|all| all[0].key()).collect();
            assert_eq!(from, keys[at..].iter().take(3).map(|key| &key[..]).collect::<Vec<_>>());
        }
        let mut seen = 0;
        while let some @ [_, ..] = table.of_numbers(seen, 300) {
            seen += some.len();
        }
        assert_eq!(seen, keys.len());
    }

    /// The count of a key is at least the memory that it takes, whenever that is asked, and not much more.
    #[test]
    fn a_key_takes_what_is_counted() {
        let mut table = Keys::new(0);
        let mut most = 0.0_f64;
        for at in 0..100_000_u64 {
            let key = at.to_be_bytes();
            table.entry(shoal_base::hash::hash64(&key), record(&key, at + 1));
            table.order_some(usize::MAX, 0);
            if at > 4 * CHUNK_KEYS as u64 {
                let chunks: usize =
                    table.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Versions>()).sum();
                let order: usize = table.order.iter().map(|piece| piece.capacity() * size_of::<u32>()).sum();
                let lists = table.chunks.capacity().max(table.order.capacity()) * size_of::<Vec<u32>>();
                let taken = chunks + order + lists + size_of_val(&*table.places);
                // But for the last chunk.
                let counted = table.len() * (KEY_BYTES - APPLY_BYTES) + CHUNK_KEYS * size_of::<Versions>();
                assert!(taken <= counted + lists, "{} keys take {taken}, counted are {counted}", table.len());
                most = most.max(taken as f64 / counted as f64);
            }
        }
        assert!(most > 0.9, "{most}");
    }
}

//! The keys of a memtable: a hash table for lookups, an order for scans.
//!
//! A write finds its key with one probe of a table and one comparison. A scan needs the keys in order: it sorts the keys added since the
//! last scan in steps, so that it never holds the memtable's lock for long. An apply sorts the frozen keys once, without this order. A key
//! is removed only if the log had no room for any of its records.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use shoal_log::{FETCHED, Record, fetch};
use smallvec::SmallVec;

/// The records of one key, oldest first; empty once all of them were [removed](Keys::remove). Most overwritten keys have two: a durable one
/// and one in flight.
pub(super) type Versions = SmallVec<[Arc<Record>; 2]>;

/// An entry of the table that probably belongs to a key.
#[derive(Clone, Copy)]
pub struct Guess {
    tag: u32,
    place: u64,
}

/// Places of a new table.
const PLACES_LEAST: usize = 64;

/// See the top of the file.
pub(super) struct Keys {
    /// The records of each key, in the order in which the keys arrived.
    versions: Vec<Versions>,
    /// The hash table. A place is zero if it is empty; otherwise its upper half holds the upper half of a key's hash, and its lower half
    /// the key's number plus one. The first bits of the hash choose the place; if it is taken, the key goes into the next one. So the table
    /// is almost in the order of the hashes, and a larger table is filled from start to end.
    places: Box<[u64]>,
    /// The keys with a number below `ordered`, in order.
    order: BTreeMap<Box<[u8]>, u32>,
    ordered: usize,
}

impl Keys {
    /// A table for about `count` keys.
    pub(super) fn new(count: usize) -> Self {
        Self {
            versions: Vec::new(),
            places: vec![0; (count * 2).next_power_of_two().max(PLACES_LEAST)].into(),
            order: BTreeMap::new(),
            ordered: 0,
        }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.versions.len()
    }

    /// The first place of the search for a hash.
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
            if (place >> 32) as u32 == tag && is_of(&self.versions[number], key) {
                return (at, Some(number));
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// The first place of a hash. Only a guess at the key's place: the key is not compared, and other places are not searched.
    pub(super) fn guess(&self, hash: u64) -> Guess {
        let tag = (hash >> 32) as u32;
        Guess { tag, place: self.places[self.first_place(tag)] }
    }

    /// The records of the guessed key.
    pub(super) fn guessed(&self, guess: Guess) -> Option<&Versions> {
        let is_tagged = guess.place != 0 && (guess.place >> 32) as u32 == guess.tag;
        self.versions.get((guess.place as u32 as usize).checked_sub(1)?).filter(|_| is_tagged)
    }

    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&Versions> {
        self.place_of(hash, key).1.map(|number| &self.versions[number])
    }

    /// The records of `record`'s key, and `record` for the caller to add. For a new key, `record` becomes its first,
    /// and the result is `None`.
    pub(super) fn entry(&mut self, hash: u64, record: Arc<Record>) -> Option<(&mut Versions, Arc<Record>)> {
        let (at, found) = self.place_of(hash, record.key());
        if let Some(number) = found {
            return Some((&mut self.versions[number], record));
        }
        self.versions.push(SmallVec::from_iter([record]));
        let number = self.versions.len();
        assert!(number < u32::MAX as usize, "a memtable is bounded");
        self.places[at] = (hash >> 32 << 32) | number as u64;
        if number > self.places.len() / 4 * 3 {
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

    /// The records of up to `count` keys from number `first` on.
    pub(super) fn of_numbers(&self, first: usize, count: usize) -> &[Versions] {
        let end = (first + count).min(self.versions.len());
        &self.versions[first.min(end)..end]
    }

    /// Removes a record; returns false if it is not here. A key without records keeps its number, which no lookup finds any more.
    pub(super) fn remove(&mut self, hash: u64, record: &Arc<Record>) -> bool {
        let Some(number) = self.place_of(hash, record.key()).1 else { return false };
        let versions = &mut self.versions[number];
        let before = versions.len();
        versions.retain(|version| !Arc::ptr_eq(version, record));
        versions.len() < before
    }

    /// Puts up to `limit` more keys in order. Returns true if the first `wanted` keys are in order.
    pub(super) fn order_some(&mut self, limit: usize, wanted: usize) -> bool {
        for versions in self.versions.iter().skip(self.ordered).take(limit) {
            if let Some(first) = versions.first() {
                self.order.insert(first.key().into(), self.ordered as u32);
            }
            self.ordered += 1;
        }
        self.ordered >= wanted.min(self.versions.len())
    }

    /// The records of the keys from `start` on, in order. All keys must [be in order](Self::order_some).
    pub(super) fn range(&self, start: Bound<&[u8]>) -> impl Iterator<Item = &Versions> {
        assert_eq!(self.ordered, self.versions.len(), "all keys are in order");
        let range = self.order.range::<[u8], _>((start, Bound::Unbounded));
        range.map(|(_, &number)| &self.versions[number as usize])
    }
}

fn is_of(versions: &Versions, key: &[u8]) -> bool {
    versions.first().is_some_and(|record| record.key() == key)
}

/// Sorts records of different keys by their keys.
pub(super) fn sort_by_key(records: &mut Vec<Arc<Record>>) {
    let Some((first, rest)) = records.split_first() else { return };
    let mut shared = first.key().len();
    for some in rest.chunks(FETCHED) {
        fetch(some.iter().map(|record| &**record));
        shared = some.iter().fold(shared, |shared, record| {
            let both = first.key()[..shared].iter().zip(record.key());
            both.take_while(|(a, b)| a == b).count()
        });
    }
    // Most keys differ in the eight bytes after their common prefix: comparing those needs no access to the key.
    let mut numbers: Vec<(u64, u32)> = Vec::with_capacity(records.len());
    for some in records.chunks(FETCHED) {
        fetch(some.iter().map(|record| &**record));
        numbers.extend(
            (numbers.len() as u32..)
                .zip(some)
                .map(|(number, record)| (word_at(record.key(), shared), number)),
        );
    }
    let key = |number: u32| records[number as usize].key();
    numbers.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a.1).cmp(key(b.1))));
    let mut unsorted: Vec<_> = std::mem::take(records).into_iter().map(Some).collect();
    records.extend(numbers.iter().filter_map(|&(_, number)| unsorted[number as usize].take()));
}

/// Eight bytes of a key from `at` on, as a number with the same order as the bytes. Zeros pad a short key, so equal numbers do not imply
/// equal keys.
fn word_at(key: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let bytes = &key[at..key.len().min(at + 8)];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::record;

    /// Short keys with shared prefixes, so that some are prefixes of others, and some words of eight bytes are equal.
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
            let mut sorted: Vec<_> = table.of_numbers(0, usize::MAX / 2).iter().map(|all| all[0].clone()).collect();
            sort_by_key(&mut sorted);
            let sorted: Vec<_> = sorted.iter().map(|record| record.key().to_vec()).collect();
            prop_assert_eq!(sorted, model.into_keys().collect::<Vec<_>>());
        }
    }
}

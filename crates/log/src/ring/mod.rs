//! Places in the log's ring, and the index from numbers to places.
//!
//! A *position* counts blocks since the store was made; modulo the ring's size it is a place. A batch never wraps: if
//! the rest of the ring is too short for it, that rest is skipped and counted.

mod space;

pub use space::RingSpace;

use std::collections::VecDeque;

use shoal_base::Lsn;
use shoal_common::injected_bug::{Bug, injected};

/// A place in the log: the start of the next batch, and the checksum of the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlace {
    /// Blocks written since the store was made; modulo the ring's size the place in the ring.
    pub position: u64,
    /// Checksum of the previous batch.
    pub chain: u32,
    /// No record from here on has a smaller number.
    pub first_lsn: Lsn,
}

/// The place of the ring on the device.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// The first block on the device.
    pub first: u64,
    /// Blocks of the ring.
    pub blocks: u32,
}

impl Ring {
    /// The device block of a position.
    pub fn block(&self, position: u64) -> u64 {
        self.first + position % u64::from(self.blocks)
    }

    /// Blocks from `position` to the ring's end.
    pub fn rest(&self, position: u64) -> u32 {
        self.blocks - (position % u64::from(self.blocks)) as u32
    }

    /// The position at the ring's start that follows `position`.
    pub fn turn(&self, position: u64) -> u64 {
        position + u64::from(self.rest(position))
    }
}

/// A written batch in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenBatch {
    pub place: LogPlace,
    pub blocks: u32,
}

/// The places of batches in the log, by number.
pub struct BatchIndex {
    batches: VecDeque<WrittenBatch>,
    head: LogPlace,
}

impl BatchIndex {
    /// The index without batches, whose next batch is at `head`.
    pub fn new(head: LogPlace) -> Self {
        Self { batches: VecDeque::new(), head }
    }

    /// Notes a written batch: it starts at `at`, and the next one starts at `head`.
    pub fn push(&mut self, at: LogPlace, head: LogPlace) {
        let is_later = self.batches.back().is_none_or(|last| last.place.position < at.position);
        assert!(is_later && at.position < head.position, "batches follow each other in the ring (R1)");
        self.batches.push_back(WrittenBatch { place: at, blocks: (head.position - at.position) as u32 });
        self.head = head;
    }

    /// Sets the place of the next batch, whose numbers do not follow the last batch.
    pub fn push_head(&mut self, head: LogPlace) {
        self.head = head;
    }

    /// The place of the next batch.
    pub(crate) fn head(&self) -> LogPlace {
        self.head
    }

    /// The newest place with no record from `lsn` on before it.
    pub(crate) fn place_of(&self, lsn: Lsn) -> LogPlace {
        if lsn >= self.head.first_lsn {
            return self.head;
        }
        let after = self.batches.partition_point(|batch| batch.place.first_lsn <= lsn);
        self.batches.get(after.saturating_sub(1)).map_or(self.head, |batch| batch.place)
    }

    /// The first batch at `position` or later that may have a record from `lsn` on.
    pub(crate) fn batch_from(&self, lsn: Lsn, position: u64) -> Option<WrittenBatch> {
        let by_number = self.batches.partition_point(|batch| batch.place.first_lsn <= lsn).saturating_sub(1);
        let by_place = self.batches.partition_point(|batch| batch.place.position < position);
        self.batches.get(by_number.max(by_place)).copied()
    }

    /// Forgets batches before `tail`. With an archive, records above its floor stay (INV-46).
    pub(crate) fn trim(&mut self, tail: u64, floor: Option<Lsn>) {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.place.position < tail) {
            assert!(
                floor.is_none_or(|floor| batch.place.first_lsn <= floor.next())
                    || injected(Bug::FloorIgnored),
                "the log lets batches go that its archive has not read (INV-46)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(position: u64, first_lsn: u64) -> LogPlace {
        LogPlace { position, chain: position as u32, first_lsn: Lsn(first_lsn) }
    }

    #[test]
    fn finds_the_batch_of_a_number() {
        let mut index = BatchIndex::new(place(10, 5));
        index.push(place(10, 5), place(12, 8));
        index.push(place(12, 8), place(13, 8));
        index.push(place(13, 8), place(15, 20));
        assert_eq!(index.place_of(Lsn(5)).position, 10);
        assert_eq!(index.place_of(Lsn(7)).position, 10);
        assert_eq!(index.place_of(Lsn(8)).position, 13, "the seal at 12 has no records");
        assert_eq!(index.place_of(Lsn(20)).position, 15);
        let from = |index: &BatchIndex, lsn, position| {
            index.batch_from(Lsn(lsn), position).map(|batch| (batch.place.position, batch.blocks))
        };
        assert_eq!((from(&index, 6, 0), from(&index, 6, 11)), (Some((10, 2)), Some((12, 1))));
        assert_eq!((from(&index, 8, 0), from(&index, 30, 14)), (Some((13, 2)), None));
        index.trim(13, Some(Lsn(7)));
        assert_eq!(index.place_of(Lsn(19)).position, 13);
        assert_eq!(from(&index, 1, 0), Some((13, 2)));
    }

    #[test]
    fn turns() {
        let ring = Ring { first: 100, blocks: 16 };
        assert_eq!((ring.block(0), ring.block(17), ring.rest(15), ring.turn(15)), (100, 101, 1, 16));
        assert_eq!(ring.rest(16), 16);
    }
}

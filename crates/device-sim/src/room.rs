//! The room of a simulated file in its file system: the blocks that have some, and the free blocks.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
pub(crate) struct Room {
    /// Blocks that are free in the file system.
    pub free: u64,
    /// Ranges of blocks that have room, each as its end by its start. No two touch.
    has: BTreeMap<u64, u64>,
}

impl Room {
    pub(crate) fn new(free: u64, has: impl Iterator<Item = u64>) -> Self {
        let mut room = Self { free: u64::MAX, has: BTreeMap::new() };
        has.for_each(|block| assert!(room.take(&(block..block + 1)), "there is room without end"));
        Self { free, ..room }
    }

    /// Blocks that have room.
    pub(crate) fn blocks(&self) -> u64 {
        self.has.iter().map(|(start, end)| end - start).sum()
    }

    /// Blocks of `blocks` that have room.
    pub(crate) fn blocks_in(&self, blocks: &Range<u64>) -> u64 {
        let overlaps = self.has.range(..blocks.end).rev().take_while(|(_, end)| **end > blocks.start);
        overlaps.map(|(start, end)| end.min(&blocks.end) - start.max(&blocks.start)).sum()
    }

    /// Takes the room of all of `blocks` that have none. Returns false, and takes nothing, if there is too little.
    pub(crate) fn take(&mut self, blocks: &Range<u64>) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let missing = blocks.end - blocks.start - self.blocks_in(blocks);
        if missing > self.free {
            return false;
        }
        self.free -= missing;
        let Range { mut start, mut end } = *blocks;
        while let Some((&first, &last)) =
            self.has.range(..=end).next_back().filter(|(_, last)| **last >= start)
        {
            (start, end) = (start.min(first), end.max(last));
            self.has.remove(&first);
        }
        self.has.insert(start, end);
        true
    }

    /// Releases the room of `blocks`.
    pub(crate) fn give(&mut self, blocks: &Range<u64>) {
        if !blocks.is_empty() && self.blocks_in(blocks) > 0 {
            self.free += self.blocks_in(blocks);
            let rest = self.has.split_off(&blocks.start);
            if let Some((_, end)) = self.has.range_mut(..).next_back()
                && *end > blocks.start
            {
                let last = std::mem::replace(end, blocks.start);
                if last > blocks.end {
                    self.has.insert(blocks.end, last);
                }
            }
            for (start, end) in rest.into_iter().filter(|(_, end)| *end > blocks.end) {
                self.has.insert(start.max(blocks.end), end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use shoal_base::{Entropy, SeededEntropy};

    use super::*;

    #[test]
    fn ranges_match_block_set() {
        const BLOCKS: u64 = 60;
        let dice = SeededEntropy::new(1);
        let (mut room, mut model) = (Room::new(40, [3, 4, 9].into_iter()), BTreeSet::from([3, 4, 9]));
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let start = dice.next_u64() % BLOCKS;
            let blocks = start..start + dice.next_u64() % 9;
            if dice.next_u64().is_multiple_of(2) {
                let after: BTreeSet<u64> = model.iter().copied().chain(blocks.clone()).collect();
                let fits = after.len() <= 43;
                assert_eq!(room.take(&blocks), fits);
                if fits {
                    model = after;
                    taken += 1;
                } else {
                    refused += 1;
                }
            } else {
                model.retain(|block| !blocks.contains(block));
                room.give(&blocks);
            }
            assert_eq!((room.blocks(), room.free), (model.len() as u64, 43 - model.len() as u64));
            assert_eq!(room.blocks_in(&blocks), model.range(blocks).count() as u64);
        }
        assert!(taken > 1_000 && refused > 100, "{taken} taken, {refused} refused");
    }
}

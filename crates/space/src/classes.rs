//! For each exact length: in which groups is there a free run of it? One three-level set of groups per class, and
//! a summary of the classes that are not empty.
//!
//! The lowest level is transposed: the words of all classes for one region of 64 groups are adjacent, and exist only if
//! some run of the region was ever indexed (8 KiB per region of 16 GiB). That makes the load of the allocator for LOSF
//! (docs/sources.md) 20 % faster than a layout by class.
//!
//! Invariant: as in `bits`, every summary bit is exact.

use crate::bits::{GroupSet, assert_summary};
use crate::prefetch;

/// Longest run that has a class: 4 MiB, the largest value that travels in one piece. Longer runs are few.
pub(crate) const CLASS_BLOCKS_MAX: u32 = 1024;

/// Sets of groups by the length of a run.
pub(crate) struct ClassIndex {
    classes: usize,
    /// Words of a class in `middles`.
    class_words: usize,
    /// By region of 64 groups: for each class the groups of the region that have such a run.
    regions: Vec<Option<Box<[u64]>>>,
    /// By class: the regions whose word is not empty.
    middles: Vec<u64>,
    /// By class: the words of `middles` that are not empty.
    tops: Vec<u64>,
    /// The classes that are not empty.
    present: GroupSet,
}

impl ClassIndex {
    /// An empty index of runs of 1 to `blocks_max` blocks in the groups below `groups`.
    pub(crate) fn new(blocks_max: u32, groups: usize) -> Self {
        assert!(blocks_max <= CLASS_BLOCKS_MAX, "a class of {blocks_max} blocks");
        let classes = blocks_max as usize;
        let regions = groups.div_ceil(64);
        let class_words = regions.div_ceil(64);
        assert!(class_words <= 64, "{groups} groups need a fourth level");
        Self {
            classes,
            class_words,
            regions: vec![None; regions],
            middles: vec![0; classes * class_words],
            tops: vec![0; classes],
            present: GroupSet::new(classes),
        }
    }

    /// Returns true if runs of this length have a class.
    pub(crate) fn holds(&self, blocks: u32) -> bool {
        blocks as usize <= self.classes
    }

    /// Notes that `group` has a run of `blocks` blocks.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: u32, group: usize) {
        let class = self.class(blocks);
        let region = group / 64;
        let classes = self.classes;
        let words = self.regions[region].get_or_insert_with(|| vec![0; classes].into_boxed_slice());
        // Sets all levels without a branch: a mispredicted one costs more.
        words[class] |= 1 << (group % 64);
        self.middles[class * self.class_words + region / 64] |= 1 << (region % 64);
        self.tops[class] |= 1 << (region / 64);
        self.present.insert(class);
    }

    /// Notes that `group` has no run of `blocks` blocks any more.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: u32, group: usize) {
        let class = self.class(blocks);
        let region = group / 64;
        let Some(words) = &mut self.regions[region] else {
            unreachable!("region {region} was never indexed")
        };
        words[class] &= !(1 << (group % 64));
        if words[class] != 0 {
            return;
        }
        let middle = class * self.class_words + region / 64;
        self.middles[middle] &= !(1 << (region % 64));
        if self.middles[middle] == 0 {
            self.tops[class] &= !(1 << (region / 64));
            if self.tops[class] == 0 {
                self.present.remove(class);
            }
        }
    }

    /// Prefetches the word with `group`'s bit for runs of `blocks` blocks.
    #[inline]
    pub(crate) fn prefetch_word(&self, blocks: u32, group: usize) {
        if self.holds(blocks)
            && let Some(words) = &self.regions[group / 64]
        {
            prefetch::soon(&words[blocks as usize - 1]);
        }
    }

    /// The shortest length of at least `blocks` that some group has, and the lowest such group.
    #[inline]
    pub(crate) fn shortest(&self, blocks: u32) -> Option<(u32, usize)> {
        if !self.holds(blocks) {
            return None;
        }
        let class = self.present.next(self.class(blocks))?;
        Some((class as u32 + 1, self.lowest_group(class, self.lowest_region(class))))
    }

    /// The longest length that some group has, and the lowest such group.
    pub(crate) fn longest(&self) -> Option<(u32, usize)> {
        let class = self.present.last()?;
        Some((class as u32 + 1, self.lowest_group(class, self.lowest_region(class))))
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let leaves = self.regions.iter().flatten().count() * self.classes;
        let words = leaves + self.middles.capacity() + self.tops.capacity();
        words * size_of::<u64>()
            + self.present.heap_bytes()
            + self.regions.capacity() * size_of::<Option<Box<[u64]>>>()
    }

    /// Returns true if the index has a run of `blocks` blocks for `group`.
    pub(crate) fn contains(&self, blocks: u32, group: usize) -> bool {
        let class = self.class(blocks);
        self.regions[group / 64].as_ref().is_some_and(|words| words[class] & (1 << (group % 64)) != 0)
    }

    /// How many (length, group) pairs are noted.
    pub(crate) fn count(&self) -> usize {
        self.regions
            .iter()
            .flatten()
            .flat_map(|words| words.iter())
            .map(|bits| bits.count_ones() as usize)
            .sum()
    }

    /// Panics unless every summary bit is exact.
    pub(crate) fn audit(&self) {
        for class in 0..self.classes {
            let word = |words: &Option<Box<[u64]>>| words.as_ref().map_or(0, |words| words[class]);
            let leaves: Vec<u64> = self.regions.iter().map(word).collect();
            let middles = &self.middles[class * self.class_words..(class + 1) * self.class_words];
            assert_summary(&leaves, middles);
            assert_summary(middles, &self.tops[class..=class]);
        }
        self.present.audit();
        let is_marked = |class: &usize| self.present.contains(*class) == (self.tops[*class] != 0);
        assert!(
            (0..self.classes).all(|class| is_marked(&class)),
            "a class is marked and empty, or not marked"
        );
    }

    #[inline]
    fn class(&self, blocks: u32) -> usize {
        assert!(blocks >= 1 && self.holds(blocks), "no class for {blocks} blocks");
        blocks as usize - 1
    }

    /// The lowest region of a class that is not empty.
    #[inline]
    fn lowest_region(&self, class: usize) -> usize {
        let top = self.tops[class];
        assert!(top != 0, "class {class} is marked but empty");
        let middle = top.trailing_zeros() as usize;
        let regions = self.middles[class * self.class_words + middle];
        assert!(regions != 0, "a summary bit of class {class} is set over an empty word");
        middle * 64 + regions.trailing_zeros() as usize
    }

    /// The lowest group of a class in a region that has one.
    #[inline]
    fn lowest_group(&self, class: usize, region: usize) -> usize {
        let groups = self.regions[region].as_ref().map_or(0, |words| words[class]);
        assert!(groups != 0, "a summary bit of class {class} is set over an empty region");
        region * 64 + groups.trailing_zeros() as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn behaves_as_an_ordered_set_of_lengths_and_groups(
            (classes, groups) in prop_oneof![Just((15_u32, 16_usize)), Just((1024, 130)), Just((1024, 9000))],
            steps in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>(), 1_u32..=1024), 1..150),
        ) {
            let mut index = ClassIndex::new(classes, groups);
            let mut model = BTreeSet::new();
            for (length, group, is_insert, wanted) in steps {
                let (blocks, group) = (length % classes + 1, group as usize % groups);
                if is_insert {
                    index.insert(blocks, group);
                    model.insert((blocks, group));
                } else if let Some(&(blocks, group)) = model.range((blocks, group)..).next() {
                    index.remove(blocks, group);
                    model.remove(&(blocks, group));
                }
                prop_assert_eq!(index.shortest(wanted), model.range((wanted, 0)..).next().copied());
                let longest = model.last().and_then(|&(blocks, _)| model.range((blocks, 0)..).next().copied());
                prop_assert_eq!(index.longest(), longest);
                prop_assert_eq!(index.count(), model.len());
            }
            index.audit();
        }
    }
}

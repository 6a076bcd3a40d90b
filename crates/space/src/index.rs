//! Which group has a free run of a wanted length? The index over the arrays of all groups.
//!
//! Three kinds of runs: short ones (up to 1,024 blocks) have a class per exact length; wholly free groups are a set of groups;
//! the runs between these are an ordered set of (length, block). With classes of 16 per octave for the latter, as the prototype
//! had, an exact best fit would have to look into every group of a class (65,536 in the worst case, under the lock); the ordered
//! set answers in one descent. It is small: each entry represents more than 4 MiB of free space, so it costs at most 6
//! millionths of that space.
//!
//! Invariant: the index matches the arrays exactly (checked by the audit).

use std::collections::BTreeSet;

use crate::bits::GroupSet;
use crate::classes::{CLASS_BLOCKS_MAX, ClassIndex};
use crate::geometry::Geometry;
use crate::group::GroupRuns;
use crate::span::Span;

/// Bytes of a tree entry in memory, for the estimate of [`RunIndex::heap_bytes`]: a leaf of 11 keys has 104 bytes, and is
/// two thirds full after random changes; inner nodes are a tenth of that.
const LARGE_BYTES: usize = 16;

/// Bits of a block number in an entry of the set of large runs.
const BLOCK_BITS: u32 = 40;

const _: () = assert!(crate::SPACE_BLOCKS_MAX <= 1 << BLOCK_BITS);

/// A run that the index found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) group: usize,
    pub(crate) blocks: u32,
    /// Its start in the group if the index knows it; otherwise it is the group's first run of that length.
    pub(crate) start: Option<u32>,
}

/// The index over the free runs of all groups.
pub(crate) struct RunIndex {
    geometry: Geometry,
    short: ClassIndex,
    /// Shorter than all of `large`, and not among them. A cut from a long run usually leaves the shortest one: then the set is
    /// not changed.
    hot: Option<u64>,
    large: BTreeSet<u64>,
    whole: GroupSet,
    whole_count: usize,
}

impl RunIndex {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let short_max = CLASS_BLOCKS_MAX.min(geometry.group_blocks() - 1);
        Self {
            geometry,
            short: ClassIndex::new(short_max, geometry.groups()),
            hot: None,
            large: BTreeSet::new(),
            whole: GroupSet::new(geometry.groups()),
            whole_count: 0,
        }
    }

    /// Notes a run that `group` has now.
    #[inline]
    pub(crate) fn insert(&mut self, group: usize, span: Span) {
        if self.short.holds(span.blocks) {
            self.short.insert(span.blocks, group);
        } else if span.blocks == self.geometry.group_blocks() {
            self.whole.insert(group);
            self.whole_count += 1;
        } else {
            let is_new = self.insert_large(self.large_key(group, span));
            assert!(is_new, "run {span:?} of group {group} was noted before");
        }
    }

    /// Notes that `group` does not have the run `span` any more. `runs` is the group's array without it; runs of
    /// the same length, if it has more of them, are at place `from` or after.
    #[inline]
    pub(crate) fn remove(&mut self, group: usize, span: Span, runs: &GroupRuns, from: usize) {
        if self.short.holds(span.blocks) {
            if !runs.has_length(span.blocks, from) {
                self.short.remove(span.blocks, group);
            }
        } else if span.blocks == self.geometry.group_blocks() {
            self.whole.remove(group);
            self.whole_count -= 1;
        } else {
            let key = self.large_key(group, span);
            let was_there = self.hot.take_if(|hot| *hot == key).is_some() || self.large.remove(&key);
            assert!(was_there, "run {span:?} of group {group} was never noted");
        }
    }

    /// Prefetches the index word with `group`'s bit for this length.
    #[inline]
    pub(crate) fn prefetch_word(&self, blocks: u32, group: usize) {
        self.short.prefetch_word(blocks, group);
    }

    /// The shortest run of at least `blocks` blocks, the lowest of its length.
    #[inline]
    pub(crate) fn best_fit(&self, blocks: u32) -> Option<Found> {
        if let Some((blocks, group)) = self.short.shortest(blocks) {
            return Some(Found { group, blocks, start: None });
        }
        let least = u64::from(blocks) << BLOCK_BITS;
        self.first_large(least).or_else(|| self.first_whole(blocks))
    }

    /// The longest run, the lowest of its length.
    pub(crate) fn longest(&self) -> Option<Found> {
        if let Some(found) = self.first_whole(1) {
            return Some(found);
        }
        if let Some(&last) = self.large.last().or(self.hot.as_ref()) {
            return self.first_large(last >> BLOCK_BITS << BLOCK_BITS);
        }
        let (blocks, group) = self.short.longest()?;
        Some(Found { group, blocks, start: None })
    }

    /// The lowest group that is wholly free, from `from` on.
    pub(crate) fn whole_from(&self, from: usize) -> Option<usize> {
        self.whole.next(from)
    }

    /// How many groups are wholly free.
    pub(crate) fn whole_count(&self) -> usize {
        self.whole_count
    }

    /// Returns true if all of `group` is free.
    pub(crate) fn is_whole(&self, group: usize) -> bool {
        self.whole.contains(group)
    }

    /// Bytes on the heap; for the set of large runs an estimate.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.short.heap_bytes() + self.whole.heap_bytes() + self.large.len() * LARGE_BYTES
    }

    /// Panics unless the index holds exactly the runs of `groups`, which come with their numbers.
    pub(crate) fn audit<'a>(&self, groups: impl Iterator<Item = (usize, &'a GroupRuns)>) {
        self.short.audit();
        self.whole.audit();
        let (mut short, mut large, mut whole) = (0, 0, 0);
        for (group, runs) in groups {
            let mut lengths: Vec<u32> = Vec::new();
            for span in runs.iter() {
                if self.short.holds(span.blocks) {
                    assert!(self.short.contains(span.blocks, group), "{span:?} of group {group} has no bit");
                    lengths.push(span.blocks);
                } else if span.blocks == self.geometry.group_blocks() {
                    assert!(self.whole.contains(group), "group {group} is free but not noted");
                    whole += 1;
                } else {
                    assert!(
                        self.large.contains(&self.large_key(group, span))
                            || self.hot == Some(self.large_key(group, span)),
                        "{span:?} of {group} is not noted"
                    );
                    large += 1;
                }
            }
            lengths.sort_unstable();
            lengths.dedup();
            short += lengths.len();
        }
        assert_eq!(self.short.count(), short, "class bits without a run");
        let noted = self.large.len() + usize::from(self.hot.is_some());
        assert_eq!(noted, large, "large runs that no group has");
        assert!(
            self.hot.is_none() || self.hot.as_ref() < self.large.first().or(Some(&u64::MAX)),
            "one is shorter"
        );
        assert_eq!(self.whole_count, whole, "the number of free groups");
        assert_eq!(self.whole.iter().count(), whole, "groups noted as free that are not");
    }

    fn first_whole(&self, blocks: u32) -> Option<Found> {
        let group_blocks = self.geometry.group_blocks();
        let group = if blocks <= group_blocks { self.whole.first()? } else { return None };
        Some(Found { group, blocks: group_blocks, start: Some(0) })
    }

    /// Notes a long run; returns false if it was noted before.
    fn insert_large(&mut self, key: u64) -> bool {
        match self.hot {
            Some(hot) if hot == key => false,
            Some(hot) if hot > key => {
                self.hot = Some(key);
                self.large.insert(hot)
            }
            None if self.large.first().is_none_or(|&first| first > key) => {
                self.hot = Some(key);
                true
            }
            _ => self.large.insert(key),
        }
    }

    fn first_large(&self, least: u64) -> Option<Found> {
        let hot = self.hot.filter(|&hot| hot >= least);
        let key = hot.or_else(|| self.large.range(least..).next().copied())?;
        let block = key & ((1 << BLOCK_BITS) - 1);
        Some(Found {
            group: self.geometry.group_of(block),
            blocks: (key >> BLOCK_BITS) as u32,
            start: Some(self.geometry.start_of(block)),
        })
    }

    fn large_key(&self, group: usize, span: Span) -> u64 {
        u64::from(span.blocks) << BLOCK_BITS | self.geometry.run(group, span).block
    }
}

//! The free runs of one group as a bit for each block: the form for groups with so many runs that an array would be
//! larger. Searches walk over the runs, so they are slower than in an array; memory is 8 KiB whatever happens.
//!
//! A run is named by its first block where the array's form has an index.

use crate::group::{Inserted, Removed, Span};

/// A set bit for each free block of a group.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
    runs: u32,
}

impl Bits {
    /// A group of `group_blocks` blocks in which just these runs, which do not touch, are free.
    pub(crate) fn new(group_blocks: u32, runs: impl Iterator<Item = Span>) -> Self {
        let mut bits = Self { words: vec![0; (group_blocks as usize).div_ceil(64)], runs: 0 };
        for span in runs {
            bits.set(span, true);
            bits.runs += 1;
        }
        bits
    }

    pub(crate) fn len(&self) -> usize {
        self.runs as usize
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.words.capacity() * size_of::<u64>()
    }

    /// The run that begins at `start`, which is free while the block before it is not.
    pub(crate) fn at(&self, start: u32) -> Span {
        Span { start, blocks: self.next(start, false) - start }
    }

    pub(crate) fn last(&self) -> Option<Span> {
        let word = self.words.iter().rposition(|&bits| bits != 0)?;
        let end = word as u32 * 64 + 64 - self.words[word].leading_zeros();
        let start = self.start_of(end - 1);
        Some(Span { start, blocks: end - start })
    }

    /// The first run that begins at or behind `from`; a run that covers `from` counts from there.
    pub(crate) fn next_run(&self, from: u32) -> Option<Span> {
        let start = self.next(from, true);
        (start < self.end()).then(|| self.at(start))
    }

    /// The start of the first run of exactly `blocks` blocks, from `from` on.
    pub(crate) fn position_of_length(&self, blocks: u32, from: u32) -> Option<u32> {
        let mut next = self.next_run(from);
        while let Some(span) = next {
            if span.blocks == blocks {
                return Some(span.start);
            }
            next = self.next_run(span.end());
        }
        None
    }

    /// The start of the run that holds all of `span`.
    pub(crate) fn position_covering(&self, span: Span) -> Option<u32> {
        (self.is_free(span.start) && self.next(span.start, false) >= span.end())
            .then(|| self.start_of(span.start))
    }

    pub(crate) fn first_free(&self, span: Span) -> Option<Span> {
        let start = self.next(span.start, true);
        (start < span.end()).then(|| {
            let end = self.next(start, false).min(span.end());
            Span { start, blocks: end - start }
        })
    }

    /// Puts in a run of which nothing is free.
    pub(crate) fn insert(&mut self, span: Span) -> Inserted {
        let left = (span.start > 0 && self.is_free(span.start - 1)).then(|| {
            let start = self.start_of(span.start - 1);
            Span { start, blocks: span.start - start }
        });
        let right = (span.end() < self.end() && self.is_free(span.end())).then(|| self.at(span.end()));
        self.set(span, true);
        self.runs = self.runs + 1 - u32::from(left.is_some()) - u32::from(right.is_some());
        let start = left.map_or(span.start, |left| left.start);
        let end = right.map_or(span.end(), |right| right.end());
        Inserted { merged: Span { start, blocks: end - start }, left, right }
    }

    /// Takes `span` out of the run that begins at `start`.
    pub(crate) fn remove(&mut self, start: u32, span: Span) -> Removed {
        let removed = Removed::new(self.at(start), span);
        self.set(span, false);
        self.runs = self.runs + u32::from(removed.before.is_some()) + u32::from(removed.after.is_some()) - 1;
        removed
    }

    fn end(&self) -> u32 {
        self.words.len() as u32 * 64
    }

    fn is_free(&self, block: u32) -> bool {
        self.words[block as usize / 64] & (1 << (block % 64)) != 0
    }

    fn set(&mut self, span: Span, is_free: bool) {
        let mut block = span.start;
        while block < span.end() {
            let count = (64 - block % 64).min(span.end() - block);
            let mask = (!0 >> (64 - count)) << (block % 64);
            let word = &mut self.words[block as usize / 64];
            *word = if is_free { *word | mask } else { *word & !mask };
            block += count;
        }
    }

    /// The first block from `from` on that is free, or not; the end where there is none.
    fn next(&self, from: u32, is_free: bool) -> u32 {
        let flip = if is_free { 0 } else { !0 };
        let mut mask = !0 << (from % 64);
        for (word, bits) in self.words.iter().enumerate().skip(from as usize / 64) {
            let bits = (bits ^ flip) & mask;
            if bits != 0 {
                return word as u32 * 64 + bits.trailing_zeros();
            }
            mask = !0;
        }
        self.end()
    }

    /// The start of the run that holds the free block `block`.
    fn start_of(&self, block: u32) -> u32 {
        let mut word = block as usize / 64;
        let mut used = !self.words[word] & (!0 >> (63 - block % 64));
        while used == 0 {
            if word == 0 {
                return 0;
            }
            word -= 1;
            used = !self.words[word];
        }
        word as u32 * 64 + 64 - used.leading_zeros()
    }
}

//! The free runs of one group as a bit for each block: the form for groups whose array would be larger than a
//! bitmap. Memory is always 9 KiB.
//!
//! A search for a length walks over the runs of a *segment*, a sixteenth of the group, and skips segments that cannot have such
//! a run: each segment notes the lengths that were put in. A length that was taken out stays noted until the next rescan of the
//! segment, after `LOOKED_OVER_EVERY` changes.
//!
//! A run is named by its first block; the array form uses an index instead.

use crate::span::{Inserted, Removed, Span};

/// Blocks of a segment.
const SEGMENT_BLOCKS: u32 = 4096;

/// Changes after which a segment is rescanned: a few nanoseconds per change.
const LOOKED_OVER_EVERY: u32 = 64;

/// Lengths below this are counted.
const COUNTED_BLOCKS: usize = 128;

/// A set bit for each free block of a group.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    words: Vec<u64>,
    runs: u32,
    segments: Vec<Segment>,
    /// How many runs there are of each short length.
    counts: [u16; COUNTED_BLOCKS],
}

/// The runs that start in one part of a group.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// A bit for each length that some run may have, modulo the number of bits.
    lengths: [u64; 4],
    changes: u32,
}

impl Segment {
    fn note(&mut self, blocks: u32) {
        self.lengths[blocks as usize / 64 % 4] |= 1 << (blocks % 64);
    }

    fn may_have(&self, blocks: u32) -> bool {
        self.lengths[blocks as usize / 64 % 4] & (1 << (blocks % 64)) != 0
    }
}

impl Bits {
    /// A group of `group_blocks` blocks in which only these runs, which do not touch, are free.
    pub(crate) fn new(group_blocks: u32, runs: impl Iterator<Item = Span>) -> Self {
        let segments = group_blocks.div_ceil(SEGMENT_BLOCKS) as usize;
        let words = vec![0; (group_blocks as usize).div_ceil(64)];
        let segments = vec![Segment::default(); segments];
        let mut bits = Self { words, runs: 0, segments, counts: [0; COUNTED_BLOCKS] };
        for span in runs {
            bits.set(span, true);
            bits.runs += 1;
            bits.segment_mut(span).note(span.blocks);
            bits.count(span, true);
        }
        bits
    }

    pub(crate) fn len(&self) -> usize {
        self.runs as usize
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let segments = self.segments.capacity() * size_of::<Segment>();
        size_of::<Self>() + self.words.capacity() * size_of::<u64>() + segments
    }

    /// The run at `start`, which is free; the block before it is not.
    pub(crate) fn at(&self, start: u32) -> Span {
        Span { start, blocks: self.next(start, false) - start }
    }

    pub(crate) fn last(&self) -> Option<Span> {
        let word = self.words.iter().rposition(|&bits| bits != 0)?;
        let end = word as u32 * 64 + 64 - self.words[word].leading_zeros();
        let start = self.start_of(end - 1);
        Some(Span { start, blocks: end - start })
    }

    /// The first run that starts at or after `from`; a run that covers `from` counts from there.
    pub(crate) fn next_run(&self, from: u32) -> Option<Span> {
        let start = self.next(from, true);
        (start < self.end()).then(|| self.at(start))
    }

    /// The start of the first run of exactly `blocks` blocks, from `from` on.
    pub(crate) fn position_of_length(&self, blocks: u32, from: u32) -> Option<u32> {
        if self.counts.get(blocks as usize) == Some(&0) {
            return None;
        }
        let first = (from / SEGMENT_BLOCKS) as usize;
        let segments = self.segments.iter().enumerate().skip(first);
        let mut likely = segments.filter(|(_, segment)| segment.may_have(blocks));
        likely.find_map(|(segment, _)| self.find_in(segment, blocks, from))
    }

    /// Returns true if a run of exactly `blocks` blocks starts at or after `from`; the caller knows that none
    /// starts before.
    pub(crate) fn has_length(&self, blocks: u32, from: u32) -> bool {
        match self.counts.get(blocks as usize) {
            Some(&count) => count > 0,
            None => self.position_of_length(blocks, from).is_some(),
        }
    }

    /// The start of the first run of exactly `blocks` blocks that starts in a segment, at or after `from`.
    fn find_in(&self, segment: usize, blocks: u32, from: u32) -> Option<u32> {
        let words_each = SEGMENT_BLOCKS as usize / 64;
        let first = segment * words_each;
        let from = from.max(first as u32 * 64);
        // If the block before is free, the first run started earlier and is no answer; 0 is a placeholder for its start.
        let mut carry = first.checked_sub(1).map_or(0, |before| self.words[before] >> 63);
        let mut start = (carry != 0).then_some(0);
        for (word, &bits) in self.words.iter().enumerate().skip(first).take(words_each) {
            let mut turns = bits ^ (bits << 1 | carry);
            carry = bits >> 63;
            while turns != 0 {
                let at = word as u32 * 64 + turns.trailing_zeros();
                turns &= turns - 1;
                match start.take() {
                    Some(start) if start >= from && at - start == blocks => return Some(start),
                    Some(_) => {}
                    None => start = Some(at),
                }
            }
        }
        // The last one may end in a later segment.
        let last = start.filter(|&start| start >= from)?;
        (self.next(last, false) - last == blocks).then_some(last)
    }

    /// The runs that start in a segment.
    fn runs_of(&self, segment: usize) -> impl Iterator<Item = Span> + '_ {
        let first = segment as u32 * SEGMENT_BLOCKS;
        let reaches_in = first > 0 && self.is_free(first - 1) && self.is_free(first);
        let begin = if reaches_in { self.next(first, false) } else { first };
        let within = move |span: &Span| span.start < first + SEGMENT_BLOCKS;
        std::iter::successors(self.next_run(begin).filter(within), move |span| {
            self.next_run(span.end()).filter(within)
        })
    }

    fn segment_mut(&mut self, span: Span) -> &mut Segment {
        &mut self.segments[(span.start / SEGMENT_BLOCKS) as usize]
    }

    fn count(&mut self, span: Span, is_there: bool) {
        if let Some(count) = self.counts.get_mut(span.blocks as usize) {
            *count = if is_there { *count + 1 } else { *count - 1 };
        }
    }

    /// Notes a run that was put in at `span`, or taken out.
    fn changed(&mut self, span: Span, is_there: bool) {
        self.count(span, is_there);
        let segment = self.segment_mut(span);
        if is_there {
            segment.note(span.blocks);
        }
        segment.changes += 1;
        if segment.changes >= LOOKED_OVER_EVERY {
            let index = (span.start / SEGMENT_BLOCKS) as usize;
            let mut fresh = Segment::default();
            self.runs_of(index).for_each(|span| fresh.note(span.blocks));
            self.segments[index] = fresh;
        }
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

    /// Puts in a run that is wholly used.
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
        let merged = Span { start, blocks: end - start };
        for swallowed in [left, right].into_iter().flatten() {
            self.changed(swallowed, false);
        }
        self.changed(merged, true);
        Inserted { merged, left, right }
    }

    /// Takes `span` out of the run at `start`.
    pub(crate) fn remove(&mut self, start: u32, span: Span) -> Removed {
        let removed = Removed::new(self.at(start), span);
        self.set(span, false);
        self.runs = self.runs + u32::from(removed.before.is_some()) + u32::from(removed.after.is_some()) - 1;
        self.changed(removed.whole, false);
        for rest in [removed.before, removed.after].into_iter().flatten() {
            self.changed(rest, true);
        }
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

    /// The first free block (or the first used one) at or after `from`; the end if there is none.
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

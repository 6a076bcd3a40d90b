//! The free runs of one group: a sorted array of `u32`, the start in the high half, the length minus one in the
//! low half. Runs neither overlap nor touch: neighbours are merged when a run is put in.
//!
//! Potential weakness: a group that is free in single blocks has 32,768 runs, and an array of 128 KiB where a
//! bitmap would need 8 KiB. Best fit keeps the arrays short (3 to 100 runs in service, 1,283 in the worst state
//! measured, `shared/allocator.md` section 3).

use smallvec::SmallVec;

/// Runs that a group stores without memory of its own: most groups are wholly free, full, or have few holes.
const RUNS_INLINE: usize = 4;

/// Memory of a long array is given back when less than a quarter of it is in use.
const SHRINK_RUNS_MIN: usize = 32;

/// Runs compared at once by the search for a length: the compiler makes vector code of such pieces.
const SCAN_RUNS: usize = 16;

const _: () = assert!(size_of::<GroupRuns>() == 24, "65,536 groups of a 16 TiB device cost 1.5 MiB");

/// A run within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// The first block, counted from the start of the group.
    pub(crate) start: u32,
    /// How many blocks; at least 1.
    pub(crate) blocks: u32,
}

impl Span {
    pub(crate) const fn end(self) -> u32 {
        self.start + self.blocks
    }

    /// The part that both have, if any.
    fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Self { start, blocks: end - start })
    }

    pub(crate) const fn pack(self) -> u32 {
        (self.start << 16) | (self.blocks - 1)
    }

    pub(crate) const fn unpack(packed: u32) -> Self {
        Self { start: packed >> 16, blocks: (packed & 0xFFFF) + 1 }
    }
}

/// What putting a run in did to its neighbours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The run as it is now.
    pub(crate) merged: Span,
    /// The run before it, which it swallowed.
    pub(crate) left: Option<Span>,
    /// The run behind it, which it swallowed.
    pub(crate) right: Option<Span>,
}

/// What taking a part out of a run left of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The run as it was.
    pub(crate) whole: Span,
    /// What is left of it before the part.
    pub(crate) before: Option<Span>,
    /// What is left of it behind the part.
    pub(crate) after: Option<Span>,
}

/// The free runs of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupRuns(SmallVec<[u32; RUNS_INLINE]>);

impl GroupRuns {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Span> + '_ {
        self.0.iter().map(|&packed| Span::unpack(packed))
    }

    /// The run at `index` of the array.
    pub(crate) fn at(&self, index: usize) -> Span {
        Span::unpack(self.0[index])
    }

    pub(crate) fn first(&self) -> Option<Span> {
        self.0.first().map(|&packed| Span::unpack(packed))
    }

    pub(crate) fn last(&self) -> Option<Span> {
        self.0.last().map(|&packed| Span::unpack(packed))
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * size_of::<u32>() } else { 0 }
    }

    /// The array's index of the first run of exactly `blocks` blocks, from index `from` on.
    pub(crate) fn position_of_length(&self, blocks: u32, from: usize) -> Option<usize> {
        let wanted = blocks - 1;
        let is_wanted = |&packed: &u32| packed & 0xFFFF == wanted;
        let mut index = from;
        for piece in self.0[from..].chunks(SCAN_RUNS) {
            if piece.iter().fold(false, |found, packed| found | is_wanted(packed)) {
                return piece.iter().position(is_wanted).map(|offset| index + offset);
            }
            index += piece.len();
        }
        None
    }

    /// The array's index of the run that holds all of `span`.
    pub(crate) fn position_covering(&self, span: Span) -> Option<usize> {
        let index = self.count_from_or_before(span.start).checked_sub(1)?;
        (self.at(index).end() >= span.end()).then_some(index)
    }

    /// The first part of `span` that is free.
    pub(crate) fn first_free(&self, span: Span) -> Option<Span> {
        let behind = self.count_from_or_before(span.start);
        let candidates = behind.saturating_sub(1)..(behind + 1).min(self.len());
        candidates.into_iter().find_map(|index| self.at(index).intersection(span))
    }

    /// The first part of `span` that is not free.
    pub(crate) fn first_used(&self, span: Span) -> Option<Span> {
        let Some(free) = self.first_free(span) else { return Some(span) };
        if free.start > span.start {
            return Some(Span { start: span.start, blocks: free.start - span.start });
        }
        // Runs do not touch: what follows a free part is in use, up to the next free part.
        let rest = Span { start: free.end(), blocks: span.end() - free.end() };
        if rest.blocks == 0 {
            return None;
        }
        let end = self.first_free(rest).map_or(rest.end(), |next| next.start);
        Some(Span { start: rest.start, blocks: end - rest.start })
    }

    /// Puts a run in and merges it with the neighbours that it touches.
    ///
    /// # Errors
    /// The first part of `span` that is free already; nothing is changed.
    pub(crate) fn insert(&mut self, span: Span) -> Result<Inserted, Span> {
        if let Some(overlap) = self.first_free(span) {
            return Err(overlap);
        }
        let index = self.count_from_or_before(span.start);
        let left = index.checked_sub(1).map(|left| self.at(left)).filter(|left| left.end() == span.start);
        let right = (index < self.len()).then(|| self.at(index)).filter(|right| right.start == span.end());
        let start = left.map_or(span.start, |left| left.start);
        let end = right.map_or(span.end(), |right| right.end());
        let merged = Span { start, blocks: end - start };
        match (left.is_some(), right.is_some()) {
            (true, true) => {
                self.0[index - 1] = merged.pack();
                self.drop_at(index);
            }
            (true, false) => self.0[index - 1] = merged.pack(),
            (false, true) => self.0[index] = merged.pack(),
            (false, false) => self.0.insert(index, merged.pack()),
        }
        Ok(Inserted { merged, left, right })
    }

    /// Takes `span` out of the run at `index`, which holds all of it.
    pub(crate) fn remove(&mut self, index: usize, span: Span) -> Removed {
        let whole = self.at(index);
        assert!(whole.start <= span.start && span.end() <= whole.end(), "{span:?} is not within {whole:?}");
        let before =
            (whole.start < span.start).then(|| Span { start: whole.start, blocks: span.start - whole.start });
        let after =
            (span.end() < whole.end()).then(|| Span { start: span.end(), blocks: whole.end() - span.end() });
        match (before, after) {
            (Some(before), Some(after)) => {
                self.0[index] = before.pack();
                self.0.insert(index + 1, after.pack());
            }
            (Some(rest), None) | (None, Some(rest)) => self.0[index] = rest.pack(),
            (None, None) => self.drop_at(index),
        }
        Removed { whole, before, after }
    }

    /// How many runs start at or before `start`.
    fn count_from_or_before(&self, start: u32) -> usize {
        self.0.partition_point(|&packed| packed >> 16 <= start)
    }

    fn drop_at(&mut self, index: usize) {
        self.0.remove(index);
        if self.0.capacity() >= SHRINK_RUNS_MIN && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u32, blocks: u32) -> Span {
        Span { start, blocks }
    }

    fn group(spans: &[Span]) -> GroupRuns {
        let mut group = GroupRuns::default();
        for &span in spans {
            group.insert(span).unwrap();
        }
        group
    }

    fn spans(group: &GroupRuns) -> Vec<Span> {
        group.iter().collect()
    }

    #[test]
    fn the_largest_values_fit_in_a_packed_run() {
        for span in [span(0, 65_536), span(65_535, 1), span(0, 1), span(32_768, 32_768)] {
            assert_eq!(Span::unpack(span.pack()), span);
        }
    }

    #[test]
    fn runs_merge_to_the_left_to_the_right_and_both_ways() {
        let mut group = group(&[span(10, 5), span(20, 5)]);
        let alone = group.insert(span(40, 2)).unwrap();
        assert_eq!(alone, Inserted { merged: span(40, 2), left: None, right: None });
        let left = group.insert(span(25, 3)).unwrap();
        assert_eq!(left, Inserted { merged: span(20, 8), left: Some(span(20, 5)), right: None });
        let right = group.insert(span(9, 1)).unwrap();
        assert_eq!(right, Inserted { merged: span(9, 6), left: None, right: Some(span(10, 5)) });
        let both = group.insert(span(15, 5)).unwrap();
        assert_eq!(both, Inserted { merged: span(9, 19), left: Some(span(9, 6)), right: Some(span(20, 8)) });
        assert_eq!(spans(&group), [span(9, 19), span(40, 2)]);
    }

    #[test]
    fn what_is_free_is_not_put_in_again() {
        let mut group = group(&[span(10, 5), span(20, 5)]);
        assert_eq!(group.insert(span(14, 1)), Err(span(14, 1)));
        assert_eq!(group.insert(span(5, 6)), Err(span(10, 1)));
        assert_eq!(group.insert(span(0, 65_536)), Err(span(10, 5)));
        assert_eq!(group.insert(span(15, 6)), Err(span(20, 1)));
        assert_eq!(spans(&group), [span(10, 5), span(20, 5)]);
    }

    #[test]
    fn a_part_is_taken_from_the_front_the_middle_the_end_and_whole() {
        let mut group = group(&[span(10, 10), span(30, 1)]);
        let front = group.remove(0, span(10, 2));
        assert_eq!(front, Removed { whole: span(10, 10), before: None, after: Some(span(12, 8)) });
        let middle = group.remove(0, span(14, 2));
        assert_eq!(middle.before, Some(span(12, 2)));
        assert_eq!(middle.after, Some(span(16, 4)));
        group.remove(1, span(19, 1));
        group.remove(2, span(30, 1));
        assert_eq!(spans(&group), [span(12, 2), span(16, 3)]);
    }

    #[test]
    fn the_first_used_and_the_first_free_part_are_found() {
        let group = group(&[span(10, 5), span(20, 5)]);
        assert_eq!(group.first_used(span(10, 5)), None);
        assert_eq!(group.first_used(span(8, 4)), Some(span(8, 2)));
        assert_eq!(group.first_used(span(12, 20)), Some(span(15, 5)));
        assert_eq!(group.first_used(span(22, 20)), Some(span(25, 17)));
        assert_eq!(group.first_used(span(30, 4)), Some(span(30, 4)));
        assert_eq!(group.first_free(span(15, 5)), None);
        assert_eq!(group.first_free(span(0, 10)), None);
        assert_eq!(group.first_free(span(25, 65_511)), None);
        assert_eq!(group.first_free(span(15, 50)), Some(span(20, 5)));
        assert_eq!(group.position_covering(span(21, 4)), Some(1));
        assert_eq!(group.position_covering(span(21, 5)), None);
        assert_eq!(group.position_covering(span(3, 1)), None);
    }

    #[test]
    fn lengths_are_found_across_the_pieces_of_the_scan() {
        let group = group(&(0..100).map(|i| span(i * 200, i + 1)).collect::<Vec<_>>());
        for blocks in 1..=100 {
            assert_eq!(group.position_of_length(blocks, 0), Some(blocks as usize - 1));
            assert_eq!(group.position_of_length(blocks, blocks as usize), None);
        }
        assert_eq!(group.position_of_length(65_536, 0), None);
    }

    #[test]
    fn memory_of_a_shredded_group_is_given_back() {
        let mut group = group(&(0..1000).map(|i| span(i * 2, 1)).collect::<Vec<_>>());
        assert!(group.heap_bytes() >= 4000);
        for i in 0..999 {
            group.insert(span(i * 2 + 1, 1)).unwrap();
        }
        assert_eq!(spans(&group), [span(0, 1999)]);
        assert!(group.heap_bytes() <= SHRINK_RUNS_MIN * 4, "{} bytes", group.heap_bytes());
    }
}

//! The free runs of one group: a sorted array of `u32`, the start in the high half, the length minus one in the
//! low half; or a bitmap once the array would be larger than that. Runs neither overlap nor touch: neighbours are merged
//! when a run is put in.
//!
//! Up to 13 runs are stored in the group itself, within its one cache line: most groups are wholly free, full, or have
//! few holes (3 to 100 runs in service, 1,283 in the worst state measured).

use crate::bitmap::Bits;
use crate::span::{Inserted, Removed, Span};

/// Runs that a group stores without memory on the heap.
const RUNS_INLINE: usize = 13;

/// An array with at most this many runs moves back into the group.
const RUNS_INLINE_AGAIN: usize = RUNS_INLINE / 2;

/// Runs compared at once by the search for a length: the compiler makes vector code of such pieces.
const SCAN_RUNS: usize = 16;

/// At most this many runs are counted instead of searched.
const COUNTED_RUNS: usize = 32;

const _: () = assert!(size_of::<GroupRuns>() == 56, "a group is one cache line with 8 bytes besides");

/// Most runs in an array: with more, 4 bytes per run exceed one bit per block.
fn array_runs_max(group_blocks: u32) -> usize {
    (group_blocks as usize / 32).max(RUNS_INLINE)
}

/// The free runs of one group. A run's *place* is its index in the array, or its first block in the bitmap.
#[derive(Clone, Debug)]
pub(crate) struct GroupRuns(Store);

#[derive(Clone, Debug)]
enum Store {
    Inline { count: u8, runs: [u32; RUNS_INLINE] },
    Array(Vec<u32>),
    Bitmap(Box<Bits>),
}

impl Default for GroupRuns {
    fn default() -> Self {
        Self(Store::Inline { count: 0, runs: [0; RUNS_INLINE] })
    }
}

/// Equal if the same blocks are free, in either form.
impl PartialEq for GroupRuns {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for GroupRuns {}

impl GroupRuns {
    /// From runs in ascending order that do not touch, packed.
    pub(crate) fn from_sorted(runs: &[u32], group_blocks: u32) -> Self {
        Self(if runs.len() <= RUNS_INLINE {
            inline(runs)
        } else if runs.len() <= array_runs_max(group_blocks) {
            Store::Array(runs.to_vec())
        } else {
            let spans = runs.iter().map(|&packed| Span::unpack(packed));
            Store::Bitmap(Box::new(Bits::new(group_blocks, spans)))
        })
    }

    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Store::Inline { count, .. } => usize::from(*count),
            Store::Array(runs) => runs.len(),
            Store::Bitmap(bits) => bits.len(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let bits = self.bits();
        let in_bitmap = std::iter::successors(bits.and_then(|bits| bits.next_run(0)), move |span| {
            bits.and_then(|bits| bits.next_run(span.end()))
        });
        self.array().iter().map(|&packed| Span::unpack(packed)).chain(in_bitmap)
    }

    /// The run at a place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Span {
        match self.bits() {
            Some(bits) => bits.at(place as u32),
            None => Span::unpack(self.array()[place]),
        }
    }

    pub(crate) fn first(&self) -> Option<Span> {
        match self.bits() {
            Some(bits) => bits.next_run(0),
            None => self.array().first().map(|&packed| Span::unpack(packed)),
        }
    }

    pub(crate) fn last(&self) -> Option<Span> {
        match self.bits() {
            Some(bits) => bits.last(),
            None => self.array().last().map(|&packed| Span::unpack(packed)),
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Store::Inline { .. } => 0,
            Store::Array(runs) => runs.capacity() * size_of::<u32>(),
            Store::Bitmap(bits) => bits.heap_bytes(),
        }
    }

    /// The first run that the array holds outside of the group, to be fetched ahead.
    pub(crate) fn outside(&self) -> Option<&u32> {
        if let Store::Array(runs) = &self.0 { runs.first() } else { None }
    }

    /// The place of the first run of exactly `blocks` blocks, from place `from` on.
    #[inline]
    pub(crate) fn position_of_length(&self, blocks: u32, from: usize) -> Option<usize> {
        if let Some(bits) = self.bits() {
            return bits.position_of_length(blocks, from as u32).map(|start| start as usize);
        }
        let wanted = blocks - 1;
        let is_wanted = |packed: u32| packed & 0xFFFF == wanted;
        if let Store::Inline { count, runs } = &self.0 {
            let found = lanes(runs, is_wanted) & ((1 << count) - 1) & !((1 << from) - 1);
            return (found != 0).then(|| found.trailing_zeros() as usize);
        }
        let mut index = from;
        for piece in self.array().get(from..)?.chunks(SCAN_RUNS) {
            if piece.iter().fold(false, |found, &packed| found | is_wanted(packed)) {
                return piece.iter().position(|&packed| is_wanted(packed)).map(|offset| index + offset);
            }
            index += piece.len();
        }
        None
    }

    /// Returns true if there is a run of exactly `blocks` blocks at place `from` or after; there is none
    /// before.
    #[inline]
    pub(crate) fn has_length(&self, blocks: u32, from: usize) -> bool {
        match self.bits() {
            Some(bits) => bits.has_length(blocks, from as u32),
            None => self.position_of_length(blocks, from).is_some(),
        }
    }

    /// The place of the run that holds all of `span`.
    #[inline]
    pub(crate) fn position_covering(&self, span: Span) -> Option<usize> {
        if let Some(bits) = self.bits() {
            return bits.position_covering(span).map(|start| start as usize);
        }
        let index = self.count_from_or_before(span.start).checked_sub(1)?;
        (self.at(index).end() >= span.end()).then_some(index)
    }

    /// The first part of `span` that is free.
    pub(crate) fn first_free(&self, span: Span) -> Option<Span> {
        if let Some(bits) = self.bits() {
            return bits.first_free(span);
        }
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
        // Runs do not touch: the blocks after a free part are in use, up to the next free part.
        let rest = Span { start: free.end(), blocks: span.end() - free.end() };
        if rest.blocks == 0 {
            return None;
        }
        let end = self.first_free(rest).map_or(rest.end(), |next| next.start);
        Some(Span { start: rest.start, blocks: end - rest.start })
    }

    /// The place for `span`, which is not free, and the runs that it touches there. `None` for a bitmap: the look-up would cost
    /// the time of the free itself.
    #[inline]
    pub(crate) fn neighbours(&self, span: Span) -> Option<(usize, Option<Span>, Option<Span>)> {
        if self.is_bitmap() {
            return None;
        }
        let array = self.array();
        let index = self.count_from_or_before(span.start);
        let left = index.checked_sub(1).and_then(|left| array.get(left)).map(|&packed| Span::unpack(packed));
        let right = array.get(index).map(|&packed| Span::unpack(packed));
        let left = left.filter(|left| left.end() == span.start);
        Some((index, left, right.filter(|right| right.start == span.end())))
    }

    /// Puts a run in and merges it with the neighbours that it touches, in a group of `group_blocks` blocks.
    ///
    /// # Errors
    /// The first part of `span` that is free already; nothing is changed.
    pub(crate) fn insert(&mut self, span: Span, group_blocks: u32) -> Result<Inserted, Span> {
        self.insert_at(span, None, group_blocks)
    }

    /// Like [`Self::insert`]. `place` is the result of [`Self::neighbours`], if nothing changed since.
    ///
    /// # Errors
    /// The first part of `span` that is free already; nothing is changed.
    #[inline]
    pub(crate) fn insert_at(
        &mut self,
        span: Span,
        place: Option<usize>,
        group_blocks: u32,
    ) -> Result<Inserted, Span> {
        if let Store::Bitmap(bits) = &mut self.0 {
            if let Some(overlap) = bits.first_free(span) {
                return Err(overlap);
            }
            let inserted = bits.insert(span);
            self.leave_bitmap(group_blocks);
            return Ok(inserted);
        }
        let index = place.unwrap_or_else(|| self.count_from_or_before(span.start));
        let array = self.array();
        let left = index.checked_sub(1).map(|left| Span::unpack(array[left]));
        let right = array.get(index).map(|&packed| Span::unpack(packed));
        assert!(left.is_none_or(|left| left.start <= span.start), "{index} is not the place of {span:?}");
        assert!(right.is_none_or(|right| right.start > span.start), "{index} is not the place of {span:?}");
        let overlap = |neighbour: Option<Span>| neighbour.and_then(|neighbour| neighbour.intersection(span));
        if let Some(overlap) = overlap(left).or_else(|| overlap(right)) {
            return Err(overlap);
        }
        let left = left.filter(|left| left.end() == span.start);
        let right = right.filter(|right| right.start == span.end());
        let start = left.map_or(span.start, |left| left.start);
        let end = right.map_or(span.end(), |right| right.end());
        let merged = Span { start, blocks: end - start };
        match (left.is_some(), right.is_some()) {
            (true, true) => {
                self.array_mut()[index - 1] = merged.pack();
                self.drop_at(index);
            }
            (true, false) => self.array_mut()[index - 1] = merged.pack(),
            (false, true) => self.array_mut()[index] = merged.pack(),
            (false, false) => self.put_at(index, merged, group_blocks),
        }
        Ok(Inserted { merged, left, right })
    }

    /// Takes `span` out of the run at `place`, which holds all of it, in a group of `group_blocks` blocks.
    #[inline]
    pub(crate) fn remove(&mut self, place: usize, span: Span, group_blocks: u32) -> Removed {
        if let Store::Bitmap(bits) = &mut self.0 {
            let removed = bits.remove(place as u32, span);
            self.leave_bitmap(group_blocks);
            return removed;
        }
        let removed = Removed::new(self.at(place), span);
        match (removed.before, removed.after) {
            (Some(before), Some(after)) => {
                self.array_mut()[place] = before.pack();
                self.put_at(place + 1, after, group_blocks);
            }
            (Some(rest), None) | (None, Some(rest)) => self.array_mut()[place] = rest.pack(),
            (None, None) => self.drop_at(place),
        }
        removed
    }

    /// How many runs of the array start at or before `start`.
    #[inline]
    fn count_from_or_before(&self, start: u32) -> usize {
        match &self.0 {
            Store::Inline { count, runs } => {
                lanes(runs, |packed| packed >> 16 > start).trailing_zeros().min(u32::from(*count)) as usize
            }
            _ => count_until(self.array(), start << 16 | 0xFFFF),
        }
    }

    /// Returns true if places are first blocks.
    #[inline]
    pub(crate) fn is_bitmap(&self) -> bool {
        self.bits().is_some()
    }

    /// The array; empty in a bitmap.
    #[inline]
    fn array(&self) -> &[u32] {
        match &self.0 {
            Store::Inline { count, runs } => &runs[..usize::from(*count)],
            Store::Array(runs) => runs,
            Store::Bitmap(_) => &[],
        }
    }

    #[inline]
    fn array_mut(&mut self) -> &mut [u32] {
        match &mut self.0 {
            Store::Inline { count, runs } => &mut runs[..usize::from(*count)],
            Store::Array(runs) => runs,
            Store::Bitmap(_) => &mut [],
        }
    }

    #[inline]
    fn bits(&self) -> Option<&Bits> {
        if let Store::Bitmap(bits) = &self.0 { Some(bits) } else { None }
    }

    #[inline]
    fn put_at(&mut self, index: usize, span: Span, group_blocks: u32) {
        match &mut self.0 {
            Store::Inline { count, runs } if usize::from(*count) < RUNS_INLINE => {
                // Compares all of them, without a branch.
                let before = *runs;
                for lane in 1..RUNS_INLINE {
                    runs[lane] = before[lane - usize::from(lane > index)];
                }
                runs[index] = span.pack();
                *count += 1;
            }
            Store::Array(runs) if runs.len() < array_runs_max(group_blocks) => {
                if runs.len() == runs.capacity() {
                    runs.reserve_exact((runs.len() / 4).min(array_runs_max(group_blocks) - runs.len()));
                }
                runs.insert(index, span.pack());
            }
            Store::Inline { runs, .. } if RUNS_INLINE < array_runs_max(group_blocks) => {
                let mut array = Vec::with_capacity(RUNS_INLINE + RUNS_INLINE / 4);
                array.extend_from_slice(runs);
                array.insert(index, span.pack());
                self.0 = Store::Array(array);
            }
            _ => {
                let mut bits = Bits::new(group_blocks, self.iter());
                bits.insert(span);
                self.0 = Store::Bitmap(Box::new(bits));
            }
        }
    }

    #[inline]
    fn drop_at(&mut self, index: usize) {
        match &mut self.0 {
            Store::Inline { count, runs } => {
                let before = *runs;
                for lane in 0..RUNS_INLINE - 1 {
                    runs[lane] = before[lane + usize::from(lane >= index)];
                }
                *count -= 1;
            }
            Store::Array(runs) => {
                runs.remove(index);
                if runs.len() <= RUNS_INLINE_AGAIN {
                    self.0 = inline(runs);
                } else if runs.len() < runs.capacity() * 2 / 3 {
                    runs.shrink_to(runs.len() * 5 / 4);
                }
            }
            Store::Bitmap(_) => unreachable!("a bitmap has no places in an array"),
        }
    }

    /// Back to an array once that is half as large; the gap keeps a group from changing its form with every call.
    fn leave_bitmap(&mut self, group_blocks: u32) {
        let Store::Bitmap(bits) = &self.0 else { return };
        if bits.len() <= array_runs_max(group_blocks) / 2 {
            let runs: Vec<u32> = self.iter().map(Span::pack).collect();
            self.0 = if runs.len() <= RUNS_INLINE { inline(&runs) } else { Store::Array(runs) };
        }
    }
}

fn inline(from: &[u32]) -> Store {
    let mut runs = [0; RUNS_INLINE];
    runs[..from.len()].copy_from_slice(from);
    Store::Inline { count: from.len() as u8, runs }
}

/// A bit for each entry for which `is_wanted` returns true. Always looks at all entries: a mispredicted exit of a short loop
/// costs more than the whole loop. Entries after the last run count, too: callers know the number of runs.
#[inline]
fn lanes(runs: &[u32; RUNS_INLINE], is_wanted: impl Fn(u32) -> bool) -> u32 {
    let bits = runs.iter().enumerate().map(|(lane, &packed)| u32::from(is_wanted(packed)) << lane);
    bits.fold(0, |all, bit| all | bit)
}

/// How many of the ascending `runs` are at most `most`: halves down to a few, which are all compared at once. A
/// misprediction in the last steps would cost more.
#[inline]
fn count_until(runs: &[u32], most: u32) -> usize {
    let (mut begin, mut left) = (0, runs);
    while left.len() > COUNTED_RUNS {
        let (low, high) = left.split_at(left.len() / 2);
        // The compiler turns this into conditional moves, not jumps.
        let is_above = high[0] <= most;
        begin += if is_above { low.len() } else { 0 };
        left = if is_above { high } else { low };
    }
    begin + left.iter().map(|&packed| u32::from(packed <= most)).sum::<u32>() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u32 = 1 << 16;

    fn span(start: u32, blocks: u32) -> Span {
        Span { start, blocks }
    }

    fn group(spans: &[Span]) -> GroupRuns {
        let mut group = GroupRuns::default();
        for &span in spans {
            group.insert(span, GROUP).unwrap();
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
        let alone = group.insert(span(40, 2), GROUP).unwrap();
        assert_eq!(alone, Inserted { merged: span(40, 2), left: None, right: None });
        let left = group.insert(span(25, 3), GROUP).unwrap();
        assert_eq!(left, Inserted { merged: span(20, 8), left: Some(span(20, 5)), right: None });
        let right = group.insert(span(9, 1), GROUP).unwrap();
        assert_eq!(right, Inserted { merged: span(9, 6), left: None, right: Some(span(10, 5)) });
        let both = group.insert(span(15, 5), GROUP).unwrap();
        assert_eq!(both, Inserted { merged: span(9, 19), left: Some(span(9, 6)), right: Some(span(20, 8)) });
        assert_eq!(spans(&group), [span(9, 19), span(40, 2)]);
    }

    #[test]
    fn free_blocks_are_not_put_in_again() {
        let mut group = group(&[span(10, 5), span(20, 5)]);
        assert_eq!(group.insert(span(14, 1), GROUP), Err(span(14, 1)));
        assert_eq!(group.insert(span(5, 6), GROUP), Err(span(10, 1)));
        assert_eq!(group.insert(span(0, 65_536), GROUP), Err(span(10, 5)));
        assert_eq!(group.insert(span(15, 6), GROUP), Err(span(20, 1)));
        assert_eq!(spans(&group), [span(10, 5), span(20, 5)]);
    }

    #[test]
    fn a_part_is_taken_from_the_front_the_middle_the_end_and_whole() {
        let mut group = group(&[span(10, 10), span(30, 1)]);
        let front = group.remove(0, span(10, 2), GROUP);
        assert_eq!(front, Removed { whole: span(10, 10), before: None, after: Some(span(12, 8)) });
        let middle = group.remove(0, span(14, 2), GROUP);
        assert_eq!(middle.before, Some(span(12, 2)));
        assert_eq!(middle.after, Some(span(16, 4)));
        group.remove(1, span(19, 1), GROUP);
        group.remove(2, span(30, 1), GROUP);
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
    fn memory_of_a_shredded_group_is_bounded_and_given_back() {
        let mut group = GroupRuns::default();
        for i in 0..1 << 15 {
            group.insert(span(i * 2, 1), GROUP).unwrap();
            let bytes = group.heap_bytes();
            assert!(bytes <= (1 << 13) + 960 && bytes <= 6 * group.len().max(13) + 64, "{bytes} at {i}");
        }
        assert!(group.bits().is_some());
        for i in 0..(1 << 15) - 1 {
            group.insert(span(i * 2 + 1, 1), GROUP).unwrap();
        }
        assert_eq!(spans(&group), [span(0, 65_535)]);
        assert_eq!(group.heap_bytes(), 0);
    }

    /// Both forms return the same results for the same steps; small groups change their form often.
    #[test]
    fn every_form_answers_alike() {
        let mut state = 1_u64;
        let mut random = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32 % below
        };
        // An array in a group of 65,536 blocks, a bitmap in one of 64; the steps stay in the first 64.
        let (mut wide, mut narrow) = (GroupRuns::default(), GroupRuns::default());
        let mut bitmaps = 0;
        for step in 0..20_000 {
            let start = random(64);
            let part = span(start, 1 + random(64 - start).min(random(3)));
            // Sometimes most of it is taken at once.
            while step % 50 == 0 && narrow.len() > 3 {
                let first = narrow.first().unwrap();
                for (group, blocks) in [(&mut wide, GROUP), (&mut narrow, 64)] {
                    let place = group.position_covering(first).unwrap();
                    assert_eq!(group.remove(place, first, blocks).whole, first);
                }
            }
            assert_eq!(wide.first_free(part), narrow.first_free(part));
            assert_eq!(wide.first_used(part), narrow.first_used(part));
            let covering = wide.position_covering(part).map(|place| wide.at(place));
            let place = narrow.position_covering(part);
            assert_eq!(covering, place.map(|place| narrow.at(place)), "step {step}");
            match place {
                Some(place) if random(3) > 0 => {
                    let other = wide.position_covering(part).unwrap();
                    assert_eq!(wide.remove(other, part, GROUP), narrow.remove(place, part, 64));
                }
                _ => assert_eq!(wide.insert(part, GROUP), narrow.insert(part, 64)),
            }
            let blocks = 1 + random(5);
            let length = |group: &GroupRuns| group.position_of_length(blocks, 0).map(|place| group.at(place));
            assert_eq!(length(&wide), length(&narrow));
            assert_eq!(
                (wide.first(), wide.last(), wide.len()),
                (narrow.first(), narrow.last(), narrow.len())
            );
            assert_eq!(wide, narrow);
            bitmaps += u32::from(narrow.bits().is_some());
        }
        assert!(bitmaps > 500 && bitmaps < 19_000, "{bitmaps} steps in a bitmap");
    }
}

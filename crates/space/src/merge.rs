//! Many frees at once: the runs are sorted, and each group is merged with all of its freed runs in one pass.
//!
//! An apply frees thousands of runs, many of them in the same groups. One by one, each would search its place, move the
//! array's end, and look for its neighbours' lengths; sorted, a group is read and written once. The result is the same.

use shoal_base::Run;

use crate::SpaceError;
use crate::free_runs::FreeRuns;
use crate::group::GroupRuns;
use crate::prefetch;
use crate::span::Span;

/// Fewest runs that are worth sorting: fewer seldom meet in a group.
pub(crate) const SORTED_RUNS_MIN: usize = 4096;

/// Fewest runs of one group that are worth a pass over it.
const MERGED_RUNS_MIN: usize = 3;

/// Bits of a length in a key: up to a whole group of 65,536 blocks.
const LENGTH_BITS: u32 = 17;

/// How many runs ahead a group is prefetched.
const AHEAD: usize = 8;

/// Bits of a block number that one pass of the sort looks at.
const DIGIT_BITS: u32 = 11;

/// The result of a pass over a group.
#[derive(Default)]
struct Merge {
    /// The runs as they are now, packed.
    runs: Vec<u32>,
    /// Old runs that are part of a longer one now.
    swallowed: Vec<Span>,
    /// New runs.
    grown: Vec<Span>,
}

impl FreeRuns {
    /// Frees many runs, each within this space: all of them or none.
    pub(crate) fn free_sorted(&mut self, runs: &[Run]) -> Result<(), SpaceError> {
        let group_blocks = u64::from(self.geometry.group_blocks());
        let (mut keys, mut crossing) = (Vec::with_capacity(runs.len()), Vec::new());
        for &run in runs {
            let end = u64::from(self.geometry.start_of(run.block)) + u64::from(run.blocks);
            if end <= group_blocks {
                keys.push(run.block << LENGTH_BITS | u64::from(run.blocks));
            } else {
                crossing.push(run);
            }
        }
        sort_by_block(&mut keys, self.geometry.blocks_max());
        let run_of = |key: u64| Run::new(key >> LENGTH_BITS, (key & ((1 << LENGTH_BITS) - 1)) as u32);
        let mut merge = Merge::default();
        let mut done = 0;
        let mut refusal = None;
        while done < keys.len() && refusal.is_none() {
            let group = self.geometry.group_of(run_of(keys[done]).block);
            if let Some(&later) = keys.get(done + AHEAD) {
                prefetch::soon(&self.groups[self.geometry.group_of(run_of(later).block)]);
            }
            let behind = |key: &u64| self.geometry.group_of(run_of(*key).block) != group;
            let end = done + keys[done..].iter().position(behind).unwrap_or(keys.len() - done);
            let freed = if end - done >= MERGED_RUNS_MIN && self.is_mergeable(group) {
                let spans = keys[done..end].iter().map(|&key| self.span_in(run_of(key)));
                let merged = merge.run(&self.groups[group].runs, spans);
                merged.map_err(|twice| (0, self.already_free(group, twice)))
            } else {
                let one_by_one = |at: usize| self.free(run_of(keys[at])).map_err(|error| (at - done, error));
                (done..end).try_for_each(one_by_one).map(|()| merge.clear())
            };
            match freed {
                Ok(()) => {
                    self.take_over(group, &mut merge);
                    done = end;
                }
                Err((more, error)) => {
                    done += more;
                    refusal = Some(error);
                }
            }
        }
        let mut crossed = 0;
        while refusal.is_none() && crossed < crossing.len() {
            match self.free(crossing[crossed]) {
                Ok(()) => crossed += 1,
                Err(error) => refusal = Some(error),
            }
        }
        let Some(refusal) = refusal else { return Ok(()) };
        for run in keys[..done].iter().map(|&key| run_of(key)).chain(crossing[..crossed].iter().copied()) {
            self.take_checked(run);
        }
        Err(refusal)
    }

    /// Returns true if the group serves all requests and is an array.
    fn is_mergeable(&self, group: usize) -> bool {
        self.groups[group].is_open() && !self.groups[group].runs.is_bitmap()
    }

    fn span_in(&self, run: Run) -> Span {
        Span { start: self.geometry.start_of(run.block), blocks: run.blocks }
    }

    fn already_free(&self, group: usize, (freed, overlap): (Span, Span)) -> SpaceError {
        let (run, overlap) = (self.geometry.run(group, freed), self.geometry.run(group, overlap));
        SpaceError::AlreadyFree { run, overlap }
    }

    /// Replaces the group's runs with the result of a pass; does nothing if the pass changed nothing.
    fn take_over(&mut self, group: usize, merge: &mut Merge) {
        if merge.grown.is_empty() {
            return;
        }
        let blocks = |spans: &[Span]| spans.iter().map(|span| span.blocks).sum::<u32>();
        let more = blocks(&merge.grown) - blocks(&merge.swallowed);
        let state = &mut self.groups[group];
        state.runs = GroupRuns::from_sorted(&merge.runs, self.geometry.group_blocks());
        state.free_blocks += more;
        self.free_blocks += u64::from(more);
        merge.swallowed.iter().for_each(|&span| state.count_large(&[Some(span)], &[]));
        merge.grown.iter().for_each(|&span| state.count_large(&[], &[Some(span)]));
        for &span in &merge.swallowed {
            self.index.remove(group, span, &state.runs, 0);
        }
        for &span in &merge.grown {
            self.index.insert(group, span);
        }
        for &span in &merge.grown {
            self.note_borders(group, span);
        }
        merge.clear();
    }
}

/// Sorts keys by their block, of which there are `blocks`: digit by digit, in a third of the time of a comparison sort.
fn sort_by_block(keys: &mut Vec<u64>, blocks: u64) {
    let mut sorted = vec![0; keys.len()];
    let mut shift = LENGTH_BITS;
    while blocks.checked_shr(shift - LENGTH_BITS).is_some_and(|rest| rest > 0) {
        let digit = |key: u64| (key >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0_usize; 1 << DIGIT_BITS];
        keys.iter().for_each(|&key| places[digit(key)] += 1);
        let mut place = 0;
        for count in &mut places {
            place += std::mem::replace(count, place);
        }
        for &key in &*keys {
            let place = &mut places[digit(key)];
            sorted[*place] = key;
            *place += 1;
        }
        std::mem::swap(keys, &mut sorted);
        shift += DIGIT_BITS;
    }
}

impl Merge {
    fn clear(&mut self) {
        self.runs.clear();
        self.swallowed.clear();
        self.grown.clear();
    }

    /// Merges a group's runs with its freed runs, both ascending.
    ///
    /// # Errors
    /// The first freed run of which a part is free already, and that part. Nothing else was changed.
    fn run(&mut self, had: &GroupRuns, gets: impl Iterator<Item = Span>) -> Result<(), (Span, Span)> {
        self.clear();
        let mut had = had.iter().peekable();
        let mut gets = gets.peekable();
        // The run that is growing, and true if it is an old one and unchanged so far.
        let mut last: Option<(Span, bool)> = None;
        loop {
            let takes_old = match (had.peek(), gets.peek()) {
                (None, None) => break,
                (Some(old), Some(new)) => old.start < new.start,
                (old, _) => old.is_some(),
            };
            let next = if takes_old { had.next() } else { gets.next() };
            let Some(next) = next else { break };
            last = Some(match last {
                Some((before, _)) if before.end() > next.start => {
                    self.clear();
                    let end = before.end().min(next.end());
                    let overlap = Span { start: next.start, blocks: end - next.start };
                    // The freed one of the two: two freed runs can overlap each other, two old ones never do.
                    return Err((if takes_old { before } else { next }, overlap));
                }
                Some((before, is_old)) if before.end() == next.start => {
                    self.swallowed.extend(is_old.then_some(before));
                    self.swallowed.extend(takes_old.then_some(next));
                    (Span { start: before.start, blocks: before.blocks + next.blocks }, false)
                }
                before => {
                    self.finish(before);
                    (next, takes_old)
                }
            });
        }
        self.finish(last);
        Ok(())
    }

    fn finish(&mut self, run: Option<(Span, bool)>) {
        let Some((span, is_old)) = run else { return };
        self.runs.push(span.pack());
        if !is_old {
            self.grown.push(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::Geometry;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The same blocks are free afterwards, also in the index; a batch with an error changes nothing.
        #[test]
        fn sorted_frees_are_the_same_frees(
            (blocks_max, group_blocks) in prop_oneof![Just((600_u64, 64_u32)), Just((2000, 1024)), Just((9000, 4096))],
            before in prop::collection::vec((any::<u64>(), 1_u32..20), 0..60),
            batch in prop::collection::vec((any::<u64>(), 1_u32..30), 1..150),
            closed in any::<Option<u8>>(),
        ) {
            let mut alone = FreeRuns::new(Geometry::new(blocks_max, group_blocks));
            for (block, blocks) in before {
                let run = Run::new(block % (blocks_max - 30), blocks);
                let was_used = alone.check_used(run).is_ok();
                prop_assert_eq!(alone.free(run).is_ok(), was_used);
            }
            let mut sorted = FreeRuns::new(Geometry::new(blocks_max, group_blocks));
            alone.runs().for_each(|run| sorted.free(run).unwrap());
            if let Some(group) = closed.map(|group| usize::from(group) % alone.groups.len()) {
                alone.close(group);
                sorted.close(group);
            }
            let mut right = Vec::new();
            let mut wrong = Vec::new();
            for (block, blocks) in batch {
                let run = Run::new(block % (blocks_max - 30), blocks);
                if alone.free(run).is_ok() { right.push(run) } else { wrong.push(run) }
            }
            let was: Vec<Run> = sorted.runs().collect();
            if let Some(&run) = wrong.first() {
                let mut all = right.clone();
                all.insert(right.len() / 2, run);
                prop_assert!(sorted.free_sorted(&all).is_err());
                prop_assert!(sorted.runs().eq(was));
                sorted.audit();
            }
            prop_assert_eq!(sorted.free_sorted(&right), Ok(()));
            prop_assert!(sorted.runs().eq(alone.runs()));
            prop_assert_eq!(sorted.free_blocks, alone.free_blocks);
            sorted.audit();
        }
    }
}

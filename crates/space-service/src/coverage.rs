//! A set of blocks, as runs that neither overlap nor touch.

use std::collections::BTreeMap;

use shoal_base::Run;

/// A set of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// The first block of each run, and the block after its last one.
    ends: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Coverage {
    /// Adds a run and returns true if no block of it was in the set; changes nothing otherwise.
    pub(crate) fn add(&mut self, run: Run) -> bool {
        if self.overlaps(run) {
            return false;
        }
        let (mut start, mut end) = (run.block, run.end());
        let before = self.ends.range(..run.block).next_back().filter(|&(_, &end)| end == run.block);
        if let Some((&first, _)) = before {
            start = first;
        }
        if let Some(behind) = self.ends.remove(&run.end()) {
            end = behind;
        }
        self.ends.insert(start, end);
        self.blocks += u64::from(run.blocks);
        true
    }

    /// Removes a run and returns true if all of it was in the set; changes nothing otherwise.
    pub(crate) fn remove(&mut self, run: Run) -> bool {
        let covering = self.ends.range(..=run.block).next_back().map(|(&start, &end)| (start, end));
        let Some((start, end)) = covering.filter(|&(_, end)| end >= run.end()) else { return false };
        self.ends.remove(&start);
        if start < run.block {
            self.ends.insert(start, run.block);
        }
        if run.end() < end {
            self.ends.insert(run.end(), end);
        }
        self.blocks -= u64::from(run.blocks);
        true
    }

    /// Returns true if any block of a run is in the set.
    pub(crate) fn overlaps(&self, run: Run) -> bool {
        self.ends.range(..run.end()).next_back().is_some_and(|(_, &end)| end > run.block)
    }

    /// Returns true if every block of a run is in the set.
    pub(crate) fn covers(&self, run: Run) -> bool {
        self.ends.range(..=run.block).next_back().is_some_and(|(_, &end)| end >= run.end())
    }

    /// The runs in ascending order, none of more than `u32::MAX` blocks.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.ends.iter().flat_map(|(&start, &end)| pieces(start, end))
    }

    /// The runs of this set that `other` does not have, in ascending order.
    pub(crate) fn without(&self, other: &Self) -> Vec<Run> {
        let mut left = Vec::new();
        for (&start, &end) in &self.ends {
            let mut at = start;
            let first = other.ends.range(..=start).next_back();
            let later = other.ends.range(start..).filter(|(first, _)| **first > start);
            for (&first, &last) in first.into_iter().chain(later.take_while(|(first, _)| **first < end)) {
                if last > at {
                    left.extend(pieces(at, first.min(end)));
                    at = at.max(last);
                }
            }
            left.extend(pieces(at, end));
        }
        left
    }

    /// The number of blocks in the set.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// The blocks from `start` up to `end` as runs; no run if there are no blocks.
fn pieces(start: u64, end: u64) -> impl Iterator<Item = Run> {
    let mut at = start;
    std::iter::from_fn(move || {
        let blocks = u32::try_from(end.checked_sub(at)?).unwrap_or(u32::MAX);
        let run = (blocks > 0).then(|| Run::new(at, blocks));
        at += u64::from(blocks);
        run
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn blocks(runs: impl Iterator<Item = Run>) -> BTreeSet<u64> {
        runs.flat_map(|run| run.block..run.end()).collect()
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_blocks(steps in prop::collection::vec((0_u64..100, 1_u32..20, any::<bool>()), 1..60)) {
            let (mut coverage, mut model) = (Coverage::default(), BTreeSet::new());
            let mut before = Coverage::default();
            for (index, (block, count, is_add)) in steps.into_iter().enumerate() {
                let run = Run::new(block, count);
                let all = blocks([run].into_iter());
                prop_assert_eq!(coverage.covers(run), all.is_subset(&model));
                prop_assert_eq!(coverage.overlaps(run), !all.is_disjoint(&model));
                if is_add {
                    prop_assert_eq!(coverage.add(run), all.is_disjoint(&model));
                    if all.is_disjoint(&model) {
                        model.extend(all);
                    }
                } else {
                    prop_assert_eq!(coverage.remove(run), all.is_subset(&model));
                    if all.is_subset(&model) {
                        model.retain(|block| !all.contains(block));
                    }
                }
                prop_assert_eq!(blocks(coverage.runs()), model.clone());
                prop_assert_eq!(coverage.blocks(), model.len() as u64);
                let (now, then) = (model.clone(), blocks(before.runs()));
                prop_assert_eq!(blocks(coverage.without(&before).into_iter()), &now - &then);
                prop_assert_eq!(blocks(before.without(&coverage).into_iter()), &then - &now);
                if index % 7 == 0 {
                    before = coverage.clone();
                }
            }
        }
    }
}

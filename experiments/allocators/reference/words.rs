//! A bitmap of blocks, a set bit for each one in use, and the searches over it. No lock, no count.

use shoal_base::Run;

use super::super::allocator::Runs;

/// One bit a block: set if it is in use.
pub(crate) struct Words {
    words: Vec<u64>,
    blocks: u64,
}

impl Words {
    /// All free.
    pub(crate) fn new(blocks: u64) -> Self {
        Self { words: vec![0; blocks.div_ceil(64) as usize], blocks }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// Returns true if a run is inside and not empty.
    pub(crate) fn holds(&self, run: Run) -> bool {
        run.blocks > 0 && run.block.checked_add(u64::from(run.blocks)).is_some_and(|end| end <= self.blocks)
    }

    /// Returns true if all blocks of a run, which is inside, are in use.
    pub(crate) fn is_used(&self, run: Run) -> bool {
        self.next_free(run.block).is_none_or(|block| block >= run.end())
    }

    /// Marks a run, which is inside.
    pub(crate) fn set(&mut self, run: Run, is_used: bool) {
        let mut block = run.block;
        while block < run.end() {
            let bit = block % 64;
            let count = (64 - bit).min(run.end() - block);
            let mask = (!0 >> (64 - count)) << bit;
            let word = &mut self.words[(block / 64) as usize];
            if is_used {
                *word |= mask;
            } else {
                *word &= !mask;
            }
            block += count;
        }
    }

    /// The first free block from `from` on.
    pub(crate) fn next_free(&self, from: u64) -> Option<u64> {
        self.next(from, |word| !word).filter(|&block| block < self.blocks)
    }

    /// The first block in use from `from` on; the end if there is none.
    fn next_used(&self, from: u64, until: u64) -> u64 {
        let mut word = (from / 64) as usize;
        let last = (until.div_ceil(64) as usize).min(self.words.len());
        let mut bits = self.words.get(word).map_or(0, |bits| bits & (!0 << (from % 64)));
        loop {
            if bits != 0 {
                return (word as u64 * 64 + u64::from(bits.trailing_zeros())).min(until);
            }
            word += 1;
            if word >= last {
                return until;
            }
            bits = self.words[word];
        }
    }

    fn next(&self, from: u64, of: impl Fn(u64) -> u64) -> Option<u64> {
        let word = (from / 64) as usize;
        let here = of(*self.words.get(word)?) & (!0 << (from % 64));
        if here != 0 {
            return Some(word as u64 * 64 + u64::from(here.trailing_zeros()));
        }
        let behind = self.words[word + 1..].iter().position(|&bits| of(bits) != 0)? + word + 1;
        Some(behind as u64 * 64 + u64::from(of(self.words[behind]).trailing_zeros()))
    }

    /// The free runs from `from` on, none longer than `blocks_max`: the search in a run stops at that length.
    pub(crate) fn free_runs(&self, from: u64, blocks_max: u32) -> impl Iterator<Item = Run> + '_ {
        let mut from = from;
        std::iter::from_fn(move || {
            let block = self.next_free(from)?;
            let end = self.next_used(block, (block + u64::from(blocks_max)).min(self.blocks));
            from = end;
            Some(Run::new(block, (end - block) as u32))
        })
    }

    /// The first run of `blocks` free blocks from `from` on.
    pub(crate) fn first_fit(&self, from: u64, blocks: u32) -> Option<Run> {
        self.free_runs(from, blocks).find(|run| run.blocks == blocks)
    }

    /// The first free runs in a row, at most `runs_max` of them, that together have `blocks` blocks.
    pub(crate) fn first_fit_runs(&self, from: u64, blocks: u32, runs_max: usize) -> Option<Runs> {
        let mut window = std::collections::VecDeque::new();
        let mut sum = 0_u64;
        for run in self.free_runs(from, blocks) {
            window.push_back(run);
            sum += u64::from(run.blocks);
            if window.len() > runs_max {
                sum -= window.pop_front().map_or(0, |run: Run| u64::from(run.blocks));
            }
            if sum >= u64::from(blocks) {
                let mut runs: Runs = window.into_iter().collect();
                if let Some(last) = runs.last_mut() {
                    last.blocks -= (sum - u64::from(blocks)) as u32;
                }
                return Some(runs);
            }
        }
        None
    }
}

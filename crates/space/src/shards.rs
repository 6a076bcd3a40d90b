//! All shards of a space at once: for what one shard alone cannot answer.
//!
//! A shard is a part of the address space with a lock of its own. Locks are taken in ascending order. While all of them
//! are held, the space behaves as if it were one: best fit over all groups, then over runs across their borders, and
//! across those of shards.

use shoal_base::Run;
use shoal_base::sync::MutexGuard;
use smallvec::SmallVec;

use crate::cross::Across;
use crate::free_runs::FreeRuns;
use crate::space::Shard;

/// All shards, locked.
pub(crate) struct Shards<'a> {
    shards: &'a [Shard],
    locked: SmallVec<[MutexGuard<'a, FreeRuns>; 8]>,
}

impl Drop for Shards<'_> {
    fn drop(&mut self) {
        for (shard, runs) in self.shards.iter().zip(&self.locked) {
            shard.note(runs);
        }
    }
}

impl<'a> Shards<'a> {
    pub(crate) fn lock(shards: &'a [Shard]) -> Self {
        Self { shards, locked: shards.iter().map(Shard::lock).collect() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FreeRuns> {
        self.locked.iter().map(|runs| &**runs)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut FreeRuns> {
        self.locked.iter_mut().map(|runs| &mut **runs)
    }

    /// The shards that a run lies in, each with its part of it.
    pub(crate) fn parts(&mut self, run: Run) -> impl Iterator<Item = (&mut FreeRuns, Run)> {
        self.iter_mut().filter_map(move |runs| {
            let block = run.block.max(runs.geometry.first());
            let end = run.end().min(runs.geometry.blocks_max());
            (block < end).then(|| (runs, Run::new(block, (end - block) as u32)))
        })
    }

    /// A run of exactly `blocks` blocks.
    pub(crate) fn allocate(&mut self, blocks: u32) -> Option<Run> {
        if let Some(run) = self.allocate_within_groups(blocks) {
            return Some(run);
        }
        let wanted = u64::from(blocks);
        let mut fitting = self.chains();
        for runs in self.iter_mut().filter(|runs| runs.cross_blocks_max >= wanted) {
            fitting.extend(runs.search_cross(wanted).best_fit);
        }
        fitting.retain(|across| across.blocks >= wanted);
        let across = fitting.into_iter().min_by_key(|across| (across.blocks, across.block));
        let Some(across) = across else { return self.borrow(blocks) };
        let run = Run::new(across.block, blocks);
        self.take_checked(run);
        Some(run)
    }

    /// A run from the groups of any owner.
    fn borrow(&mut self, blocks: u32) -> Option<Run> {
        self.iter_mut().find_map(|runs| runs.borrow(blocks))
    }

    /// The shard with the shortest run that fits, if that is a short one; the lowest of these.
    #[inline]
    pub(crate) fn best_short(&self, blocks: u32) -> Option<(usize, &FreeRuns)> {
        let mut best: Option<(u32, usize)> = None;
        for (shard, runs) in self.locked.iter().enumerate() {
            if let Some(fit) = runs.index.shortest_length(blocks)
                && best.is_none_or(|(shortest, _)| fit < shortest)
            {
                best = Some((fit, shard));
            }
        }
        best.map(|(_, shard)| (shard, &*self.locked[shard]))
    }

    /// The best fit within a group of any shard.
    pub(crate) fn allocate_within_groups(&mut self, blocks: u32) -> Option<Run> {
        let found = self.locked.iter().enumerate();
        let found = found.filter_map(|(shard, runs)| runs.index.best_fit(blocks).map(|found| (shard, found)));
        let (shard, found) = found.min_by_key(|&(shard, found)| (found.blocks, shard))?;
        Some(self.locked[shard].cut(found, blocks))
    }

    /// A run from within a group of one shard.
    pub(crate) fn allocate_in(&mut self, shard: usize, blocks: u32) -> Option<Run> {
        let found = self.locked[shard].index.best_fit(blocks)?;
        Some(self.locked[shard].cut(found, blocks))
    }

    /// A run of `blocks` blocks, else the longest there is.
    pub(crate) fn allocate_at_most(&mut self, blocks: u32) -> Option<Run> {
        if let Some(run) = self.allocate(blocks) {
            return Some(run);
        }
        let longest = self.longest()?;
        assert!(longest.blocks < blocks, "{longest} fits {blocks} blocks but was not found");
        self.take_checked(longest);
        Some(longest)
    }

    /// Runs of `blocks` blocks together, at most `runs_max` of them: one if there is one, else the longest first
    /// and the last piece by best fit. All or nothing.
    pub(crate) fn allocate_runs(&mut self, blocks: u32, runs_max: usize, out: &mut crate::Runs) -> bool {
        assert!(blocks > 0 && out.is_empty(), "{blocks} blocks, {} runs before", out.len());
        let mut left = blocks;
        while left > 0 && self.free_blocks() >= u64::from(left) && out.len() < runs_max {
            if let Some(run) = self.allocate(left) {
                out.push(run);
                return true;
            }
            // Pieces only get shorter: is there any hope with those that are left?
            let pieces_left = (runs_max - out.len()) as u64;
            let hopeful =
                |longest: &Run| u64::from(longest.blocks).saturating_mul(pieces_left) >= u64::from(left);
            let Some(longest) = self.longest().filter(hopeful) else { break };
            self.take_checked(longest);
            out.push(longest);
            left -= longest.blocks;
        }
        for run in out.drain(..) {
            self.free_checked(run);
        }
        false
    }

    /// The longest run, also across borders; at most `u32::MAX` blocks of it. The lowest of its length.
    pub(crate) fn longest(&mut self) -> Option<Run> {
        let mut runs: SmallVec<[Run; 8]> = self.iter_mut().filter_map(FreeRuns::longest).collect();
        let blocks = |across: Across| u32::try_from(across.blocks).unwrap_or(u32::MAX);
        runs.extend(self.iter().filter_map(FreeRuns::longest_owned));
        runs.extend(self.chains().into_iter().map(|across| Run::new(across.block, blocks(across))));
        runs.into_iter().max_by_key(|run| (run.blocks, std::cmp::Reverse(run.block)))
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.iter().map(|runs| runs.free_blocks).sum()
    }

    /// Takes a run of which all is free.
    pub(crate) fn take_checked(&mut self, run: Run) {
        self.parts(run).for_each(|(runs, part)| runs.take_checked(part));
    }

    /// Gives back a run of which nothing is free.
    pub(crate) fn free_checked(&mut self, run: Run) {
        for (runs, part) in self.parts(run) {
            let freed = runs.free(part);
            assert!(freed.is_ok(), "run {part} is not free: {freed:?}");
        }
    }

    /// The free runs across borders of shards.
    fn chains(&self) -> SmallVec<[Across; 8]> {
        let mut chains = SmallVec::new();
        let mut first = 0;
        while first + 1 < self.locked.len() {
            let tail = self.locked[first].tail();
            let mut last = first + 1;
            let mut blocks = self.locked[last].head();
            if tail == 0 || blocks == 0 {
                first += 1;
                continue;
            }
            while last + 1 < self.locked.len() && self.locked[last].is_one_run() {
                last += 1;
                blocks += self.locked[last].head();
            }
            let block = self.locked[first].geometry.blocks_max() - tail;
            chains.push(Across { block, blocks: tail + blocks });
            first = last;
        }
        chains
    }
}

impl FreeRuns {
    /// Blocks of the free run at the end of the space; 0 where its last block is in use.
    fn tail(&self) -> u64 {
        let last = self.groups.len() - 1;
        let state = &self.groups[last];
        let run = state.runs.last().filter(|_| state.is_open());
        let Some(run) = run.map(|span| self.geometry.run(last, span)) else { return 0 };
        if run.end() != self.geometry.blocks_max() {
            return 0;
        }
        let mut group = last;
        let mut block = run.block;
        while group > 0 && self.geometry.start_of(block) == 0 && self.joined.contains(group - 1) {
            group -= 1;
            block -= self.groups[group].runs.last().map_or(0, |span| u64::from(span.blocks));
        }
        self.geometry.blocks_max() - block
    }

    /// Blocks of the free run at the start of the space; 0 where its first block is in use.
    fn head(&self) -> u64 {
        let first = self.groups[0].runs.first().filter(|span| span.start == 0 && self.groups[0].is_open());
        let Some(first) = first else { return 0 };
        if !self.joined.contains(0) || first.blocks < self.geometry.group_blocks() {
            return u64::from(first.blocks);
        }
        self.run_across(0).0.blocks
    }

    fn is_one_run(&self) -> bool {
        self.head() == self.geometry.blocks_max() - self.geometry.first()
    }
}

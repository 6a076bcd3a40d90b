//! The seed's load on the free space that `shoal stat --dump-space` found.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, bail};
use shoal_base::Run as Blocks;

use super::allocator::Allocator;

/// Longest run that is tried when the whole device is taken.
const PIECE_BLOCKS: u32 = 1 << 30;

/// The free space at the start.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Blocks of the device.
    pub(crate) blocks: u64,
    /// Its free runs, in ascending order.
    pub(crate) free: Vec<Blocks>,
}

impl Start {
    /// Reads a dump of free space.
    ///
    /// # Errors
    /// As the file; it is no such dump.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot read the free space in {}", path.display());
        let mut lines = BufReader::new(File::open(path).with_context(what)?).lines();
        let first = lines.next().transpose().with_context(what)?.unwrap_or_default();
        let blocks = first.split(", ").find_map(|part| part.strip_prefix("blocks ")?.parse().ok());
        let (true, Some(blocks)) = (first.starts_with("# shoal free space 1,"), blocks) else {
            bail!("{} was not written by `shoal stat --dump-space`", path.display());
        };
        let mut free: Vec<Blocks> = Vec::new();
        for (number, line) in (2..).zip(lines) {
            let line = line.with_context(what)?;
            let run = line.split_once(' ').and_then(|(block, count)| {
                let (block, count): (u64, u32) = (block.parse().ok()?, count.parse().ok()?);
                let is_behind = free.last().is_none_or(|last| last.end() <= block);
                let fits = count > 0 && block.checked_add(u64::from(count)).is_some_and(|end| end <= blocks);
                (is_behind && fits).then(|| Blocks::new(block, count))
            });
            let Some(run) = run else {
                bail!("{}, line {number}: no free run behind the others", path.display())
            };
            free.push(run);
        }
        Ok(Self { blocks, free })
    }

    /// Makes a fresh allocator's free space this one.
    pub(crate) fn set(&self, allocator: &dyn Allocator) {
        let mut blocks = PIECE_BLOCKS;
        let mut ends = Vec::new();
        while blocks > 0 {
            match allocator.allocate(blocks) {
                Ok(run) => ends.push(run.end()),
                Err(_) => blocks /= 2,
            }
        }
        ends.sort_unstable();
        let taken = Taken { ends };
        for &run in &self.free {
            taken.for_pieces(run, |piece| {
                let freed = allocator.free(piece);
                assert!(freed.is_ok(), "all of the device was taken: {freed:?}");
            });
        }
    }
}

/// The runs in which all of a device was taken, by their ends: each freed run is a part of one of them.
struct Taken {
    ends: Vec<u64>,
}

impl Taken {
    /// Cuts a run at their ends.
    fn for_pieces(&self, run: Blocks, mut visit: impl FnMut(Blocks)) {
        let mut block = run.block;
        while block < run.end() {
            let next = self.ends.partition_point(|&end| end <= block);
            let end = self.ends.get(next).map_or(run.end(), |&end| end.min(run.end()));
            visit(Blocks::new(block, (end - block) as u32));
            block = end;
        }
    }
}

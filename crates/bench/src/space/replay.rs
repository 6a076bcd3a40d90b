//! A real store's allocations, recorded by `shoal serve --trace-space`, with every allocator; and the seed's load on the free
//! space that `shoal stat --dump-space` found.
//!
//! Another allocator answers with other blocks. So for each piece that the trace took there is the place of its stand-in here,
//! and a free frees the stand-ins of what it names. What was in use when the trace began stands for itself.
//!
//! Allocations and frees alternate in a trace, so each is timed alone by the wall clock, whose own cost is taken off.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, bail};
use shoal_base::Run as Blocks;
use shoal_engine::{TraceLine, TraceReader};

use super::allocator::{Allocator, Refusal};
use super::figures::Figures;
use super::run::Run;

/// Longest run that is tried when the whole device is taken.
const PIECE_BLOCKS: u32 = 1 << 30;

/// Most runs of what does not fit in one.
const RUNS_MAX: usize = 64;

/// Free space to begin with.
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
    /// As the file; where it is no such dump.
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

    /// Reads the beginning of a trace.
    ///
    /// # Errors
    /// As the file; where it is no trace.
    pub(crate) fn of_trace(path: &Path) -> anyhow::Result<Self> {
        let mut start = None;
        for line in open(path)? {
            match line? {
                TraceLine::Device { blocks_max, .. } => {
                    start = Some(Self { blocks: blocks_max, free: Vec::new() })
                }
                TraceLine::Free(run) => start.iter_mut().for_each(|start: &mut Self| start.free.push(run)),
                TraceLine::Taken { .. } | TraceLine::Freed(_) => break,
            }
        }
        start.with_context(|| format!("{} does not say how large its device is", path.display()))
    }

    /// Makes a fresh allocator's free space this one.
    pub(crate) fn set(&self, allocator: &dyn Allocator) -> Taken {
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
        taken
    }
}

/// The runs that all of a device was taken in, by their ends: what is freed is a part of one of them.
pub(crate) struct Taken {
    ends: Vec<u64>,
}

impl Taken {
    /// Cuts a run where these end.
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

fn open(path: &Path) -> anyhow::Result<TraceReader<BufReader<File>>> {
    let what = || format!("cannot read the trace {}", path.display());
    TraceReader::new(BufReader::new(File::open(path).with_context(what)?)).with_context(what)
}

/// Where what the trace took lies here: by its first block there, its blocks and its first block here; none where this
/// allocator had no place for it.
struct Places {
    stand_ins: BTreeMap<u64, (u32, Option<u64>)>,
    /// What was in use when the trace began.
    taken: Taken,
}

impl Places {
    /// The runs `there` of the trace are `here`, piece by piece.
    fn add(&mut self, there: &[Blocks], here: &[Blocks]) {
        let mut here = here.iter().copied();
        let mut rest = here.next();
        for run in there {
            let mut block = run.block;
            while block < run.end() {
                let left = (run.end() - block) as u32;
                let (blocks, at) = match rest {
                    Some(place) => (left.min(place.blocks), Some(place.block)),
                    None => (left, None),
                };
                self.stand_ins.insert(block, (blocks, at));
                block += u64::from(blocks);
                rest = match rest {
                    Some(place) if place.blocks > blocks => {
                        Some(Blocks::new(place.block + u64::from(blocks), place.blocks - blocks))
                    }
                    _ => here.next(),
                };
            }
        }
    }

    /// Takes the stand-ins of `run` out.
    fn take(&mut self, run: Blocks, out: &mut Vec<Blocks>) {
        let mut block = run.block;
        while block < run.end() {
            let before = self.stand_ins.range(..=block).next_back().map(|(&first, &place)| (first, place));
            let holding = before.filter(|&(first, (blocks, _))| block < first + u64::from(blocks));
            let Some((first, (blocks, at))) = holding else {
                let next =
                    self.stand_ins.range(block..run.end()).next().map_or(run.end(), |(&first, _)| first);
                self.taken.for_pieces(Blocks::new(block, (next - block) as u32), |piece| out.push(piece));
                block = next;
                continue;
            };
            self.stand_ins.remove(&first);
            let (skipped, end) = (block - first, (first + u64::from(blocks)).min(run.end()));
            if skipped > 0 {
                self.stand_ins.insert(first, (skipped as u32, at));
            }
            let behind = first + u64::from(blocks) - end;
            if behind > 0 {
                self.stand_ins.insert(end, (behind as u32, at.map(|at| at + (end - first))));
            }
            out.extend(at.map(|at| Blocks::new(at + skipped, (end - block) as u32)));
            block = end;
        }
    }
}

/// Follows the trace in the file at `path`, whose beginning `allocator` has.
///
/// # Errors
/// As the file; where a line is no line of a trace.
pub(crate) fn replay(
    allocator: &dyn Allocator,
    taken: Taken,
    path: &Path,
    run: &mut Run,
) -> anyhow::Result<Figures> {
    let mut figures = Figures { contiguous_failures: Some(0), ..Figures::default() };
    let mut places = Places { stand_ins: BTreeMap::new(), taken };
    let mut stand_ins = Vec::new();
    for (count, line) in open(path)?.enumerate() {
        match line? {
            TraceLine::Device { .. } | TraceLine::Free(_) => {}
            TraceLine::Taken { runs, .. } => {
                let blocks: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
                let wanted = u32::try_from(blocks).context("an allocation of more than 16 TiB")?;
                let mut found = figures.alloc.once(|| allocator.allocate(wanted));
                let mut here = super::allocator::Runs::new();
                if found == Err(Refusal::NoSpace) {
                    figures.contiguous_failures = figures.contiguous_failures.map(|failures| failures + 1);
                    figures
                        .utilisation_at_first_failure
                        .get_or_insert_with(|| allocator.status().utilisation());
                    if let Ok(several) = allocator.allocate_runs(wanted, RUNS_MAX) {
                        here = several;
                        found = Err(Refusal::NoSpace);
                    }
                }
                here.extend(found);
                if !here.is_empty() {
                    figures.placed(blocks, here.len());
                }
                places.add(&runs, &here);
            }
            TraceLine::Freed(runs) => {
                stand_ins.clear();
                runs.iter().for_each(|&run| places.take(run, &mut stand_ins));
                for &run in &stand_ins {
                    figures.free.once(|| allocator.free(run)).with_context(|| {
                        format!("line {}: what the trace frees was never taken", count + 2)
                    })?;
                }
            }
        }
        if count % 4096 == 0 {
            run.show(count as u64, allocator);
            if run.is_over() {
                break;
            }
        }
    }
    figures.look(allocator);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places { stand_ins: BTreeMap::new(), taken: Taken { ends: vec![1000] } }
    }

    #[test]
    fn a_free_finds_the_stand_ins() {
        let mut places = places();
        places.add(&[Blocks::new(10, 4), Blocks::new(20, 6)], &[Blocks::new(100, 7), Blocks::new(200, 3)]);
        let mut take = |run| {
            let mut out = Vec::new();
            places.take(run, &mut out);
            out
        };
        assert_eq!(take(Blocks::new(11, 2)), [Blocks::new(101, 2)]);
        assert_eq!(take(Blocks::new(21, 4)), [Blocks::new(105, 2), Blocks::new(200, 2)]);
        assert_eq!(take(Blocks::new(5, 6)), [Blocks::new(5, 5), Blocks::new(100, 1)]);
        assert_eq!(take(Blocks::new(25, 3)), [Blocks::new(202, 1), Blocks::new(26, 2)]);
        assert_eq!(take(Blocks::new(13, 1)), [Blocks::new(103, 1)]);
        assert_eq!(take(Blocks::new(20, 1)), [Blocks::new(104, 1)]);
        assert!(places.stand_ins.is_empty());
    }

    #[test]
    fn what_had_no_place_is_not_freed() {
        let mut places = places();
        places.add(&[Blocks::new(10, 4)], &[]);
        let mut out = Vec::new();
        places.take(Blocks::new(9, 6), &mut out);
        assert_eq!(out, [Blocks::new(9, 1), Blocks::new(14, 1)]);
    }
}

//! A map of a device's free space, and a dump of it, for `shoal stat --map` and `--dump-space`.
//!
//! Both are made in one pass over the free runs; memory grows with the number of groups only. A free run across borders of groups is one
//! run in the histogram and the shares; each group's figures have its part.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use shoal_transfer::objects::Objects;
use shoal_transfer::text::show_count;

use crate::arguments::size::Size;
use crate::output::Output;

/// Cells of a row of the map.
const ROW_CELLS: usize = 32;
/// Maximum number of cells of a map; with more groups, several share a cell.
const CELLS_MAX: usize = 32 * ROW_CELLS;
/// The used part of a cell in eighths; a free cell has a separate sign.
const FILLS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
const WHOLLY_FREE: char = '\u{b7}';
/// For each of these lengths, in bytes, the share of the free space in runs of at least this length is shown.
const SHARES: [u64; 3] = [64 << 10, 1 << 20, 4 << 20];
/// Length of the longest bar of the histogram.
const BAR: u64 = 30;

/// The figures of a group, or of all groups of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    blocks: u64,
    free: u64,
    /// The sum of each group's longest free run.
    longest: u64,
}

/// Free runs of 2^i to 2^(i+1) - 1 blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bin {
    runs: u64,
    blocks: u64,
}

/// The map.
pub(crate) struct SpaceMap {
    block_bytes: u64,
    blocks: u64,
    group_blocks: u64,
    groups: Vec<Cell>,
    bins: Vec<Bin>,
    /// Blocks in runs of at least the length in [`SHARES`].
    in_long: [u64; SHARES.len()],
    longest: u64,
}

/// The first words of a dump.
const DUMP_START: &str = "# shoal free space";

/// Creates the file of a dump. It replaces only an older dump: a mistyped name may be that of a data file.
fn create_dump(path: &Path) -> io::Result<File> {
    if let Ok(found) = File::open(path)
        && found.metadata()?.is_file()
    {
        let mut start = Vec::new();
        found.take(DUMP_START.len() as u64).read_to_end(&mut start)?;
        if !start.is_empty() && start != DUMP_START.as_bytes() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it exists, and is no dump of free space: name another file",
            ));
        }
    }
    File::create(path)
}

/// Reads the free runs of the store of `objects` into a map, and into `dump` if set: a line that starts with `#`, then a line for each run
/// with its first block and its number of blocks.
pub(crate) async fn read_space(objects: &Objects, dump: Option<&Path>) -> anyhow::Result<SpaceMap> {
    let mut space = objects.free_space().await?;
    let (block_bytes, blocks, group_blocks) = space.layout();
    let mut map = SpaceMap::new(block_bytes.into(), blocks, group_blocks.into());
    let failed = || dump.map_or(String::new(), |path| format!("cannot write {}", path.display()));
    let mut file = dump.map(create_dump).transpose().with_context(failed)?.map(BufWriter::new);
    if let Some(file) = &mut file {
        writeln!(
            file,
            "{DUMP_START} 1, block_bytes {block_bytes}, blocks {blocks}, group_blocks {group_blocks}"
        )
        .with_context(failed)?;
    }
    while let Some(runs) = space.next().await? {
        for run in runs {
            map.add(run.block, run.blocks.into());
            if let Some(file) = &mut file {
                writeln!(file, "{} {}", run.block, run.blocks).with_context(failed)?;
            }
        }
    }
    if let Some(mut file) = file {
        file.flush().with_context(failed)?;
    }
    Ok(map)
}

impl SpaceMap {
    fn new(block_bytes: u64, blocks: u64, group_blocks: u64) -> Self {
        let group = |first: u64| Cell { blocks: group_blocks.min(blocks - first), ..Cell::default() };
        let groups = (0..blocks).step_by(group_blocks.max(1) as usize).map(group).collect();
        Self {
            block_bytes,
            blocks,
            group_blocks: group_blocks.max(1),
            groups,
            bins: Vec::new(),
            in_long: [0; SHARES.len()],
            longest: 0,
        }
    }

    fn add(&mut self, block: u64, blocks: u64) {
        let Some(bin) = blocks.checked_ilog2().map(|bin| bin as usize) else { return };
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, Bin::default());
        }
        self.bins[bin].runs += 1;
        self.bins[bin].blocks += blocks;
        self.longest = self.longest.max(blocks);
        for (sum, bytes) in self.in_long.iter_mut().zip(SHARES) {
            if blocks.saturating_mul(self.block_bytes) >= bytes {
                *sum += blocks;
            }
        }
        let end = block.saturating_add(blocks);
        let mut at = block;
        while at < end {
            let group = at / self.group_blocks;
            let next = end.min((group + 1).saturating_mul(self.group_blocks));
            // The device may grow during the read.
            let Some(cell) = self.groups.get_mut(group as usize) else { return };
            cell.free += next - at;
            cell.longest = cell.longest.max(next - at);
            at = next;
        }
    }

    fn free(&self) -> u64 {
        self.bins.iter().map(|bin| bin.blocks).sum()
    }

    fn runs(&self) -> u64 {
        self.bins.iter().map(|bin| bin.runs).sum()
    }

    /// The number of groups in a cell.
    fn cell_groups(&self) -> usize {
        self.groups.len().div_ceil(CELLS_MAX).max(1)
    }

    fn cells(&self) -> Vec<Cell> {
        let sum = |cell: Cell, group: &Cell| Cell {
            blocks: cell.blocks + group.blocks,
            free: cell.free + group.free,
            longest: cell.longest + group.longest,
        };
        self.groups
            .chunks(self.cell_groups())
            .map(|groups| groups.iter().fold(Cell::default(), sum))
            .collect()
    }

    /// For each of [`SHARES`] the share of the free space in runs of at least this length; 1 if nothing is free.
    fn shares(&self) -> [f64; SHARES.len()] {
        let free = self.free();
        self.in_long.map(|blocks| if free == 0 { 1.0 } else { blocks as f64 / free as f64 })
    }

    fn size(&self, blocks: u64) -> Size {
        Size(blocks.saturating_mul(self.block_bytes))
    }

    /// Prints the map for people.
    pub(crate) fn print(&self, output: &mut Output) -> anyhow::Result<()> {
        for line in self.lines() {
            output.line(&line)?;
        }
        Ok(())
    }

    fn lines(&self) -> Vec<String> {
        let (free, groups) = (self.free(), self.groups.len() as u64);
        let longest = self.size(self.longest);
        let mut lines = vec![
            format!(
                "space         {} of {} free, {} groups of {}",
                self.size(free),
                self.size(self.blocks),
                show_count(groups),
                self.size(self.group_blocks)
            ),
            format!("free runs     {}, the longest {longest}", show_count(self.runs())),
        ];
        for (bytes, share) in SHARES.into_iter().zip(self.shares()) {
            lines.push(format!(
                "in runs of    {:>8} or more: {:5.1} %",
                Size(bytes).to_string(),
                100.0 * share
            ));
        }
        lines.push(String::new());
        self.push_cells(&mut lines);
        lines.push(String::new());
        self.push_histogram(&mut lines);
        lines
    }

    fn push_cells(&self, lines: &mut Vec<String>) {
        let cell_groups = self.cell_groups() as u64;
        let cell = self.size(cell_groups.saturating_mul(self.group_blocks));
        let groups = if cell_groups == 1 { "a group".into() } else { format!("{cell_groups} groups") };
        lines.push(format!("A sign is {groups}, {cell}."));
        let fill = format!("fill: {WHOLLY_FREE} free {}{} full", FILLS[0], FILLS[7]);
        lines.push(format!("{:10} {fill:ROW_CELLS$}  fragmentation: 0 none to 9", "from"));
        for (row, cells) in self.cells().chunks(ROW_CELLS).enumerate() {
            let first = (row * ROW_CELLS) as u64 * cell_groups * self.group_blocks;
            let fills: String = cells.iter().map(fill_sign).collect();
            let fragments: String = cells.iter().map(fragmentation_sign).collect();
            lines.push(format!("{:10} {fills:ROW_CELLS$}  {fragments}", self.size(first).to_string()));
        }
        lines.push(
            "Fragmentation is the share of a group's free space that is not in its longest run; - if nothing is free."
                .into(),
        );
    }

    fn push_histogram(&self, lines: &mut Vec<String>) {
        lines.push(format!("{:>10} {:>14} {:>10}  share of the free space", "runs from", "runs", "space"));
        let free = self.free().max(1);
        let shortest = self.bins.iter().position(|bin| bin.runs > 0).unwrap_or(0);
        for (index, bin) in self.bins.iter().enumerate().skip(shortest) {
            let share = bin.blocks as f64 / free as f64;
            // A bin with runs is always visible.
            let length = (share * BAR as f64).round().max(if bin.runs > 0 { 1.0 } else { 0.0 }) as usize;
            let bar = "#".repeat(length);
            lines.push(format!(
                "{:>10} {:>14} {:>10}  {:5.1} % {bar}",
                self.size(1 << index).to_string(),
                show_count(bin.runs),
                self.size(bin.blocks).to_string(),
                100.0 * share
            ));
        }
    }

    /// The map as JSON.
    pub(crate) fn json(&self) -> Value {
        let bin = |(index, bin): (usize, &Bin)| json!({ "from_blocks": 1u64 << index, "runs": bin.runs, "blocks": bin.blocks });
        let share = |(bytes, share): (u64, f64)| json!({ "from_bytes": bytes, "share": share });
        let cells = self.cells();
        let column = |get: fn(&Cell) -> u64| -> Vec<u64> { cells.iter().map(get).collect() };
        json!({
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "free_blocks": self.free(),
            "free_runs": self.runs(),
            "longest_free_run": self.longest,
            "group_blocks": self.group_blocks,
            "shares": SHARES.into_iter().zip(self.shares()).map(share).collect::<Vec<_>>(),
            "histogram": self.bins.iter().enumerate().map(bin).collect::<Vec<_>>(),
            "cells": {
                "groups": self.cell_groups(),
                "blocks": column(|cell| cell.blocks),
                "free_blocks": column(|cell| cell.free),
                "longest_free_run": column(|cell| cell.longest),
            },
        })
    }
}

/// A free cell and a full one have unique signs.
fn fill_sign(cell: &Cell) -> char {
    let used = cell.blocks.saturating_sub(cell.free);
    if used == 0 {
        WHOLLY_FREE
    } else if cell.free == 0 {
        FILLS[7]
    } else {
        FILLS[(used * 7 / cell.blocks.max(1)).min(6) as usize]
    }
}

/// In tenths, rounded down; 0 only if each group's free space is one run.
fn fragmentation_sign(cell: &Cell) -> char {
    let apart = cell.free - cell.longest.min(cell.free);
    if cell.free == 0 {
        return '-';
    }
    let tenths = if apart == 0 { 0 } else { (apart * 10 / cell.free).clamp(1, 9) };
    char::from_digit(tenths as u32, 10).unwrap_or('9')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> SpaceMap {
        // Groups of 1,024 blocks of 4 KiB; the last is half a group.
        let mut map = SpaceMap::new(4096, 3 * 1024 + 512, 1024);
        // The first: two runs of 16 blocks and one of 1. The second and third: one run across the border.
        for (block, blocks) in [(0, 16), (100, 16), (200, 1), (1024 + 512, 1024)] {
            map.add(block, blocks);
        }
        map
    }

    #[test]
    fn every_free_block_is_counted_once() {
        let map = map();
        assert_eq!((map.free(), map.runs(), map.longest), (1057, 4, 1024));
        let cell = |blocks, free, longest| Cell { blocks, free, longest };
        let expected = [cell(1024, 33, 16), cell(1024, 512, 512), cell(1024, 512, 512), cell(512, 0, 0)];
        assert_eq!(map.cells(), expected);
        let bins: Vec<(usize, u64)> = map
            .bins
            .iter()
            .enumerate()
            .filter(|(_, bin)| bin.runs > 0)
            .map(|(index, bin)| (index, bin.runs))
            .collect();
        assert_eq!(bins, [(0, 1), (4, 2), (10, 1)]);
        let shares = map.shares().map(|share| (share * 1057.0).round());
        assert_eq!(shares, [1056.0, 1024.0, 1024.0]);
    }

    #[test]
    fn signs_say_how_full_and_how_fragmented() {
        let map = map();
        let fills: String = map.cells().iter().map(fill_sign).collect();
        assert_eq!(fills, "\u{2587}\u{2584}\u{2584}\u{2588}");
        let fragments: String = map.cells().iter().map(fragmentation_sign).collect();
        assert_eq!(fragments, "500-");
        let free = Cell { blocks: 8, free: 8, longest: 8 };
        assert_eq!((fill_sign(&free), fragmentation_sign(&free)), (WHOLLY_FREE, '0'));
        let almost = Cell { blocks: 1000, free: 999, longest: 998 };
        assert_eq!((fill_sign(&almost), fragmentation_sign(&almost)), (FILLS[0], '1'));
    }

    #[test]
    fn large_devices_fit_on_a_screen() {
        // 16 TiB.
        let mut map = SpaceMap::new(4096, 1 << 32, 1 << 16);
        map.add(5, (1 << 32) - 10);
        let lines = map.lines();
        assert!(lines.len() < 32 + 50, "{} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{lines:#?}");
        assert_eq!(map.cells().len(), CELLS_MAX);
        assert_eq!(map.json()["free_blocks"], (1u64 << 32) - 10);
    }

    #[test]
    fn empty_and_full_spaces_render() {
        for map in [SpaceMap::new(4096, 100, 16), SpaceMap::new(4096, 0, 16)] {
            assert!(map.lines().len() > 5 && map.json()["free_runs"] == 0);
        }
        let mut map = SpaceMap::new(4096, 16, 16);
        map.add(10, 100);
        assert_eq!(map.cells()[0].free, 6, "what lies behind the end is left out of the groups");
    }
}

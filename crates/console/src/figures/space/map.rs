//! The map of the space as the device's page draws it, from a survey.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use shoal_base::{BLOCK_BYTES_U64, Clock, Run};
use shoal_engine::{GroupState, KindCount, Store};
use tokio::sync::Mutex;

use super::census::{CensusTaker, TakenCensus};
use super::survey::{RUNS_AT_A_LOOK, Survey};
use crate::answer::ApiResult;
use crate::figures::limits::FigureLimits;
use crate::figures::routes::aside;

/// Cells of a map.
pub(crate) const CELLS: std::ops::RangeInclusive<u64> = 64..=16_384;
/// A survey is as new as this.
const FRESH_NS: u64 = 1_000_000_000;
/// Free runs of a range that are listed.
pub(crate) const RUNS_MAX: usize = 1_000;

/// The kinds of the blocks of a cell. Which used blocks are pages and which are values, only the trees know: without a census all are data, and
/// with one those that it does not know.
const KINDS: [&str; 7] = ["free", "data", "log", "image", "pages", "packed", "extents"];
const FREE: u8 = 0;
const DATA: u8 = 1;
const LOG: u8 = 2;
/// Superblocks, and the areas of the space image.
const IMAGE: u8 = 3;
const PAGES: u8 = 4;
const PACKED: u8 = 5;
const EXTENTS: u8 = 6;

/// The map.
#[derive(Debug, Serialize)]
struct SpaceDocument {
    blocks: u64,
    block_bytes: u64,
    cell_blocks: u64,
    group_blocks: u32,
    free_blocks: u64,
    /// 0: no block of the cell is free, 255: all are.
    free: Vec<u8>,
    /// Indexes of `kinds`: the kind of most used blocks of the cell.
    kind: Vec<u8>,
    kinds: [&'static str; 7],
    /// The time of the census that knows pages, packed runs and extents.
    #[serde(skip_serializing_if = "Option::is_none")]
    census_ms: Option<u64>,
    /// Indexes of `buckets`: the owner of most groups of the cell; only if buckets have their own space.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<Vec<u16>>,
    /// The first one stands for groups of all buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<String>>,
    /// The groups that are being emptied.
    closed: Vec<usize>,
    runs_by_size: Vec<BinDocument>,
    /// False until all groups have been walked over once.
    runs_are_complete: bool,
}

#[derive(Debug, Serialize)]
struct BinDocument {
    blocks_at_least: u64,
    runs: u64,
    blocks: u64,
}

/// A range of the space.
#[derive(Debug, Serialize)]
pub(crate) struct RangeDocument {
    start: u64,
    blocks: u64,
    free_blocks: u64,
    used_blocks: u64,
    log_blocks: u64,
    image_blocks: u64,
    runs: Vec<RunDocument>,
    /// True if there are more runs.
    more: bool,
    /// The buckets that own groups of the range.
    buckets: Vec<String>,
    /// The groups of the range that are being emptied.
    closed: Vec<u64>,
    /// The blocks that the census knows, and its time; only if the range is made of parts of the census.
    #[serde(skip_serializing_if = "Option::is_none")]
    kinds: Option<KindsDocument>,
}

/// The runs of a range by kind, at the time of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct KindsDocument {
    census_ms: u64,
    pages: KindDocument,
    packed: KindDocument,
    extents: KindDocument,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct KindDocument {
    runs: u64,
    blocks: u64,
}

impl KindDocument {
    fn add(&mut self, count: KindCount) {
        self.runs += u64::from(count.runs);
        self.blocks += u64::from(count.blocks);
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RunDocument {
    block: u64,
    blocks: u32,
}

/// The maps of a server: one survey for all pages, at most once a second, and the last census.
#[derive(Clone)]
pub(crate) struct SpaceMaps {
    /// Its holder walks over free runs: it is a token, no lock.
    surveyed: Arc<Mutex<Option<Surveyed>>>,
    parts_max: u64,
    pub(crate) census: CensusTaker,
}

struct Surveyed {
    survey: Survey,
    at_ns: u64,
    /// The last map, with its number of cells.
    drawn: Option<(u64, Bytes)>,
}

impl SpaceMaps {
    pub(crate) fn new(clock: Arc<dyn Clock>, limits: FigureLimits) -> Self {
        let FigureLimits { parts_max, buckets_max, .. } = limits;
        let census = CensusTaker::new(clock, (parts_max, buckets_max));
        Self { surveyed: Arc::default(), parts_max, census }
    }

    /// A map with at most `cells` cells as JSON.
    ///
    /// # Errors
    /// An error of the program.
    pub(crate) async fn draw(&self, store: &Store, clock: &Arc<dyn Clock>, cells: u64) -> ApiResult<Bytes> {
        let mut held = Arc::clone(&self.surveyed).lock_owned().await;
        let (store, now_ns, census) = (store.clone(), clock.monotonic_ns(), self.census.taken());
        let parts_max = self.parts_max;
        aside(move || draw(&mut held, &store, now_ns, (cells, parts_max, census.as_deref()))).await
    }

    /// Forgets the survey, unless a page is using it, and the census.
    pub(crate) fn forget(&self) {
        if let Ok(mut held) = self.surveyed.try_lock() {
            *held = None;
        }
        self.census.forget();
    }
}

/// Walks over free runs for some 10 ms if the survey is old: not for a thread that serves others.
fn draw(
    held: &mut Option<Surveyed>,
    store: &Store,
    now_ns: u64,
    (cells, parts_max, census): (u64, u64, Option<&TakenCensus>),
) -> Bytes {
    let is_fresh = |held: &Surveyed| now_ns.saturating_sub(held.at_ns) < FRESH_NS;
    if !held.as_ref().is_some_and(is_fresh) {
        let plan = store.space_plan();
        let mut survey = held.take().map_or_else(|| Survey::new(plan.clone(), parts_max), |held| held.survey);
        survey.follow(plan);
        survey.look(store, RUNS_AT_A_LOOK);
        *held = Some(Surveyed { survey, at_ns: now_ns, drawn: None });
    }
    let Some(Surveyed { survey, drawn, .. }) = held.as_mut() else { return Bytes::new() };
    if let Some((_, map)) = drawn.as_ref().filter(|(of, _)| *of == cells) {
        return map.clone();
    }
    // Strings and numbers only: it does not fail.
    let map = Bytes::from(serde_json::to_vec(&SpaceDocument::new(survey, cells, census)).unwrap_or_default());
    *drawn = Some((cells, map.clone()));
    map
}

/// The blocks that two ranges share.
fn shared(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

/// The share of `free` blocks in `blocks`, in 255ths: 0 only for none, and 255 only for all.
fn share(free: u64, blocks: u64) -> u8 {
    match free {
        0 => 0,
        free if free >= blocks => u8::MAX,
        free => (free * 255 / blocks).clamp(1, 254) as u8,
    }
}

impl SpaceDocument {
    fn new(survey: &Survey, cells: u64, census: Option<&TakenCensus>) -> Self {
        let plan = &survey.plan;
        let parts = survey.free.len() as u64;
        let cell_parts = parts.div_ceil(cells.max(1)).max(1).next_power_of_two();
        let cell_blocks = cell_parts * survey.part_blocks;
        let (mut free, mut kind) = (Vec::new(), Vec::new());
        for (number, parts) in survey.free.chunks(cell_parts as usize).enumerate() {
            let start = number as u64 * cell_blocks;
            let cell = start..(start + cell_blocks).min(plan.device_blocks);
            let sum: u64 = parts.iter().sum();
            free.push(share(sum, cell.end - cell.start));
            kind.push(kind_of(survey, &cell, sum, census));
        }
        let has_own = !plan.own_buckets.is_empty();
        let owners = || free.len();
        let bucket = has_own.then(|| {
            let cells = 0..owners() as u64;
            cells.map(|cell| owner_of(survey, cell * cell_blocks..(cell + 1) * cell_blocks)).collect()
        });
        let names = std::iter::once(String::new()).chain(plan.own_buckets.iter().cloned());
        let closed = survey.groups.iter().enumerate().filter(|(_, state)| state.is_closed);
        let bins = survey.bins().into_iter().enumerate().filter(|(_, bin)| bin.runs > 0);
        Self {
            blocks: plan.device_blocks,
            block_bytes: BLOCK_BYTES_U64,
            cell_blocks,
            group_blocks: plan.group_blocks,
            free_blocks: survey.free.iter().sum(),
            bucket,
            buckets: has_own.then(|| names.collect()),
            closed: closed.map(|(group, _)| group).collect(),
            runs_by_size: bins
                .map(|(index, bin)| BinDocument {
                    blocks_at_least: 1 << index,
                    runs: bin.runs,
                    blocks: bin.blocks,
                })
                .collect(),
            runs_are_complete: survey.is_complete,
            free,
            kind,
            kinds: KINDS,
            census_ms: census.map(|taken| taken.ended_ms),
        }
    }
}

/// The kind of most used blocks of a cell with `free` free blocks.
fn kind_of(survey: &Survey, cell: &Range<u64>, free: u64, census: Option<&TakenCensus>) -> u8 {
    let log = shared(cell, &survey.plan.log);
    let image: u64 = survey.plan.areas.iter().map(|area| shared(cell, area)).sum();
    let data = (cell.end - cell.start).saturating_sub(free + log + image);
    let known = census.and_then(|taken| kinds_of(taken, cell));
    // Blocks may have been freed since the census.
    let of = |kind: fn(KindsDocument) -> KindDocument| known.map_or(0, |known| kind(known).blocks.min(data));
    let (pages, packed, extents) = (of(|it| it.pages), of(|it| it.packed), of(|it| it.extents));
    let others = data.saturating_sub(pages + packed + extents);
    let kinds =
        [(others, DATA), (pages, PAGES), (packed, PACKED), (extents, EXTENTS), (log, LOG), (image, IMAGE)];
    // The first of equal ones.
    let most = kinds.into_iter().rev().max_by_key(|(blocks, _)| *blocks);
    most.filter(|(blocks, _)| *blocks > 0).map_or(FREE, |(_, kind)| kind)
}

/// The blocks of a range by a census; `None` if the ends of the range are within parts of it.
fn kinds_of(taken: &TakenCensus, range: &Range<u64>) -> Option<KindsDocument> {
    let (part_blocks, parts) = (taken.census.part_blocks, &taken.census.parts);
    let is_aligned = |block: u64| block.is_multiple_of(part_blocks);
    let end = range.end.div_ceil(part_blocks) as usize;
    // The last part may be short.
    if !is_aligned(range.start) || !is_aligned(range.end) && end < parts.len() {
        return None;
    }
    let none = KindDocument::default();
    let mut sum = KindsDocument { census_ms: taken.ended_ms, pages: none, packed: none, extents: none };
    let start = (range.start / part_blocks) as usize;
    for part in parts.get(start..end.min(parts.len())).unwrap_or_default() {
        sum.pages.add(part.pages);
        sum.packed.add(part.packed);
        sum.extents.add(part.extents);
    }
    Some(sum)
}

/// The owner of most groups that are in a range; the lowest of equal ones.
fn owner_of(survey: &Survey, range: Range<u64>) -> u16 {
    let group_blocks = u64::from(survey.plan.group_blocks.max(1));
    let groups = range.start / group_blocks..range.end.div_ceil(group_blocks);
    let states = survey.groups.get(groups.start as usize..(groups.end as usize).min(survey.groups.len()));
    let mut counts = vec![0_u32; survey.plan.own_buckets.len() + 1];
    for state in states.unwrap_or_default() {
        if let Some(count) = counts.get_mut(usize::from(state.owner)) {
            *count += 1;
        }
    }
    let most = counts.into_iter().enumerate().rev().max_by_key(|&(_, count)| count);
    most.map_or(0, |(owner, _)| owner as u16)
}

/// A range of the space as it is now: its figures, and its first `runs_max` free runs. Walks over the runs of the groups at its ends and of those
/// whose runs are listed.
pub(crate) fn range(
    store: &Store,
    census: Option<&TakenCensus>,
    (start, blocks): (u64, u64),
    runs_max: usize,
) -> RangeDocument {
    let plan = store.space_plan();
    let range = start.min(plan.device_blocks)..start.saturating_add(blocks).min(plan.device_blocks);
    let group_blocks = u64::from(plan.group_blocks.max(1));
    let groups = range.start / group_blocks..range.end.div_ceil(group_blocks);
    let mut states: Vec<GroupState> = Vec::new();
    store.group_states(groups.start as usize..groups.end as usize, &mut states);
    let holes = store.holes();
    let first = holes.partition_point(|hole| hole.end() <= range.start);
    let holes = holes.get(first..).unwrap_or_default();
    let holes = || holes.iter().take_while(|hole| hole.block < range.end);
    let mut found: Vec<Run> = holes().take(runs_max + 1).filter_map(|run| within(*run, &range)).collect();
    let mut free: u64 = holes().filter_map(|run| within(*run, &range)).map(|run| u64::from(run.blocks)).sum();
    let mut listed = 0;
    let (mut buckets, mut closed) = (Vec::new(), Vec::new());
    for (group, state) in groups.zip(&states) {
        let of_group = group * group_blocks..(group + 1) * group_blocks;
        let is_whole = range.start <= of_group.start && of_group.end <= range.end;
        if is_whole && listed > runs_max {
            free += u64::from(state.free_blocks);
        } else if state.free_blocks > 0 {
            let mut runs = Vec::new();
            store.free_runs_of(group as usize, &mut runs);
            let runs = runs.into_iter().filter_map(|run| within(run, &range));
            for run in runs {
                free += u64::from(run.blocks);
                if listed <= runs_max {
                    found.push(run);
                    listed += 1;
                }
            }
        }
        if let Some(bucket) = usize::from(state.owner).checked_sub(1).and_then(|at| plan.own_buckets.get(at))
            && !buckets.contains(bucket)
        {
            buckets.push(bucket.clone());
        }
        if state.is_closed {
            closed.push(group);
        }
    }
    found.sort_unstable_by_key(|run| run.block);
    let more = found.len() > runs_max;
    found.truncate(runs_max);
    let blocks = range.end - range.start;
    RangeDocument {
        start: range.start,
        blocks,
        free_blocks: free.min(blocks),
        used_blocks: blocks.saturating_sub(free),
        log_blocks: shared(&range, &plan.log),
        image_blocks: plan.areas.iter().map(|area| shared(&range, area)).sum(),
        runs: found.into_iter().map(|run| RunDocument { block: run.block, blocks: run.blocks }).collect(),
        more,
        buckets,
        closed,
        kinds: census.and_then(|taken| kinds_of(taken, &range)),
    }
}

/// The part of a run within a range.
fn within(run: Run, range: &Range<u64>) -> Option<Run> {
    let (start, end) = (run.block.max(range.start), run.end().min(range.end));
    (start < end).then(|| Run::new(start, (end - start) as u32))
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;

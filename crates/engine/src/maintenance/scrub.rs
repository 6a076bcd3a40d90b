//! The scrub reads every page, every value and the superblocks of a running store from the device, past the cache, and
//! reports decay before a request meets it (T27).
//!
//! It works in pieces. Each reads a bounded part of one tablet under a view of its own, so it delays the reuse of space
//! only for a moment (R16, R23), and the next one continues after the last key. In the background it keeps to a rate.
//! It repairs nothing: a damaged object answers with an error until it is written anew, or until `shoal check --repair`
//! runs. It does not read the log, whose records go home within seconds.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use shoal_base::checksum::crc32c;
use shoal_base::codec::Reader;
use shoal_base::sync::Mutex;
use shoal_base::sync::atomic::Ordering;
use shoal_base::{BLOCK_BYTES, Lsn};
use shoal_common::error::{Error, Result};
use shoal_common::key::is_reserved;
use shoal_common::problem::CheckProblem;
use shoal_device::{Device, IoBuf, IoFuture};
use shoal_image::superblock::Superblock;
use shoal_image::{copies, space_image};
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tree::layers::page as layers_page;
use shoal_tree::layers::{Trees, is_tombstone};
use shoal_tree::{PageRef, PageSource, Problem, ReadHint, Tree, Visitor};
use shoal_value::{Entry, decode_leaf_entry};

use crate::maintenance::stored_kind::StoredKind;
use crate::maintenance::verify::{entry_problem, page_problem, value_problems};
use crate::store::threads::Duty;
use crate::store::{Inner, Store};

/// Leaves of one piece, at least two: a piece starts in the leaf where the last one ended.
const LEAVES_AT_A_TIME: usize = 64;
/// Leaves of a piece that are prefetched at most: those after the end of the piece are read in vain.
const LEAVES_AHEAD_MAX: usize = 16;
/// Bytes of one piece, values included, after which no further leaf is read.
const BYTES_AT_A_TIME: u64 = 4 << 20;
/// Problems that a report lists.
const PROBLEMS_MAX: usize = 1000;

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Pages of the trees that were read.
    pub pages: u64,
    /// Objects whose values were read.
    pub objects: u64,
    /// Bytes of pages and values.
    pub bytes: u64,
    /// The problems, each with its object if it concerns one; at most 1,000 are listed.
    pub problems: Vec<CheckProblem>,
    /// The number of all problems.
    pub problem_count: u64,
}

impl ScrubReport {
    fn problem(&mut self, problem: CheckProblem) {
        tracing::error!("scrub: {} (block {})", problem.what, problem.block);
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// The answer to a request for a pass of the scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubStart {
    /// It starts now.
    Started,
    /// One is under way already.
    Runs,
    /// The store scrubs nothing in the background.
    Off,
}

/// The place at which a scrub continues.
#[derive(Default)]
pub(crate) struct ScrubPlace {
    tablet: usize,
    /// Trees of the tablet that were read: the base, then the layers from the oldest on.
    trees: usize,
    from: Vec<u8>,
}

impl Store {
    /// Reads and verifies all stored data, without a limit of its rate; other reads and writes continue meanwhile. Data
    /// written after its start may be left out.
    ///
    /// # Errors
    /// [`Error::Closed`]. The report has the damaged and unreadable places.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        let (mut report, mut place) = (ScrubReport::default(), ScrubPlace::default());
        while !self.0.scrub_some(&mut place, &mut report).await? {}
        Ok(report)
    }

    /// Starts a pass of the scrub in the background now, at its usual rate; the next one is due as long after its end as after any other.
    pub fn start_scrub(&self) -> ScrubStart {
        let Some(worker) = self.0.maintenance.worker.as_ref().filter(|_| self.0.tuning.scrub_bytes_per_s > 0)
        else {
            return ScrubStart::Off;
        };
        if self.0.maintenance.scrub_runs.swap(true, Ordering::Relaxed) {
            return ScrubStart::Runs;
        }
        worker.wake(Duty::Scrub);
        ScrubStart::Started
    }
}

impl Inner {
    /// Scrubs one piece from `place` on. Returns true if it was the last one of a pass; then `place` is the start
    /// again.
    pub(crate) async fn scrub_some(&self, place: &mut ScrubPlace, report: &mut ScrubReport) -> Result<bool> {
        self.check_open()?;
        let (bytes_before, problems_before) = (report.bytes, report.problem_count);
        let is_over = match self.tablets.all().get(place.tablet) {
            Some(tablet) => {
                let view = tablet.view();
                let Some(number) = view.trees.layers.list.len().checked_sub(place.trees) else {
                    // Layers were compacted meanwhile: their entries are in the base.
                    *place = ScrubPlace { tablet: place.tablet + 1, ..ScrubPlace::default() };
                    return Ok(false);
                };
                let tree = tree_of(self.identity, tablet.id);
                if place.trees == 0 && place.from.is_empty() {
                    self.scrub_tablet(tree, &view.trees, report).await;
                }
                let trees = (tree, &view.trees, number);
                let mut visitor = Piece::new(self, trees, std::mem::take(&mut place.from), report);
                let from = visitor.last.clone();
                assert!(number <= view.trees.layers.list.len(), "a scrub of a tree that is not there");
                let source = DirectPages::new(&self.device);
                let walked = tree.walk_from(&source, view.trees.root(number), from, &mut visitor).await;
                match (walked, visitor.is_full) {
                    (Ok(_), _) if number == 0 => {
                        *place = ScrubPlace { tablet: place.tablet + 1, ..ScrubPlace::default() };
                    }
                    (Ok(_), _) => place.trees += 1,
                    (Err(_), true) => place.from = std::mem::take(&mut visitor.last),
                    (Err(error), false) => return Err(error),
                }
                false
            }
            None => {
                self.scrub_store(report).await;
                self.counters.scrub_passes.fetch_add(1, Ordering::Relaxed);
                self.counters.scrub_ended_ns.store(self.environment.clock.wall_ns(), Ordering::Relaxed);
                *place = ScrubPlace::default();
                true
            }
        };
        self.counters.scrub_bytes.fetch_add(report.bytes - bytes_before, Ordering::Relaxed);
        self.counters.scrub_problems.fetch_add(report.problem_count - problems_before, Ordering::Relaxed);
        Ok(is_over)
    }

    /// Scrubs the things of a tablet that a walk over its trees does not read.
    async fn scrub_tablet(&self, tree: Tree, trees: &Trees, report: &mut ScrubReport) {
        for &kind in StoredKind::ALL {
            match kind {
                StoredKind::LayerLists => self.scrub_list(tree, trees, report).await,
                // The pieces of the walk read them.
                StoredKind::TreePages | StoredKind::Extents | StoredKind::Manifests => {}
                // The pieces read the values; liveness is entries of the base. A check reads the footers.
                StoredKind::PackedRuns => {}
                // `scrub_store` has them.
                StoredKind::SpaceImage | StoredKind::LogBatches | StoredKind::Superblocks => {}
            }
        }
    }

    /// Scrubs the things that belong to no tablet. No superblock is published meanwhile.
    async fn scrub_store(&self, report: &mut ScrubReport) {
        let publisher = self.checkpointer.publisher.take().await;
        assert_eq!(publisher.identity, self.identity, "another store's superblock is scrubbed");
        for &kind in StoredKind::ALL {
            match kind {
                StoredKind::Superblocks => self.scrub_superblocks(&publisher, report).await,
                StoredKind::SpaceImage => self.scrub_image(&publisher, report).await,
                // Its records go home within seconds.
                StoredKind::LogBatches => {}
                // `scrub_tablet` and the pieces of the walk have them.
                StoredKind::TreePages
                | StoredKind::Extents
                | StoredKind::Manifests
                | StoredKind::PackedRuns
                | StoredKind::LayerLists => {}
            }
        }
    }

    /// All copies of the list of a tablet's layers.
    async fn scrub_list(&self, tree: Tree, trees: &Trees, report: &mut ScrubReport) {
        let Some(stored) = trees.layers.stored else { return };
        for block in layers_page::read_copies(&self.device, tree, stored).await.1 {
            report.problem(CheckProblem { what: layers_page::copy_problem(tree), block });
        }
        report.bytes += u64::from(stored.copies) * BLOCK_BYTES as u64;
    }

    /// Both copies of the newest superblock.
    async fn scrub_superblocks(&self, newest: &Superblock, report: &mut ScrubReport) {
        let mut problem = |what: &str, block| report.problem(CheckProblem { what: what.into(), block });
        for block in copies::copies(newest.number) {
            let read = self.device.read(block, IoBuf::unfilled(1)).await.ok();
            match read.map(|bytes| Superblock::decode(&bytes)) {
                Ok(Some(found)) if found.number == newest.number => {}
                Ok(_) => problem("a copy of the newest superblock is damaged", block),
                Err(error) => problem(&format!("a copy of the newest superblock: {error}"), block),
            }
        }
        report.bytes += (copies::copies(newest.number).len() * BLOCK_BYTES) as u64;
    }

    /// The space image that the newest superblock names.
    async fn scrub_image(&self, newest: &Superblock, report: &mut ScrubReport) {
        let mut problem = |what: &str, block| report.problem(CheckProblem { what: what.into(), block });
        match space_image::load(&self.device, newest).await {
            Ok(image) if image.incomplete().next().is_some() => {
                problem("a part of the space image is damaged", 0);
            }
            Ok(_) => {}
            Err(Error::Corrupt { what, block }) => problem(&what, block),
            Err(error) => problem(&format!("the space image: {error}"), 0),
        }
    }
}

/// A page source that reads straight from the device: pages in the cache were verified when they came there.
struct DirectPages<'a> {
    device: &'a Device,
    /// Reads of leaves in flight, in the order in which the walk asked for them.
    ahead: Mutex<VecDeque<(u64, IoFuture<IoBuf>)>>,
}

impl<'a> DirectPages<'a> {
    fn new(device: &'a Device) -> Self {
        Self { device, ahead: Mutex::default() }
    }

    /// The read of a page: the one in flight, or a new one.
    fn read(&self, block: u64) -> IoFuture<IoBuf> {
        let mut ahead = self.ahead.lock();
        let place = ahead.iter().position(|&(asked, _)| asked == block);
        let under_way = place.and_then(|place| ahead.remove(place));
        under_way.map_or_else(|| self.device.read(block, IoBuf::unfilled(1)), |(_, read)| read)
    }
}

#[derive(Clone)]
struct DirectPage(Arc<[u8; BLOCK_BYTES]>);

impl Deref for DirectPage {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl PageSource for DirectPages<'_> {
    type Page = DirectPage;

    async fn page(&self, page: PageRef, level: u8, _hint: ReadHint) -> Result<DirectPage> {
        let damaged = || Error::Corrupt { what: format!("a page of level {level}"), block: page.block };
        let read = self.read(page.block).await.ok()?;
        let bytes: [u8; BLOCK_BYTES] = read[..].try_into().map_err(|_| damaged())?;
        let stored = Reader::new(&bytes).u32().map_err(|_| damaged())?;
        let sum = crc32c(bytes.get(4..).unwrap_or(&[]));
        if stored != page.crc || sum != page.crc {
            return Err(damaged());
        }
        Ok(DirectPage(Arc::new(bytes)))
    }

    /// Prefetches leaves: a piece meets hardly more than one page of each level above them.
    fn prefetch(&self, pages: &[PageRef], level: u8, _hint: ReadHint) {
        if level > 0 {
            return;
        }
        let mut batch = self.device.batch();
        let read = |page: &PageRef| (page.block, batch.add(self.device.read(page.block, IoBuf::unfilled(1))));
        let reads: Vec<_> = pages.iter().map(read).collect();
        self.ahead.lock().extend(reads);
        batch.start_in_background();
    }

    fn ahead_max(&self) -> usize {
        LEAVES_AHEAD_MAX
    }
}

/// One piece of a walk.
struct Piece<'a> {
    inner: &'a Inner,
    /// The trees of the tablet, and the number of the one that is read.
    trees: (Tree, &'a Trees, usize),
    report: &'a mut ScrubReport,
    /// Entries of the current leaf.
    entries: Vec<(Vec<u8>, Lsn, Entry)>,
    leaves: usize,
    bytes_before: u64,
    /// The next piece starts at this key.
    last: Vec<u8>,
    /// True if that is above the first key of this piece.
    has_passed: bool,
    is_full: bool,
}

impl<'a> Piece<'a> {
    fn new(
        inner: &'a Inner,
        trees: (Tree, &'a Trees, usize),
        from: Vec<u8>,
        report: &'a mut ScrubReport,
    ) -> Self {
        let bytes_before = report.bytes;
        Self {
            inner,
            trees,
            report,
            entries: Vec::new(),
            leaves: 0,
            bytes_before,
            last: from,
            has_passed: false,
            is_full: false,
        }
    }
}

impl Piece<'_> {
    /// Notes that the next piece starts after this key.
    fn passed(&mut self, key: &[u8]) {
        self.has_passed = true;
        self.last.clear();
        self.last.extend_from_slice(key);
        self.last.push(0);
    }

    fn over(&mut self) -> Result<()> {
        assert!(self.has_passed, "the next piece of a scrub starts at the same key");
        self.is_full = true;
        Err(Error::Busy("the piece of a scrub is over"))
    }
}

impl Visitor for Piece<'_> {
    fn page(&mut self, _page: PageRef, _level: u8, _used_bytes: usize) {
        self.report.pages += 1;
        self.report.bytes += BLOCK_BYTES as u64;
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef) {
        // The previous piece has verified this entry.
        if *key < *self.last {
            return;
        }
        self.passed(key);
        let (_, trees, number) = self.trees;
        let is_layer = number < trees.layers.list.len();
        if is_reserved(key) || is_layer && is_tombstone(entry) {
            return;
        }
        match decode_leaf_entry(entry) {
            Ok((version, entry)) => self.entries.push((key.to_vec(), version, entry)),
            Err(_) => self.report.problem(entry_problem(key, page)),
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.report.problem(page_problem(&problem));
    }

    async fn leaf_done(&mut self) -> Result<()> {
        let inner = self.inner;
        inner.check_open()?;
        let mut entries = Vec::with_capacity(self.entries.len());
        let (tree, trees, number) = self.trees;
        for entry in std::mem::take(&mut self.entries) {
            // The blocks that a shadowed entry names were freed.
            let pages = PoolPages::new(&inner.pool).of_pass();
            if !trees.is_shadowed(tree, &pages, number, &entry.0).await {
                entries.push(entry);
            }
        }
        // In the middle of a leaf, if need be: its values may be long.
        let last = entries.iter().position(|(.., entry)| {
            self.report.bytes += entry.stored_bytes();
            self.report.bytes - self.bytes_before >= BYTES_AT_A_TIME
        });
        entries.truncate(last.map_or(entries.len(), |last| last + 1));
        self.report.objects += entries.len() as u64;
        let problems = value_problems(&inner.device, &inner.pool, inner.device.blocks(), &entries).await;
        problems.into_iter().for_each(|(_, problem)| self.report.problem(problem));
        if let (Some(_), Some((key, ..))) = (last, entries.last()) {
            self.passed(key);
            return self.over();
        }
        self.leaves += 1;
        // Leaves that were lost with a page have no entries: a piece of them alone would be read again for ever.
        if self.leaves >= LEAVES_AT_A_TIME && self.has_passed { self.over() } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "scrub_tests.rs"]
mod tests;

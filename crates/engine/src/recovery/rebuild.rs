//! A walk over a tree that collects the runs that it owns. A check compares them with the space image; if the image is
//! damaged, the free space is rebuilt from them.

use std::sync::Arc;

use shoal_base::{Lsn, Run, TabletId};
use shoal_device::Device;
use shoal_pool::Pool;
use shoal_space::FreeImage;

use crate::checkpoint::superblock::Superblock;
use crate::common::error::{Error, Result};
use crate::common::key::{is_own, name};
use crate::maintenance::verify::{entry_problem, page_problem, value_problems};
use crate::recovery::owners::{Completeness, Owners, image_without};
use crate::recovery::recount::TreeCount;
use crate::recovery::report::CheckReport;
use crate::tablet::layers::{Layers, LayersRef, Trees};
use crate::tablet::tree::{PageRef, Problem, Visitor};
use crate::tablet::tree_io::{PoolPages, tree_of};
use crate::value::entry::{Entry, decode_leaf_entry};
use crate::value::owned::owned_runs;
use crate::value::packed::is_reserved;

/// The free space according to the trees.
///
/// # Errors
/// As the device. The runs owned by damaged pages are unknown: they may come out as free, and their objects were lost
/// with the page.
pub(crate) async fn rebuild_image(
    device: &Device,
    pool: &Pool,
    superblock: &Superblock,
    layers: &[Arc<Layers>],
    demand: Completeness,
) -> Result<FreeImage> {
    // What an unreadable page owns comes out as free: each page is read for this.
    pool.forget_all_damage();
    let mut owners = Owners::of_areas(superblock);
    let mut report = CheckReport::default();
    for (id, (tablet, layers)) in (0_u16..).zip(superblock.tablets.iter().zip(layers)) {
        let mut visitor = TreeVisitor::new(device, pool, superblock, &mut report, &mut owners);
        let trees = Trees { base: tablet.root, layers: layers.clone() };
        owners_of_list(&trees, &mut visitor);
        let pages = PoolPages::new(pool).of_pass();
        trees.walk(tree_of(superblock.identity, TabletId(id)), &pages, &mut visitor).await?;
        visitor.finish();
    }
    if let (Completeness::MustBeWhole, Some(problem)) = (demand, report.problems.first()) {
        // The blocks that an unreadable page owns would come out as free, and be written over.
        let what = format!(
            "the space image, and the trees that it could be rebuilt from ({}); `shoal check --repair` rebuilds it without the \
             lost part",
            problem.what
        );
        return Err(Error::Corrupt { what, block: problem.block });
    }
    let layout = &superblock.layout;
    let size = (layout.blocks_max, layout.group_blocks);
    image_without(size, layout.data_first()..superblock.device_blocks, owners, demand)
}

/// The blocks that hold the list of the layers. One that could not be read is a layer itself, which the walk meets.
pub(crate) fn owners_of_list(trees: &Trees, visitor: &mut TreeVisitor<'_>) {
    let Some(LayersRef { block, copies, .. }) = trees.layers.stored else { return };
    let is_layer =
        |block| trees.layers.list.iter().any(|root| root.page.is_some_and(|page| page.block == block));
    for block in (block..block + u64::from(copies)).filter(|&block| !is_layer(block)) {
        visitor.page(PageRef { block, crc: 0 }, 0, 0);
    }
}

/// Collects the runs that a tree owns, and verifies the values.
pub(crate) struct TreeVisitor<'a> {
    device: &'a Device,
    pool: &'a Pool,
    superblock: &'a Superblock,
    report: &'a mut CheckReport,
    owners: &'a mut Owners,
    pub verify: bool,
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Entries of the current leaf.
    entries: Vec<(Vec<u8>, Lsn, Entry)>,
    count: TreeCount,
    /// True if every page could be read, now and when it was written.
    is_whole: bool,
}

impl<'a> TreeVisitor<'a> {
    pub(crate) fn new(
        device: &'a Device,
        pool: &'a Pool,
        superblock: &'a Superblock,
        report: &'a mut CheckReport,
        owners: &'a mut Owners,
    ) -> Self {
        let count = TreeCount::default();
        let entries = Vec::new();
        let (verify, is_whole) = (false, true);
        Self { device, pool, superblock, report, owners, verify, progress: None, entries, count, is_whole }
    }

    /// Adds the tablet's packed runs to the owners after the walk. Returns the counts, and true if the tree is whole.
    pub(crate) fn finish(self) -> (TreeCount, bool) {
        for run in self.count.runs().map(|(run, _)| run).chain(self.count.orphans()) {
            self.owners.add(run);
        }
        (self.count, self.is_whole)
    }
}

impl Visitor for TreeVisitor<'_> {
    fn page(&mut self, page: PageRef, _level: u8, _used_bytes: usize) {
        self.report.pages += 1;
        self.owners.add(Run::new(page.block, 1));
    }

    fn entry(&mut self, key: &[u8], entry: &[u8], page: PageRef) {
        if is_reserved(key) {
            if let Some(what) = self.count.reserved(key, entry) {
                self.report.problem(what.into(), page.block);
            }
            return;
        }
        let count = if is_own(key) { &mut self.report.own_objects } else { &mut self.report.objects };
        *count += 1;
        match decode_leaf_entry(entry) {
            Ok((version, entry)) => {
                self.count.object(&entry);
                self.entries.push((key.to_vec(), version, entry));
            }
            Err(_) => self.report.problems_of([entry_problem(key, page)]),
        }
    }

    fn lost(&mut self, page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.is_whole = false;
        let high = high.map_or("the end".into(), name);
        let what = format!("the objects from {} up to {high} were lost with a damaged page", name(low));
        self.report.problem(what, page.block);
    }

    fn problem(&mut self, problem: Problem) {
        self.is_whole = false;
        self.report.problems_of([page_problem(&problem)]);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        for (_, version, entry) in &entries {
            let (runs, damage) = owned_runs(self.device, self.pool, entry, *version).await;
            if let Some(error) = damage {
                tracing::warn!("recovery: the manifest of version {version} is damaged: {error}");
            }
            runs.into_iter().for_each(|run| self.owners.add(run));
        }
        if self.verify {
            self.report.value_bytes += entries.iter().map(|(.., entry)| entry.value_bytes).sum::<u64>();
            let blocks = self.superblock.device_blocks;
            self.report.problems_of(value_problems(self.device, self.pool, blocks, &entries).await);
        }
        if let Some(progress) = &self.progress {
            progress(self.report.objects, self.report.value_bytes);
        }
        Ok(())
    }
}

//! A walk over a tree that collects the runs that it owns. A check compares them with the space image; if the image is
//! damaged, the free space is rebuilt from them.

use std::sync::Arc;

use shoal_base::{Lsn, Run, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::key::is_reserved;
use shoal_common::key::{is_own, name};
use shoal_device::Device;
use shoal_image::superblock::Superblock;
use shoal_pool::Pool;
use shoal_space::FreeImage;
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tree::layers::{Layers, LayersRef, Trees};
use shoal_tree::{PageRef, Problem, Visitor};
use shoal_value::{Entry, decode_leaf_entry, owned_runs};

use crate::maintenance::stored_kind::StoredKind;
use crate::maintenance::verify::{entry_problem, page_problem, value_problems};
use crate::recovery::owners::{Completeness, Owners, image_without};
use crate::recovery::recount::TreeCount;
use crate::recovery::report::CheckReport;

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
        let pages = PoolPages::new(pool).of_pass();
        trees.walk(tree_of(superblock.identity, TabletId(id)), &pages, &mut visitor).await?;
        visitor.finish(&trees);
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
    image_of(superblock, owners, demand)
}

/// The free space in which all blocks for data without an owner are free.
///
/// # Errors
/// [`Error::Corrupt`] if the owners cannot be right, unless the `demand` is to go on.
pub(crate) fn image_of(superblock: &Superblock, owners: Owners, demand: Completeness) -> Result<FreeImage> {
    let layout = &superblock.layout;
    let size = (layout.blocks_max, layout.group_blocks);
    image_without(size, layout.data_first()..superblock.device_blocks, owners, demand)
}

/// The blocks that hold the list of the layers. One that could not be read is a layer itself, which the walk meets.
fn blocks_of_list(trees: &Trees) -> impl Iterator<Item = u64> + '_ {
    let stored = trees.layers.stored.map(|LayersRef { block, copies, .. }| block..block + u64::from(copies));
    let is_layer =
        |block| trees.layers.list.iter().any(|root| root.page.is_some_and(|page| page.block == block));
    stored.into_iter().flatten().filter(move |&block| !is_layer(block))
}

/// Damaged values and entries of a tablet whose keys a walk lists: 4.5 MB of the longest keys.
const DAMAGED_KEYS_MAX: usize = 4096;

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
    /// True if every page and entry could be read now.
    is_counted: bool,
    /// True if every manifest could be read.
    knows_owners: bool,
    /// The keys of damaged values and entries, at most [`DAMAGED_KEYS_MAX`].
    damaged_keys: Vec<Vec<u8>>,
    /// True if there are more damaged keys than are listed.
    has_more_damaged: bool,
}

/// The result of a walk over a tablet.
pub(crate) struct TabletWalk {
    pub count: TreeCount,
    /// True if every page could be read, now and when it was written.
    pub is_whole: bool,
    /// True if every page and entry could be read now.
    pub is_counted: bool,
    /// True if every manifest could be read: the owned runs are known as far as the pages go.
    pub knows_owners: bool,
    /// The keys of damaged values and entries; `None` if there are more than [`DAMAGED_KEYS_MAX`].
    pub damaged_keys: Option<Vec<Vec<u8>>>,
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
        Self {
            device,
            pool,
            superblock,
            report,
            owners,
            verify: false,
            progress: None,
            entries,
            count,
            is_whole: true,
            is_counted: true,
            knows_owners: true,
            damaged_keys: Vec::new(),
            has_more_damaged: false,
        }
    }

    /// Adds the blocks that the walk over `trees` did not add to the owners, and returns the result of the walk.
    pub(crate) fn finish(mut self, trees: &Trees) -> TabletWalk {
        assert!(self.entries.is_empty(), "the entries of a leaf were left out");
        StoredKind::ALL.iter().for_each(|&kind| self.add_owners(kind, trees));
        let Self { count, is_whole, is_counted, knows_owners, .. } = self;
        let damaged_keys = (!self.has_more_damaged).then_some(self.damaged_keys);
        TabletWalk { count, is_whole, is_counted, knows_owners, damaged_keys }
    }

    /// Adds the blocks of the tablet that this kind of things owns, unless the walk has them already.
    fn add_owners(&mut self, kind: StoredKind, trees: &Trees) {
        match kind {
            // `page` and `leaf_done` of the walk.
            StoredKind::TreePages | StoredKind::Extents | StoredKind::Manifests => {}
            StoredKind::PackedRuns => {
                for run in self.count.runs().map(|(run, _)| run).chain(self.count.orphans()) {
                    self.owners.add(run);
                }
            }
            StoredKind::LayerLists => {
                for block in blocks_of_list(trees) {
                    self.report.pages += 1;
                    self.owners.add(Run::new(block, 1));
                }
            }
            // `Owners::of_areas` has the areas among the data.
            StoredKind::SpaceImage => {}
            // They have blocks before those for data.
            StoredKind::LogBatches | StoredKind::Superblocks => {}
        }
    }

    fn note_damaged(&mut self, key: &[u8]) {
        if self.damaged_keys.len() < DAMAGED_KEYS_MAX {
            self.damaged_keys.push(key.to_vec());
        } else {
            self.has_more_damaged = true;
        }
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
                self.is_counted = false;
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
            Err(_) => {
                self.is_counted = false;
                self.note_damaged(key);
                self.report.problems_of([entry_problem(key, page)]);
            }
        }
    }

    fn lost(&mut self, page: PageRef, low: &[u8], high: Option<&[u8]>) {
        self.is_whole = false;
        let high = high.map_or("the end".into(), name);
        let what = format!("the objects from {} up to {high} were lost with a damaged page", name(low));
        self.report.problem(what, page.block);
    }

    fn problem(&mut self, problem: Problem) {
        (self.is_whole, self.is_counted) = (false, false);
        self.report.problems_of([page_problem(&problem)]);
    }

    async fn leaf_done(&mut self) -> Result<()> {
        let entries = std::mem::take(&mut self.entries);
        for (_, version, entry) in &entries {
            let (runs, damage) = owned_runs(self.device, self.pool, entry, *version).await;
            if let Some(error) = damage {
                self.knows_owners = false;
                tracing::warn!("recovery: the manifest of version {version} is damaged: {error}");
            }
            runs.into_iter().for_each(|run| self.owners.add(run));
        }
        if self.verify {
            self.report.value_bytes += entries.iter().map(|(.., entry)| entry.value_bytes).sum::<u64>();
            let blocks = self.superblock.device_blocks;
            for (key, problem) in value_problems(self.device, self.pool, blocks, &entries).await {
                self.note_damaged(key);
                self.report.problems_of([problem]);
            }
        }
        if let Some(progress) = &self.progress {
            progress(self.report.objects, self.report.value_bytes);
        }
        Ok(())
    }
}

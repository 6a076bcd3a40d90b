//! A written tree, and its publish.

use std::sync::Arc;

use shoal_base::{Lsn, Run};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_space_manager::{Extents, FreedRuns};
use shoal_tree::layers::Trees;
use shoal_value::packed::Totals;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::checkpoint::publish::{Publication, TabletChange};
use crate::checkpoint::runs::take_common;
use crate::tablet::result_totals::ResultTotals;
use crate::tablet::tree_io::PageBlocks;
use crate::tablet::view::Tablet;

/// A tree that is written but not published yet.
pub struct NewTree<'a> {
    /// The base and the layers.
    pub trees: Trees,
    /// Records up to this one are in the trees.
    pub applied: Lsn,
    /// The totals of their entries.
    pub totals: Totals,
    /// The change of the results of writes with a request id.
    pub results: ResultTotals,
    /// The pages that the applies to the trees took and freed.
    pub pages: Vec<PageBlocks<'a>>,
    /// Runs that are free in the published image and taken in the new one.
    pub taken: Vec<Run>,
    /// Runs that are taken in the published image and free in the new one, and that no record of the log names.
    pub freed: Vec<Run>,
    /// The same of values, which records up to `applied` may name.
    pub freed_values: Vec<Run>,
    /// Runs that the apply took for values. If the apply fails, they are free again after the last write to them has finished.
    pub given: Vec<Arc<Extents>>,
    /// Runs of values that no published tree ever named, but that readers of the last view may still read: not in the image's delta.
    pub dropped: Vec<Run>,
}

impl NewTree<'_> {
    /// The trees of a tablet before a change.
    pub fn new(trees: Trees, applied: Lsn, totals: Totals) -> Self {
        let (results, pages, taken, freed, freed_values, given, dropped) = Default::default();
        Self { trees, applied, totals, results, pages, taken, freed, freed_values, given, dropped }
    }

    /// Blocks of values and packed runs that nothing names after its publish.
    pub(crate) fn dead_blocks(&self) -> u64 {
        let runs = self.freed.iter().chain(&self.freed_values).chain(&self.dropped);
        runs.map(|run| u64::from(run.blocks)).sum()
    }
}

impl Checkpointer {
    /// Publishes `new` as the tablet's trees. The caller holds the applier's token.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub async fn publish_tree(&self, tablet: &Tablet, new: NewTree<'_>) -> Result<()> {
        let NewTree {
            mut trees, applied, totals, results, pages, mut taken, mut freed, given, dropped, ..
        } = new;
        let mut freed_values = new.freed_values;
        let listed = self.store_layers(tablet, &mut trees, applied, &mut freed).await?;
        assert!(
            listed.as_ref().is_none_or(|listed| listed.runs().len() == 1),
            "the list of layers is in one run (INV-33)"
        );
        taken.extend(listed.as_ref().map(|listed| listed.runs()[0]));
        for pages in &pages {
            taken.extend_from_slice(&pages.taken);
            freed.extend_from_slice(&pages.freed);
        }
        self.space.drop_foreign(&mut freed);
        self.space.drop_foreign(&mut freed_values);
        // These blocks were taken and freed since the last publish: the liveness replaced pages of the first apply, or a value
        // did not move. No published tree named them.
        let mut between = take_common(&mut taken, &mut freed);
        between.extend(take_common(&mut taken, &mut freed_values));
        let change = TabletChange {
            id: tablet.id,
            root: trees.base,
            layers: trees.layers.stored,
            applied,
            totals,
            has_filters: self.wants_filters(&trees),
        };
        let all_freed = [&freed[..], &freed_values].concat();
        let changes = Publication { tablet: Some(change), taken, freed: all_freed, ..Publication::default() };
        if injected(Bug::FreedBeforePublish) {
            self.space.give_back(&std::mem::take(&mut freed));
            self.space.give_back(&std::mem::take(&mut freed_values));
        }
        let published = self.publish(changes).await;
        if let Err(error @ Error::NoRoom(_)) = published {
            // No copy of that superblock is on the device. The owners of the pages and homes that it named free them. The extents of
            // records stay taken: the records are still in the memtable.
            return Err(error);
        }
        // Kept also after an error: a superblock whose write failed may still be on the device, and a put in progress must not overwrite
        // the blocks that it names (R20).
        given.iter().chain(&listed).for_each(|extents| extents.keep());
        let replaced: Vec<Run> = pages.iter().flat_map(|pages| pages.freed.iter().copied()).collect();
        pages.into_iter().for_each(PageBlocks::keep);
        let number = published?;
        self.space.give_back(&between);
        freed_values.extend(dropped);
        let epoch = tablet.publish(trees, applied, totals, results);
        // Not before: while the device does not answer, an apply does not finish, and reads of cached pages are answered from the cache.
        replaced.iter().flat_map(|run| run.block..run.end()).for_each(|block| self.pool.let_go(block));
        // A record that names a value wrote it, or adopts it in the write batch that deletes the part: it is in these trees (INV-47).
        let freed = FreedRuns { unnamed: freed, named: freed_values, last: applied };
        self.space.free_later(usize::from(tablet.id.0), number, Arc::downgrade(&epoch), freed);
        Ok(())
    }
}

//! What `shoal check --acknowledge` does: what the trees lost is absent for good, and no mark says any more that nobody knows.
//!
//! Each tablet gets an apply of its own that changes nothing but damage: leaves marked "base lost" become ordinary ones with what
//! they hold, pages that cannot be read leave their parents. It is published as every apply is, so a crash leaves the tablet as it was
//! or as it is to be.

use shoal_pool::Pool;

use crate::checkpoint::compact::Moves;
use crate::common::damaged_range::DamagedRange;
use crate::common::error::{Error, Result};
use crate::space::manager::TREE_BLOCKS_PER_RECORD;
use crate::store::Inner;
use crate::tablet::damage::Unread;
use crate::tablet::layers::Trees;
use crate::tablet::tree::Tree;
use crate::tablet::tree_io::{PoolPages, tree_of};
use crate::tablet::trees_cursor::TreesCursor;
use crate::tablet::view::Tablet;

/// Every damaged range of a tree, of encoded keys, the store's own ones among them; neighbours each for itself.
///
/// # Errors
/// As the device, where it fails otherwise than with a read.
pub(crate) async fn damaged_ranges(pool: &Pool, tree: Tree, trees: &Trees) -> Result<Vec<DamagedRange>> {
    let mut cursor = TreesCursor::new(tree, &PoolPages::new(pool).giving_up(true), trees, None, None);
    cursor.approach(&[]);
    let mut ranges = Vec::new();
    while cursor.next().await?.is_some() {
        ranges.extend(cursor.take_gaps());
    }
    ranges.extend(cursor.take_gaps());
    Ok(ranges.into_iter().map(|gap| DamagedRange::new(tree.tablet, gap)).collect())
}

impl Inner {
    /// Gives up what the tablet's tree lost, durably; gives the ranges. Everything is applied.
    ///
    /// # Errors
    /// [`Error::Full`] where there is no room for the new pages; as an apply.
    pub(crate) async fn acknowledge(&self, tablet: &Tablet) -> Result<Vec<DamagedRange>> {
        let _turn = self.maintenance.applier.take().await;
        self.log.poison.check()?;
        let view = tablet.view();
        if view.frozen.is_some() {
            return Err(Error::Busy("an apply of the tablet failed before"));
        }
        let mut given_up = Vec::new();
        if !damaged_ranges(&self.pool, tree_of(self.identity, tablet.id), &view.trees).await?.is_empty() {
            given_up = self.merge_all(tablet, true).await?;
        }
        let view = tablet.view();
        let ranges = damaged_ranges(&self.pool, tree_of(self.identity, tablet.id), &view.trees).await?;
        if ranges.is_empty() {
            return Ok(given_up);
        }
        let blocks = ranges.len() as u64 * TREE_BLOCKS_PER_RECORD;
        let promise = self.space.promise_moves(blocks, true);
        let promise = promise.ok_or(Error::Full { needed: blocks, available: self.space.available() })?;
        let mut touches: Vec<bytes::Bytes> = ranges.iter().map(|range| range.from.clone().into()).collect();
        touches.dedup();
        let moves = Moves { touches, promise: Some(promise), ..Moves::default() };
        self.run_apply(tablet, &view, view.applied, moves, Unread::IsAbsent).await?;
        given_up.extend(ranges);
        Ok(given_up)
    }
}

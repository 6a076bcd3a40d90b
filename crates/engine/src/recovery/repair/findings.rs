//! The findings of a check that the repair after it uses again, so that it need not walk over the trees.
//!
//! They hold as long as the trees are the same and nothing became readable that was damaged: a block of a page that was
//! unreadable for a moment must not come out as free. So each damaged page is read once more before the findings are
//! believed ([`Findings::hold`]).

use shoal_base::TabletId;
use shoal_common::error::Result;
use shoal_image::superblock::Superblock;
use shoal_pool::Pool;
use shoal_tablets::tablet::tree_io::tree_of;
use shoal_tree::layers::Trees;
use shoal_tree::layers::walk::DamagedPlace;

use crate::recovery::owners::Owners;
use crate::recovery::read::Recovery;
use crate::recovery::recount::{Counted, count_trees};
use crate::recovery::repair::gaps::{KeyRanges, are_still_damaged, gaps_of};
use crate::recovery::repair::hidden::{Hidden, HiddenObjects};
use crate::recovery::repair::tree_salvage::MayBeLost;

/// The findings for one tablet.
pub(crate) struct TabletFindings {
    pub trees: Trees,
    pub counted: Counted,
    /// The pages with a problem, and those marked "base lost".
    pub damaged: Vec<DamagedPlace>,
    /// True if every manifest could be read.
    pub knows_owners: bool,
    /// The keys whose entry or value may be lost.
    pub may_be_lost: KeyRanges,
}

/// The findings for a store.
#[derive(Default)]
pub(crate) struct Findings {
    /// The blocks that the trees own.
    pub owners: Owners,
    /// The tablets, in order; none if nothing was found out.
    pub tablets: Vec<TabletFindings>,
    pub hidden: HiddenObjects,
}

impl Findings {
    /// Takes the keys that the trees may have lost.
    pub(crate) fn take_may_be_lost(&mut self) -> MayBeLost {
        MayBeLost::new(
            self.tablets.iter_mut().map(|tablet| std::mem::take(&mut tablet.may_be_lost)).collect(),
        )
    }

    /// Returns true if a walk now would find the same: there is a tablet for each of the store's, and no damaged page
    /// can be read now.
    pub(crate) async fn hold(&self, pool: &Pool, superblock: &Superblock) -> bool {
        if self.tablets.len() != superblock.tablets.len() {
            return false;
        }
        pool.forget_all_damage();
        for (id, (tablet, record)) in (0_u16..).zip(self.tablets.iter().zip(&superblock.tablets)) {
            assert_eq!(tablet.trees.base, record.root, "the check walked over other trees");
            let place = (TabletId(id), &tablet.trees);
            if !tablet.knows_owners
                || !are_still_damaged(pool, superblock.identity, place, &tablet.damaged).await
            {
                return false;
            }
        }
        true
    }

    /// Forgets everything but the hidden objects, and counts these again: pages that can be read now hide none. For findings
    /// that do not hold.
    ///
    /// # Errors
    /// As the device, except for failed reads.
    pub(crate) async fn renew(&mut self, recovery: &Recovery) -> Result<()> {
        let Recovery { pool, superblock, .. } = recovery;
        (self.owners, self.tablets) = (Owners::default(), Vec::new());
        for (id, record) in (0_u16..).map(TabletId).zip(&superblock.tablets) {
            if self.hidden.of(id).is_none() {
                continue;
            }
            let (tree, trees) = (tree_of(superblock.identity, id), recovery.trees(usize::from(id.0)));
            let gaps = gaps_of(pool, tree, &trees).await?;
            let hidden = if gaps.is_empty() {
                None
            } else {
                let (count, live, _) = count_trees(pool, tree, &trees).await?;
                Some(Hidden::of(&trees, &record.totals, live, &count, &gaps))
            };
            self.hidden.set(id, hidden);
        }
        Ok(())
    }
}

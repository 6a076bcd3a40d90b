//! Brings all tablets to one version (INV-36).
//!
//! All active memtables are frozen under their locks at one marker, and applied. The applier's turn is held from the freeze to the last
//! apply, so no tablet's trees get a later record meanwhile.

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_log::Item;

use crate::checkpoint::checkpointer::Checkpointer;
use crate::tablet::snapshots::Frozen;
use crate::tablet::view::{Tablet, View};

/// Attempts to find all memtables ready to be frozen, while other tasks apply.
const TRIES: u32 = 16;

impl Checkpointer {
    /// Applies everything up to one version and returns that version and the trees of all tablets. A store that takes no more writes
    /// returns its trees and memtables unchanged.
    ///
    /// # Errors
    /// As an apply; [`Error::Busy`].
    pub async fn freeze_at_one_version(&self) -> Result<(Lsn, Frozen)> {
        if self.log.poison.check().is_err() {
            return Ok(self.frozen_for_good());
        }
        for _ in 0..TRIES {
            // Records applied here do not extend the time for which the turn is held.
            self.apply_all().await?;
            for tablet in self.tablets.all() {
                self.make_room_for_a_layer(tablet).await?;
            }
            let _turn = self.applier.turn().await;
            self.log.poison.check()?;
            let is_ready = |view: Arc<View>| view.frozen.is_none() && view.trees.has_place_for_a_layer();
            if self.tablets.all().iter().all(|tablet| is_ready(tablet.view())) {
                return self.freeze_now().await;
            }
        }
        Err(Error::Busy("its applies do not come to an end"))
    }

    async fn freeze_now(&self) -> Result<(Lsn, Frozen)> {
        let queue = |marker| self.log.committer.submit(Item::Marker(marker));
        let tablets = self.tablets.all();
        let mut marker = None;
        if injected(Bug::SnapshotOfMoments) {
            for tablet in tablets {
                std::thread::sleep(std::time::Duration::from_millis(1));
                marker = Some(Tablet::freeze_all(std::slice::from_ref(tablet), queue));
            }
        }
        let marker = marker.unwrap_or_else(|| Tablet::freeze_all(tablets, queue));
        let moment = self.log.moment();
        self.log.committer.drive_all();
        let version = self.log.committer.wait_marker(&marker).await?;
        for tablet in tablets {
            self.apply_frozen(tablet, version, &moment).await?;
        }
        let views: Vec<_> = tablets.iter().map(|tablet| tablet.view()).collect();
        assert!(
            injected(Bug::SnapshotOfMoments)
                || views.iter().all(|view| view.frozen.is_none() && view.applied <= version),
            "the trees of a snapshot hold a record above version {version} (INV-36)"
        );
        let views = views.iter().map(|view| Arc::new(view.only_trees())).collect();
        Ok((version, Frozen { views, moment }))
    }

    /// The views of a store whose records stay as they are.
    fn frozen_for_good(&self) -> (Lsn, Frozen) {
        let views = self.tablets.all().iter().map(|tablet| tablet.view()).collect();
        (self.log.committer.durable(), Frozen { views, moment: self.log.moment() })
    }

    /// Drops snapshots that are too old, and all of them if they leave less than a tenth of the space free (INV-36).
    pub fn limit_snapshots(&self) {
        let snapshots = &self.tablets.snapshots;
        if snapshots.count() == 0 {
            return;
        }
        snapshots.expire(self.now_ns());
        let whole = self.layout().data_blocks(self.layout().blocks_max);
        let free = self.space.available()
            + self.space.holes().blocks()
            + whole.saturating_sub(self.space.data_blocks());
        let held = self.space.held_blocks(self.log.committer.named_superblock());
        let tenth = whole / 10;
        if free < tenth && held > 0 && (free + held >= tenth || held >= free) {
            snapshots.drop_all(
                "less than a tenth of the store's space was free because of the space that it held",
            );
        }
    }
}

//! Removes records from the memtables that found no room in the log.

use std::sync::Arc;

use shoal_base::sync::MutexGuard;
use shoal_log::{Committer, Record, Unwritten};
use shoal_memtable::{self as memtable, Size};
use shoal_space_manager::SpaceManager;

use crate::tablet::tablets::Tablets;
use crate::tablet::view::View;

/// The memtables, and the space that their records reserve.
pub struct Memtables {
    tablets: Arc<Tablets>,
    space: Arc<SpaceManager>,
}

impl Memtables {
    /// Lets `committer` withdraw records.
    pub fn attach_to(committer: &Committer, tablets: &Arc<Tablets>, space: &Arc<SpaceManager>) {
        committer.set_unwritten(Box::new(Self { tablets: tablets.clone(), space: space.clone() }));
    }
}

impl Unwritten for Memtables {
    fn withdraw(&self, take: &mut dyn FnMut() -> Vec<Arc<Record>>) {
        loop {
            let views: Vec<_> = self.tablets.all().iter().map(|tablet| tablet.view()).collect();
            // In the order of the tablets, as for a snapshot. No write can decide or be queued while these are held.
            let mut actives: Vec<_> = views.iter().map(|view| view.active.lock()).collect();
            if actives.iter().any(|active| active.is_frozen()) {
                continue;
            }
            let records = take();
            let mut gone = Size::default();
            for (view, active) in views.iter().zip(&mut actives) {
                let Size { records, bytes, reserved_blocks } = withdraw_from(view, active, &records);
                gone.records += records;
                gone.bytes += bytes;
                gone.reserved_blocks += reserved_blocks;
            }
            drop(actives);
            self.tablets.admission.release(gone.records, gone.bytes);
            self.space.release_reservation(gone.reserved_blocks);
            return;
        }
    }

    fn give_back(&self, record: &Record) {
        self.space.give_back(record.owned());
    }
}

/// Removes the records of the tablet of `view`.
fn withdraw_from(view: &View, active: &mut MutexGuard<'_, memtable::Inner>, records: &[Arc<Record>]) -> Size {
    let of_tablet = || records.iter().filter(|record| record.tablet() == view.tablet);
    if of_tablet().next().is_none() {
        return Size::default();
    }
    let mut gone = active.withdraw(of_tablet());
    if let Some(frozen) = &view.frozen {
        let Size { records, bytes, reserved_blocks } = frozen.lock().withdraw(of_tablet());
        gone.records += records;
        gone.bytes += bytes;
        gone.reserved_blocks += reserved_blocks;
    }
    gone
}

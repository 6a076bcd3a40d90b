//! The trees that snapshots hold. A snapshot holds the space of everything that it reaches, so the store takes it back after a time, or
//! when the space is needed (INV-36).

use std::sync::{Arc, Weak};

use shoal_base::Lsn;
use shoal_base::sync::Mutex;
use shoal_common::error::{Error, Result};
use shoal_log::Moment;

use crate::tablet::view::View;

/// Limit on the snapshots of a store at the same time.
pub(crate) const SNAPSHOTS_MAX: usize = 16;

/// All tablets at one version.
pub struct Frozen {
    /// In the order of tablets.
    pub views: Vec<Arc<View>>,
    /// The clocks at that version: objects that had expired by then do not exist.
    pub moment: Moment,
}

/// The holding of one snapshot.
pub struct Holding {
    version: Lsn,
    until_ns: u64,
    /// The trees, or the reason why they were dropped.
    held: Mutex<Result<Arc<Frozen>, &'static str>>,
}

impl Holding {
    /// Holds `frozen` until `until_ns` at most.
    pub fn new(version: Lsn, until_ns: u64, frozen: Frozen) -> Arc<Self> {
        Arc::new(Self { version, until_ns, held: Mutex::new(Ok(Arc::new(frozen))) })
    }

    /// The trees, for one read.
    ///
    /// # Errors
    /// [`Error::SnapshotDropped`].
    pub fn get(&self) -> Result<Arc<Frozen>> {
        self.held.lock().clone().map_err(|why| Error::SnapshotDropped { version: self.version, why })
    }

    fn let_go(&self, why: &'static str) {
        let mut held = self.held.lock();
        if held.is_ok() {
            let before = std::mem::replace(&mut *held, Err(why));
            drop(held);
            tracing::warn!("the snapshot of version {} was dropped: {why}", self.version);
            drop(before);
        }
    }
}

/// The snapshots of a store.
#[derive(Default)]
pub struct Snapshots(Mutex<Vec<Weak<Holding>>>);

impl Snapshots {
    /// Adds a snapshot.
    ///
    /// # Errors
    /// [`Error::Busy`] if there are already [`SNAPSHOTS_MAX`].
    pub fn add(&self, holding: &Arc<Holding>) -> Result<()> {
        let mut all = self.0.lock();
        all.retain(|holding| holding.strong_count() > 0);
        if all.len() >= SNAPSHOTS_MAX {
            return Err(Error::Busy("there are 16 snapshots already"));
        }
        all.push(Arc::downgrade(holding));
        assert!(all.len() <= SNAPSHOTS_MAX, "the number of snapshots is bounded (INV-36)");
        Ok(())
    }

    /// The snapshots that still hold their trees.
    fn all(&self) -> Vec<Arc<Holding>> {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|holding| holding.held.lock().is_ok()).collect()
    }

    /// The number of snapshots that still hold their trees.
    pub fn count(&self) -> usize {
        self.all().len()
    }

    /// Drops the snapshots that expired before `now_ns`.
    pub(crate) fn expire(&self, now_ns: u64) {
        for holding in self.all().into_iter().filter(|holding| holding.until_ns < now_ns) {
            holding.let_go("it was held for longer than snapshots may be (`shoal serve --snapshot-max-age`, `Tuning::snapshot_max_age_ns`)");
        }
    }

    /// Drops all of them.
    pub fn drop_all(&self, why: &'static str) {
        self.all().iter().for_each(|holding| holding.let_go(why));
    }
}

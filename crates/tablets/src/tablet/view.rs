//! A tablet is a set of hash slots with its own memtable and tree. Readers take an immutable view of both.

use std::sync::Arc;

use arc_swap::ArcSwap;
use shoal_base::sync::Mutex;
use shoal_base::{Lsn, TabletId};
use shoal_common::injected_bug::{Bug, injected};
use shoal_image::tablet_record::TabletRecord;
use shoal_log::Marker;
use shoal_memtable::Memtable;
use shoal_memtable::admission::MemtableAdmission;
use shoal_space_manager::ReadEpoch;
use shoal_tree::Root;
use shoal_tree::layers::{Layers, Trees};
use shoal_value::packed::Totals;

use crate::tablet::compactions::{LayerSearches, RunningCompactions};
use crate::tablet::result_totals::ResultTotals;

/// Limit on the keys for which a new memtable reserves its table: the table exists even if no record arrives.
const KEYS_GUESS_MAX: usize = 64 << 10;
/// Bits of the filter of a memtable that stays empty.
const MEMTABLE_WITHOUT_KEYS: usize = 64;

/// A reader's view, captured once (R6): active memtable, frozen memtable, root.
pub struct View {
    /// The tablet.
    pub tablet: TabletId,
    /// The memtable that takes writes.
    pub active: Arc<Memtable>,
    /// The memtable that an apply moves into the trees.
    pub frozen: Option<Arc<Memtable>>,
    /// The base and the layers.
    pub trees: Trees,
    /// Records up to this one are in the trees.
    pub applied: Lsn,
    /// The totals of all trees.
    pub totals: Totals,
    /// The change of the trees' results since the opening.
    pub results: ResultTotals,
    /// Shared by all views of these trees (R16).
    pub epoch: Arc<ReadEpoch>,
}

impl View {
    /// The view after its active memtable was frozen under `active`.
    fn frozen_under(&self, active: Arc<Memtable>) -> Self {
        Self { active, frozen: Some(self.active.clone()), ..self.over(None) }
    }

    /// The same with `frozen` as its frozen memtable.
    fn over(&self, frozen: Option<Arc<Memtable>>) -> Self {
        Self {
            tablet: self.tablet,
            active: self.active.clone(),
            frozen,
            trees: self.trees.clone(),
            applied: self.applied,
            totals: self.totals,
            results: self.results,
            epoch: self.epoch.clone(),
        }
    }

    /// Only the trees of this view: a snapshot holds them, not the memory of later records.
    pub fn only_trees(&self) -> Self {
        let epoch =
            if injected(Bug::SnapshotHoldsNothing) { Arc::new(ReadEpoch) } else { self.epoch.clone() };
        Self { active: Arc::new(Memtable::new(MEMTABLE_WITHOUT_KEYS, 0)), epoch, ..self.over(None) }
    }
}

/// The progress of a tablet's search for packed runs to rewrite.
#[derive(Debug, Default)]
pub struct TidyState {
    /// The first block of the next window.
    pub position: u64,
    /// True if a run was found since the position was 0.
    pub found: bool,
    /// The aim and the totals with which the search last found nothing worth rewriting.
    pub quiet: Option<(u64, Totals)>,
}

impl TidyState {
    /// Stops the search for this aim until the totals change.
    pub(crate) fn rest(&mut self, aim: u64, totals: Totals) {
        self.quiet = Some((aim, totals));
    }
}

/// A tablet.
pub struct Tablet {
    /// The number of the tablet.
    pub id: TabletId,
    /// The first slot of keys that it has.
    pub slot_first: u16,
    /// The last one.
    pub slot_last: u16,
    view: ArcSwap<View>,
    admission: Arc<MemtableAdmission>,
    /// The marker of the last freeze.
    marker: Mutex<Option<Arc<Marker>>>,
    /// The progress of the search for packed runs to rewrite.
    pub tidy: Mutex<TidyState>,
    /// The results that the trees had at the opening; `None` until they are counted.
    pub results_at_opening: Mutex<Option<ResultTotals>>,
    /// The layer that could not be read at the last compaction of layers, and the time of that compaction.
    pub unreadable: Mutex<Option<(Root, u64)>>,
    /// The compactions of its layers that are running.
    pub compactions: RunningCompactions,
    /// The searches by which reads pay for compactions of its layers.
    pub layer_searches: LayerSearches,
}

impl Tablet {
    pub(crate) fn new(
        id: TabletId,
        published: &TabletRecord,
        layers: Arc<Layers>,
        admission: Arc<MemtableAdmission>,
    ) -> Self {
        let active = Arc::new(Memtable::new(admission.filter_bits(), 0));
        let &TabletRecord { slot_first, slot_last, root, applied, totals, .. } = published;
        let trees = Trees { base: root, layers };
        let view = View {
            tablet: id,
            active,
            frozen: None,
            trees,
            applied,
            totals,
            results: ResultTotals::default(),
            epoch: Arc::new(ReadEpoch),
        };
        Self {
            id,
            slot_first,
            slot_last,
            view: ArcSwap::from_pointee(view),
            admission,
            marker: Mutex::default(),
            tidy: Mutex::default(),
            results_at_opening: Mutex::new(totals.is_for_ever().then(ResultTotals::default)),
            unreadable: Mutex::default(),
            compactions: RunningCompactions::default(),
            layer_searches: LayerSearches::default(),
        }
    }

    /// The current view.
    #[inline]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Freezes the active memtable and starts a new one. `queue` puts the marker into the queue of records. The marker reports when
    /// everything in the frozen memtable is durable, and the LSN that then counts as applied. Returns `None` if there is nothing to apply.
    /// Only the tablet's single apply calls this.
    pub(crate) fn freeze(&self, queue: impl FnOnce(Arc<Marker>)) -> Option<Arc<Marker>> {
        let view = self.view();
        let mut last = self.marker.lock();
        if view.frozen.is_some() {
            // An earlier apply failed: the frozen memtable keeps its marker. Records of the active memtable come after that marker, but
            // before any new one.
            return last.clone();
        }
        let mut active = view.active.lock();
        if active.is_empty() {
            return None;
        }
        active.freeze();
        // The marker is queued under the lock and before any writer can see the new memtable: every record of the frozen
        // memtable comes before the marker, every later record after it (R4).
        let marker = Marker::new();
        *last = Some(marker.clone());
        let after = view.frozen_under(self.new_memtable(active.key_count()));
        if injected(Bug::MarkerTooLate) {
            self.view.store(Arc::new(after));
            queue(marker.clone());
            return Some(marker);
        }
        queue(marker.clone());
        self.view.store(Arc::new(after));
        Some(marker)
    }

    /// Freezes the active memtables of all `tablets` at one moment: each record before the marker that `queue` puts into the queue of
    /// records is in the trees or in a frozen memtable, and no later one is. No tablet may have a frozen memtable; the caller has the
    /// applier's turn.
    pub(crate) fn freeze_all(tablets: &[Arc<Self>], queue: impl FnOnce(Arc<Marker>)) -> Arc<Marker> {
        let views: Vec<_> = tablets.iter().map(|tablet| tablet.view()).collect();
        assert!(
            views.iter().all(|view| view.frozen.is_none()),
            "a frozen memtable is applied first (R6, INV-36)"
        );
        // Memory is allocated before the locks are taken.
        let keys = views.iter().map(|view| view.active.lock().key_count());
        let fresh: Vec<_> =
            tablets.iter().zip(keys).map(|(tablet, keys)| tablet.new_memtable(keys)).collect();
        let mut markers: Vec<_> = tablets.iter().map(|tablet| tablet.marker.lock()).collect();
        let mut actives: Vec<_> = views.iter().map(|view| view.active.lock()).collect();
        let marker = Marker::new();
        queue(marker.clone());
        for (at, fresh) in fresh.into_iter().enumerate() {
            if actives[at].is_empty() {
                continue;
            }
            actives[at].freeze();
            *markers[at] = Some(marker.clone());
            tablets[at].view.store(Arc::new(views[at].frozen_under(fresh)));
        }
        marker
    }

    /// An empty memtable after one of `keys` keys. It will get a similar number: its table grows once at most.
    fn new_memtable(&self, keys: usize) -> Arc<Memtable> {
        Arc::new(Memtable::new(self.admission.filter_bits(), (keys / 2).min(KEYS_GUESS_MAX)))
    }

    /// The results in the trees of `view`, as far as they are counted.
    pub fn results_of(&self, view: &View) -> ResultTotals {
        let at_opening = self.results_at_opening.lock().unwrap_or_default();
        at_opening.and(view.results).at_least_none()
    }

    /// Publishes `trees`, which contain the frozen memtable if there was one: drops that memtable and returns the previous view's epoch.
    /// `results` is the change of the trees' results.
    pub(crate) fn publish(
        &self,
        trees: Trees,
        applied: Lsn,
        totals: Totals,
        results: ResultTotals,
    ) -> Arc<ReadEpoch> {
        let before = self.view();
        assert!(before.applied <= applied, "trees up to {applied} after those up to {} (R4)", before.applied);
        let first = before.active.first_lsn();
        assert!(
            first.is_none_or(|first| first > applied.0),
            "record {first:?} would count as applied: {applied} (R4)"
        );
        self.view.store(Arc::new(View {
            tablet: self.id,
            active: before.active.clone(),
            frozen: None,
            trees,
            applied,
            totals,
            results: before.results.and(results),
            epoch: Arc::new(ReadEpoch),
        }));
        before.epoch.clone()
    }

    /// The number of the first record that only the log holds; `None` if the tree holds all. A record without a number yet counts as later
    /// than everything.
    pub fn first_unapplied(&self) -> Option<u64> {
        let view = self.view();
        let frozen = view.frozen.as_ref().and_then(|memtable| memtable.first_lsn());
        frozen.or_else(|| view.active.first_lsn())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_log::Record;
    use shoal_log::format::{RecordKind, encode_record};
    use shoal_memtable::hash_of;

    fn tablet() -> Tablet {
        let published = TabletRecord {
            slot_first: 0,
            slot_last: 16_383,
            root: Root::EMPTY,
            applied: Lsn::NONE,
            totals: Totals::default(),
            layers: None,
        };
        Tablet::new(TabletId(0), &published, Arc::default(), MemtableAdmission::new(1 << 14, 64, 64))
    }

    fn put(tablet: &Tablet, key: &[u8], lsn: u64) {
        let view = tablet.view();
        let mut active = view.active.lock();
        let encoded = encode_record(RecordKind::Put, TabletId(0), key, &[], false);
        let record = Arc::new(Record::recovered(encoded, Lsn(lsn)));
        view.active.insert(&mut active, record, hash_of(key), Lsn(lsn));
    }

    /// A writer that saw the new memtable before the marker was queued would be numbered before it, count as applied, and be lost at the
    /// next start: about once in a thousand freezes under load.
    #[test]
    fn freeze_queues_marker_before_publishing_view() {
        let tablet = tablet();
        assert!(tablet.freeze(|_| unreachable!("nothing to freeze")).is_none());
        put(&tablet, b"a", 1);
        let before = tablet.view();
        let mut queued = 0;
        let marker = tablet.freeze(|_| {
            queued += 1;
            assert!(
                Arc::ptr_eq(&tablet.view().active, &before.active),
                "the new memtable is reachable already"
            );
        });
        assert!(marker.is_some() && queued == 1);
        assert!(!Arc::ptr_eq(&tablet.view().active, &before.active));
    }

    /// After a failed apply, records that arrived meanwhile are not in the frozen memtable, but a new marker would count them.
    #[test]
    fn records_after_a_failed_apply_do_not_count_as_frozen() {
        let tablet = tablet();
        put(&tablet, b"a", 1);
        let first = tablet.freeze(|_| {}).unwrap();
        put(&tablet, b"b", 2);
        let again = tablet.freeze(|_| unreachable!("the marker is in the queue")).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        tablet.publish(Trees::only(Root::EMPTY), Lsn(1), Totals::default(), ResultTotals::default());
        assert_eq!(tablet.first_unapplied(), Some(2));
    }

    #[test]
    #[should_panic(expected = "would count as applied")]
    fn no_record_is_published_that_is_not_applied() {
        let tablet = tablet();
        put(&tablet, b"a", 1);
        tablet.freeze(|_| {}).unwrap();
        put(&tablet, b"b", 2);
        tablet.publish(Trees::only(Root::EMPTY), Lsn(2), Totals::default(), ResultTotals::default());
    }
}

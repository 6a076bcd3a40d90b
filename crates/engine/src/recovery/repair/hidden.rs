//! The objects that damage hides, counted before a repair: what an acknowledgement loses.
//!
//! The trees count their keys, and a damaged page hides some of them. The difference is exact while the damaged pages
//! are still in the tree. A leaf marked "base lost" no longer counts the objects that it lost: its range counts as one
//! loss. Objects that the log's records wrote since may be among the hidden ones, so the number is an upper bound.

use shoal_base::TabletId;
use shoal_tree::Gap;
use shoal_tree::layers::Trees;
use shoal_value::packed::Totals;

use crate::recovery::recount::TreeCount;

/// The hidden objects of one tablet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hidden {
    /// Objects in pages that cannot be read, and older states behind them.
    pub objects: u64,
    /// Ranges whose objects nobody has counted.
    pub uncounted_ranges: u64,
}

impl Hidden {
    /// The hidden objects of a tablet with damage. `readable`: the keys that a walk found, which counted `count`.
    pub(crate) fn of(trees: &Trees, totals: &Totals, readable: u64, count: &TreeCount, gaps: &[Gap]) -> Self {
        let has_list = !trees.layers.is_unreadable();
        // A list that cannot be read hides every key of the base, and its layers have no count.
        let keys = if has_list { trees.live() } else { trees.base.entries.max(trees.live()) };
        let hidden_runs = totals.runs.saturating_sub(count.runs().count() as u64);
        assert!(!gaps.is_empty(), "keys are hidden by no damage");
        let uncounted = gaps.iter().filter(|gap| gap.is_marked()).count() as u64;
        Self {
            objects: keys.saturating_sub(readable).saturating_sub(hidden_runs),
            uncounted_ranges: uncounted + u64::from(!has_list),
        }
    }

    /// The number of objects that are lost at most when the hidden ones are given up.
    pub(crate) fn losses(&self) -> u64 {
        self.objects + self.uncounted_ranges
    }
}

/// The hidden objects of each tablet that has damage.
#[derive(Clone, Debug, Default)]
pub(crate) struct HiddenObjects(Vec<Option<Hidden>>);

impl HiddenObjects {
    /// Adds the next tablet; `None` for a tablet without damage.
    pub(crate) fn push(&mut self, hidden: Option<Hidden>) {
        self.0.push(hidden);
    }

    /// The hidden objects of a tablet; `None` if it had no damage.
    pub(crate) fn of(&self, tablet: TabletId) -> Option<Hidden> {
        self.0.get(usize::from(tablet.0)).copied().flatten()
    }

    /// Notes that a hidden object of the tablet was restored.
    pub(crate) fn was_restored(&mut self, tablet: TabletId) {
        if let Some(Some(hidden)) = self.0.get_mut(usize::from(tablet.0)) {
            hidden.objects = hidden.objects.saturating_sub(1);
        }
    }

    /// Notes that the tablet's damage was given up: nothing is hidden any more.
    pub(crate) fn was_given_up(&mut self, tablet: TabletId) {
        self.set(tablet, None);
    }

    /// Replaces the hidden objects of a tablet.
    pub(crate) fn set(&mut self, tablet: TabletId, hidden: Option<Hidden>) {
        if let Some(known) = self.0.get_mut(usize::from(tablet.0)) {
            *known = hidden;
        }
    }

    /// The number of objects that are lost at most when all tablets give up their hidden objects.
    pub(crate) fn losses(&self) -> u64 {
        self.0.iter().flatten().map(Hidden::losses).sum()
    }
}

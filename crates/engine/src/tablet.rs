//! A tablet: a set of hash slots with its own overlay and tree, and the immutable view that readers take of both.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use shoal_base::{Lsn, TabletId};

use crate::error::Result;
use crate::log::commit::{Committer, Item, Marker};
use crate::overlay::Overlay;
use crate::packed::{TidyState, Totals};
use crate::space::Era;
use crate::superblock::TabletRecord;
use crate::tree::Root;

/// What a reader sees, captured once (R6): active overlay, frozen overlay, root.
pub(crate) struct View {
    pub tablet: TabletId,
    pub active: Arc<Overlay>,
    pub frozen: Option<Arc<Overlay>>,
    pub root: Root,
    /// Records up to here are in the tree.
    pub applied: Lsn,
    /// What the tree holds in all.
    pub totals: Totals,
    /// Shared by all views of this root (R16).
    pub era: Arc<Era>,
}

/// A tablet.
pub(crate) struct Tablet {
    pub id: TabletId,
    pub slot_first: u16,
    pub slot_last: u16,
    view: ArcSwap<View>,
    filter_bits: usize,
    /// How far the search for runs to rewrite got.
    pub tidy: Mutex<TidyState>,
}

impl Tablet {
    pub(crate) fn new(id: TabletId, slots: (u16, u16), published: &TabletRecord, filter_bits: usize) -> Self {
        let active = Arc::new(Overlay::new(filter_bits));
        let &TabletRecord { root, applied, totals, .. } = published;
        let view = View { tablet: id, active, frozen: None, root, applied, totals, era: Arc::new(Era) };
        Self {
            id,
            slot_first: slots.0,
            slot_last: slots.1,
            view: ArcSwap::from_pointee(view),
            filter_bits,
            tidy: Mutex::default(),
        }
    }

    /// The view now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Starts a new active overlay; the old one is frozen. Gives the marker that says when everything in it is durable, or
    /// nothing where there is nothing to apply. Only the one apply of the tablet calls this.
    pub(crate) fn freeze(&self, committer: &Committer) -> Option<Arc<Marker>> {
        let view = self.view();
        if view.frozen.is_some() {
            // An apply that failed before: its marker was reached; a new one is reached at once.
            let marker = Marker::new();
            committer.push(Item::Marker(marker.clone()));
            return Some(marker);
        }
        let mut active = view.active.lock();
        if active.is_empty() {
            return None;
        }
        active.freeze();
        self.view.store(Arc::new(View {
            tablet: self.id,
            active: Arc::new(Overlay::new(self.filter_bits)),
            frozen: Some(view.active.clone()),
            root: view.root,
            applied: view.applied,
            totals: view.totals,
            era: view.era.clone(),
        }));
        // Under the lock: every record of the frozen overlay is before the marker, every later one after it (R4).
        let marker = Marker::new();
        committer.push(Item::Marker(marker.clone()));
        Some(marker)
    }

    /// The frozen overlay, if there was one, is in the tree that `root` begins: drops it, and gives the view's era before.
    pub(crate) fn publish(&self, root: Root, applied: Lsn, totals: Totals) -> Arc<Era> {
        let before = self.view();
        self.view.store(Arc::new(View {
            tablet: self.id,
            active: before.active.clone(),
            frozen: None,
            root,
            applied,
            totals,
            era: Arc::new(Era),
        }));
        before.era.clone()
    }

    /// The number of the first record that only the log holds; none where the tree holds all. Records that have no number
    /// yet count as later than everything.
    pub(crate) fn first_unapplied(&self) -> Option<u64> {
        let view = self.view();
        let frozen = view.frozen.as_ref().and_then(|overlay| overlay.first_lsn());
        frozen.or_else(|| view.active.first_lsn())
    }
}

/// The tablets of a store by hash slot.
pub(crate) struct TabletMap {
    tablets: Vec<Arc<Tablet>>,
    by_slot: Box<[u8]>,
}

impl TabletMap {
    pub(crate) fn new(tablets: Vec<Arc<Tablet>>) -> Result<Self> {
        let mut by_slot = vec![u8::MAX; usize::from(shoal_base::slot::SLOT_COUNT)].into_boxed_slice();
        for (index, tablet) in tablets.iter().enumerate() {
            for slot in tablet.slot_first..=tablet.slot_last {
                if let Some(place) = by_slot.get_mut(usize::from(slot)) {
                    *place = index as u8;
                }
            }
        }
        if by_slot.contains(&u8::MAX) {
            return Err(crate::Error::Unopenable(
                "the superblock's tablets do not cover all hash slots".into(),
            ));
        }
        Ok(Self { tablets, by_slot })
    }

    /// The tablet of a slot.
    pub(crate) fn of_slot(&self, slot: u16) -> &Arc<Tablet> {
        &self.tablets[usize::from(self.by_slot[usize::from(slot) % self.by_slot.len()])]
    }

    /// All of them, in order of their ids.
    pub(crate) fn all(&self) -> &[Arc<Tablet>] {
        &self.tablets
    }
}

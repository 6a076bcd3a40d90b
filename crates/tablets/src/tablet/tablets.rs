//! The tablets of an open store, and the state of their keys that requests share.

use std::sync::Arc;

use shoal_base::TabletId;
use shoal_base::slot::SLOT_COUNT;
use shoal_common::error::{Error, Result};
use shoal_common::key::ObjectKey;
use shoal_image::tablet_record::TabletRecord;
use shoal_memtable::admission::MemtableAdmission;
use shoal_memtable::hash_of;
use shoal_memtable::turns::Turns;
use shoal_memtable::watched_keys::Watches;
use shoal_memtable::write_counts::WriteCounts;
use shoal_tree::layers::Layers;

use crate::tablet::damage::Met;
use crate::tablet::held::HeldStreams;
use crate::tablet::snapshots::Snapshots;
use crate::tablet::view::{Tablet, View};

/// The tablets of an open store by hash slot.
pub struct Tablets {
    all: Vec<Arc<Tablet>>,
    by_slot: Box<[u8]>,
    /// Bounds the memtables of all tablets.
    pub admission: Arc<MemtableAdmission>,
    /// The damaged ranges met since the store was opened.
    pub met: Met,
    /// Readers of long values. Each holds the space of its value for a bounded time (R16).
    pub held_streams: HeldStreams,
    /// The snapshots. They hold the space of everything that they reach, within bounds (INV-36).
    pub snapshots: Snapshots,
    /// The number of writes by key, for read caches.
    pub write_counts: WriteCounts,
    /// The watched keys.
    pub watches: Watches,
    /// The lines in which transactions queue for keys.
    pub turns: Turns,
}

impl Tablets {
    /// The tablets as published, with empty memtables.
    ///
    /// # Errors
    /// [`Error::Unopenable`] if they do not cover all hash slots.
    pub fn new(
        records: &[TabletRecord],
        layers: Vec<Arc<Layers>>,
        admission: Arc<MemtableAdmission>,
    ) -> Result<Self> {
        let tablet = |(id, (record, layers)): (u16, (&TabletRecord, Arc<Layers>))| {
            Arc::new(Tablet::new(TabletId(id), record, layers, admission.clone()))
        };
        let all: Vec<_> = (0..).zip(records.iter().zip(layers)).map(tablet).collect();
        assert!(all.len() <= usize::from(u8::MAX), "a slot has a byte for its tablet (R14)");
        let mut by_slot = vec![u8::MAX; usize::from(SLOT_COUNT)].into_boxed_slice();
        for (index, tablet) in all.iter().enumerate() {
            let slots = usize::from(tablet.slot_first)..=usize::from(tablet.slot_last);
            if let Some(places) = by_slot.get_mut(slots) {
                places.fill(index as u8);
            }
        }
        if by_slot.contains(&u8::MAX) {
            return Err(Error::Unopenable("the superblock's tablets do not cover all hash slots".into()));
        }
        Ok(Self {
            all,
            by_slot,
            admission,
            met: Met::default(),
            held_streams: HeldStreams::default(),
            snapshots: Snapshots::default(),
            write_counts: WriteCounts::default(),
            watches: Watches::default(),
            turns: Turns::default(),
        })
    }

    /// The tablet of a key.
    #[inline]
    pub fn of(&self, key: &ObjectKey) -> &Arc<Tablet> {
        self.of_slot(key.slot())
    }

    /// The tablet of a hash slot.
    #[inline]
    pub fn of_slot(&self, slot: u16) -> &Arc<Tablet> {
        &self.all[usize::from(self.by_slot[usize::from(slot) % self.by_slot.len()])]
    }

    /// Notes that reads search the trees of a view for `keys` keys: they pay for compactions of its tablet's layers.
    #[inline]
    pub fn note_searches(&self, view: &View, keys: usize) {
        let layers = view.trees.layers.list.len();
        self.all[usize::from(view.tablet.0)].layer_searches.note(layers * keys);
    }

    /// All tablets, in the order of their ids.
    #[inline]
    pub fn all(&self) -> &[Arc<Tablet>] {
        &self.all
    }

    /// The number of the first record that is not applied.
    pub fn first_unapplied(&self) -> Option<u64> {
        self.all.iter().filter_map(|tablet| tablet.first_unapplied()).min()
    }

    /// Waits while the first transaction of its line keeps the key closed. The caller must hold nothing yet.
    pub async fn pass(&self, key: &ObjectKey) {
        if self.turns.is_any_closed() {
            self.turns.pass(hash_of(key.encoded())).await;
        }
    }

    /// Returns true if the first transaction of its line keeps the key closed.
    #[inline]
    pub fn is_closed(&self, key: &ObjectKey) -> bool {
        self.turns.is_any_closed() && self.turns.is_closed(hash_of(key.encoded()))
    }
}

//! The changes between an earlier version and a snapshot: the content of an increment of a backup (INV-39).
//!
//! The walk goes through the tablets one after the other, and through the keys of each in order. It reads all layers and memtables, and
//! the pages of the base that are newer than the earlier version. The reader kept the block and checksum of each page of level 1 of that
//! version: pages are written once, so the same page holds the same entries, and so do all pages under it. The walk skips such a page, and
//! names it.
//!
//! A key that was alive in such a page then is alive now unless the walk returns it, as an object or as gone: the newest tree with an
//! entry decides, and the walk returns every entry of the layers. A key that was in a layer or in a memtable then is alive only if the
//! walk returns it: a merge may have removed its entry together with the tombstone that deleted it, before either reached the base.
//! `docs/adr/2026-11-25-increments-by-known-pages.md` has the reasons.

use std::collections::HashSet;
use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_base::task::Boxed;
use shoal_base::{Lsn, TabletId};
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::key::RESERVED;
use shoal_common::key::{ObjectKey, is_result, of_encoded};
use shoal_log::format::RecordKind;
use shoal_tablets::tablet::damage;
use shoal_tablets::tablet::tree_io::{PoolPages, tree_of};
use shoal_tablets::tablet::view::View;
use shoal_tree::layers::cursor::TreesCursor;
use shoal_tree::{KnownPages, PageRef};

use crate::read::get::{FoundEntry, entry_of_leaf, entry_of_record};
use crate::read::snapshot::{SNAPSHOT_PAGE_MAX, Snapshot};
use crate::read::streams::{CHUNK_RECORDS, DAMAGED_RANGES_MAX, Pace, RecordQueue, gap_of_entry};
use crate::store::Inner;

/// A page of the base of a tablet: of level 1, or its only leaf. The same block and checksum at two versions are the same page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePage {
    /// Its block.
    pub block: u64,
    /// Its checksum.
    pub crc: u32,
}

/// An earlier version of a store, as the reader of its changes knows it.
#[derive(Clone, Debug)]
pub struct Since {
    version: Lsn,
    pages: Arc<HashSet<PageRef>>,
    /// The reader has the keys up to this one only.
    up_to: Option<(TabletId, Vec<u8>)>,
}

impl Since {
    /// The version of a snapshot, and pages that its walk named. A page that is left out only costs reads.
    #[must_use]
    pub fn new(version: Lsn, pages: impl IntoIterator<Item = TreePage>) -> Self {
        let pages = pages.into_iter().map(|TreePage { block, crc }| PageRef { block, crc });
        Self { version, pages: Arc::new(pages.collect()), up_to: None }
    }

    /// The same for a reader with the keys up to this encoded one only, because its walk was interrupted: all objects after it are
    /// new.
    #[must_use]
    pub fn up_to(self, tablet: TabletId, key: Vec<u8>) -> Self {
        Self { up_to: Some((tablet, key)), ..self }
    }

    /// Returns true if an object is new to the reader.
    fn is_new(&self, tablet: TabletId, key: &[u8], version: Lsn) -> bool {
        let is_behind = |(of, last): &(TabletId, Vec<u8>)| (tablet.0, key) > (of.0, &last[..]);
        version > self.version || self.up_to.as_ref().is_some_and(is_behind)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> Lsn {
        self.version
    }
}

/// The place of a key, or the fate of a page, as the walk returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// The object exists, and its entry is in a layer or a memtable.
    Above,
    /// The object exists, and its entry is under this page.
    Page(TreePage),
    /// The object does not exist: its tombstone is in a layer or a memtable.
    Gone,
    /// Not a key: this page was known, and all pages and entries under it are unchanged.
    Kept(TreePage),
}

/// A key with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedKey {
    /// The place.
    pub place: KeyPlace,
    /// The encoded key (bucket, a zero byte, key); empty for a page that was kept.
    pub key: Vec<u8>,
}

/// An object, as its entry describes it: only the entry was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedObject {
    /// Bucket and key.
    pub key: ObjectKey,
    /// Its version.
    pub version: Lsn,
    /// Bytes of its value.
    pub bytes: u64,
}

/// A page of changes, all of one tablet.
#[derive(Clone, Debug)]
pub struct ChangesPage {
    /// The tablet.
    pub tablet: TabletId,
    /// Objects whose version is newer than the earlier one.
    pub objects: Vec<ChangedObject>,
    /// Keys in order, also those of `objects`, and between them the pages that were kept: a page comes before each key that is not below
    /// all keys of the page.
    pub keys: Vec<PlacedKey>,
    /// The place to continue from; `None`: there are no more.
    pub next: Option<ChangesPlace>,
    /// Ranges of encoded keys that the walk skipped, because they are damaged. The page has no information about
    /// a key within them.
    pub damaged: Vec<DamagedRange>,
}

/// A place in the order of the walk. The default is before the first key.
#[derive(Clone, Debug, Default)]
pub struct ChangesPlace {
    tablet: usize,
    key: Vec<u8>,
    /// The walk has the results of writes with a request id, too.
    results: bool,
}

impl ChangesPlace {
    /// Before the first key, for a walk that has the results of writes with a request id, too: a copy of the store repeats no write.
    #[must_use]
    pub fn with_results() -> Self {
        Self { results: true, ..Self::default() }
    }
}

impl Snapshot {
    /// Some changes since an earlier version from `place` on; without `since` all objects, which are new then. `limit` keys are read at
    /// most (1 to [`SNAPSHOT_PAGE_MAX`]). A page may be empty and yet not be the last one.
    ///
    /// # Errors
    /// [`Error::SnapshotDropped`]; [`Error::Busy`] if the device reads nothing at all; errors of the device.
    pub fn changes<'a>(
        &'a self,
        since: Option<&'a Since>,
        place: &'a ChangesPlace,
        limit: usize,
    ) -> Boxed<'a, Result<ChangesPage>> {
        Box::pin(self.read_changes(since, place, limit))
    }

    async fn read_changes(
        &self,
        since: Option<&Since>,
        place: &ChangesPlace,
        limit: usize,
    ) -> Result<ChangesPage> {
        let frozen = self.held()?;
        let inner = &*self.store().0;
        let view = frozen.views.get(place.tablet).ok_or(Error::Closed)?;
        let limit = limit.clamp(1, SNAPSHOT_PAGE_MAX);
        let mut walk = Walk::begin(inner, view, since, &place.key, limit);
        let (objects, keys, damaged) = Default::default();
        let mut page = ChangesPage { tablet: view.tablet, objects, keys, next: None, damaged };
        let (mut last, mut pace) = (None, Pace::new(inner));
        for _ in 0..limit {
            pace.examine().await;
            let next = walk.next().await?;
            page.keys.extend(walk.passed());
            let Some(Placed { key, found, page: under }) = next else {
                last = None;
                break;
            };
            last = Some([&key[..], &[0]].concat());
            let is_wanted = |name: &ObjectKey| !name.is_system() || place.results && is_result(&key);
            let Some(name) = of_encoded(&key).filter(is_wanted) else { continue };
            let found = found.filter(|found| !frozen.moment.is_over(found.entry.end, found.version));
            let placed = match (&found, under) {
                (Some(_), Some(PageRef { block, crc })) => KeyPlace::Page(TreePage { block, crc }),
                (Some(_), None) => KeyPlace::Above,
                (None, _) if since.is_some() && !injected(Bug::GoneNotTold) => KeyPlace::Gone,
                (None, _) => continue,
            };
            let is_new =
                |found: &FoundEntry| since.is_none_or(|since| since.is_new(view.tablet, &key, found.version));
            let found = found.filter(is_new);
            page.keys.push(PlacedKey { place: placed, key });
            if let Some(found) = found {
                let (version, bytes) = (found.version, found.entry.value_bytes);
                page.objects.push(ChangedObject { key: name, version, bytes });
            }
            if walk.damaged.len() >= DAMAGED_RANGES_MAX {
                break;
            }
        }
        if !walk.damaged.is_empty() && !inner.device_answers().await {
            return Err(Error::Busy("its device does not read anything, not even superblocks"));
        }
        let damaged = std::mem::take(&mut walk.damaged).into_iter();
        page.damaged = damaged.filter(|range| range.overlaps(&place.key, last.as_deref())).collect();
        page.damaged.sort();
        page.damaged.iter().for_each(|range| inner.tablets.met.note(range));
        page.next = match last {
            Some(key) => Some(ChangesPlace { key, ..*place }),
            None if place.tablet + 1 < frozen.views.len() => {
                Some(ChangesPlace { tablet: place.tablet + 1, key: Vec::new(), ..*place })
            }
            None => None,
        };
        Ok(page)
    }
}

/// The state of a key of a tablet, and the page above its entry if the base has it.
struct Placed {
    key: Vec<u8>,
    /// None: it does not exist.
    found: Option<FoundEntry>,
    page: Option<PageRef>,
}

/// The keys of one tablet of a snapshot, in order.
struct Walk<'a> {
    view: &'a View,
    queues: Vec<RecordQueue<'a>>,
    cursor: TreesCursor<PoolPages<'a>>,
    /// The trees' next key; `None`: not read yet.
    head: Option<Option<Placed>>,
    damaged: Vec<DamagedRange>,
}

impl<'a> Walk<'a> {
    fn begin(inner: &'a Inner, view: &'a View, since: Option<&Since>, start: &[u8], limit: usize) -> Self {
        let chunk = limit.min(CHUNK_RECORDS);
        let memtables = [Some(view.active.clone()), view.frozen.clone()];
        let new = |memtable| RecordQueue::new(memtable, &inner.log.committer, chunk);
        let mut queues: Vec<_> = memtables.into_iter().flatten().map(new).collect();
        queues.iter_mut().for_each(|queue| queue.seek(start));
        // An unreadable block counts as damaged here: the walk has the rest.
        let source = PoolPages::new(&inner.pool).giving_up(true).of_pass();
        let tree = tree_of(inner.identity, view.tablet);
        let mut cursor = TreesCursor::new(tree, &source, &view.trees, Some(&[RESERVED]), Some(limit));
        if let Some(since) = since {
            let pages = Arc::clone(&since.pages);
            cursor = cursor.passing(&KnownPages { pages, written_by: since.version });
        }
        cursor.approach(start);
        Self { view, queues, cursor, head: None, damaged: Vec::new() }
    }

    /// The known pages that the walk has passed since this was asked last.
    fn passed(&mut self) -> Vec<PlacedKey> {
        let kept = |PageRef { block, crc }| KeyPlace::Kept(TreePage { block, crc });
        let kept = |page| PlacedKey { place: kept(page), key: Vec::new() };
        self.cursor.take_passed().into_iter().map(kept).collect()
    }

    /// The next key of the trees.
    async fn read_head(&mut self) -> Result<Option<Placed>> {
        loop {
            let next = self.cursor.next_placed().await;
            for gap in self.cursor.take_gaps() {
                let range = gap.in_tablet(self.view.tablet);
                damage::add(&mut self.damaged, range, DAMAGED_RANGES_MAX);
            }
            let Some(placed) = next? else { return Ok(None) };
            let Some(found) = placed.found else {
                return Ok(Some(Placed { key: placed.key, found: None, page: None }));
            };
            match entry_of_leaf(found) {
                Ok(found) => {
                    return Ok(Some(Placed { key: placed.key, found: Some(found), page: placed.page }));
                }
                Err(error) => {
                    let range = gap_of_entry(&placed.key, &error).in_tablet(self.view.tablet);
                    damage::add(&mut self.damaged, range, DAMAGED_RANGES_MAX);
                }
            }
        }
    }

    /// The next key of memtables and trees.
    async fn next(&mut self) -> Result<Option<Placed>> {
        if self.head.is_none() {
            self.head = Some(self.read_head().await?);
        }
        for queue in &mut self.queues {
            queue.fill().await;
        }
        let records = self.queues.iter().filter_map(|queue| queue.front());
        // The first queue with this key is the newer memtable: `min_by` returns the first of equal items.
        let record = records.min_by(|a, b| a.key().cmp(b.key())).cloned();
        let of_trees = self.head.as_ref().and_then(|head| head.as_ref()).map(|head| &head.key[..]);
        let Some(record) = record.filter(|record| of_trees.is_none_or(|key| record.key() <= key)) else {
            return Ok(self.head.take().flatten());
        };
        if of_trees == Some(record.key()) {
            self.head = None;
        }
        for queue in &mut self.queues {
            queue.pop_if(record.key());
        }
        let found = if record.kind() == RecordKind::Put { Some(entry_of_record(&record)?) } else { None };
        Ok(Some(Placed { key: record.key().to_vec(), found, page: None }))
    }
}

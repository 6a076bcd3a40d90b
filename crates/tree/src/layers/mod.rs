//! The trees of a tablet: the base, and above it layers, each with newer entries than all below it. Bytes: `docs/format/layers.md`.
//!
//! An apply whose records are too sparse over the leaves of the base writes them as a new layer: a small tree with full pages (a *sorted
//! run* in the words of log-structured stores). Later the layers are compacted into the base, slice by slice
//! (`crates/tablets/src/compaction/mod.rs`). For each key the newest tree that has an entry decides (INV-26); an entry without a body is a
//! tombstone: the key does not exist, regardless of older trees. An apply frees the value that an entry shadows in the same publish
//! (INV-27), so blocks in use are those of deciding entries, and a compaction frees pages only. A value in a leaf frees nothing: its entry may
//! be shadowed unread ([`settled`]).
//!
//! While layers are compacted, their entries below the frontier are ignored: the base has them (INV-28).

pub mod cursor;
pub mod page;
pub mod settled;
pub mod walk;

use std::sync::Arc;

use shoal_base::Lsn;
use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};
use shoal_common::leaf_entry::{ESTIMATE_BYTES, LeafEntry};

use crate::layers::settled::{Settled, estimate_of};
use crate::{Found, Gap, NextPage, PageSource, Probe, Root, Step, Tree};

/// Limit on the layers of a tablet (INV-33).
pub const LAYERS_MAX: usize = 40;

/// Bytes of a tombstone in a layer: the version of the delete, and no body.
const TOMBSTONE_BYTES: usize = size_of::<u64>();

/// Returns true if an entry of a layer is a tombstone: its key does not exist.
#[inline]
pub fn is_tombstone(entry: &[u8]) -> bool {
    // A compaction may leave the estimate of an older entry in it.
    entry.len() == TOMBSTONE_BYTES
        || entry.len() == TOMBSTONE_BYTES + ESTIMATE_BYTES && estimate_of(entry).is_some()
}

/// The tombstone of a layer for a key that the delete with this version removed.
#[inline]
pub fn tombstone(version: Lsn) -> [u8; TOMBSTONE_BYTES] {
    version.0.to_le_bytes()
}

/// The version at the start of a tree's entry.
#[inline]
pub fn version_of(entry: &[u8]) -> u64 {
    LeafEntry::split(entry).map_or(0, |entry| entry.version)
}

/// The reference to the page that lists a tablet's layers, as the superblock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayersRef {
    /// The block of the first copy.
    pub block: u64,
    /// The checksum of the page.
    pub crc: u32,
    /// Copies of the page, in consecutive blocks.
    pub copies: u16,
}

/// The layers of a tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// Their trees, newest first.
    pub list: Vec<Root>,
    /// Number of the oldest layers that are being compacted into the base.
    pub compacting: usize,
    /// Below this key the base holds the entries of the layers that are being compacted.
    pub frontier: Vec<u8>,
    /// Keys that exist in all trees together, by the estimates of unsettled entries; only used if there are layers.
    pub live: u64,
    /// Unsettled entries of the layers that count (INV-27).
    pub unsettled: u64,
    /// The page that stores the list.
    pub stored: Option<LayersRef>,
}

impl Layers {
    /// Returns true if tree number `index` is a layer that is ignored for `key`, because it is already compacted up to there.
    #[inline]
    fn is_compacted_at(&self, index: usize, key: &[u8]) -> bool {
        index < self.list.len() && index + self.compacting >= self.list.len() && *key < *self.frontier
    }

    /// The first key for which layer `index` is not ignored.
    #[inline]
    pub fn valid_from(&self, index: usize) -> &[u8] {
        if index + self.compacting >= self.list.len() { &self.frontier } else { &[] }
    }

    /// The layers that are being compacted, newest first.
    #[inline]
    pub fn being_compacted(&self) -> &[Root] {
        &self.list[self.list.len() - self.compacting..]
    }

    /// Returns true if the list could not be read: one root without entries replaces all of its layers.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.list.iter().any(|root| root.entries == 0)
    }

    /// Counts `added` more unsettled entries, and others that were settled.
    #[inline]
    pub fn settle(&mut self, added: u64, settled: Settled) {
        if !self.list.is_empty() {
            self.unsettled = (self.unsettled + added).saturating_sub(settled.entries);
            self.live += settled.absent;
        }
    }

    /// Entries in all layers, tombstones included.
    #[inline]
    pub fn entries(&self) -> u64 {
        self.list.iter().map(|root| root.entries).sum()
    }
}

/// All trees of a tablet under one view.
#[derive(Clone, Debug)]
pub struct Trees {
    /// The oldest tree.
    pub base: Root,
    /// The trees above the base.
    pub layers: Arc<Layers>,
}

/// The state of the search for a key: the tree (the base has the number of the layers) and the next page.
#[derive(Clone, Copy, Debug)]
pub struct SearchState {
    tree: usize,
    /// The page that the search needs.
    pub next: NextPage,
}

/// The answer of memory for a key.
pub enum Searched<T> {
    /// This entry decides.
    Found(T),
    /// The key does not exist.
    Absent,
    /// A page is needed that is not in memory.
    MustWait(SearchState),
}

impl Trees {
    /// A tablet without layers.
    #[inline]
    pub fn only(base: Root) -> Self {
        Self { base, layers: Arc::default() }
    }

    /// The same with a new newest layer, by which `added` keys exist now and `removed` do not any more.
    #[inline]
    pub fn with_layer(self, root: Root, added: u64, removed: u64) -> Self {
        let live = (self.live() + added).saturating_sub(removed);
        let Self { base, mut layers } = self;
        let new = Arc::make_mut(&mut layers);
        if root.page.is_some() {
            assert!(
                new.list.len() < LAYERS_MAX || injected(Bug::LayersUnbounded),
                "the number of layers is bounded (INV-33)"
            );
            let at = if injected(Bug::LayerBelowNewest) { new.list.len().min(1) } else { 0 };
            new.list.insert(at, root);
        }
        new.live = if new.list.is_empty() { 0 } else { live };
        Self { base, layers }
    }

    /// The same with `added` more unsettled entries, and with others that were settled.
    #[inline]
    pub fn settle(self, added: u64, settled: Settled) -> Self {
        let Self { base, mut layers } = self;
        Arc::make_mut(&mut layers).settle(added, settled);
        Self { base, layers }
    }

    /// The same with another base. The number of existing keys changes by the difference in the base's entries: no layer holds those keys.
    #[inline]
    pub fn with_base(&self, base: Root) -> Self {
        let mut layers = self.layers.clone();
        if !layers.list.is_empty() {
            let live = (layers.live + base.entries).saturating_sub(self.base.entries);
            Arc::make_mut(&mut layers).live = live;
        }
        Self { base, layers }
    }

    /// The same with the counted numbers of existing keys and of unsettled entries.
    #[inline]
    pub fn with_counted(&self, live: u64, unsettled: u64) -> Self {
        let Self { base, mut layers } = self.clone();
        if !layers.list.is_empty() {
            let layers = Arc::make_mut(&mut layers);
            (layers.live, layers.unsettled) = (live, unsettled);
        }
        Self { base, layers }
    }

    /// Returns true if an apply may write another layer. One place stays free for the tombstones of an acknowledgement.
    #[inline]
    pub fn has_place_for_a_layer(&self) -> bool {
        self.layers.list.len() + 1 < LAYERS_MAX || injected(Bug::LayersUnbounded)
    }

    /// Returns true if no tree has a page.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.base.page.is_none() && self.layers.list.is_empty()
    }

    /// Keys that exist, the store's own ones included.
    #[inline]
    pub fn live(&self) -> u64 {
        if self.layers.list.is_empty() { self.base.entries } else { self.layers.live }
    }

    /// The trees to search for `key`, newest first, with their numbers.
    #[inline]
    pub fn at<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = (usize, Root)> + 'a {
        self.numbered().filter(move |&(number, _)| !self.layers.is_compacted_at(number, key))
    }

    /// All trees, newest first, with their numbers.
    #[inline]
    fn numbered(&self) -> impl Iterator<Item = (usize, Root)> + '_ {
        self.layers.list.iter().copied().chain(std::iter::once(self.base)).enumerate()
    }

    /// The probe for `key` in the tree of this number: a layer probably does not hold it, the base does.
    #[inline]
    pub fn probe<'k>(&self, tree: Tree, key: &'k [u8], number: usize) -> Probe<'k> {
        if number < self.layers.list.len() {
            Probe::unexpected(tree, key)
        } else {
            Probe::expected(tree, key)
        }
    }

    /// The entry that decides for `key`, if the search needs only pages in memory.
    ///
    /// # Errors
    /// As [`Tree::try_lookup`].
    pub fn try_find<S: PageSource>(
        &self,
        tree: Tree,
        source: &S,
        key: &[u8],
    ) -> Result<Searched<Found<S::Page>>> {
        for (number, root) in self.at(key) {
            match tree.try_lookup(source, root, &self.probe(tree, key, number))? {
                Step::Found(found) => {
                    return Ok(self.decide(number, found).map_or(Searched::Absent, Searched::Found));
                }
                Step::Absent => {}
                Step::Below(next) => return Ok(Searched::MustWait(SearchState { tree: number, next })),
            }
        }
        Ok(Searched::Absent)
    }

    /// The entry that decides for `key`; continues the search at `place`, if any.
    ///
    /// # Errors
    /// As [`Tree::lookup`]: if a newer tree cannot be read at the key, no older one is searched (INV-34).
    pub async fn find<S: PageSource>(
        &self,
        tree: Tree,
        source: &S,
        place: Option<SearchState>,
        key: &[u8],
    ) -> Result<Option<Found<S::Page>>> {
        assert!(
            place.is_none_or(|place| place.tree <= self.layers.list.len()),
            "a search continues in the trees in which it started (R6)"
        );
        for (number, root) in self.at(key) {
            let probe = self.probe(tree, key, number);
            let found = match place {
                Some(place) if number < place.tree => continue,
                Some(place) if number == place.tree => tree.lookup_below(source, place.next, &probe).await,
                _ => tree.lookup(source, root, &probe).await,
            };
            match found {
                Ok(Some(found)) => return Ok(self.decide(number, found)),
                Ok(None) => {}
                Err(Error::Corrupt { .. })
                    if number < self.layers.list.len() && injected(Bug::DamagedLayerSkipped) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Returns true if one of these trees has an entry or a tombstone for `key`, or may have one because it is damaged there.
    ///
    /// # Errors
    /// As the device.
    pub async fn holds<S: PageSource>(&self, tree: Tree, source: &S, key: &[u8]) -> Result<bool> {
        for (number, root) in self.at(key) {
            match tree.lookup(source, root, &self.probe(tree, key, number)).await {
                Ok(None) => {}
                Ok(Some(_)) | Err(Error::Corrupt { .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Returns the entry found in the tree of this number, unless it is a tombstone.
    fn decide<P: std::ops::Deref<Target = [u8; shoal_base::BLOCK_BYTES]>>(
        &self,
        number: usize,
        found: Found<P>,
    ) -> Option<Found<P>> {
        let is_gone = number < self.layers.list.len() && is_tombstone(&found);
        (!is_gone).then_some(found)
    }

    /// The range of keys hidden by the damage that a lookup of `key` met; `None` if it meets none now.
    pub async fn gap_at<S: PageSource>(&self, tree: Tree, source: &S, key: &[u8]) -> Option<Gap> {
        for (number, root) in self.at(key) {
            match tree.lookup(source, root, &self.probe(tree, key, number)).await {
                Ok(Some(_)) => return None,
                Ok(None) => {}
                Err(_) => return tree.gap_at(source, root, key).await,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageRef;

    fn root(block: u64, entries: u64) -> Root {
        Root { page: Some(PageRef { block, crc: 1 }), height: 1, entries }
    }

    fn numbers(trees: &Trees, key: &[u8]) -> Vec<usize> {
        trees.at(key).map(|(number, _)| number).collect()
    }

    /// INV-28: a layer that is being compacted is ignored below the frontier, and no layer above it is.
    #[test]
    fn compacting_layer_is_ignored_below_frontier() {
        let mut trees = Trees::only(root(1, 10));
        for block in 2..5 {
            trees = trees.with_layer(root(block, 5), 5, 0);
        }
        assert_eq!(trees.layers.list[0], root(4, 5), "the newest comes first");
        assert_eq!(numbers(&trees, b"a"), [0, 1, 2, 3]);
        let layers = Arc::make_mut(&mut trees.layers);
        (layers.compacting, layers.frontier) = (2, b"m".to_vec());
        assert_eq!(layers.being_compacted(), [root(3, 5), root(2, 5)]);
        assert_eq!(
            (layers.valid_from(0), layers.valid_from(1), layers.valid_from(2)),
            (&b""[..], &b"m"[..], &b"m"[..])
        );
        assert_eq!((numbers(&trees, b"lz"), numbers(&trees, b"m")), (vec![0, 3], vec![0, 1, 2, 3]));
        assert_eq!((trees.root(0), trees.root(3)), (root(4, 5), root(1, 10)));
    }

    /// INV-27: the number of keys is exact, whether they go through layers or into the base.
    #[test]
    fn keys_are_counted_through_layers() {
        let base = Trees::only(root(1, 10));
        assert_eq!(base.live(), 10);
        let unchanged = base.clone().with_layer(Root::EMPTY, 0, 0);
        assert!(unchanged.layers.list.is_empty() && unchanged.live() == 10, "an empty layer is none");
        let layered = base.with_layer(root(2, 7), 4, 3);
        assert_eq!((layered.live(), layered.layers.entries()), (11, 7));
        assert_eq!(layered.with_base(root(3, 12)).live(), 13, "two keys more in the base");
        let counted = layered.clone().with_counted(9, 3);
        assert_eq!((counted.live(), counted.layers.unsettled), (9, 3));
        let settled = layered.settle(5, Settled { entries: 2, absent: 1, bytes: 7 });
        assert_eq!((settled.live(), settled.layers.unsettled), (12, 3));
    }

    #[test]
    fn a_tombstone_is_a_version_without_a_body() {
        assert!(is_tombstone(&tombstone(Lsn(1 << 40))));
        assert!(!is_tombstone(&[&tombstone(Lsn(3))[..], &[0]].concat()) && !is_tombstone(&[]));
    }
}

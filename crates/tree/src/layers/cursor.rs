//! A cursor over all trees of a tablet: the entries that decide, in the order of their keys.
//!
//! Each tree has a separate cursor; of equal keys the newest tree's entry wins. The trees stay in the order of their next keys, so a long
//! stretch of one tree costs one or two comparisons per key. If a layer is damaged, no older entry is returned for a key that it may hold
//! there (INV-34).

use std::sync::Arc;

use shoal_common::error::{Error, Result};
use shoal_common::injected_bug::{Bug, injected};

use crate::layers::settled::Unsettled;
use crate::layers::{Layers, Trees, is_tombstone};
use crate::{Cursor, Found, Gap, KnownPages, LeafFinder, LeafPlace, PageRef, PageSource, Probe, Root, Tree};

/// An entry and its key.
type Item<P> = (Vec<u8>, Found<P>);

/// A key, and the entry that decides; `None` for a tombstone, or if damage hides it.
pub type DecidedKey<P> = (Vec<u8>, Option<Found<P>>);

/// An entry or a tombstone of layers that decides, for a compaction.
pub struct CompactedEntry<P> {
    /// The key.
    pub key: Vec<u8>,
    /// Its bytes.
    pub found: Found<P>,
    /// All entries of the key in these trees.
    pub unsettled: Unsettled,
}

/// An entry or a tombstone that decides, with its key and its place.
pub struct PlacedEntry<P> {
    /// The key.
    pub key: Vec<u8>,
    /// Its bytes; `None` for a tombstone.
    pub found: Option<Found<P>>,
    /// The base's page of level 1 above it, or the base's only leaf; `None` if a layer has it.
    pub page: Option<PageRef>,
}

/// The next step of a cursor that reads no further than necessary.
pub enum Next<T> {
    /// An entry.
    Entry(T),
    /// Damage, or a key that it hides; no key below this one follows. The next call continues the read: not before the caller wants these
    /// keys, otherwise each page of a listing would read a long stretch of damage to its end.
    Behind(Vec<u8>),
}

/// The next item of one tree, and the [`Cursor::page_above`] of it.
struct Head<P> {
    key: Vec<u8>,
    /// `None`: the tree met damage before this key, and the read continues from here.
    found: Option<Found<P>>,
    page: Option<PageRef>,
}

/// An entry that decides, the number of its tree, and its [`Cursor::page_above`].
struct Decided<P> {
    tree: usize,
    key: Vec<u8>,
    found: Found<P>,
    page: Option<PageRef>,
    /// True if the damage of a newer tree hides it.
    is_hidden: bool,
    unsettled: Unsettled,
}

struct Source<S: PageSource> {
    root: Root,
    cursor: Cursor<S>,
    head: Option<Head<S::Page>>,
    /// Ranges of damage in this tree: there, entries of older trees count only for keys that the filters of this tree exclude.
    hides: Vec<Gap>,
    /// Finds these filters.
    finder: Option<LeafFinder<S>>,
}

/// The number of entries that a tree has among `entries` of all trees, roughly.
fn share_of(root: Root, live: Option<u64>, entries: usize) -> usize {
    let Some(live) = live else { return entries };
    let share = (entries as u64).saturating_mul(root.entries.min(live)) / live;
    share as usize + 2
}

/// A copy of `key` in the memory of `spare`, which is empty afterwards.
#[inline]
fn copied_into(spare: &mut Vec<u8>, key: &[u8]) -> Vec<u8> {
    let mut copy = std::mem::take(spare);
    copy.clear();
    copy.extend_from_slice(key);
    copy
}

/// See the top of the file.
pub struct TreesCursor<S: PageSource> {
    tree: Tree,
    source: S,
    layers: Arc<Layers>,
    /// The number of entries that decide; `None` if the base is alone.
    live: Option<u64>,
    /// Newest first; the last one is the base.
    sources: Vec<Source<S>>,
    /// The sources that have a head, in the order of their keys, and of equal keys the newest first.
    order: Vec<usize>,
    gaps: Vec<Gap>,
    /// True if the heads are those of the sought key.
    is_primed: bool,
    /// True if the caller knows that the first head is damage.
    is_announced: bool,
    /// True if a damaged layer hides nothing.
    is_past_damage: bool,
}

impl<S: PageSource + Clone> TreesCursor<S> {
    /// A cursor over the entries below `end`, if any. `expected`: the rough number of entries to read.
    pub fn new(tree: Tree, source: &S, trees: &Trees, end: Option<&[u8]>, expected: Option<usize>) -> Self {
        let live = (!trees.layers.list.is_empty()).then(|| trees.live().max(1));
        let roots = trees.layers.list.iter().chain(std::iter::once(&trees.base));
        let sources = roots.map(|&root| {
            let cursor = Cursor::new(tree, source.clone(), root, &[], end);
            let cursor = match expected {
                Some(entries) => cursor.with_expected(share_of(root, live, entries)),
                None => cursor,
            };
            Source { root, cursor, head: None, hides: Vec::new(), finder: None }
        });
        let sources = sources.collect();
        Self {
            tree,
            source: source.clone(),
            layers: trees.layers.clone(),
            live,
            sources,
            order: Vec::new(),
            gaps: Vec::new(),
            is_primed: false,
            is_announced: false,
            is_past_damage: false,
        }
    }
}

impl<S: PageSource + Clone> TreesCursor<S> {
    /// The same, but entries of older trees count despite damaged layers: the keys that those may have held are already gone.
    pub fn past_damage(self) -> Self {
        Self { is_past_damage: true, ..self }
    }

    /// The same without the entries of the base under `known` pages.
    pub fn passing(mut self, known: &KnownPages) -> Self {
        self.sources = std::mem::take(&mut self.sources)
            .into_iter()
            .enumerate()
            .map(|(index, source)| {
                let is_base = index == self.layers.list.len();
                let cursor = if is_base { source.cursor.passing(known.clone()) } else { source.cursor };
                Source { cursor, ..source }
            })
            .collect();
        self
    }

    /// Known pages that were passed since the last call. The page is reported before every entry whose key is not below all of the page's
    /// keys, also before a layer's entry.
    pub fn take_passed(&mut self) -> Vec<PageRef> {
        self.sources.last_mut().map(|base| base.cursor.take_passed()).unwrap_or_default()
    }

    /// Seeks to the first key not below `start`, using pages in memory only; all trees send their reads to the device before the first one
    /// waits.
    pub fn approach(&mut self, start: &[u8]) {
        (self.is_primed, self.is_announced) = (false, false);
        for (index, source) in self.sources.iter_mut().enumerate() {
            let is_bounded = index < self.layers.list.len() && !injected(Bug::FrontierForgotten);
            let from = if is_bounded { start.max(self.layers.valid_from(index)) } else { start };
            source.head = None;
            source.hides.clear();
            source.finder = None;
            source.cursor.seek(from);
            source.cursor.approach();
        }
    }

    /// Prefetches the leaves that hold about the next `entries` entries, without those whose place is not in memory: the caller stops here,
    /// and another cursor is going to continue.
    pub fn read_ahead(&mut self, entries: usize) {
        for source in &mut self.sources {
            source.cursor.read_ahead(share_of(source.root, self.live, entries));
        }
    }

    /// Ranges of keys that damage hides and that were met since the last call.
    pub fn take_gaps(&mut self) -> Vec<Gap> {
        std::mem::take(&mut self.gaps)
    }

    /// The next key of any tree, with the entry that decides; without an entry if that is a tombstone, or if damage hides it: the caller
    /// bounds the number of keys that it examines.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_key(&mut self) -> Result<Option<Next<DecidedKey<S::Page>>>> {
        // The base alone needs no comparison and has no tombstones.
        if let [_] = &self.sources[..] {
            return Ok(self.item_of(0).await?.map(|next| match next {
                Next::Entry((key, found)) => Next::Entry((key, Some(found))),
                Next::Behind(key) => Next::Behind(key),
            }));
        }
        Ok(self.step().await?.map(|next| match next {
            Next::Entry(decided) => Next::Entry(self.key_of_decided(decided)),
            Next::Behind(key) => Next::Behind(key),
        }))
    }

    /// As [`next_key`](Self::next_key) if the leaves in the cursor's hands have the answer. `None`: call `next_key`. Takes the memory of
    /// `spare` for a key.
    #[inline]
    pub fn next_key_in_memory(&mut self, spare: &mut Vec<u8>) -> Option<DecidedKey<S::Page>> {
        if let [base] = &mut self.sources[..] {
            let entry = base.cursor.next_in_memory()?;
            return Some((copied_into(spare, entry.key), Some(entry.found())));
        }
        let decided = self.step_in_memory(spare)?;
        Some(self.key_of_decided(decided))
    }

    fn key_of_decided(&self, decided: Decided<S::Page>) -> DecidedKey<S::Page> {
        let Decided { tree, key, found, is_hidden, .. } = decided;
        let is_gone = is_hidden || self.is_tombstone(tree, &found);
        (key, (!is_gone).then_some(found))
    }

    /// The next entry that decides; `None` at the end.
    ///
    /// # Errors
    /// As the device. Damage is skipped: [`take_gaps`](Self::take_gaps) returns it.
    pub async fn next(&mut self) -> Result<Option<Item<S::Page>>> {
        loop {
            match self.decided().await? {
                Some(Decided { tree, found, .. }) if self.is_tombstone(tree, &found) => {}
                decided => return Ok(decided.map(|Decided { key, found, .. }| (key, found))),
            }
        }
    }

    /// The same with the tombstones of layers.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_with_tombstones(&mut self) -> Result<Option<Item<S::Page>>> {
        Ok(self.decided().await?.map(|Decided { key, found, .. }| (key, found)))
    }

    /// The same with the unsettled entries of each key.
    ///
    /// # Errors
    /// As [`next`](Self::next). A cursor must not be used after an error.
    pub async fn next_compacted(&mut self) -> Result<Option<CompactedEntry<S::Page>>> {
        let decided = self.decided().await?;
        Ok(decided.map(|Decided { key, found, unsettled, .. }| CompactedEntry { key, found, unsettled }))
    }

    /// The same with the place of each entry.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_placed(&mut self) -> Result<Option<PlacedEntry<S::Page>>> {
        let decided = self.decided().await?;
        Ok(decided.map(|Decided { tree, key, found, page, .. }| {
            let is_gone = self.is_tombstone(tree, &found);
            let page = page.filter(|_| tree == self.layers.list.len());
            PlacedEntry { key, found: (!is_gone).then_some(found), page }
        }))
    }

    fn is_tombstone(&self, index: usize, found: &Found<S::Page>) -> bool {
        index < self.layers.list.len() && is_tombstone(found)
    }

    /// The next entry that decides, past all damage before it.
    async fn decided(&mut self) -> Result<Option<Decided<S::Page>>> {
        loop {
            match self.step().await? {
                Some(Next::Entry(decided)) if !decided.is_hidden => return Ok(Some(decided)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next entry that decides, even if the damage of a newer tree hides it, or the damage before it.
    async fn step(&mut self) -> Result<Option<Next<Decided<S::Page>>>> {
        let decided = |tree, Head { key, found, page }, is_hidden, unsettled| match found {
            Some(found) => Next::Entry(Decided { tree, key, found, page, is_hidden, unsettled }),
            None => Next::Behind(key),
        };
        // The base alone needs no comparison.
        if let [_] = &self.sources[..] {
            return Ok(self.head_of(0).await?.map(|head| decided(0, head, false, Unsettled::default())));
        }
        self.prime().await?;
        if let Some(decided) = self.step_in_memory(&mut Vec::new()) {
            return Ok(Some(Next::Entry(decided)));
        }
        loop {
            let Some(&index) = self.order.first() else { return Ok(None) };
            if self.is_damage(index) {
                if !std::mem::replace(&mut self.is_announced, true) {
                    return Ok(self.key_of(index).map(|key| Next::Behind(key.to_vec())));
                }
                self.is_announced = false;
                self.pull(index).await?;
                self.order.remove(0);
                self.put_in_order(index);
                continue;
            }
            // After an error the next call returns the entry.
            let mut unsettled = self.entry_of(index).map(|found| Unsettled::new(found)).unwrap_or_default();
            while let Some(&older) = self.order.get(1)
                && self.key_of(older) == self.key_of(index)
            {
                if let Some(found) = self.entry_of(older) {
                    unsettled.meet(found);
                }
                self.pull(older).await?;
                self.order.remove(1);
                self.put_in_order(older);
            }
            let Some(head) = self.sources[index].head.take() else { return Ok(None) };
            if let Err(error) = self.pull(index).await {
                self.sources[index].head = Some(head);
                return Err(error);
            }
            if self.order.get(1).is_some_and(|&next| !self.is_before(index, next))
                || self.key_of(index).is_none()
            {
                self.order.remove(0);
                self.put_in_order(index);
            }
            // A damaged layer may hide every key of the tablet: the caller counts them.
            let is_hidden = self.is_hidden(index, &head.key).await?;
            return Ok(Some(decided(index, head, is_hidden, unsettled)));
        }
    }

    /// The same among several trees if it takes no read: no older tree has the key, no damage is near, and the leaf of the tree has the next
    /// head.
    fn step_in_memory(&mut self, spare: &mut Vec<u8>) -> Option<Decided<S::Page>> {
        let index = *self.order.first().filter(|_| self.is_primed)?;
        let is_last = match self.order.get(1) {
            Some(&older) if self.key_of(older) == self.key_of(index) => return None,
            next => next.is_none(),
        };
        if self.is_damage(index) || self.sources[..index].iter().any(|newer| !newer.hides.is_empty()) {
            return None;
        }
        let source = &mut self.sources[index];
        let entry = source.cursor.next_in_memory()?;
        let (key, found) = (copied_into(spare, entry.key), Some(entry.found()));
        let page = source.cursor.page_above();
        let Head { key, found, page } = source.head.replace(Head { key, found, page })?;
        if !is_last && !self.is_before(index, self.order[1]) {
            self.order.remove(0);
            self.put_in_order(index);
        }
        let found = found?;
        let unsettled = Unsettled::new(&found);
        Some(Decided { tree: index, key, found, page, is_hidden: false, unsettled })
    }

    /// Reads the first head of each tree.
    async fn prime(&mut self) -> Result<()> {
        if self.is_primed {
            return Ok(());
        }
        for index in 0..self.sources.len() {
            self.pull(index).await?;
        }
        self.order.clear();
        (0..self.sources.len()).for_each(|index| self.put_in_order(index));
        self.is_primed = true;
        Ok(())
    }

    /// Returns true if the head of a source is damage after which the read continues.
    fn is_damage(&self, index: usize) -> bool {
        self.sources[index].head.as_ref().is_some_and(|head| head.found.is_none())
    }

    /// The entry of the next item of a source; `None` at its end, and at damage.
    fn entry_of(&self, index: usize) -> Option<&Found<S::Page>> {
        self.sources[index].head.as_ref()?.found.as_ref()
    }

    /// The key of the next item of a source; `None` at its end.
    fn key_of(&self, index: usize) -> Option<&[u8]> {
        Some(&self.sources[index].head.as_ref()?.key)
    }

    /// Returns true if the head of a source comes before that of another: its key is less, or equal and of a newer tree.
    fn is_before(&self, one: usize, other: usize) -> bool {
        (self.key_of(one), one) < (self.key_of(other), other)
    }

    fn put_in_order(&mut self, index: usize) {
        if self.key_of(index).is_some() {
            let place = self.order.partition_point(|&other| self.is_before(other, index));
            self.order.insert(place, index);
        }
    }

    /// Returns true if the damage of a newer tree hides this tree's entry for `key`.
    async fn is_hidden(&mut self, index: usize, key: &[u8]) -> Result<bool> {
        for newer in &mut self.sources[..index] {
            newer.hides.retain(|gap| gap.high.as_ref().is_none_or(|high| key < &high[..]));
            if !newer.hides.iter().any(|gap| &gap.low[..] <= key) {
                continue;
            }
            let new = || LeafFinder::new(self.tree, self.source.clone(), newer.root);
            let finder = newer.finder.get_or_insert_with(new);
            let place = finder.find(&Probe::unexpected(self.tree, key)).await?;
            if !matches!(place, LeafPlace::None | LeafPlace::Leaf { may_hold: false, .. }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn pull(&mut self, index: usize) -> Result<()> {
        self.sources[index].head = self.head_of(index).await?;
        Ok(())
    }

    /// The next entry of a tree with its place, or the damage before it.
    async fn head_of(&mut self, index: usize) -> Result<Option<Head<S::Page>>> {
        let item = self.item_of(index).await?;
        let page = || self.sources[index].cursor.page_above();
        Ok(item.map(|next| match next {
            Next::Entry((key, found)) => Head { key, found: Some(found), page: page() },
            Next::Behind(key) => Head { key, found: None, page: None },
        }))
    }

    /// The next entry of a tree, or the damage before it, which is noted.
    async fn item_of(&mut self, index: usize) -> Result<Option<Next<Item<S::Page>>>> {
        let source = &mut self.sources[index];
        loop {
            match source.cursor.next().await {
                Ok(item) => return Ok(item.map(|item| Next::Entry((item.key.to_vec(), item.found())))),
                Err(error @ Error::Corrupt { .. }) => {
                    let mut gap = source.cursor.take_gap().ok_or(error)?;
                    if index < self.layers.list.len() {
                        let from = self.layers.valid_from(index);
                        if gap.high.as_ref().is_some_and(|high| &high[..] <= from) {
                            continue;
                        }
                        if *gap.low < *from {
                            gap.low = from.to_vec();
                        }
                        if !self.is_past_damage {
                            source.hides.push(gap.clone());
                        }
                    }
                    let behind = gap.high.clone().filter(|_| source.cursor.is_behind_gap());
                    self.gaps.push(gap);
                    if let Some(key) = behind {
                        return Ok(Some(Next::Behind(key)));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

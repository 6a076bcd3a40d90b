//! Finds the leaves of ascending keys: the page of level 1 and its current leaf are held from one key to the next. A key of the same leaf
//! costs one comparison, another one a search in the rest of the page.

use std::collections::HashSet;
use std::ops::{Deref, Range};

use shoal_base::BLOCK_BYTES;
use shoal_common::error::{Error, Result};

use crate::filter::Probe;
use crate::format::{Damage, PageRef};
use crate::pages::{PageSource, ReadHint};
use crate::{Root, Tree};

/// The answer of the pages above the leaves for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafPlace {
    /// The tree is empty.
    None,
    /// The key belongs into this leaf.
    Leaf {
        /// The leaf.
        page: PageRef,
        /// False if the leaf certainly does not hold the key.
        may_hold: bool,
        /// True if no entry of the leaf owns blocks outside of it or has a deadline, and none is a tombstone.
        is_plain: bool,
    },
    /// The page above the leaf is damaged.
    Unknown(PageRef),
}

/// See the top of the file.
pub struct LeafFinder<S: PageSource> {
    tree: Tree,
    source: S,
    root: Root,
    held: Option<HeldPage<S::Page>>,
    /// The last page that could not be read, and the first key after its range; `None` for the last page. Keys in the range are skipped,
    /// because each of them would read the page again.
    damaged: Option<(PageRef, Option<Vec<u8>>)>,
}

/// A page of level 1.
struct HeldPage<P> {
    page: P,
    at: PageRef,
    /// The first key after it; `None` for the last page.
    high: Option<Vec<u8>>,
    /// The leaf of the previous key.
    leaf: Option<HeldLeaf>,
    /// The first key after that leaf, if it is not the last one of the page.
    leaf_high: Vec<u8>,
}

/// A leaf of the page of level 1.
struct HeldLeaf {
    index: usize,
    is_last: bool,
    page: PageRef,
    /// The place of its filter in the page of level 1.
    filter: Range<usize>,
    is_plain: bool,
}

/// The result of the search for a key.
enum Holding<'a> {
    Nothing,
    /// The leaf, its filter unless the leaf is the root, and true if the leaf is plain.
    Leaf(PageRef, Option<&'a [u8]>, bool),
    /// This page is damaged.
    Damage(PageRef),
}

impl<P: Deref<Target = [u8; BLOCK_BYTES]>> HeldPage<P> {
    /// Returns the leaf of a key of this page.
    fn leaf_of(&mut self, tree: Tree, key: &[u8]) -> std::result::Result<&HeldLeaf, Damage> {
        let is_held = |leaf: &HeldLeaf| leaf.is_last || key < &self.leaf_high[..];
        let from = match self.leaf.take() {
            Some(leaf) if is_held(&leaf) => return Ok(self.leaf.insert(leaf)),
            leaf => leaf.map_or(0, |leaf| leaf.index),
        };
        let view = tree.parse(&self.page, self.at, 1)?;
        let index = view.child_from(from, key)?;
        let (child, filter) = view.child_and_filter(index)?;
        let is_last = index + 1 == view.count();
        self.leaf_high.clear();
        if !is_last {
            view.separator(index + 1, &mut self.leaf_high)?;
        }
        let is_plain = view.is_plain(index);
        Ok(self.leaf.insert(HeldLeaf { index, is_last, page: child.page, filter, is_plain }))
    }
}

impl<S: PageSource> LeafFinder<S> {
    /// A finder that has read no page.
    pub fn new(tree: Tree, source: S, root: Root) -> Self {
        Self { tree, source, root, held: None, damaged: None }
    }

    /// Returns the place of a key that is not below the previous one.
    ///
    /// # Errors
    /// As the device; damage is [`LeafPlace::Unknown`].
    pub async fn find(&mut self, probe: &Probe<'_>) -> Result<LeafPlace> {
        match self.hold(probe.key).await? {
            Holding::Leaf(page, level_1, is_plain) => {
                let may_hold = level_1.is_none_or(|filter| probe.may_be_in(filter));
                Ok(LeafPlace::Leaf { page, may_hold, is_plain })
            }
            Holding::Nothing => Ok(LeafPlace::None),
            Holding::Damage(at) => Ok(LeafPlace::Unknown(at)),
        }
    }

    /// Returns the leaf of a key that is not below the previous one, unless damage hides the leaf.
    ///
    /// # Errors
    /// As the device.
    pub async fn leaf_of(&mut self, key: &[u8]) -> Result<Option<PageRef>> {
        match self.hold(key).await? {
            Holding::Leaf(page, ..) => Ok(Some(page)),
            Holding::Nothing | Holding::Damage(_) => Ok(None),
        }
    }

    async fn hold(&mut self, key: &[u8]) -> Result<Holding<'_>> {
        let (top, level) = match self.root.top() {
            Ok(None) => return Ok(Holding::Nothing),
            Ok(Some(top)) => top,
            Err(_) => return Ok(Holding::Damage(self.root.page.unwrap_or_default())),
        };
        if level == 0 {
            return Ok(Holding::Leaf(top, None, false));
        }
        let is_below = |high: &Option<Vec<u8>>| high.as_ref().is_none_or(|high| key < &high[..]);
        if let Some((damaged, _)) = self.damaged.as_ref().filter(|(_, high)| is_below(high)) {
            return Ok(Holding::Damage(*damaged));
        }
        if !self.held.as_ref().is_some_and(|held| is_below(&held.high))
            && let Some(damaged) = self.descend((top, level), key).await?
        {
            return Ok(Holding::Damage(damaged));
        }
        let Some(held) = &mut self.held else { return Ok(Holding::Damage(top)) };
        let Ok(leaf) = held.leaf_of(self.tree, key) else { return Ok(Holding::Damage(held.at)) };
        let (page, filter, is_plain) = (leaf.page, leaf.filter.clone(), leaf.is_plain);
        Ok(Holding::Leaf(page, held.page.get(filter), is_plain))
    }

    /// Descends from the root to the page of level 1 that covers the key; returns the damaged page, if there is one.
    async fn descend(&mut self, (mut at, mut level): (PageRef, u8), key: &[u8]) -> Result<Option<PageRef>> {
        (self.held, self.damaged) = (None, None);
        let mut high = None;
        loop {
            let page = match self.source.page(at, level, ReadHint::Apply).await {
                Ok(page) => page,
                Err(Error::Corrupt { .. }) => {
                    self.damaged = Some((at, high));
                    return Ok(Some(at));
                }
                Err(error) => return Err(error),
            };
            if level == 1 {
                if self.tree.parse(&page, at, 1).is_err() {
                    return Ok(Some(at));
                }
                self.held = Some(HeldPage { page, at, high, leaf: None, leaf_high: Vec::new() });
                return Ok(None);
            }
            let child = self.tree.parse(&page, at, level).and_then(|view| {
                let index = view.child_of(key)?;
                if index + 1 < view.count() {
                    let mut next = Vec::new();
                    view.separator(index + 1, &mut next)?;
                    high = Some(next);
                }
                view.child(index)
            });
            let Ok(child) = child else { return Ok(Some(at)) };
            (at, level) = (child.page, level - 1);
        }
    }
}

impl Tree {
    /// Returns the pages of a tree without reading its leaves, as far as its inner pages are readable; true if all of them are.
    ///
    /// # Errors
    /// As the device; damage is no error.
    pub async fn pages<S: PageSource>(&self, source: &S, root: Root) -> Result<(Vec<PageRef>, bool)> {
        let (mut pages, mut is_whole) = (Vec::new(), true);
        let mut waiting: Vec<(PageRef, u8)> = root.top().ok().flatten().into_iter().collect();
        // A forged page may name a child again and again.
        let mut entered = HashSet::new();
        while let Some((at, level)) = waiting.pop() {
            if level > 0 && !entered.insert(at.block) {
                is_whole = false;
                continue;
            }
            pages.push(at);
            if level == 0 {
                continue;
            }
            let page = match source.page(at, level, ReadHint::Scan).await {
                Ok(page) => page,
                Err(Error::Corrupt { .. }) => {
                    is_whole = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Ok(view) = self.parse(&page, at, level) else {
                is_whole = false;
                continue;
            };
            let before = waiting.len();
            waiting.extend(
                (0..view.count()).filter_map(|index| Some((view.child(index).ok()?.page, level - 1))),
            );
            is_whole &= waiting.len() - before == view.count();
        }
        Ok((pages, is_whole))
    }
}

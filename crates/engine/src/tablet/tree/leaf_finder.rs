//! Finding the leaves of keys that ascend: the page of level 1 is held from one key to the next, so most keys cost one search in it.

use super::filter::Probe;
use super::format::PageRef;
use super::pages::{PageSource, ReadHint};
use super::{Root, Tree};
use crate::common::error::{Error, Result};

/// The answer of the pages above the leaves for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeafPlace {
    /// The tree is empty.
    None,
    /// The key belongs into this leaf; `may_hold` is false where the leaf certainly does not hold it.
    Leaf { page: PageRef, may_hold: bool },
    /// The page that would say so is damaged.
    Unknown(PageRef),
}

/// See the top of the file.
pub(crate) struct LeafFinder<S: PageSource> {
    tree: Tree,
    source: S,
    root: Root,
    held: Option<Held<S::Page>>,
}

/// A page of level 1.
struct Held<P> {
    page: P,
    at: PageRef,
    /// The first key behind it; none: it is the last one.
    high: Option<Vec<u8>>,
}

impl<S: PageSource> LeafFinder<S> {
    pub(crate) fn new(tree: Tree, source: S, root: Root) -> Self {
        Self { tree, source, root, held: None }
    }

    /// The place of a key that is not below the one before.
    ///
    /// # Errors
    /// As the device; damage is [`LeafPlace::Unknown`].
    pub(crate) async fn find(&mut self, probe: &Probe<'_>) -> Result<LeafPlace> {
        let (top, level) = match self.root.top() {
            Ok(None) => return Ok(LeafPlace::None),
            Ok(Some(top)) => top,
            Err(_) => return Ok(LeafPlace::Unknown(self.root.page.unwrap_or_default())),
        };
        if level == 0 {
            return Ok(LeafPlace::Leaf { page: top, may_hold: true });
        }
        let is_held = |held: &Held<_>| held.high.as_ref().is_none_or(|high| probe.key < &high[..]);
        if !self.held.as_ref().is_some_and(is_held)
            && let Some(damaged) = self.descend((top, level), probe).await?
        {
            return Ok(LeafPlace::Unknown(damaged));
        }
        let Some(held) = &self.held else { return Ok(LeafPlace::Unknown(top)) };
        let found = self.tree.parse(&held.page, held.at, 1).and_then(|view| {
            let (child, filter) = view.child_and_filter(view.child_of(probe.key)?)?;
            Ok(LeafPlace::Leaf { page: child.page, may_hold: probe.may_be_in(view.bytes_at(filter)) })
        });
        Ok(found.unwrap_or(LeafPlace::Unknown(held.at)))
    }

    /// Goes from the root to the page of level 1 where the key belongs; returns the page that is damaged, if one is.
    async fn descend(
        &mut self,
        (mut at, mut level): (PageRef, u8),
        probe: &Probe<'_>,
    ) -> Result<Option<PageRef>> {
        self.held = None;
        let mut high = None;
        loop {
            let page = match self.source.page(at, level, ReadHint::Apply).await {
                Ok(page) => page,
                Err(Error::Corrupt { .. }) => return Ok(Some(at)),
                Err(error) => return Err(error),
            };
            if level == 1 {
                if self.tree.parse(&page, at, 1).is_err() {
                    return Ok(Some(at));
                }
                self.held = Some(Held { page, at, high });
                return Ok(None);
            }
            let child = self.tree.parse(&page, at, level).and_then(|view| {
                let index = view.child_of(probe.key)?;
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
    /// The pages of a tree, as far as its inner pages can be read; none of its leaves is. Says whether all could be.
    ///
    /// # Errors
    /// As the device; damage is no error.
    pub(crate) async fn pages<S: PageSource>(&self, source: &S, root: Root) -> Result<(Vec<PageRef>, bool)> {
        let (mut pages, mut is_whole) = (Vec::new(), true);
        let mut waiting: Vec<(PageRef, u8)> = root.top().ok().flatten().into_iter().collect();
        while let Some((at, level)) = waiting.pop() {
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

    /// The entry of `key` in the leaf `page`, where it belongs.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub(crate) async fn lookup_leaf<S: PageSource>(
        &self,
        source: &S,
        page: PageRef,
        probe: &Probe<'_>,
    ) -> Result<Option<super::lookup::Found<S::Page>>> {
        self.lookup_below(source, (page, 0), probe).await
    }
}

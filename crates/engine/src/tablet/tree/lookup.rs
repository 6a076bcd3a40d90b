//! A lookup finds one key: from the root to one leaf, one page a level. It goes through the pages in memory first; from
//! the first missing page on, it reads from the device.

use std::fmt;
use std::ops::{Deref, Range};

use super::format::{Damage, PageRef};
use super::pages::{PageSource, ReadHint};
use super::{Root, Tree};
use crate::common::error::Result;
use crate::testing::injected_bug::{Bug, injected};

/// The bytes of an entry in their page: nothing is copied, and the page stays pinned as long as this value lives.
#[derive(Clone)]
pub(crate) struct Found<P> {
    page: P,
    range: Range<usize>,
}

impl<P: Deref<Target = [u8; shoal_base::BLOCK_BYTES]>> Found<P> {
    /// The caller checked the range against the page, which never changes.
    pub(super) fn new(page: P, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= page.len(), "{range:?} is not within a page");
        Self { page, range }
    }

    /// The page and the place of the entry in it, to refer to an inline value without copying it.
    pub(crate) fn into_parts(self) -> (P, Range<usize>) {
        (self.page, self.range)
    }
}

impl<P: Deref<Target = [u8; shoal_base::BLOCK_BYTES]>> Deref for Found<P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.page[self.range.clone()]
    }
}

impl<P> fmt::Debug for Found<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({:?})", self.range)
    }
}

/// A page that a lookup needs next, and its level.
pub(crate) type NextPage = (PageRef, u8);

/// The answer of one page, or of all pages in memory, for a key.
pub(crate) enum Step<P> {
    /// The tree's entry.
    Found(Found<P>),
    /// The tree has no entry.
    Absent,
    /// The answer lies below this page.
    Below(NextPage),
}

impl Tree {
    /// Follows the path of `key` from the root through the pages in memory. [`Step::Below`] names the first missing
    /// page.
    ///
    /// # Errors
    /// As [`Self::lookup`], without errors of the device.
    pub(crate) fn try_lookup<S: PageSource>(
        &self,
        source: &S,
        root: Root,
        key: &[u8],
    ) -> Result<Step<S::Page>> {
        let Some(mut next) = root.top()? else { return Ok(Step::Absent) };
        while let Some(page) = source.cached(next.0, next.1, ReadHint::Point) {
            match self.step(page, next, key)? {
                Step::Below(below) => next = below,
                step => return Ok(step),
            }
        }
        Ok(Step::Below(next))
    }

    /// The entry of `key`; `None` if the tree has none.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if a page on the path is damaged, or if the key lies in a range whose base was lost
    /// and has no newer entry; [`crate::Error::Io`] if the device failed.
    pub(crate) async fn lookup<S: PageSource>(
        &self,
        source: &S,
        root: Root,
        key: &[u8],
    ) -> Result<Option<Found<S::Page>>> {
        match root.top()? {
            Some(top) => self.lookup_below(source, top, key).await,
            None => Ok(None),
        }
    }

    /// The entry of `key` in the subtree of `next`, a page on the path of `key`.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub(crate) async fn lookup_below<S: PageSource>(
        &self,
        source: &S,
        mut next: NextPage,
        key: &[u8],
    ) -> Result<Option<Found<S::Page>>> {
        loop {
            let page = source.page(next.0, next.1, ReadHint::Point).await?;
            match self.step(page, next, key)? {
                Step::Below(below) => next = below,
                Step::Found(found) => return Ok(Some(found)),
                Step::Absent => return Ok(None),
            }
        }
    }

    /// The answer of `page` for `key`.
    fn step<P: Deref<Target = [u8; shoal_base::BLOCK_BYTES]>>(
        &self,
        page: P,
        (at, level): NextPage,
        key: &[u8],
    ) -> Result<Step<P>> {
        let view = self.view(&page, at, level)?;
        let damaged = |damage: Damage| damage.at(at);
        if level > 0 {
            let child = view.child_of(key).and_then(|index| view.child(index)).map_err(damaged)?;
            return Ok(Step::Below((child.page, level - 1)));
        }
        let (index, found) = view.find(0, key).map_err(damaged)?;
        if found {
            let range = view.payload_range(index).map_err(damaged)?;
            // An empty entry stands for a delete in a range whose base was lost.
            return Ok(if range.is_empty() { Step::Absent } else { Step::Found(Found::new(page, range)) });
        }
        match view.lost().map_err(damaged)? {
            Some(bounds) if bounds.contains(key) && !injected(Bug::LostIsAbsent) => Err(LOST.at(at)),
            _ => Ok(Step::Absent),
        }
    }
}

/// The answer for a key in a lost range that has no newer entry: its history before the loss is unknown.
pub(super) const LOST: Damage = Damage("the index page that held this range of keys was lost");

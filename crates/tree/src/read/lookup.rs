//! A lookup finds one key: from the root to one leaf, one page a level. It follows the pages in memory first; from the first missing page
//! it reads from the device.

use std::fmt;
use std::ops::{Deref, Range};

use shoal_base::BLOCK_BYTES;
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};

use crate::filter::Probe;
use crate::format::{Damage, PageRef};
use crate::pages::{PageSource, ReadHint};
use crate::{Root, Tree};

/// The bytes of an entry in their page: nothing is copied, and the page stays pinned while this value lives.
#[derive(Clone)]
pub struct Found<P> {
    page: P,
    range: Range<usize>,
}

impl<P: Deref<Target = [u8; BLOCK_BYTES]>> Found<P> {
    /// The caller has checked the range against the page, which never changes.
    #[inline]
    pub fn new(page: P, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= page.len(), "{range:?} is not within a page");
        Self { page, range }
    }

    /// Returns the page and the place of the entry in it, to refer to an inline value without copying it.
    #[inline]
    pub fn into_parts(self) -> (P, Range<usize>) {
        (self.page, self.range)
    }
}

impl<P: Deref<Target = [u8; BLOCK_BYTES]>> Deref for Found<P> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.page[self.range.clone()]
    }
}

impl<P> fmt::Debug for Found<P> {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Found({:?})", self.range)
    }
}

/// A page that a lookup needs next, and its level.
pub type NextPage = (PageRef, u8);

/// The answer of one page, or of all pages in memory, for a key.
pub enum Step<P> {
    /// The tree's entry.
    Found(Found<P>),
    /// The tree has no entry.
    Absent,
    /// The answer is below this page.
    Below(NextPage),
}

impl Tree {
    /// Follows the path of a key from the root through the pages in memory. [`Step::Below`] names the first missing
    /// page; a leaf is only named if its filter does not deny the key.
    ///
    /// # Errors
    /// As [`Self::lookup`], without errors of the device.
    pub fn try_lookup<S: PageSource>(
        &self,
        source: &S,
        root: Root,
        probe: &Probe<'_>,
    ) -> Result<Step<S::Page>> {
        let Some(mut next) = root.top()? else { return Ok(Step::Absent) };
        let Some(mut page) = source.cached(next.0, next.1, ReadHint::Point) else {
            return Ok(Step::Below(next));
        };
        while next.1 > 0 {
            let (below, filter) = self.child_for(&page, next, probe)?;
            let denies = || below.1 == 0 && !probe.may_be_in(&page[filter.clone()]);
            if probe.expects_absence && denies() {
                return Ok(Step::Absent);
            }
            match source.cached(below.0, below.1, ReadHint::Point) {
                Some(child) => page = child,
                None if denies() => return Ok(Step::Absent),
                None => return Ok(Step::Below(below)),
            }
            next = below;
        }
        self.entry_in(page, next.0, probe.key)
    }

    /// Returns the entry of a key; `None` if the tree has none.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if a page on the path is damaged, or if the key is in a range whose base was lost and has no newer entry;
    /// [`crate::Error::Io`] if the device failed.
    pub async fn lookup<S: PageSource>(
        &self,
        source: &S,
        root: Root,
        probe: &Probe<'_>,
    ) -> Result<Option<Found<S::Page>>> {
        match root.top()? {
            Some(top) => self.lookup_below(source, top, probe).await,
            None => Ok(None),
        }
    }

    /// Returns the entry of a key in the subtree of `next`, a page on its path.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub async fn lookup_below<S: PageSource>(
        &self,
        source: &S,
        mut next: NextPage,
        probe: &Probe<'_>,
    ) -> Result<Option<Found<S::Page>>> {
        let mut page = source.page(next.0, next.1, ReadHint::Point).await?;
        while next.1 > 0 {
            let (below, filter) = self.child_for(&page, next, probe)?;
            let denies = || below.1 == 0 && !probe.may_be_in(&page[filter.clone()]);
            if probe.expects_absence && denies() {
                return Ok(None);
            }
            page = match source.cached(below.0, below.1, ReadHint::Point) {
                Some(child) => child,
                None if denies() => return Ok(None),
                None => source.page(below.0, below.1, ReadHint::Point).await?,
            };
            next = below;
        }
        Ok(match self.entry_in(page, next.0, probe.key)? {
            Step::Found(found) => Some(found),
            Step::Absent | Step::Below(_) => None,
        })
    }

    /// Returns the entry of a key in its leaf `page`, for an apply: the leaf is not needed again soon.
    ///
    /// # Errors
    /// As [`Self::lookup`].
    pub async fn lookup_leaf<S: PageSource>(
        &self,
        source: &S,
        page: PageRef,
        probe: &Probe<'_>,
    ) -> Result<Option<Found<S::Page>>> {
        let bytes = source.page(page, 0, ReadHint::Apply).await?;
        Ok(match self.entry_in(bytes, page, probe.key)? {
            Step::Found(found) => Some(found),
            Step::Absent | Step::Below(_) => None,
        })
    }

    /// Returns the child of an inner page that covers the key, and the place of the child's filter in the page.
    #[inline]
    fn child_for(
        &self,
        page: &[u8; BLOCK_BYTES],
        (at, level): NextPage,
        probe: &Probe<'_>,
    ) -> Result<(NextPage, Range<usize>)> {
        assert!(level > 0, "a leaf has no children");
        let view = self.view(page, at, level)?;
        let child = view.child_of(probe.key).and_then(|index| view.child_and_filter(index));
        let (child, filter) = child.map_err(|damage| damage.at(at))?;
        Ok(((child.page, level - 1), filter))
    }

    /// Searches a leaf for `key`.
    fn entry_in<P: Deref<Target = [u8; BLOCK_BYTES]>>(
        &self,
        page: P,
        at: PageRef,
        key: &[u8],
    ) -> Result<Step<P>> {
        let view = self.view(&page, at, 0)?;
        let damaged = |damage: Damage| damage.at(at);
        let (index, found) = view.find(0, key).map_err(damaged)?;
        if found {
            let range = view.payload_range(index).map_err(damaged)?;
            // An empty entry is a delete in a range whose base was lost.
            return Ok(if range.is_empty() { Step::Absent } else { Step::Found(Found::new(page, range)) });
        }
        match view.lost().map_err(damaged)? {
            Some(bounds) if bounds.contains(key) && !injected(Bug::LostIsAbsent) => Err(LOST.at(at)),
            _ => Ok(Step::Absent),
        }
    }
}

/// The answer for a key in a lost range that has no newer entry: its history before the loss is unknown.
pub(crate) const LOST: Damage = Damage("the index page that held this range of keys was lost");

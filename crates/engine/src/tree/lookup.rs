//! Looking up one key: from the root to one leaf, one page a level.

use std::fmt;
use std::ops::{Deref, Range};

use super::page::Damage;
use super::pages::{PageSource, ReadHint};
use super::{Cursor, Gap, Root, Tree};
use crate::error::{Error, Result};
use crate::plant::{Plant, planted};

/// The bytes of an entry, where they lie in their page: nothing is copied, and the page stays pinned as long as this lives.
#[derive(Clone)]
pub(crate) struct Found<P> {
    page: P,
    range: Range<usize>,
}

impl<P: Deref<Target = [u8; shoal_base::BLOCK_BYTES]>> Found<P> {
    /// The range was checked against the page, which never changes.
    pub(super) fn new(page: P, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= page.len(), "{range:?} is not within a page");
        Self { page, range }
    }

    /// The page and where the entry lies in it, to refer to an inline value without copying it.
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

impl Tree {
    /// The entry of `key`; none where the tree has none.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] where a page on the way is damaged, or where the key lies in a range whose base was lost and
    /// nothing newer is known; [`crate::Error::Io`] where the device failed.
    pub(crate) async fn lookup<S: PageSource>(
        &self,
        source: &S,
        root: Root,
        key: &[u8],
    ) -> Result<Option<Found<S::Page>>> {
        let Some((mut at, mut level)) = root.top()? else { return Ok(None) };
        loop {
            let page = source.page(at, level, ReadHint::Point).await?;
            let view = self.view(&page, at, level)?;
            if level > 0 {
                at = view
                    .child_of(key)
                    .and_then(|index| view.child(index))
                    .map_err(|damage| damage.at(at))?
                    .page;
                level -= 1;
                continue;
            }
            let damaged = |damage: Damage| damage.at(at);
            let (index, found) = view.find(0, key).map_err(damaged)?;
            if found {
                let range = view.payload_range(index).map_err(damaged)?;
                // An empty entry stands for a delete in a range whose base was lost.
                return Ok(if range.is_empty() { None } else { Some(Found::new(page, range)) });
            }
            return match view.lost().map_err(damaged)? {
                Some(bounds) if bounds.contains(key) && !planted(Plant::LostIsAbsent) => Err(LOST.at(at)),
                _ => Ok(None),
            };
        }
    }
}

impl Tree {
    /// The range of keys that the damage hides which a lookup of `key` met; none where it meets none now.
    pub(crate) async fn gap_at<S: PageSource>(&self, source: S, root: Root, key: &[u8]) -> Option<Gap> {
        let behind = [key, &[0]].concat();
        let mut cursor = Cursor::new(*self, source, root, key, Some(&behind));
        match cursor.next().await {
            Err(Error::Corrupt { .. }) => cursor.take_gap(),
            _ => None,
        }
    }
}

/// The answer for a key of which only the newer half of its history is known.
pub(super) const LOST: Damage = Damage("the index page that held this range of keys was lost");

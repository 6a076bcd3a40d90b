//! Where pages come from and where they go: the two sides that the engine gives to a tree.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;

use super::format::{Draft, PageRef};
use crate::common::error::Result;

/// What a page is read for. A cache may keep pages accordingly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadHint {
    /// A lookup of one key.
    Point,
    /// A scan or a walk: the neighbours follow, and a leaf is not needed again soon.
    Scan,
    /// An apply: the page is about to be replaced.
    Apply,
}

/// Gives pages. Cheap to share; a reader holds it by value or by reference.
pub(crate) trait PageSource: Send + Sync {
    /// An immutable page in memory, pinned as long as the value lives. Cloning is cheap.
    type Page: Deref<Target = [u8; BLOCK_BYTES]> + Clone + Send + Sync;

    /// The page, where it is in memory; asks nothing of the device.
    fn cached(&self, _page: PageRef, _level: u8, _hint: ReadHint) -> Option<Self::Page> {
        None
    }

    /// The page, verified against its checksum. `level` is where it stands in the tree (0 is a leaf).
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] where what is stored is not this page; [`crate::Error::Io`] where the device failed.
    fn page(
        &self,
        page: PageRef,
        level: u8,
        hint: ReadHint,
    ) -> impl Future<Output = Result<Self::Page>> + Send;

    /// Says that these pages of one level will be asked for soon, in this order: reads them in one batch. May do less.
    fn prefetch(&self, pages: &[PageRef], level: u8, hint: ReadHint);

    /// How many pages a scan may ask for ahead of need, so that none of them goes before it is read.
    fn ahead_max(&self) -> usize {
        usize::MAX
    }
}

impl<S: PageSource> PageSource for &S {
    type Page = S::Page;

    fn cached(&self, page: PageRef, level: u8, hint: ReadHint) -> Option<S::Page> {
        (**self).cached(page, level, hint)
    }

    fn page(
        &self,
        page: PageRef,
        level: u8,
        hint: ReadHint,
    ) -> impl Future<Output = Result<Self::Page>> + Send {
        (**self).page(page, level, hint)
    }

    fn prefetch(&self, pages: &[PageRef], level: u8, hint: ReadHint) {
        (**self).prefetch(pages, level, hint);
    }

    fn ahead_max(&self) -> usize {
        (**self).ahead_max()
    }
}

impl<S: PageSource> PageSource for Arc<S> {
    type Page = S::Page;

    fn cached(&self, page: PageRef, level: u8, hint: ReadHint) -> Option<S::Page> {
        (**self).cached(page, level, hint)
    }

    fn page(
        &self,
        page: PageRef,
        level: u8,
        hint: ReadHint,
    ) -> impl Future<Output = Result<Self::Page>> + Send {
        (**self).page(page, level, hint)
    }

    fn prefetch(&self, pages: &[PageRef], level: u8, hint: ReadHint) {
        (**self).prefetch(pages, level, hint);
    }

    fn ahead_max(&self) -> usize {
        (**self).ahead_max()
    }
}

/// Takes the new pages of an apply and the old ones that the new tree does not have any more.
///
/// When an apply fails, the new tree does not exist: its owner gives back what was written and forgets the releases.
pub(crate) trait PageSink: Send {
    /// Chooses a block for `draft`, seals it ([`Draft::seal`]) and takes its bytes. `replaces` is the old page whose
    /// content it mostly takes over, if there is one: the new page inherits that one's place in the cache. An old page can be
    /// named twice (it was split). Pages arrive children first, leaves in the order of their keys.
    ///
    /// # Errors
    /// Any; it ends the apply.
    fn write(
        &mut self,
        draft: &mut Draft,
        replaces: Option<PageRef>,
    ) -> impl Future<Output = Result<PageRef>> + Send;

    /// This page of the old tree is not part of the new one. Called once for each such page that could be reached: what lies
    /// under a damaged inner page is found by a check only.
    fn release(&mut self, page: PageRef);
}

//! The engine's interfaces to a tree: a source of old pages and a sink for new ones.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use shoal_base::BLOCK_BYTES;
use shoal_common::error::Result;

use crate::format::{Draft, PageRef};

/// The purpose of a read. A cache may keep the page accordingly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadHint {
    /// A lookup of one key.
    Point,
    /// A scan or a walk: the neighbours follow, and the leaf is not needed again soon.
    Scan,
    /// An apply: the page is about to be replaced.
    Apply,
}

/// Returns pages. A source is cheap to share; a reader holds it by value or by reference.
pub trait PageSource: Send + Sync {
    /// An immutable page in memory, pinned while the value lives. Cloning is cheap.
    type Page: Deref<Target = [u8; BLOCK_BYTES]> + Clone + Send + Sync;

    /// Returns the page if it is in memory; reads nothing from the device.
    fn cached(&self, _page: PageRef, _level: u8, _hint: ReadHint) -> Option<Self::Page> {
        None
    }

    /// Returns the page, verified against its checksum. `level` is its level in the tree (0 is a leaf).
    ///
    /// # Errors
    /// [`shoal_common::error::Error::Corrupt`] if the stored bytes are not this page; [`shoal_common::error::Error::Io`] if the device failed.
    fn page(
        &self,
        page: PageRef,
        level: u8,
        hint: ReadHint,
    ) -> impl Future<Output = Result<Self::Page>> + Send;

    /// Announces that these pages of one level will be read soon, in this order. The source reads them in one batch; it may read fewer.
    fn prefetch(&self, pages: &[PageRef], level: u8, hint: ReadHint);

    /// The number of pages that a scan may prefetch so that none of them is evicted before the scan reads it.
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

/// Takes the new pages of an apply, and the old pages that are not in the new tree.
///
/// If an apply fails, the new tree does not exist: the owner of the sink frees the written blocks and drops the releases.
pub trait PageSink: Send {
    /// Chooses a block for `draft`, seals it ([`Draft::seal`]) and takes its bytes. `replaces` is the old page with most of the new page's
    /// content, if there is one: the new page inherits its place in the cache. The sink may see an old page twice, if it was split. Pages
    /// arrive children first, leaves in the order of their keys.
    ///
    /// # Errors
    /// Any; it aborts the apply.
    fn write(
        &mut self,
        draft: &mut Draft,
        replaces: Option<PageRef>,
    ) -> impl Future<Output = Result<PageRef>> + Send;

    /// Takes a page of the old tree that is not in the new one. Called once for each such page that the apply could reach: only a check
    /// finds the pages under a damaged inner page.
    fn release(&mut self, page: PageRef);
}

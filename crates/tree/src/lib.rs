//! The copy-on-write B+tree of 4 KiB pages in which a tablet keeps its entries.
//!
//! A tree is a [`Root`] and the pages under it. Published pages never change: readers walk them without latches ([`Tree::lookup`],
//! [`Cursor`]), and the one writer of a tablet makes a new tree beside the old one in one sorted pass ([`Apply`]), which shares every page
//! that no operation touched. A parent holds its children's checksums, so a lost or misdirected write is detected. Keys and entries are
//! opaque bytes here; keys are ordered bytewise.
//!
//! The tree does no I/O and allocates no blocks: pages come from a [`PageSource`] and go to a [`PageSink`]. Damage stays local (R19): an
//! apply replaces a page that cannot be read by a leaf marked "base lost".
//!
//! [`layers`] stacks small trees above a tablet's base, newest first, and searches, lists and walks all of them as one.
//!
//! Reading order: `pages.rs` (the two traits), `format.rs` and `docs/format/page.md` (the bytes), `page.rs` (reading a page),
//! `read/lookup.rs`, `read/cursor.rs`, then the writer: `write/builder.rs` (the pages of one level), `write/levels.rs` (all
//! levels), `write/apply.rs`; last `read/walk.rs`, which checks everything.

mod filter;
mod format;
pub mod layers;
mod page;
mod pages;
mod read;
mod testing;
mod write;

#[cfg(test)]
mod tests;

pub use filter::Probe;
pub use format::{Draft, ENTRIES_MAX, ENTRY_BYTES_MAX, PageRef, TREE_KEY_BYTES_MAX};
pub use pages::{PageSink, PageSource, ReadHint};
pub use read::cursor::{Cursor, Gap, KnownPages};
pub use read::leaf_finder::{LeafFinder, LeafPlace};
pub use read::lookup::{Found, NextPage, Step};
pub use read::walk::{Problem, Visitor, Walked};
#[cfg(any(test, feature = "testing"))]
pub use testing::fixtures;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub use testing::hostile::page as hostile_page;
pub use write::apply::{Applied, Apply, Fate, LostRange, Merge, Old};
pub use write::bulk::TreeWriter;

use shoal_base::{BLOCK_BYTES, TabletId};
use shoal_common::error::Result;
use shoal_common::injected_bug::{Bug, injected};

use format::Damage;
use page::PageView;

/// Highest number of levels of a tree. Even keys of 1,100 bytes leave a fan-out of two or more.
pub const HEIGHT_MAX: u8 = 32;

/// The identity of a tree. Every page carries both fields, so that a page of another store or tablet is never taken for a page of this
/// tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Identity of the device, as the superblock has it.
    pub device: u64,
    /// The tablet.
    pub tablet: TabletId,
}

/// One state of a tree, complete for a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The topmost page; `None` if the tree is empty.
    pub page: Option<PageRef>,
    /// Number of levels; the root page has level `height - 1`. 0 if the tree is empty.
    pub height: u8,
    /// Entries in the tree, without those lost with a damaged page.
    pub entries: u64,
}

impl Root {
    /// The tree without entries.
    pub const EMPTY: Self = Self { page: None, height: 0, entries: 0 };

    /// Returns the root page and its level; `None` for the empty tree.
    ///
    /// # Errors
    /// [`shoal_common::error::Error::Corrupt`] if page and height contradict each other: they come from a superblock.
    #[inline]
    fn top(&self) -> Result<Option<(PageRef, u8)>> {
        match (self.page, self.height) {
            (None, 0) => Ok(None),
            (Some(page), _) if self.entries > ENTRIES_MAX => {
                Err(Damage("the root counts more entries than a store can hold").at(page))
            }
            (Some(page), 1..=HEIGHT_MAX) => Ok(Some((page, self.height - 1))),
            (page, _) => Err(Damage("the root's height does not fit its page").at(page.unwrap_or_default())),
        }
    }
}

impl Tree {
    /// Reads the header of `bytes` and checks that this is page `page` of this tree at `level`.
    ///
    /// # Errors
    /// [`shoal_common::error::Error::Corrupt`] if it is not.
    #[inline]
    fn view<'a>(&self, bytes: &'a [u8; BLOCK_BYTES], page: PageRef, level: u8) -> Result<PageView<'a>> {
        self.parse(bytes, page, level).map_err(|damage| damage.at(page))
    }

    #[inline]
    fn parse<'a>(
        &self,
        bytes: &'a [u8; BLOCK_BYTES],
        page: PageRef,
        level: u8,
    ) -> std::result::Result<PageView<'a>, Damage> {
        let view = PageView::parse(bytes)?;
        let header = view.header();
        let wrong = if header.crc != page.crc && !injected(Bug::ParentNotAsked) {
            "the page is not the one that its parent refers to (another checksum)"
        } else if header.block != page.block {
            "the page belongs to another block"
        } else if header.device != self.device {
            "the page belongs to another store"
        } else if header.tablet != self.tablet.0 {
            "the page belongs to another tablet"
        } else if header.level != level {
            "the page belongs to another level of the tree"
        } else {
            return Ok(view);
        };
        Err(Damage(wrong))
    }
}

//! Writes a tree from its entries alone, in the order of their keys: full pages from the leaves up, without reading.

use shoal_base::Lsn;
use shoal_common::error::{Error, Result};

use crate::pages::PageSink;
use crate::write::levels::Levels;
use crate::{ENTRY_BYTES_MAX, Root, Tree};

/// A tree under construction. Its leaves have filters.
pub struct TreeWriter<'a, K> {
    levels: Levels<'a, K>,
    last: Vec<u8>,
    entries: u64,
}

impl<'a, K: PageSink> TreeWriter<'a, K> {
    /// Creates a tree without entries. Its pages carry `lsn`: the entries are of records up to it.
    pub fn new(tree: Tree, lsn: Lsn, sink: &'a mut K) -> Self {
        Self { levels: Levels::new(tree, lsn, sink, true), last: Vec::new(), entries: 0 }
    }

    /// Appends an entry; its key must be above the previous one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not, because the entries are those of a forged leaf; [`Error::Invalid`] if the entry is empty or too large;
    /// as the sink.
    pub async fn push(&mut self, key: &[u8], entry: &[u8]) -> Result<()> {
        if self.entries > 0 && *self.last >= *key {
            let what = format!("a tree has its keys out of order at {}", key.escape_ascii());
            return Err(Error::Corrupt { what, block: 0 });
        }
        if entry.is_empty() || key.len() + entry.len() > ENTRY_BYTES_MAX {
            return Err(Error::Invalid(format!("an entry of {} bytes", entry.len())));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
        self.levels.leaves().set_low(&[]);
        self.levels.push_entry(key, &[], entry).await
    }

    /// Writes the waiting pages, and returns the tree.
    ///
    /// # Errors
    /// As the sink.
    pub async fn finish(mut self) -> Result<Root> {
        let root = self.levels.finish().await?;
        assert_eq!(root.entries, self.entries, "a tree has the entries that were written to it");
        Ok(root)
    }
}

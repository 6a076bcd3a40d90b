//! An export: the objects that it reads, and its rules.
//!
//! `tree/unload.rs` writes them into a folder, `tarball/unload.rs` into a tar.

use std::sync::Arc;

use bytes::Bytes;
use shoal_client::{ListEntry, Result};

use crate::filter::Filter;
use crate::objects::{Objects, Pages};
use crate::report::TransferReport;

/// An export.
#[derive(Clone)]
pub struct Export {
    /// The store.
    pub objects: Objects,
    /// The bucket of the objects.
    pub bucket: String,
    /// The keys of the objects start with this.
    pub prefix: Bytes,
    /// Selects the objects that take part.
    pub filter: Filter,
    /// Gets the fate of each object.
    pub report: Arc<TransferReport>,
}

impl Export {
    /// Counts the objects and their bytes, so that the report has a total.
    pub async fn count(&self) {
        let (mut items, mut bytes) = (0, 0);
        let mut pages = self.pages();
        while !self.report.is_stopped() {
            match pages.next().await {
                Ok(Some(page)) => {
                    for entry in page.entries.iter().filter(|entry| self.takes(&entry.key)) {
                        items += 1;
                        bytes += entry.info.bytes;
                    }
                }
                Ok(None) => return self.report.set_total(items, bytes),
                // There is no estimate then; the export's own listing reports the failure.
                Err(_) => return,
            }
        }
    }

    /// The listing of all objects, also of those that do not take part.
    pub(crate) fn pages(&self) -> Pages<'_> {
        self.objects.pages(&self.bucket, &self.prefix)
    }

    /// The objects of the next page that take part; none after the last page. The report gets the damaged ranges, and the number of
    /// the other objects.
    pub(crate) async fn next(&self, pages: &mut Pages<'_>) -> Result<Option<Vec<ListEntry>>> {
        let Some(mut page) = pages.next().await? else { return Ok(None) };
        let listed = page.entries.len();
        page.entries.retain(|entry| self.takes(&entry.key));
        self.report.excluded((listed - page.entries.len()) as u64);
        self.report.damaged(page.damaged);
        Ok(Some(page.entries))
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.filter.takes(self.relative(key))
    }

    /// The part of `key` after the prefix.
    pub(crate) fn relative<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        key.get(self.prefix.len()..).unwrap_or_default()
    }
}

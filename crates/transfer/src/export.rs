//! An export: the objects that it reads, and its rules.
//!
//! `tree/unload.rs` writes them into a folder, `tarball/unload.rs` into a tar.

use std::sync::Arc;

use bytes::Bytes;
use shoal_client::{ListEntry, ListRequest, Result};

use crate::filter::Filter;
use crate::objects::Objects;
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

/// The objects of an export in the order of their keys, page by page.
pub(crate) struct Pages<'a> {
    export: &'a Export,
    /// The next request; none after the last page.
    request: Option<ListRequest>,
}

impl Export {
    /// Counts the objects and their bytes, so that the report has a total.
    pub async fn count(&self) {
        let (mut items, mut bytes) = (0, 0);
        let mut request = self.request();
        // If this listing fails there is no estimate; the export's own listing reports the failure.
        while let Ok(page) = self.objects.list(&request).await {
            for entry in page.entries.iter().filter(|entry| self.takes(&entry.key)) {
                items += 1;
                bytes += entry.info.bytes;
            }
            match page.next {
                Some(next) if !self.report.is_stopped() => request.start_after = next,
                _ => return self.report.set_total(items, bytes),
            }
        }
    }

    pub(crate) fn pages(&self) -> Pages<'_> {
        Pages { export: self, request: Some(self.request()) }
    }

    fn request(&self) -> ListRequest {
        ListRequest { bucket: self.bucket.clone(), prefix: self.prefix.to_vec(), ..ListRequest::default() }
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.filter.takes(self.relative(key))
    }

    /// The part of `key` after the prefix.
    pub(crate) fn relative<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        key.get(self.prefix.len()..).unwrap_or_default()
    }
}

impl Pages<'_> {
    /// The objects of the next page that take part; none after the last page. The report gets the damaged ranges, and the number of
    /// the other objects.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ListEntry>>> {
        let Some(request) = &mut self.request else { return Ok(None) };
        let mut page = self.export.objects.list(request).await?;
        match page.next {
            Some(next) => request.start_after = next,
            None => self.request = None,
        }
        let listed = page.entries.len();
        page.entries.retain(|entry| self.export.takes(&entry.key));
        self.export.report.excluded((listed - page.entries.len()) as u64);
        self.export.report.damaged(page.damaged);
        Ok(Some(page.entries))
    }
}

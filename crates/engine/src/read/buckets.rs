//! The names of the buckets that hold objects: a listing that skips from the first object of a bucket to the next bucket.

use shoal_base::task::Boxed;
use shoal_common::error::{Error, Result};
use shoal_common::key::of_encoded;
use shoal_common::object::BucketPage;

use crate::read::list::{page_limit, successor};
use crate::read::streams::{Merge, TabletStream};
use crate::store::Store;

impl Store {
    /// The names of at most `limit` (up to 1,000; 0: 1,000) buckets that hold objects, in the order of their bytes, after
    /// the name `start_after` (empty: from the first one on). A bucket whose last object was deleted, or has expired, does
    /// not exist any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit above 1,000; otherwise as [`Self::list`].
    pub fn buckets<'a>(&'a self, start_after: &'a str, limit: usize) -> Boxed<'a, Result<BucketPage>> {
        Box::pin(async move {
            let inner = &*self.0;
            inner.check_open()?;
            let limit = page_limit(limit, "buckets")?;
            let tablets = inner.tablets.all().iter();
            let streams = tablets
                .map(|tablet| TabletStream::new(inner, tablet.view(), None, Some(1)).without_values())
                .collect();
            let mut merge = Merge::new(inner, streams);
            let start = if start_after.is_empty() { Some(Vec::new()) } else { behind(start_after) };
            let mut page = BucketPage::default();
            if let Some(start) = start {
                merge.seek(start).await?;
            }
            while let Some((key, found)) = merge.next(&mut Vec::new()).await? {
                if found.is_none_or(|found| inner.is_over(found.entry.end, found.version)) {
                    continue;
                }
                let Some(key) = of_encoded(&key) else { continue };
                if !key.is_system() {
                    if page.names.len() == limit {
                        page.is_cut = true;
                        break;
                    }
                    page.names.push(key.bucket().to_owned());
                }
                let Some(next) = behind(key.bucket()) else { break };
                merge.seek(next).await?;
            }
            page.damaged = merge.damaged.len() as u32;
            if page.damaged > 0 && !inner.device_answers().await {
                // The store can be read nowhere now: an empty list of buckets would look like an empty store.
                return Err(Error::Busy("its device does not read anything, not even superblocks"));
            }
            Ok(page)
        })
    }
}

/// The least encoded key of the buckets after `bucket`.
fn behind(bucket: &str) -> Option<Vec<u8>> {
    successor(&[bucket.as_bytes(), &[0]].concat())
}

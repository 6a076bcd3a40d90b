//! The names of the buckets that hold objects: a listing that skips from the first object of a bucket to the next bucket. And the records
//! of buckets.

use std::sync::Arc;

use shoal_base::task::Boxed;
use shoal_common::bucket::{BUCKET_RECORD_BYTES_MAX, BucketConfig};
use shoal_common::error::{Error, Result};
use shoal_common::key::{of_encoded, system_key};
use shoal_common::object::BucketPage;
use shoal_pool::Hint;

use crate::bucket::{BucketState, KnownBuckets, RECORD_PREFIX};
use crate::read::get::{FoundEntry, is_unreadable};
use crate::read::list::{page_limit, successor};
use crate::read::streams::{Merge, TabletStream};
use crate::store::{Inner, Store};

impl Store {
    /// The names of at most `limit` (up to 1,000; 0: 1,000) buckets that hold objects or have a record, in the order of their
    /// bytes, after the name `start_after` (empty: from the first one on). A bucket without a record whose last object was
    /// deleted, or has expired, does not exist any more. Records count once they are [loaded](Store::load_buckets).
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
            add_known(&mut page, inner.buckets.names_after(start_after, limit + 1), limit);
            Ok(page)
        })
    }

    /// Reads the records of all buckets.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) async fn read_buckets(&self) -> Result<KnownBuckets> {
        let inner = &*self.0;
        inner.check_open()?;
        let start = system_key(RECORD_PREFIX).encoded().to_vec();
        let end = successor(&start);
        let tablets = inner.tablets.all().iter();
        let streams = tablets.map(|tablet| TabletStream::new(inner, tablet.view(), end.as_deref(), Some(8)));
        let mut merge = Merge::new(inner, streams.collect());
        merge.seek(start.clone()).await?;
        let mut known = KnownBuckets::default();
        while let Some((key, found)) = merge.next(&mut Vec::new()).await? {
            let Some(name) = key.strip_prefix(&start[..]) else { break };
            let (Ok(name), Some(found)) = (std::str::from_utf8(name), found) else { continue };
            let config = match read_record(inner, &found).await {
                Ok(config) => config,
                Err(error) if is_unreadable(&error) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            if let Err(why) = &config {
                tracing::error!("the settings of bucket {name:?} cannot be used: {why}");
            }
            let state = config.map(|config| Arc::new(BucketState::new(name, config)));
            known.states.insert(name.to_owned(), state);
        }
        if !merge.damaged.is_empty() && !inner.device_answers().await {
            return Err(Error::Busy("its device does not read anything, not even superblocks"));
        }
        let damaged = std::mem::take(&mut merge.damaged).into_iter();
        known.hidden = damaged.filter(|range| range.overlaps(&start, end.as_deref())).collect();
        Ok(known)
    }
}

/// The settings in a record, or the reason why they cannot be used.
async fn read_record(inner: &Inner, found: &FoundEntry) -> Result<std::result::Result<BucketConfig, String>> {
    let bytes = found.entry.value_bytes;
    if bytes > BUCKET_RECORD_BYTES_MAX as u64 {
        return Ok(Err(format!("its record has {bytes} bytes")));
    }
    let object = inner.read_object(found, 0, bytes, Hint::Scan).await?;
    Ok(BucketConfig::decode(&object.value.to_vec()).map_err(str::to_owned))
}

/// Adds the names of buckets with a record to a page of at most `limit` names. `known` are those after the page's start, in order, at least
/// one more than the page may have if there are more.
fn add_known(page: &mut BucketPage, known: Vec<String>, limit: usize) {
    if let Some(last) = page.names.last().filter(|_| page.is_cut).cloned() {
        page.names.extend(known.into_iter().filter(|name| *name <= last));
    } else {
        page.names.extend(known);
    }
    page.names.sort_unstable();
    page.names.dedup();
    page.is_cut |= page.names.len() > limit;
    page.names.truncate(limit);
}

/// The least encoded key of the buckets after `bucket`.
fn behind(bucket: &str) -> Option<Vec<u8>> {
    successor(&[bucket.as_bytes(), &[0]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_buckets_of_both_kinds_in_order() {
        let page = |names: &[&str], known: &[&str], is_cut: bool| {
            let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let mut page = BucketPage { names: own(names), is_cut, damaged: 0 };
            add_known(&mut page, own(known), 2);
            (page.names.join(" "), page.is_cut)
        };
        assert_eq!(page(&[], &[], false), (String::new(), false));
        assert_eq!(page(&["b"], &["a", "b"], false), ("a b".into(), false));
        assert_eq!(page(&["b"], &["a", "b", "c"], false), ("a b".into(), true));
        // More buckets with objects may be before `c`.
        assert_eq!(page(&["a", "b"], &["c"], true), ("a b".into(), true));
        assert_eq!(page(&["a", "d"], &["b", "c"], true), ("a b".into(), true));
        assert_eq!(page(&[], &["a", "b", "c"], false), ("a b".into(), true));
    }
}

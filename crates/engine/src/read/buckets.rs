//! The names of the buckets that hold objects: a listing that skips from the first object of a bucket to the next bucket. And the records
//! of buckets.

use std::sync::Arc;

use shoal_base::list::DamagedRange;
use shoal_base::task::Boxed;
use shoal_common::bucket::{BUCKET_RECORD_BYTES_MAX, BucketConfig};
use shoal_common::error::{Error, Result};
use shoal_common::hidden_key::{PART, is_hidden};
use shoal_common::key::{check_bucket, of_encoded, system_key};
use shoal_common::object::BucketPage;
use shoal_pool::Hint;
use shoal_tablets::tablet::view::View;

use crate::bucket::{BucketState, KnownBuckets, RECORD_PREFIX, record_key};
use crate::read::get::{FoundEntry, is_unreadable};
use crate::read::list::{page_limit, successor};
use crate::read::snapshot::Snapshot;
use crate::read::streams::{Merge, TabletStream};
use crate::store::{Inner, Store};

/// About this number of bytes of records are read at a time.
const RECORD_PAGE_BYTES: usize = 256 << 10;

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
                .map(|tablet| {
                    TabletStream::new(inner, tablet.view(), Some(&[PART]), Some(1)).without_values()
                })
                .collect();
            let mut merge = Merge::new(inner, streams);
            let start = if start_after.is_empty() { Some(Vec::new()) } else { behind(start_after) };
            let mut page = BucketPage::default();
            if let Some(start) = start {
                merge.seek(start).await?;
            }
            while let Some((key, found)) = merge.next(&mut Vec::new()).await? {
                if is_hidden(&key) {
                    break;
                }
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
    pub(crate) fn read_buckets(&self) -> Boxed<'_, Result<KnownBuckets>> {
        Box::pin(async move {
            let inner = &*self.0;
            inner.check_open()?;
            let mut known = KnownBuckets::default();
            let mut after = Some(String::new());
            while let Some(last) = after {
                let views = inner.tablets.all().iter().map(|tablet| tablet.view());
                let page = record_page(inner, views.collect(), &last).await?;
                after = page.next();
                for (name, record) in page.records {
                    let state =
                        BucketConfig::decode(&record).map(|config| Arc::new(BucketState::new(&name, config)));
                    known.states.insert(name, state.map_err(str::to_owned));
                }
                known.states.extend(page.unreadable.into_iter().map(|(name, range)| (name, Err(range.why))));
                known.hidden.extend(page.damaged);
            }
            for (name, state) in &known.states {
                if let Err(why) = state {
                    tracing::error!("the settings of bucket {name:?} cannot be used: {why}");
                }
            }
            Ok(known)
        })
    }
}

impl Snapshot {
    /// Some records of buckets after the name `after` (empty: from the first one on), in the order of their names.
    ///
    /// # Errors
    /// As [`Snapshot::objects`].
    pub fn bucket_records<'a>(&'a self, after: &'a str) -> Boxed<'a, Result<BucketRecords>> {
        Box::pin(async move { record_page(&self.store().0, self.held()?.views.to_vec(), after).await })
    }
}

/// Records of buckets, in the order of names.
#[derive(Clone, Debug, Default)]
pub struct BucketRecords {
    /// Names and records (`docs/format/object.md`).
    pub records: Vec<(String, Vec<u8>)>,
    /// Names, each with the range that has only the key of its record, which cannot be read.
    pub unreadable: Vec<(String, DamagedRange)>,
    /// Ranges of encoded keys that may have more records.
    pub damaged: Vec<DamagedRange>,
    /// The last name, if there are more.
    last: Option<String>,
}

impl BucketRecords {
    /// The name after which the records continue; `None`: there are no more.
    #[must_use]
    pub fn next(&self) -> Option<String> {
        self.last.clone()
    }
}

async fn record_page(inner: &Inner, views: Vec<Arc<View>>, after: &str) -> Result<BucketRecords> {
    let prefix = system_key(RECORD_PREFIX).encoded().to_vec();
    let end = successor(&prefix);
    let start =
        if after.is_empty() { prefix.clone() } else { [&prefix[..], after.as_bytes(), &[0]].concat() };
    let streams = views.into_iter().map(|view| TabletStream::new(inner, view, end.as_deref(), Some(8)));
    let mut merge = Merge::new(inner, streams.collect());
    merge.seek(start.clone()).await?;
    let (mut page, mut bytes, mut until) = (BucketRecords::default(), 0, end.clone());
    while let Some((key, found)) = merge.next(&mut Vec::new()).await? {
        let Some(name) = key.strip_prefix(&prefix[..]) else { break };
        let name = std::str::from_utf8(name).ok().filter(|name| check_bucket(name).is_ok());
        let (Some(name), Some(found)) = (name, found) else { continue };
        match read_record(inner, &found).await {
            Ok(record) => {
                bytes += record.len();
                page.records.push((name.to_owned(), record));
            }
            Err(Error::Corrupt { what: why, block }) => {
                let (tablet, to) = (inner.tablets.of(&record_key(name)).id, [&key[..], &[0]].concat());
                let range = DamagedRange { tablet, from: key.clone(), to: Some(to), block, why };
                page.unreadable.push((name.to_owned(), range));
            }
            Err(error) => return Err(error),
        }
        if bytes >= RECORD_PAGE_BYTES {
            page.last = Some(name.to_owned());
            until = Some([&key[..], &[0]].concat());
            break;
        }
    }
    if !merge.damaged.is_empty() && !inner.device_answers().await {
        return Err(Error::Busy("its device does not read anything, not even superblocks"));
    }
    let damaged = std::mem::take(&mut merge.damaged).into_iter();
    page.damaged = damaged.filter(|range| range.overlaps(&start, until.as_deref())).collect();
    Ok(page)
}

/// The bytes of a record.
///
/// # Errors
/// [`Error::Corrupt`] if it cannot be read, or is longer than records are; as the device.
async fn read_record(inner: &Inner, found: &FoundEntry) -> Result<Vec<u8>> {
    let bytes = found.entry.value_bytes;
    if bytes > BUCKET_RECORD_BYTES_MAX as u64 {
        return Err(Error::Corrupt { what: format!("its record has {bytes} bytes"), block: 0 });
    }
    match inner.read_object(found, 0, bytes, Hint::Scan).await {
        Ok(object) => Ok(object.value.to_vec()),
        Err(error) if is_unreadable(&error) => Err(Error::Corrupt { what: error.to_string(), block: 0 }),
        Err(error) => Err(error),
    }
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

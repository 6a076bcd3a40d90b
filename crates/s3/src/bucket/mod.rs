//! The buckets that exist: those that CreateBucket made, which have a record, and those that objects of any frontend made.
//!
//! This module is all that the service knows of bucket records. They are objects of one bucket that S3 does not show, with the
//! name as key and the owner in the metadata; the process has all of them in memory. A delete does not stop puts that have passed
//! the look at their bucket: such an object makes its bucket anew, without an owner.

pub(crate) mod operations;

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use shoal_base::Clock;
use shoal_base::limits::LIST_PAGE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Error, ListRequest, Metadata, ObjectInfo, ObjectKey, PutOptions, RejectRules, Store};

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::serve::failure::failed;
use crate::time::SECOND_NS;

/// The bucket of the records.
const RECORDS: &str = "_shoal-s3";

/// The name in a record's metadata.
const OWNER: &str = "owner";

/// The owner of a bucket without a record.
const NOBODY: &str = "shoal";

/// Most records.
const RECORDS_MAX: usize = 10_000;

/// A bucket without a record that has objects is looked up again after this time.
const SEEN_NS: u64 = SECOND_NS;

/// Most remembered buckets without records; beyond that all are forgotten.
const SEEN_MAX: usize = 1_000;

/// A bucket that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketState {
    /// The id of the key that created it.
    pub(crate) owner: Box<str>,
    /// The time of its creation; 0 without a record.
    pub(crate) created_ns: u64,
}

impl BucketState {
    pub(crate) fn new(owner: &str, created_ns: u64) -> Self {
        Self { owner: owner.into(), created_ns }
    }
}

/// All buckets.
pub(crate) struct Buckets {
    recorded: RwLock<BTreeMap<String, Arc<BucketState>>>,
    /// Buckets without records that had objects, and the moment until which that counts.
    seen: Mutex<HashMap<String, u64>>,
    clock: Arc<dyn Clock>,
}

/// Returns true for a bucket that S3 does not show.
pub(crate) fn is_hidden(bucket: &str) -> bool {
    bucket == RECORDS
}

fn record_key(bucket: &str) -> S3Result<ObjectKey> {
    ObjectKey::new(RECORDS, bucket.as_bytes()).map_err(|error| failed(&error))
}

fn state_of(info: &ObjectInfo) -> BucketState {
    let owner = info.metadata.user.iter().find(|(name, _)| name == OWNER);
    let owner = owner.and_then(|(_, id)| str::from_utf8(id).ok()).unwrap_or(NOBODY);
    BucketState::new(owner, info.modified_ns)
}

impl Buckets {
    /// Reads all records.
    pub(crate) async fn read(store: &Store, clock: Arc<dyn Clock>) -> S3Result<Self> {
        let mut recorded = BTreeMap::new();
        let mut request = ListRequest { bucket: RECORDS.to_owned(), ..ListRequest::default() };
        loop {
            let page = store.list(&request).await.map_err(|error| failed(&error))?;
            for (key, info) in page.entries {
                if let Ok(name) = String::from_utf8(key) {
                    recorded.insert(name, Arc::new(state_of(&info)));
                }
            }
            match page.next {
                Some(next) => request.start_after = next,
                None => break,
            }
        }
        Ok(Self { recorded: RwLock::new(recorded), seen: Mutex::default(), clock })
    }

    /// The bucket with this name.
    pub(crate) async fn find(&self, store: &Store, name: &str) -> S3Result<Option<Arc<BucketState>>> {
        if let Some(state) = self.recorded.read().get(name) {
            return Ok(Some(Arc::clone(state)));
        }
        let now_ns = self.clock.monotonic_ns();
        let is_seen = self.seen.lock().get(name).is_some_and(|until_ns| now_ns < *until_ns);
        if !is_seen {
            if !has_objects(store, name).await? {
                return Ok(None);
            }
            let mut seen = self.seen.lock();
            if seen.len() >= SEEN_MAX {
                seen.clear();
            }
            seen.insert(name.to_owned(), now_ns + SEEN_NS);
        }
        Ok(Some(Arc::new(BucketState::new(NOBODY, 0))))
    }

    /// Creates a bucket. A bucket without a record gets one.
    ///
    /// # Errors
    /// `BucketAlreadyExists` if it has another owner; its own owner may create it again.
    pub(crate) async fn create(&self, store: &Store, name: &str, owner: &str) -> S3Result<()> {
        let state = BucketState::new(owner, self.clock.wall_ns());
        if self.recorded.read().len() >= RECORDS_MAX {
            let why = format!("The store has {RECORDS_MAX} buckets, and takes no more.");
            return Err(S3Error::new(ErrorCode::InvalidRequest, why));
        }
        let options = PutOptions {
            rules: RejectRules { if_exists: true, ..RejectRules::default() },
            metadata: Metadata {
                user: vec![(OWNER.to_owned(), Bytes::copy_from_slice(owner.as_bytes()))],
                ..Metadata::default()
            },
            modified_ns: Some(state.created_ns),
            ..PutOptions::default()
        };
        let key = record_key(name)?;
        let state = match store.put(&key, Buffer::new(), options).await {
            Ok(_) => state,
            Err(Error::ConditionFailed { .. }) => {
                let info = store.head(&key).await.map_err(|error| failed(&error))?;
                state_of(&info.ok_or_else(|| S3Error::from(ErrorCode::OperationAborted))?)
            }
            Err(error) => return Err(failed(&error)),
        };
        let is_own = *state.owner == *owner;
        self.recorded.write().insert(name.to_owned(), Arc::new(state));
        if is_own { Ok(()) } else { Err(ErrorCode::BucketAlreadyExists.into()) }
    }

    /// Deletes an empty bucket.
    ///
    /// # Errors
    /// `BucketNotEmpty`.
    pub(crate) async fn delete(&self, store: &Store, name: &str) -> S3Result<()> {
        if has_objects(store, name).await? {
            return Err(ErrorCode::BucketNotEmpty.into());
        }
        let deleted = store.delete(&record_key(name)?, RejectRules::default()).await;
        deleted.map_err(|error| failed(&error))?;
        self.recorded.write().remove(name);
        self.seen.lock().remove(name);
        Ok(())
    }

    /// The names of at most `limit` buckets after `after` that `shows` accepts, with the times of their creation, in order; and true if
    /// there are more.
    pub(crate) async fn page(
        &self,
        store: &Store,
        after: &str,
        limit: usize,
        shows: impl Fn(&str) -> bool,
    ) -> S3Result<(Vec<(String, u64)>, bool)> {
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        {
            let recorded = self.recorded.read();
            let behind = (Bound::Excluded(after.to_owned()), Bound::Unbounded);
            let shown = recorded.range::<String, _>(behind).filter(|(name, _)| shows(name)).take(limit + 1);
            found.extend(shown.map(|(name, state)| (name.clone(), state.created_ns)));
        }
        let (mut start, mut count) = (after.to_owned(), 0);
        loop {
            let page = store.buckets(&start, LIST_PAGE_MAX).await.map_err(|error| failed(&error))?;
            if page.damaged > 0 {
                return Err(S3Error::new(ErrorCode::InternalError, "A part of the store cannot be read."));
            }
            let Some(last) = page.names.last() else { break };
            last.clone_into(&mut start);
            for name in page.names.into_iter().filter(|name| !is_hidden(name) && shows(name)) {
                count += 1;
                found.entry(name).or_insert(0);
            }
            if count > limit || !page.is_cut {
                break;
            }
        }
        let is_cut = found.len() > limit;
        Ok((found.into_iter().take(limit).collect(), is_cut))
    }
}

/// Returns true if a bucket has an object.
async fn has_objects(store: &Store, bucket: &str) -> S3Result<bool> {
    let mut request = ListRequest { bucket: bucket.to_owned(), limit: 1, ..ListRequest::default() };
    loop {
        let page = store.list(&request).await.map_err(|error| failed(&error))?;
        if !page.entries.is_empty() || !page.damaged.is_empty() {
            return Ok(true);
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => return Ok(false),
        }
    }
}

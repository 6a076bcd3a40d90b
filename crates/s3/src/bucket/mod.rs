//! Buckets as S3 sees them: some have a record of the store, others exist because gRPC or the Redis protocol put objects into them. Next: `operations.rs`, and `write/buckets.rs` of the engine.

pub mod documents;
pub(crate) mod fields;
mod item;
pub mod lifecycle;
pub(crate) mod operations;
pub(crate) mod settings;
pub(crate) mod sweep;
pub mod website;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_base::Clock;
use shoal_engine::{Attributes, BucketConfig, BucketState, Error, ListRequest, Store};

use self::documents::public_access::{ObjectOwnership, PublicAccessBlock};
use self::lifecycle::{LifecycleRule, decode_lifecycle};
use crate::access::acl::CannedAcl;
use crate::access::decide::{BucketAccess, UnreadSetting};
use crate::access::policy::BucketPolicy;
use crate::body::check::EtagScheme;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::time::SECOND_NS;

/// The owner of a bucket without a record.
pub(crate) const NOBODY: &str = "shoal";

/// A bucket without a record that has objects is looked up again after this time.
const SEEN_NS: u64 = SECOND_NS;

/// Most remembered buckets without records; beyond that all are forgotten.
const SEEN_MAX: usize = 1_000;

/// A bucket that exists; without a record it does while it has objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundBucket {
    /// Writes name it, so that they fail if the bucket is deleted before.
    pub(crate) record: Option<Arc<BucketState>>,
    /// Its settings about access; `None` if there are none.
    pub(crate) access: Option<Arc<BucketAccess>>,
    /// Its lifecycle rules; `None` if there are none, or if this program cannot read them.
    pub(crate) lifecycle: Option<Arc<[LifecycleRule]>>,
}

impl FoundBucket {
    fn items(&self) -> Option<&Attributes> {
        self.record.as_ref().map(|record| &record.config().items)
    }

    /// The id of the key that created it.
    pub(crate) fn owner(&self) -> &str {
        let owner = self.items().and_then(|items| items.get(item::OWNER));
        owner.and_then(|id| str::from_utf8(id).ok()).unwrap_or(NOBODY)
    }

    /// Its settings about access, read from its record. Those that cannot be read have no effect: [`BucketAccess::unread`] refuses.
    fn read_access(&self) -> Option<BucketAccess> {
        let record = self.record.as_ref()?;
        let has_object_acls = record.config().has_object_acls;
        let has_items = item::OF_ACCESS.iter().any(|tag| record.config().items.get(*tag).is_some());
        if !has_object_acls && !has_items {
            return None;
        }
        let number = |bytes: &[u8]| bytes.first().copied().ok_or(ErrorCode::InternalError);
        let unknown = ErrorCode::InternalError;
        let block =
            self.setting(item::BLOCK, |bytes| PublicAccessBlock::of_number(number(bytes)?).ok_or(unknown));
        let ownership =
            self.setting(item::OWNERSHIP, |bytes| ObjectOwnership::of_number(number(bytes)?).ok_or(unknown));
        let acl = self.setting(item::ACL, |bytes| CannedAcl::of_number(number(bytes)?).ok_or(unknown));
        let policy = self.setting(item::POLICY, |bytes| BucketPolicy::parse(bytes, record.name()));
        // In this order they are repaired: the block and the ownership limit the ACL and the policy that are set then.
        let errors = [
            (item::BLOCK, block.as_ref().err()),
            (item::OWNERSHIP, ownership.as_ref().err()),
            (item::ACL, acl.as_ref().err()),
            (item::POLICY, policy.as_ref().err()),
        ];
        let unread = errors.into_iter().find_map(|(tag, error)| {
            Some(UnreadSetting { repairs: item::repairs_of(tag), error: error?.clone() })
        });
        Some(BucketAccess {
            acl: acl.unwrap_or_default().unwrap_or_default(),
            policy: policy.unwrap_or_default(),
            block: block.unwrap_or_default().unwrap_or_default(),
            ownership: ownership.unwrap_or_default(),
            has_object_acls,
            unread,
        })
    }

    /// Its lifecycle rules, read from its record. Requests for objects are served without rules that cannot be read; the sweeper passes over
    /// such a bucket.
    fn read_lifecycle(&self) -> Option<Arc<[LifecycleRule]>> {
        match self.setting(item::LIFECYCLE, decode_lifecycle) {
            Ok(rules) => rules.map(Arc::from),
            Err(error) => {
                let name = self.record.as_ref().map_or("", |record| record.name());
                tracing::warn!("the lifecycle rules of bucket {name:?} are not obeyed: {error}");
                None
            }
        }
    }

    /// Returns true if it has lifecycle rules that this program cannot read.
    pub(crate) fn has_unread_lifecycle(&self) -> bool {
        self.lifecycle.is_none() && self.items().is_some_and(|items| items.get(item::LIFECYCLE).is_some())
    }

    /// The ETags of its new objects; `default` are those of a bucket without a record.
    pub(crate) fn etags(&self, default: EtagScheme) -> EtagScheme {
        match &self.record {
            Some(record) if record.config().has_crc_etags => EtagScheme::Crc,
            Some(_) => EtagScheme::Md5,
            None => default,
        }
    }
}

/// The settings of a bucket that this caller creates.
fn new_config(owner: &str, etags: EtagScheme) -> BucketConfig {
    let mut config = BucketConfig { has_crc_etags: etags == EtagScheme::Crc, ..BucketConfig::default() };
    config.items.set(item::OWNER, Some(owner.as_bytes()));
    config
}

/// Settings as they were read from one state of a bucket.
#[derive(Clone)]
struct ReadSettings {
    state: Arc<BucketState>,
    access: Option<Arc<BucketAccess>>,
    lifecycle: Option<Arc<[LifecycleRule]>>,
}

/// Looks buckets up. Those without records are remembered for a short time.
pub(crate) struct Buckets {
    /// Buckets without records that had objects, and the moment until which that counts.
    seen: Mutex<HashMap<String, u64>>,
    /// The settings of buckets that have some.
    settings: Mutex<HashMap<String, ReadSettings>>,
    clock: Arc<dyn Clock>,
}

impl Buckets {
    /// Loads the records of `store`.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn load(store: &Store, clock: Arc<dyn Clock>) -> S3Result<Self> {
        with_records(store, |store| store.load_buckets()).await??;
        Ok(Self { seen: Mutex::default(), settings: Mutex::default(), clock })
    }

    /// The bucket with this name.
    ///
    /// # Errors
    /// `NoSuchBucket`, those of the store.
    pub(crate) async fn find(&self, store: &Store, name: &str) -> S3Result<FoundBucket> {
        if let Some(found) = self.find_record(store, name)? {
            return Ok(found);
        }
        let now_ns = self.clock.monotonic_ns();
        let is_seen = self.seen.lock().get(name).is_some_and(|until_ns| now_ns < *until_ns);
        if !is_seen {
            if !has_objects(store, name).await? {
                return Err(no_bucket(name));
            }
            let mut seen = self.seen.lock();
            if seen.len() >= SEEN_MAX {
                seen.clear();
            }
            seen.insert(name.to_owned(), now_ns + SEEN_NS);
        }
        Ok(FoundBucket::default())
    }

    /// The bucket with this name, if it has a record.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn find_record(&self, store: &Store, name: &str) -> S3Result<Option<FoundBucket>> {
        let Some(record) = store.bucket(name)? else { return Ok(None) };
        let known = self.settings.lock().get(name).filter(|it| Arc::ptr_eq(&it.state, &record)).cloned();
        if let Some(ReadSettings { state, access, lifecycle }) = known {
            return Ok(Some(FoundBucket { record: Some(state), access, lifecycle }));
        }
        let mut found = FoundBucket { record: Some(record.clone()), ..FoundBucket::default() };
        found.access = found.read_access().map(Arc::new);
        found.lifecycle = found.read_lifecycle();
        if found.access.is_some() || found.lifecycle.is_some() {
            let mut all = self.settings.lock();
            if all.len() >= SEEN_MAX {
                all.clear();
            }
            let FoundBucket { access, lifecycle, .. } = found.clone();
            all.insert(name.to_owned(), ReadSettings { state: record, access, lifecycle });
        }
        Ok(Some(found))
    }

    /// Creates a bucket. One without a record gets one. Its own owner may create it again as it is.
    ///
    /// # Errors
    /// `BucketAlreadyExists` if it has another owner, another ACL, or not the ownership that is asked for.
    async fn create(&self, store: &Store, name: &str, config: BucketConfig) -> S3Result<()> {
        let (name, wanted) = (name.to_owned(), config.items.clone());
        let created = with_records(store, move |store| store.create_bucket(&name, config)).await??;
        let present = &created.state.config().items;
        let is_same = |tag: u8| present.get(tag) == wanted.get(tag);
        if !created.is_new && !is_same(item::OWNER) {
            return Err(ErrorCode::BucketAlreadyExists.into());
        }
        let is_owned_so = wanted.get(item::OWNERSHIP).is_none() || is_same(item::OWNERSHIP);
        if created.is_new || (is_same(item::ACL) && is_owned_so) {
            return Ok(());
        }
        let why = "You own the bucket, and its ACL or its ownership controls are others: PutBucketAcl and \
            PutBucketOwnershipControls change them.";
        Err(S3Error::new(ErrorCode::BucketAlreadyExists, why))
    }

    /// Changes the settings of a bucket. One without a record gets `new`; `None` if it had a record.
    ///
    /// # Errors
    /// `NoSuchBucket`; `InvalidRequest` if its settings are too long together.
    async fn update(
        &self,
        store: &Store,
        name: &str,
        new: Option<BucketConfig>,
        change: impl FnOnce(&mut BucketConfig) + Send + 'static,
    ) -> S3Result<()> {
        let name = name.to_owned();
        with_records(store, move |store| {
            if let Some(new) = new {
                store.create_bucket(&name, new)?;
            }
            let change = |config: &mut BucketConfig| {
                change(config);
                Ok(())
            };
            store.update_bucket(&name, change).map(drop)
        })
        .await??;
        Ok(())
    }

    /// Deletes an empty bucket.
    ///
    /// # Errors
    /// `BucketNotEmpty`.
    async fn delete(&self, store: &Store, name: &str) -> S3Result<()> {
        let of_task = name.to_owned();
        match with_records(store, move |store| store.delete_bucket(&of_task)).await? {
            // Only objects make a bucket without a record.
            Err(Error::NoBucket(_)) if has_objects(store, name).await? => {
                Err(ErrorCode::BucketNotEmpty.into())
            }
            deleted => {
                self.seen.lock().remove(name);
                Ok(deleted?)
            }
        }
    }
}

/// The error for a bucket that does not exist.
pub(crate) fn no_bucket(name: &str) -> S3Error {
    S3Error::from(ErrorCode::NoSuchBucket).with("BucketName", name)
}

/// Runs a change of records, which waits for the device on its thread.
async fn with_records<T: Send + 'static>(
    store: &Store,
    change: impl FnOnce(Store) -> T + Send + 'static,
) -> S3Result<T> {
    let store = store.clone();
    let ended = tokio::task::spawn_blocking(move || change(store)).await;
    ended.map_err(|_| S3Error::new(ErrorCode::InternalError, "A thread of the server has failed."))
}

/// Returns true if a bucket has an object.
async fn has_objects(store: &Store, bucket: &str) -> S3Result<bool> {
    let mut request = ListRequest { bucket: bucket.to_owned(), limit: 1, ..ListRequest::default() };
    loop {
        let page = store.list(&request).await?;
        if !page.entries.is_empty() || !page.damaged.is_empty() {
            return Ok(true);
        }
        match page.next {
            Some(next) => request.start_after = next,
            None => return Ok(false),
        }
    }
}

//! All objects below a prefix, one after the other, for a caller that may list and read them.

use std::net::IpAddr;

use shoal_engine::{ByteRange, ListRequest, ListSink, ObjectInfo, ObjectKey, ValueReader};
use shoal_frontend::access::{Action, Principal};

use super::S3Service;
use crate::access::decide::{Origin, Wish, decide};
use crate::bucket::FoundBucket;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::operation::S3Operation;
use crate::state::Caller;

/// Keys of a page.
const PAGE: usize = 256;

/// Objects below a prefix, in the order of their keys. It is no snapshot: each page is of its moment.
pub struct ObjectWalk {
    service: S3Service,
    caller: Caller,
    origin: Origin,
    prefix: Vec<u8>,
    /// The next page; `None` after the last one.
    next: Option<ListRequest>,
    found: FoundBucket,
}

/// Keys of objects.
struct Keys(Vec<Vec<u8>>);

impl ListSink for Keys {
    fn take(&mut self, key: &[u8], _: ObjectInfo) -> bool {
        self.0.push(key.to_vec());
        true
    }

    fn needs_only_summary(&self) -> bool {
        true
    }
}

impl S3Service {
    /// The objects of `bucket` below `prefix`, for a caller at `address` that may list them.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`; `KeyTooLongError`.
    pub async fn walk(
        &self,
        (principal, address): (Principal, IpAddr),
        bucket: &str,
        prefix: &[u8],
    ) -> S3Result<ObjectWalk> {
        let next = ListRequest {
            bucket: bucket.to_owned(),
            prefix: prefix.to_vec(),
            limit: PAGE,
            ..ListRequest::default()
        };
        let mut walk = ObjectWalk {
            service: self.clone(),
            caller: Caller::of(principal),
            origin: Origin { address, is_secure: self.state.security.is_encrypted() },
            prefix: prefix.to_vec(),
            next: Some(next),
            found: FoundBucket::default(),
        };
        walk.look(bucket).await?;
        Ok(walk)
    }
}

impl ObjectWalk {
    /// Reads the settings of the bucket, and checks that the caller may list. They may have changed since the last page.
    async fn look(&mut self, bucket: &str) -> S3Result<()> {
        let state = &self.service.state;
        let found = state.buckets.find(&state.store, bucket).await;
        if let Err(error) = &found
            && error.code == ErrorCode::NoSuchBucket
        {
            // A caller without a grant does not learn that the bucket is missing.
            self.caller.check(Action::List, bucket, &self.prefix)?;
        }
        self.found = found?;
        let (operation, action) = (S3Operation::ListObjectsV2, Action::List);
        self.check(&Wish { operation, action, bucket, key: None, prefix: Some(&self.prefix) })
    }

    fn check(&self, wish: &Wish<'_>) -> S3Result<()> {
        let access = self.found.access.as_deref();
        decide(&self.caller, self.origin, access, wish).map_err(|refusal| refusal.error)
    }

    /// The next keys, which may be none; `None` at the end.
    ///
    /// # Errors
    /// `AccessDenied`; those of the store, and damage.
    pub async fn next_keys(&mut self) -> S3Result<Option<Vec<Vec<u8>>>> {
        let Some(mut request) = self.next.take() else { return Ok(None) };
        self.look(&request.bucket).await?;
        let mut keys = Keys(Vec::new());
        let page = self.service.state.store.list_into(&request, &mut keys).await?;
        if let Some(range) = page.damaged.first() {
            let why =
                format!("Keys from {} on cannot be read (block {}).", range.from.escape_ascii(), range.block);
            return Err(S3Error::new(ErrorCode::InternalError, why));
        }
        if let Some(next) = page.next {
            request.start_after = next;
            self.next = Some(request);
        }
        Ok(Some(keys.0))
    }

    /// Opens an object; `None` if it does not exist any more.
    ///
    /// # Errors
    /// `AccessDenied`; those of the store.
    pub async fn open(&self, bucket: &str, key: &[u8]) -> S3Result<Option<ValueReader>> {
        let (operation, action) = (S3Operation::GetObject, Action::Read);
        self.check(&Wish { operation, action, bucket, key: Some(key), prefix: None })?;
        let reader =
            self.service.state.store.get_stream(&ObjectKey::new(bucket, key)?, ByteRange::ALL).await?;
        Ok(reader)
    }
}

//! Checks the permissions of a request: its row names the action.

use shoal_engine::{ObjectInfo, ObjectKey};
use shoal_frontend::access::Action;

use super::call::S3Call;
use crate::access::decide::{Refusal, Wish, decide};
use crate::bucket::{FoundBucket, no_bucket};
use crate::object::get::no_key;
use crate::object::metadata::S3Metadata;
use crate::request::copy::CopySource;
use crate::request::error::{ErrorCode, S3Result};
use crate::request::operation::{S3Operation, TargetLevel};
use crate::state::S3State;

impl S3State {
    /// Finds the bucket of a request. For a caller without a key a bucket without a record, which cannot let it in, does not exist.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`.
    pub(crate) async fn find_bucket(&self, call: &mut S3Call) -> S3Result<()> {
        call.found = match call.caller.has_key() {
            true => self.buckets.find(&self.store, call.bucket()).await?,
            false => self
                .buckets
                .find_record(&self.store, call.bucket())?
                .ok_or_else(|| no_bucket(call.bucket()))?,
        };
        Ok(())
    }

    /// Checks a read of an object, which its own ACL may allow. A caller that may list learns that an object is missing.
    async fn check_read(&self, call: &S3Call, found: &FoundBucket, wish: &Wish<'_>) -> S3Result<()> {
        let Err(Refusal { error, is_denied }) = judge(call, found, wish) else { return Ok(()) };
        let (Some(access), Some(key), false) = (&found.access, wish.key, is_denied) else {
            return Err(error);
        };
        let may_list = judge(call, found, &list_of(wish.bucket, key)).is_ok();
        if !access.has_object_acls && !may_list {
            return Err(error);
        }
        match self.store.head(&ObjectKey::new(wish.bucket, key)?).await? {
            Some(info) if access.lets_read_object(info.metadata.acl(), call.caller.has_key()) => Ok(()),
            // The answer is decided here: an object that somebody puts now is not this caller's.
            None if may_list => Err(no_key(key)),
            _ => Err(error),
        }
    }

    /// Checks the action of a request's row.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) async fn check(&self, call: &S3Call) -> S3Result<()> {
        use S3Operation as Of;
        match call.row.operation {
            Of::GetObject | Of::HeadObject | Of::GetObjectAttributes => {
                self.check_read(call, &call.found, &wish_of(call)).await
            }
            _ => check(call),
        }
    }
}

fn judge(call: &S3Call, found: &FoundBucket, wish: &Wish<'_>) -> Result<(), Refusal> {
    decide(&call.caller, call.origin, found.access.as_deref(), wish)
}

/// The wish of a request, by its row.
fn wish_of(call: &S3Call) -> Wish<'_> {
    use S3Operation as Of;
    let (operation, action) = (call.row.operation, call.row.action);
    let is_list = matches!(
        operation,
        Of::ListObjects | Of::ListObjectsV2 | Of::ListObjectVersions | Of::ListMultipartUploads
    );
    let prefix = is_list.then(|| call.query.get("prefix").unwrap_or_default());
    Wish { operation, action, bucket: call.bucket(), key: call.target.key(), prefix }
}

/// Checks the action of a request's row, without the ACLs of objects.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check(call: &S3Call) -> S3Result<()> {
    let S3Call { row, caller, .. } = call;
    let is_known = |knows: bool| if knows { Ok(()) } else { Err(ErrorCode::AccessDenied.into()) };
    let judged = || judge(call, &call.found, &wish_of(call));
    match (row.level, row.operation) {
        // The list has the buckets that the caller knows.
        (TargetLevel::Service, _) => is_known(caller.has_key()),
        // Each key is checked.
        (_, S3Operation::DeleteObjects) => is_known(caller.has_key() || call.found.access.is_some()),
        // They show only that the bucket exists.
        (
            TargetLevel::Bucket,
            S3Operation::HeadBucket | S3Operation::GetBucketLocation | S3Operation::GetBucketVersioning,
        ) => match judged() {
            Err(Refusal { is_denied: false, .. }) => is_known(caller.knows(call.bucket())),
            judged => judged.map_err(|refusal| refusal.error),
        },
        _ => judged().map_err(|refusal| refusal.error),
    }
}

/// Checks the deletion of one of the keys of DeleteObjects.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check_delete(call: &S3Call, key: &[u8]) -> S3Result<()> {
    let (operation, action) = (S3Operation::DeleteObject, Action::Delete);
    let wish = Wish { operation, action, bucket: call.bucket(), key: Some(key), prefix: None };
    judge(call, &call.found, &wish).map_err(|refusal| refusal.error)
}

/// The wish to list a key.
fn list_of<'a>(bucket: &'a str, key: &'a [u8]) -> Wish<'a> {
    let (operation, action) = (S3Operation::ListObjectsV2, Action::List);
    Wish { operation, action, bucket, key: None, prefix: Some(key) }
}

/// Checks that a caller may list a key of the bucket of the request, or of another one, and so may learn that it is missing.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check_list(call: &S3Call, bucket: &str, key: &[u8]) -> S3Result<()> {
    if bucket != call.bucket() {
        return call.caller.check(Action::List, bucket, key);
    }
    judge(call, &call.found, &list_of(bucket, key)).map_err(|refusal| refusal.error)
}

/// Checks that the caller may read this version of an object. The one that [`S3State::check`] looked at may have had another ACL.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check_version(call: &S3Call, info: &ObjectInfo) -> S3Result<()> {
    check_version_in(call, &call.found, || wish_of(call), info)
}

fn check_version_in<'a>(
    call: &S3Call,
    found: &FoundBucket,
    wish: impl FnOnce() -> Wish<'a>,
    info: &ObjectInfo,
) -> S3Result<()> {
    let Some(access) = found.access.as_ref().filter(|access| access.has_object_acls) else { return Ok(()) };
    match judge(call, found, &wish()) {
        Err(refusal) if !access.lets_read_object(info.metadata.acl(), call.caller.has_key()) => {
            Err(refusal.error)
        }
        _ => Ok(()),
    }
}

/// The source of a copy, whose bucket exists.
pub(crate) struct ReadableSource<'a> {
    call: &'a S3Call,
    source: &'a CopySource,
    found: FoundBucket,
}

impl ReadableSource<'_> {
    /// As [`check_version`] for the version that is copied.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn check_version(&self, info: &ObjectInfo) -> S3Result<()> {
        check_version_in(self.call, &self.found, || read_of(self.source), info)
    }
}

fn read_of(source: &CopySource) -> Wish<'_> {
    let (operation, action) = (S3Operation::GetObject, Action::Read);
    Wish { operation, action, bucket: &source.bucket, key: Some(&source.key), prefix: None }
}

/// Checks the source of a copy, and that its bucket exists.
///
/// # Errors
/// `AccessDenied`, `NoSuchBucket`.
pub(crate) async fn check_source<'a>(
    state: &S3State,
    call: &'a S3Call,
    source: &'a CopySource,
) -> S3Result<ReadableSource<'a>> {
    match state.buckets.find(&state.store, &source.bucket).await {
        Ok(found) => {
            state.check_read(call, &found, &read_of(source)).await?;
            Ok(ReadableSource { call, source, found })
        }
        Err(error) => {
            let allowed = call.caller.check(Action::Read, &source.bucket, &source.key);
            Err(allowed.err().unwrap_or(error))
        }
    }
}

//! Checks the permissions of a request: its row names the action.

use shoal_frontend::access::Action;

use super::call::S3Call;
use crate::access::decide::{Refusal, Wish, decide};
use crate::bucket::FoundBucket;
use crate::object::metadata::S3Metadata;
use crate::request::copy::CopySource;
use crate::request::error::{ErrorCode, S3Result};
use crate::request::operation::{S3Operation, TargetLevel};
use crate::state::S3State;

impl S3State {
    /// Finds the bucket of a request. A caller without a key learns nothing about buckets that let in nobody.
    ///
    /// # Errors
    /// `NoSuchBucket`, `AccessDenied`.
    pub(crate) async fn find_bucket(&self, call: &mut S3Call) -> S3Result<()> {
        call.found = match call.caller.has_key() {
            true => self.buckets.find(&self.store, call.bucket()).await?,
            // Only a record lets such a caller in.
            false => self.buckets.find_record(&self.store, call.bucket())?.ok_or(ErrorCode::AccessDenied)?,
        };
        Ok(())
    }

    /// Checks a read of an object, which its own ACL may allow.
    async fn check_read(&self, call: &S3Call, found: &FoundBucket, wish: &Wish<'_>) -> S3Result<()> {
        let Err(Refusal { error, is_denied }) = judge(call, found, wish) else { return Ok(()) };
        let access = found.access.as_ref().filter(|access| access.has_object_acls && !is_denied);
        let (Some(access), Some(key)) = (access, wish.key) else { return Err(error) };
        let info = self.store.head(&shoal_engine::ObjectKey::new(wish.bucket, key)?).await?;
        let acl = info.map(|info| info.metadata.acl()).unwrap_or_default();
        if access.lets_read_object(acl, call.caller.has_key()) { Ok(()) } else { Err(error) }
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

/// The wish of a request, as its row says.
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

/// Checks that a caller may list a key of the bucket of the request, or of another one, and so may learn that it is missing.
///
/// # Errors
/// `AccessDenied`.
pub(crate) fn check_list(call: &S3Call, bucket: &str, key: &[u8]) -> S3Result<()> {
    if bucket != call.bucket() {
        return call.caller.check(Action::List, bucket, key);
    }
    let (operation, action) = (S3Operation::ListObjectsV2, Action::List);
    let wish = Wish { operation, action, bucket, key: None, prefix: Some(key) };
    judge(call, &call.found, &wish).map_err(|refusal| refusal.error)
}

/// Checks the source of a copy, and that its bucket exists.
///
/// # Errors
/// `AccessDenied`, `NoSuchBucket`.
pub(crate) async fn check_source(state: &S3State, call: &S3Call, source: &CopySource) -> S3Result<()> {
    let (operation, action) = (S3Operation::GetObject, Action::Read);
    let wish = Wish { operation, action, bucket: &source.bucket, key: Some(&source.key), prefix: None };
    match state.buckets.find(&state.store, &source.bucket).await {
        Ok(found) => state.check_read(call, &found, &wish).await,
        Err(error) => {
            let allowed = call.caller.check(action, &source.bucket, &source.key);
            Err(allowed.err().unwrap_or(error))
        }
    }
}

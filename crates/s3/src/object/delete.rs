//! DeleteObject and DeleteObjects.

use futures_util::future::join_all;
use http::StatusCode;
use shoal_engine::{ObjectKey, RejectRules};

use super::conditions::{DeleteConditions, PresentObject};
use super::write::Target;
use crate::answer::S3Answer;
use crate::answer::result::delete_result;
use crate::bucket::FoundBucket;
use crate::object::documents::delete::{ObjectToDelete, ObjectsToDelete};
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::serve::call::S3Call;
use crate::serve::permission::check_delete;
use crate::state::S3State;
use crate::time::SECOND_NS;

/// Deletes an object if it fulfils the conditions. A missing object is a success.
async fn delete(state: &S3State, key: &ObjectKey, conditions: &DeleteConditions) -> S3Result<()> {
    if conditions.is_empty() {
        state.store.delete(key, RejectRules::default()).await?;
        return Ok(());
    }
    // A deleted bucket has no objects.
    let target = Target { store: &state.store, key, bucket: &FoundBucket::default() };
    let deleted = target.delete_if(|info, etag| {
        let etag = etag.to_string();
        let (bytes, modified_s) = (info.bytes, info.modified_ns / SECOND_NS);
        conditions.judge(Some(&PresentObject { etag: &etag, bytes, modified_s }))
    });
    deleted.await.map(drop)
}

/// DeleteObject.
pub(crate) async fn delete_object(state: &S3State, call: S3Call) -> S3Result<S3Answer> {
    let conditions = DeleteConditions::parse(&call.headers)?;
    delete(state, &call.object_key()?, &conditions).await?;
    Ok(S3Answer::empty(StatusCode::NO_CONTENT))
}

/// DeleteObjects: each with its own outcome. All deletes are with the store at the same time, so that they share a flush.
pub(crate) async fn delete_objects(state: &S3State, mut call: S3Call) -> S3Result<S3Answer> {
    let document = call.document(state).await?;
    let wanted = ObjectsToDelete::parse(&document)?;
    let bucket = call.bucket();
    wanted.objects.iter().for_each(|object| shoal_metrics::note_key(bucket, object.key.as_bytes()));
    let deletes = wanted.objects.iter().map(|object| delete_listed(state, &call, object));
    let outcomes = join_all(deletes).await;
    let results = wanted
        .objects
        .iter()
        .zip(outcomes)
        .map(|(object, outcome)| (object.key.as_str(), object.version_id.as_deref(), outcome.err()));
    Ok(S3Answer::xml(delete_result(&results.collect::<Vec<_>>(), wanted.is_quiet)))
}

async fn delete_listed(state: &S3State, call: &S3Call, object: &ObjectToDelete) -> S3Result<()> {
    if object.version_id.as_deref().is_some_and(|version| version != "null") {
        return Err(S3Error::not_implemented("Versioning (VersionId other than null)"));
    }
    check_delete(call, object.key.as_bytes())?;
    let key = ObjectKey::new(call.bucket(), object.key.as_bytes());
    let key = key.map_err(|_| S3Error::from(ErrorCode::KeyTooLongError))?;
    delete(state, &key, &object.conditions).await
}

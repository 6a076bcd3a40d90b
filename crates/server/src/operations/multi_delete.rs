//! Several deletes of one bucket in one request, each with an outcome of its own. All of them are with the store at the same
//! time, so that they share a flush.

use futures_util::future::join_all;
use shoal_api::v1;
use shoal_base::limits::BATCH_KEYS_MAX;
use shoal_engine::check_bucket;

use crate::auth::Authenticated;
use crate::call::message::Parted;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn multi_delete(
    request: Authenticated<Parted<v1::MultiDeleteRequest>>,
) -> Result<v1::MultiDeleteResponse, Failure> {
    let (Parted { message, .. }, admitted) = request.take();
    check(&message.bucket, message.items.len())?;
    if admitted.identity().is_some() {
        return Err(Failure::invalid(
            "several deletes have no identity: each is a write of its own; send them one by one, or by Operations",
        ));
    }
    let deletes = message.items.into_iter().map(|item| delete_one(&admitted, &message.bucket, item));
    let failed = |failure: Failure| v1::MultiDeleteResult {
        status: Some(failure.into_key_status()),
        ..v1::MultiDeleteResult::default()
    };
    let results = join_all(deletes).await.into_iter().map(|result| result.unwrap_or_else(failed));
    Ok(v1::MultiDeleteResponse { results: results.collect() })
}

async fn delete_one(
    admitted: &Authenticated<()>,
    bucket: &str,
    item: v1::MultiDeleteItem,
) -> Result<v1::MultiDeleteResult, Failure> {
    let key = convert::object_key(bucket, &item.key)?;
    let rules = convert::rules(item.rules);
    match admitted.store().delete(&key, rules).await {
        Ok(done) => Ok(v1::MultiDeleteResult {
            status: Some(v1::KeyStatus::default()),
            deleted: done.deleted.map(|version| version.0),
            version: done.version.0,
        }),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

/// What is wrong for all items is said once.
fn check(bucket: &str, items: usize) -> Result<(), Failure> {
    check_bucket(convert::bucket(bucket)).map_err(|error| Failure::of(&error))?;
    check_count(items)
}

/// Whether a request may have so many items.
pub(crate) fn check_count(items: usize) -> Result<(), Failure> {
    if items > BATCH_KEYS_MAX {
        return Err(Failure::invalid(format!(
            "a request has at most {BATCH_KEYS_MAX} keys; this one has {items}"
        )));
    }
    Ok(())
}

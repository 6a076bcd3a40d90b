//! Several deletes of one bucket in one request, each with a separate outcome. All of them are with the store at the same time, so that
//! they share a flush.

use bytes::Bytes;
use futures_util::future::join_all;
use shoal_api::v1;
use shoal_buffer::Buffer;
use shoal_engine::{RejectRules, Store};

use super::batch::{Batch, Item, encode};
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// Bytes that a result is expected to have.
const RESULT_BYTES_GUESS: usize = 16;

pub(crate) async fn multi_delete(request: Authenticated<Bytes>) -> Result<Box<Buffer>, Failure> {
    let (message, admitted) = request.take();
    let batch = Batch::of(message)?;
    let store = admitted.to_each::<v1::MultiDelete>(batch.bucket_name()?, batch.key_bytes())?;
    if admitted.request_id().is_some() {
        return Err(Failure::invalid(
            "several deletes cannot have one request id: each is a separate write; send them one by one, or by Operations",
        ));
    }
    let rules = |item: &Item<()>| match item.says_more {
        // A request that is not protobuf fails before any of it is executed.
        true => Ok(convert::rules(batch.whole::<v1::MultiDeleteItem>(item)?.rules)),
        false => Ok(RejectRules::default()),
    };
    let rules = batch.items.iter().map(rules).collect::<Result<Vec<_>, Failure>>()?;
    let deletes = batch.items.iter().zip(&rules).map(|(item, rules)| delete_one(store, &batch, item, rules));
    let failed = |failure: Failure| v1::MultiDeleteResult {
        status: Some(failure.into_key_status()),
        ..v1::MultiDeleteResult::default()
    };
    let results = join_all(deletes).await.into_iter().map(|result| result.unwrap_or_else(failed));
    Ok(encode(results, RESULT_BYTES_GUESS))
}

async fn delete_one(
    store: &Store,
    batch: &Batch<()>,
    item: &Item<()>,
    rules: &RejectRules,
) -> Result<v1::MultiDeleteResult, Failure> {
    let key = batch.key(item)?;
    match store.delete(&key, *rules).await {
        Ok(done) => Ok(v1::MultiDeleteResult {
            status: Some(v1::KeyStatus::default()),
            deleted: done.deleted.map(|version| version.0),
            version: done.version.0,
        }),
        Err(error) => Err(Failure::of_write(&error, rules)),
    }
}

//! Deletes one object.

use shoal_api::v1;
use shoal_engine::{DeleteResult, ObjectKey, RejectRules, Write};

use crate::auth::{Authenticated, Guarded};
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn delete(
    request: Authenticated<v1::DeleteRequest>,
) -> Result<WithValue<v1::DeleteResponse>, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let done = remove::<v1::Delete>(&admitted, &key, convert::rules(message.rules)).await?;
    let deleted = done.deleted.map(|version| version.0);
    Ok(v1::DeleteResponse { deleted, version: done.version.0 }.into())
}

/// Deletes an object; once if the request has a request id.
pub(crate) async fn remove<M: Guarded>(
    admitted: &Authenticated<()>,
    key: &ObjectKey,
    rules: RejectRules,
) -> Result<DeleteResult, Failure> {
    let failed = |error| Failure::of_write(&error, &rules);
    let write = Write::delete(key, rules).with_request_id(admitted.request_id());
    let pending = admitted.to::<M>(key.bucket(), key.key())?.write(write).await.map_err(failed)?;
    let deleted = pending.before();
    Ok(DeleteResult { deleted, version: pending.durable().await.map_err(failed)? })
}

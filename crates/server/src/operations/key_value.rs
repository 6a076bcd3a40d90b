//! The service of the gRPC blog series (`io.grpc.KeyValueService`, source 4 in `docs/sources.md`): four verbs on the
//! objects of one bucket.
//!
//! Its races are those of its interface, not of the server: each verb is one write batch. A create rejects if the
//! object exists, an update if it does not, and the rules are evaluated when the write takes its place in the order of
//! writes.

use std::sync::Arc;

use shoal_api::key_value::{
    Create, CreateRequest, CreateResponse, Delete, DeleteRequest, DeleteResponse, Retrieve, RetrieveRequest,
    RetrieveResponse, Update, UpdateRequest, UpdateResponse,
};
use shoal_engine::{ByteRange, Error, ObjectKey, PutOptions, RejectRules};
use shoal_http::MemoryPermit;

use super::get::read;
use super::put::put_once;
use crate::auth::{Authenticated, Guarded};
use crate::call::receive::Value;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn create(
    request: Authenticated<WithValue<CreateRequest, Value>>,
    bucket: &str,
) -> Result<WithValue<CreateResponse>, Failure> {
    let (WithValue { message, value }, admitted) = request.take();
    let key = convert::object_key(bucket, &message.key)?;
    let rules = RejectRules { if_exists: true, ..RejectRules::default() };
    match write::<Create>(&admitted, &key, value, rules).await? {
        Ok(()) => Ok(CreateResponse {}.into()),
        Err(failure) => Err(failure.already_exists(&key)),
    }
}

pub(crate) async fn retrieve(
    request: Authenticated<RetrieveRequest>,
    bucket: &str,
    permit: Arc<MemoryPermit>,
) -> Result<WithValue<RetrieveResponse>, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(bucket, &message.key)?;
    let object =
        read(admitted.to::<Retrieve>(key.bucket(), key.key())?, &key, ByteRange::ALL, &permit).await?;
    let object = object.ok_or_else(|| Failure::not_found(&key))?;
    Ok(WithValue { message: RetrieveResponse::default(), value: Some(Box::new(object.value)) })
}

pub(crate) async fn update(
    request: Authenticated<WithValue<UpdateRequest, Value>>,
    bucket: &str,
) -> Result<WithValue<UpdateResponse>, Failure> {
    let (WithValue { message, value }, admitted) = request.take();
    let key = convert::object_key(bucket, &message.key)?;
    let rules = RejectRules { if_missing: true, ..RejectRules::default() };
    match write::<Update>(&admitted, &key, value, rules).await? {
        Ok(()) => Ok(UpdateResponse {}.into()),
        Err(_) => Err(Failure::not_found(&key)),
    }
}

pub(crate) async fn delete(
    request: Authenticated<DeleteRequest>,
    bucket: &str,
) -> Result<WithValue<DeleteResponse>, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(bucket, &message.key)?;
    super::delete::remove::<Delete>(&admitted, &key, RejectRules::default()).await?;
    Ok(DeleteResponse {}.into())
}

/// Stores `value`; a rejection by the rules is separate from other errors.
async fn write<M: Guarded>(
    admitted: &Authenticated<()>,
    key: &ObjectKey,
    value: Value,
    rules: RejectRules,
) -> Result<Result<(), Failure>, Failure> {
    let options = PutOptions { rules, ..PutOptions::default() };
    let store = admitted.to::<M>(key.bucket(), key.key())?;
    match put_once(store, admitted.request_id(), key, value, options).await {
        Ok(_) => Ok(Ok(())),
        Err(error @ Error::ConditionFailed { .. }) => Ok(Err(Failure::of_write(&error, &rules))),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

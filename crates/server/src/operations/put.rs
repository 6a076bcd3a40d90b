//! Put: stores one object. Next: `write/put.rs` of the engine.

use shoal_api::v1;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{
    ByteRange, Error, ObjectKey, PutOptions, PutResult, ReceiveBuffer, RejectRules, RequestId, Store, Write,
};
use shoal_metrics::{Stage, mark};

use crate::auth::{Authenticated, Guarded};
use crate::call::receive::Value;
use crate::call::with_value::WithValue;
use crate::convert;
use crate::failure::Failure;

/// The most attempts of a put that returns the existing object while others keep creating and deleting it.
const ATTEMPTS_MAX: usize = 16;

pub(crate) async fn put(
    request: Authenticated<WithValue<v1::PutRequest, Value>>,
) -> Result<WithValue<v1::PutResponse>, Failure> {
    let (WithValue { message, value }, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let end = (message.ttl_ns, message.expire_time_ns);
    let options = convert::put_options(message.rules, message.metadata, message.modified_ns, end)?;
    let rules = options.rules;
    if message.return_existing {
        return create_or_get(&admitted, &key, value.into_buffer(), options).await;
    }
    let store = admitted.to::<v1::Put>(key.bucket(), key.key())?;
    match put_once(store, admitted.request_id(), &key, value, options).await {
        Ok(done) => Ok(v1::PutResponse { version: done.version.0, ..Default::default() }.into()),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

/// Memory of the store for the value of `request`, if it can be received into it.
pub(crate) fn place(
    admitted: &Authenticated<()>,
    request: &v1::PutRequest,
    value_bytes: usize,
) -> Option<ReceiveBuffer> {
    // A put that is tried again needs its value again.
    if request.return_existing {
        return None;
    }
    place_value::<v1::Put>(admitted, &request.bucket, &request.key, value_bytes)
}

/// The same for a value of `key`. A caller that may not write, and an invalid key, get none: the put itself reports the error.
pub(crate) fn place_value<M: Guarded>(
    admitted: &Authenticated<()>,
    bucket: &str,
    key: &[u8],
    value_bytes: usize,
) -> Option<ReceiveBuffer> {
    // A write with a request id is a transaction, which copies.
    if admitted.request_id().is_some() {
        return None;
    }
    let key = convert::object_key(bucket, key).ok()?;
    admitted.to::<M>(key.bucket(), key.key()).ok()?.receive_buffer(&key, value_bytes)
}

/// Stores `value`; once if the request has a request id.
pub(crate) async fn put_once(
    store: &Store,
    request_id: Option<RequestId>,
    key: &ObjectKey,
    value: Value,
    options: PutOptions,
) -> Result<PutResult, Error> {
    let pending = match value {
        Value::Chunks(value) => {
            store.write(Write::put(key, &value, &options).with_request_id(request_id)).await?
        }
        Value::Received(value, _permit) => {
            store.write(Write::put_received(key, value, &options).with_request_id(request_id)).await?
        }
    };
    mark(Stage::Placed);
    Ok(PutResult { version: pending.durable().await? })
}

/// Stores `value` if there is no object, and returns the existing object otherwise. If the object is deleted between the two, `value` is
/// stored after all.
async fn create_or_get(
    admitted: &Authenticated<()>,
    key: &ObjectKey,
    value: Buffer,
    options: PutOptions,
) -> Result<WithValue<v1::PutResponse>, Failure> {
    let rules = options.rules;
    if rules != (RejectRules { if_exists: true, ..RejectRules::default() }) {
        return Err(Failure::invalid("return_existing requires the rule if_exists and no other"));
    }
    let store = admitted.to::<v1::Put>(key.bucket(), key.key())?;
    // The answer may be the object that exists.
    admitted.to::<v1::Get>(key.bucket(), key.key())?;
    // A clone of the value shares its memory: keeping it for another attempt copies little.
    let mut refused = Failure::busy("the object is created and deleted too often");
    for _ in 0..ATTEMPTS_MAX {
        match put_once(
            store,
            admitted.request_id(),
            key,
            Value::Chunks(Box::new(value.clone())),
            options.clone(),
        )
        .await
        {
            Ok(done) => return Ok(v1::PutResponse { version: done.version.0, ..Default::default() }.into()),
            Err(error @ Error::ConditionFailed { .. }) => {
                if let Some(existing) = existing(store, key).await? {
                    return Ok(existing);
                }
                // A write with a request id has had its one outcome.
                if admitted.request_id().is_some() {
                    return Err(Failure::of_write(&error, &rules));
                }
                refused = Failure::of_write(&error, &rules);
            }
            Err(error) => return Err(Failure::of_write(&error, &rules)),
        }
    }
    Err(refused)
}

/// The existing object; `None` if it does not exist any more.
async fn existing(store: &Store, key: &ObjectKey) -> Result<Option<WithValue<v1::PutResponse>>, Failure> {
    let range = convert::capped(ByteRange::ALL, VALUE_BYTES_SINGLE_MAX);
    let object = store.get(key, range).await.map_err(|error| Failure::of(&error))?;
    Ok(object.map(|object| {
        let value_omitted = object.info.bytes > VALUE_BYTES_SINGLE_MAX;
        let info = convert::info(&object.info);
        WithValue {
            message: v1::PutResponse {
                version: info.version,
                existing: Some(info),
                value_omitted,
                ..Default::default()
            },
            value: (!value_omitted).then(|| Box::new(object.value)),
        }
    }))
}

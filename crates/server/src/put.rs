//! Stores one object.

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn put(request: Authenticated<v1::PutRequest>) -> Result<v1::PutResponse, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let options = convert::put_options(message.rules, message.metadata, message.modified_ns);
    let rules = options.rules;
    let value = message.value.into();
    let done = match admitted.identity() {
        Some(identity) => admitted.store().put_once(identity, &key, value, options).await,
        None => admitted.store().put(&key, value, options).await,
    };
    match done {
        Ok(done) => Ok(v1::PutResponse { version: done.version.0 }),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

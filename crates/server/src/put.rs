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
    match admitted.store().put(&key, message.value.into(), options).await {
        Ok(done) => Ok(v1::PutResponse { version: done.version.0 }),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

//! Deletes one object.

use shoal_api::v1;

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

pub(crate) async fn delete(request: Authenticated<v1::DeleteRequest>) -> Result<v1::DeleteResponse, Failure> {
    let (message, admitted) = request.take();
    let key = convert::object_key(&message.bucket, &message.key)?;
    let rules = convert::rules(message.rules);
    let done = match admitted.identity() {
        Some(identity) => admitted.store().delete_once(identity, &key, rules).await,
        None => admitted.store().delete(&key, rules).await,
    };
    match done {
        Ok(done) => {
            Ok(v1::DeleteResponse { deleted: done.deleted.map(|version| version.0), version: done.version.0 })
        }
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

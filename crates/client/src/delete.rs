//! Deletes one object.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::object::{DeleteResult, Lsn, RejectRules};
use crate::wire;

impl Client {
    /// Deletes an object; deleting a missing object succeeds, unless the rules forbid it. Durable when it returns.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a [u8],
        rules: RejectRules,
    ) -> Boxed<'a, Result<DeleteResult>> {
        Box::pin(async move {
            let key = Bytes::copy_from_slice(key);
            let request = v1::DeleteRequest { bucket: bucket.into(), key, rules: wire::rules(rules) };
            let answer = self.write(|id| self.transport.call_as::<v1::Delete>(id, request.clone())).await?;
            Ok(DeleteResult { deleted: answer.deleted.map(Lsn), version: Lsn(answer.version) })
        })
    }
}

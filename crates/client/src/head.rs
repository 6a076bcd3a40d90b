//! Reads the attributes of an object.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::object::ObjectInfo;
use crate::wire;

impl Client {
    /// The attributes of an object; `None` if there is no such object.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn head<'a>(&'a self, bucket: &'a str, key: &'a [u8]) -> Boxed<'a, Result<Option<ObjectInfo>>> {
        Box::pin(async move {
            let request = v1::HeadRequest { bucket: bucket.into(), key: Bytes::copy_from_slice(key) };
            self.retry
                .read(|| async {
                    match wire::found(self.transport.call::<v1::Head>(request.clone()).await)? {
                        Some(answer) => wire::info(answer.info).map(Some),
                        None => Ok(None),
                    }
                })
                .await
        })
    }
}

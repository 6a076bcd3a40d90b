//! Stores one object.

use bytes::Bytes;
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::task::Boxed;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{Lsn, PutOptions, PutResult};
use crate::wire;

/// A source is read in pieces of this many bytes.
const READ_BYTES: usize = 256 << 10;

impl Client {
    /// Stores `value` under `key`. Durable when it returns. A value over 1 MiB is streamed.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`], [`Error::Invalid`], [`Error::Full`], [`Error::Busy`], [`Error::ReadOnly`],
    /// [`Error::Unavailable`], [`Error::Unknown`].
    pub fn put<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a [u8],
        value: Bytes,
        options: PutOptions,
    ) -> Boxed<'a, Result<PutResult>> {
        Box::pin(async move {
            if value.len() <= CHUNK_BYTES_MAX {
                let answer = self.put_message(&request(bucket, key, value, options)).await?;
                return Ok(PutResult { version: Lsn(answer.version) });
            }
            self.retry
                .write(|| async {
                    let mut stream = self.put_stream(bucket, key, options.clone());
                    stream.send(value.clone()).await?;
                    stream.end().await
                })
                .await
        })
    }

    /// Stores the bytes of `reader` up to its end, in constant memory: up to 5 GiB.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::Source`] if `reader` fails: then nothing is stored.
    pub async fn put_reader(
        &self,
        bucket: &str,
        key: &[u8],
        mut reader: impl AsyncRead + Unpin,
        options: PutOptions,
    ) -> Result<PutResult> {
        let mut stream = self.put_stream(bucket, key, options);
        loop {
            let mut piece = bytes::BytesMut::with_capacity(READ_BYTES);
            while piece.len() < READ_BYTES {
                // `take` keeps the buffer from growing past its capacity.
                let mut rest = (&mut reader).take((READ_BYTES - piece.len()) as u64);
                let read =
                    rest.read_buf(&mut piece).await.map_err(|error| Error::Source(error.to_string()))?;
                if read == 0 {
                    break;
                }
            }
            if piece.is_empty() {
                return stream.finish().await;
            }
            stream.write(piece.freeze()).await?;
        }
    }

    pub(crate) async fn put_message(&self, request: &v1::PutRequest) -> Result<v1::PutResponse> {
        self.write(|id| self.transport.call_as::<v1::Put>(id, request.clone())).await
    }
}

pub(crate) fn request(bucket: &str, key: &[u8], value: Bytes, options: PutOptions) -> v1::PutRequest {
    let (ttl_ns, expire_time_ns) = options.expiry.fields();
    v1::PutRequest {
        bucket: bucket.into(),
        key: Bytes::copy_from_slice(key),
        rules: wire::rules(options.rules),
        metadata: wire::metadata(options.metadata),
        modified_ns: options.modified_ns,
        return_existing: false,
        ttl_ns,
        expire_time_ns,
        value,
    }
}

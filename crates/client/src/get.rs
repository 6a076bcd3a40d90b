//! Reads one object, or a range of it, into one piece of memory.

use bytes::{Bytes, BytesMut};
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::object::{ByteRange, Object, ObjectInfo};
use crate::retry::Failed;
use crate::wire;

/// Number of times that an object is read again because it changed while it was read in pieces.
const CHANGES_MAX: u32 = 5;

/// Memory that is reserved on the length in the server's answer alone, in bytes.
const RESERVE_BYTES_MAX: u64 = 64 << 20;

impl Client {
    /// The object, or the bytes of it in `range`; `None` if there is no such object. All bytes are of one version. A value over
    /// 1 MiB is streamed; [`Self::get_stream`] reads it in constant memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Device`], [`Error::Invalid`], [`Error::Busy`], [`Error::Unavailable`]; [`Error::Changed`]
    /// if the object changed again and again while it was read.
    pub fn get<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a [u8],
        range: ByteRange,
    ) -> Boxed<'a, Result<Option<Object>>> {
        Box::pin(async move {
            let mut changes = 0;
            loop {
                match self.get_once(bucket, key, range).await {
                    Err(Error::Changed) if changes < CHANGES_MAX => changes += 1,
                    result => return result,
                }
            }
        })
    }

    async fn get_once(&self, bucket: &str, key: &[u8], range: ByteRange) -> Result<Option<Object>> {
        let Some(Object { info, value }) = self.get_message(bucket, key, range).await? else {
            return Ok(None);
        };
        let (first, wanted) = range.within(info.bytes);
        let have = value.len() as u64;
        if have == wanted {
            return Ok(Some(Object { info, value }));
        }
        let rest = ByteRange { first: first + have, bytes: Some(wanted - have) };
        let value = self.get_rest(bucket, key, rest, &info, value).await?;
        Ok(Some(Object { info, value }))
    }

    /// The first bytes of the range, up to the size of one message.
    async fn get_message(&self, bucket: &str, key: &[u8], range: ByteRange) -> Result<Option<Object>> {
        let request = v1::GetRequest {
            bucket: bucket.into(),
            key: Bytes::copy_from_slice(key),
            range: wire::range(range),
            value_bytes_max: Some(CHUNK_BYTES_MAX as u64),
            version: None,
        };
        self.retry
            .read(|| async {
                let Some(answer) = wire::found(self.transport.call::<v1::Get>(request.clone()).await)? else {
                    return Ok(None);
                };
                let info = wire::info(answer.info)?;
                let wanted = range.within(info.bytes).1;
                let expected = wanted.min(CHUNK_BYTES_MAX as u64);
                if answer.value.len() as u64 != expected {
                    return Err(wrong_length(answer.value.len() as u64, expected));
                }
                Ok(Some(Object { info, value: answer.value }))
            })
            .await
    }

    /// `value` followed by the bytes of `rest`, of the same version.
    async fn get_rest(
        &self,
        bucket: &str,
        key: &[u8],
        rest: ByteRange,
        info: &ObjectInfo,
        value: Bytes,
    ) -> Result<Bytes> {
        let mut stream =
            self.get_version(bucket, key, rest, Some(info.version.0)).await?.ok_or(Error::Changed)?;
        let reserve = rest.bytes.unwrap_or(0).min(RESERVE_BYTES_MAX) as usize;
        let mut whole = BytesMut::with_capacity(value.len() + reserve);
        whole.extend_from_slice(&value);
        while let Some(piece) = stream.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }
}

/// The server returned a wrong number of bytes.
pub(crate) fn wrong_length(bytes: u64, expected: u64) -> Failed {
    wire::protocol(&format!("{bytes} byte(s) of the value came instead of {expected}"))
}

//! Reads one object, or a range of it, piece by piece.

use bytes::Bytes;
use shoal_api::v1;
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::get::wrong_length;
use crate::object::{ByteRange, ObjectInfo};
use crate::retry::{Failed, Outcome};
use crate::transport::Parts;
use crate::wire;

/// A value on its way from the server. A broken connection is replaced, and reading continues at the same place.
pub struct GetStream {
    client: Client,
    bucket: String,
    key: Bytes,
    info: ObjectInfo,
    parts: Parts<v1::GetStream>,
    /// The part of the value that came with the info.
    first: Bytes,
    /// The bytes that were not returned yet.
    rest: ByteRange,
    /// Bytes of `rest`.
    rest_bytes: u64,
}

impl Client {
    /// The object to read piece by piece, or the bytes of it in `range`; `None` if there is no such object.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_stream<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a [u8],
        range: ByteRange,
    ) -> Boxed<'a, Result<Option<GetStream>>> {
        Box::pin(async move { self.get_version(bucket, key, range, None).await })
    }

    /// As [`Self::get_stream`], with [`Error::Changed`] if the object has another version.
    pub(crate) async fn get_version(
        &self,
        bucket: &str,
        key: &[u8],
        range: ByteRange,
        version: Option<u64>,
    ) -> Result<Option<GetStream>> {
        let key = Bytes::copy_from_slice(key);
        let opened = self.retry.read(|| self.open(bucket, &key, range, version)).await?;
        let Some((info, first, parts)) = opened else { return Ok(None) };
        let (from, rest_bytes) = range.within(info.bytes);
        let rest = ByteRange { first: from, bytes: Some(rest_bytes) };
        Ok(Some(GetStream {
            client: self.clone(),
            bucket: bucket.into(),
            key,
            info,
            parts,
            first,
            rest,
            rest_bytes,
        }))
    }

    async fn open(
        &self,
        bucket: &str,
        key: &Bytes,
        range: ByteRange,
        version: Option<u64>,
    ) -> Result<Option<(ObjectInfo, Bytes, Parts<v1::GetStream>)>, Failed> {
        let request = v1::GetStreamRequest {
            bucket: bucket.into(),
            key: key.clone(),
            range: wire::range(range),
            version,
        };
        let opened = async {
            let mut parts = self.transport.receive::<v1::GetStream>(request).await?;
            let first = parts.next(&self.transport).await?;
            Ok((first, parts))
        };
        let Some((first, parts)) = wire::found(opened.await)? else { return Ok(None) };
        let first = first.ok_or_else(|| wire::protocol("the stream is empty"))?;
        Ok(Some((wire::info(first.info)?, first.chunk, parts)))
    }
}

impl GetStream {
    /// The attributes of the whole object.
    #[must_use]
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    /// The next piece, at most 1 MiB; `None` at the end. All returned pieces are of the version of [`Self::info`].
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.next_piece().await
    }

    fn next_piece(&mut self) -> Boxed<'_, Result<Option<Bytes>>> {
        Box::pin(async move {
            let retry = self.client.retry.clone();
            let mut budget = retry.budget();
            while self.rest_bytes > 0 {
                match self.piece().await {
                    Ok(piece) if piece.is_empty() => {}
                    Ok(piece) => return self.take(piece).map(Some),
                    Err(failed) if failed.outcome != Outcome::Refused && budget.again().await => {
                        self.reopen().await?;
                    }
                    Err(failed) => return Err(failed.error),
                }
            }
            Ok(None)
        })
    }

    async fn piece(&mut self) -> Result<Bytes, Failed> {
        if !self.first.is_empty() {
            return Ok(std::mem::take(&mut self.first));
        }
        match self.parts.next(&self.client.transport).await? {
            Some(part) => Ok(part.chunk),
            None => Err(wrong_length(0, self.rest_bytes)),
        }
    }

    fn take(&mut self, piece: Bytes) -> Result<Bytes> {
        let bytes = piece.len() as u64;
        if bytes > self.rest_bytes {
            return Err(wrong_length(bytes, self.rest_bytes).error);
        }
        self.rest_bytes -= bytes;
        self.rest = ByteRange { first: self.rest.first + bytes, bytes: Some(self.rest_bytes) };
        Ok(piece)
    }

    /// Reopens a broken stream, for the same version.
    async fn reopen(&mut self) -> Result<()> {
        let again =
            self.client.get_version(&self.bucket, &self.key, self.rest, Some(self.info.version.0)).await?;
        let again = again.ok_or(Error::Changed)?;
        self.first = again.first;
        self.parts = again.parts;
        Ok(())
    }
}

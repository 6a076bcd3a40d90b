//! A request that was let in, with everything that its operation needs.

use std::sync::Arc;

use http::HeaderMap;
use hyper::body::Incoming;
use shoal_engine::ObjectKey;
use shoal_http::MemoryPermit;

use crate::access::decide::Origin;
use crate::body::check::{BodyCheck, EtagScheme};
use crate::body::claims::BodyClaims;
use crate::body::reader::BodyReader;
use crate::bucket::FoundBucket;
use crate::request::error::{ErrorCode, S3Result};
use crate::request::headers::header;
use crate::request::operation::{BodyKind, OperationRow, S3Operation};
use crate::request::query::QueryParameters;
use crate::request::target::{BucketAndKey, location_of};
use crate::sign::chunks::ChunkSigner;
use crate::sign::payload::PayloadHash;
use crate::state::{Caller, S3State};

/// A request that was let in.
pub(crate) struct S3Call {
    pub(crate) row: &'static OperationRow,
    pub(crate) target: BucketAndKey,
    pub(crate) query: QueryParameters,
    /// The headers, and those in the query of a presigned request.
    pub(crate) headers: HeaderMap,
    pub(crate) caller: Caller,
    pub(crate) origin: Origin,
    /// The bucket, once the caller is let in.
    pub(crate) found: FoundBucket,
    pub(crate) payload: PayloadHash,
    /// Verifies the chunks of the body; taken with it.
    pub(crate) chunks: Option<ChunkSigner>,
    /// `None` once it was taken.
    pub(crate) body: Option<Incoming>,
    /// Counts the memory of the request and its answer.
    pub(crate) permit: Arc<MemoryPermit>,
}

impl S3Call {
    /// The bucket; empty for a request about all of them.
    pub(crate) fn bucket(&self) -> &str {
        self.target.bucket().unwrap_or_default()
    }

    /// The key; empty for a request about a bucket.
    pub(crate) fn key(&self) -> &[u8] {
        self.target.key().unwrap_or_default()
    }

    /// The object.
    pub(crate) fn object_key(&self) -> S3Result<ObjectKey> {
        Ok(ObjectKey::new(self.bucket(), self.key())?)
    }

    /// The URL of the object, as the client reaches it.
    pub(crate) fn location(&self, state: &S3State) -> S3Result<String> {
        let host = (header(&self.headers, "host")?.unwrap_or(""), state.domains.as_slice());
        Ok(location_of(host, state.security.is_encrypted(), (self.bucket(), self.key())))
    }

    /// Takes the body.
    pub(crate) fn take_body(&mut self) -> S3Result<Incoming> {
        self.body.take().ok_or_else(|| ErrorCode::InternalError.into())
    }

    /// Reads the document of the request. An absent body is an empty one.
    ///
    /// # Errors
    /// `MaxMessageLengthExceeded`, and those of bodies.
    pub(crate) async fn document(&mut self, state: &S3State) -> S3Result<Vec<u8>> {
        let BodyKind::Document(bytes_max) = self.row.body else { return Ok(Vec::new()) };
        let claims = match self.row.operation {
            S3Operation::CompleteMultipartUpload => BodyClaims::of_completion(&self.headers, self.payload)?,
            _ => BodyClaims::of(&self.headers, self.payload)?,
        };
        let length = claims.value_bytes.and_then(|bytes| u32::try_from(bytes).ok());
        let Some(length) = length.filter(|bytes| *bytes as usize <= bytes_max) else {
            return Err(ErrorCode::MaxMessageLengthExceeded.into());
        };
        let limits = (state.min_rate, state.room_wait_max);
        let mut reader = BodyReader::whole(self.take_body()?, limits, &self.permit, length);
        // The ETag is of no use: the cheaper one.
        let check = BodyCheck::new(claims, self.chunks.take(), EtagScheme::Crc, None);
        let mut document = Vec::new();
        reader
            .read(check, |_, data| {
                // The check refuses a longer one at once.
                if document.len() + data.len() <= bytes_max {
                    document.extend_from_slice(data);
                }
            })
            .await?;
        Ok(document)
    }
}

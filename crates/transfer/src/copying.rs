//! Copies an object within a store.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use shoal_client::{ByteRange, Error, Expiry, Lsn, PutOptions, PutResult, RejectRules};

use crate::objects::Objects;
use crate::text::about;

/// An object's bucket and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The name of the bucket.
    pub bucket: String,
    /// The key in it.
    pub key: Bytes,
}

/// A copied object.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The version of the source.
    pub source: Lsn,
    /// The version of the copy.
    pub version: Lsn,
    /// The length of the value.
    pub bytes: u64,
}

/// Copies one version of the object at `from`, with its metadata and times, to `to`, unless `rules` reject. An object with a version
/// below `least` counts as absent.
///
/// # Errors
/// [`Error::NotFound`] if the source is absent, and those of the store, with their context.
pub async fn copy(
    objects: &Objects,
    from: &Location,
    least: Lsn,
    to: &Location,
    rules: RejectRules,
) -> anyhow::Result<Copied> {
    let reading = || about("cannot read", &from.bucket, &from.key);
    let writing = || about("cannot write", &to.bucket, &to.key);
    let source = objects.get_stream(&from.bucket, &from.key, ByteRange::ALL).await.with_context(reading)?;
    let source = source.filter(|source| source.info().version >= least);
    let mut source = source.ok_or(Error::NotFound).with_context(reading)?;
    let (bytes, version) = (source.info().bytes, source.info().version);
    let copied = |copy: PutResult| Copied { source: version, version: copy.version, bytes };
    let options = PutOptions {
        rules,
        metadata: source.info().metadata.clone(),
        modified_ns: Some(source.info().modified_ns),
        // The copy gets the remaining time to live.
        expiry: source
            .info()
            .ttl_ns
            .map_or(Expiry::Never, |ttl_ns| Expiry::After(Duration::from_nanos(ttl_ns.max(1)))),
    };
    let first = source.next().await.with_context(reading)?.unwrap_or_default();
    if first.len() as u64 == bytes {
        return Ok(copied(objects.put(&to.bucket, &to.key, first, options).await.with_context(writing)?));
    }
    let mut copy = objects.put_stream(&to.bucket, &to.key, options).with_context(writing)?;
    copy.write(first).await.with_context(writing)?;
    while let Some(piece) = source.next().await.with_context(reading)? {
        copy.write(piece).await.with_context(writing)?;
    }
    Ok(copied(copy.finish().await.with_context(writing)?))
}

/// Returns true if a [`copy`] failed because its source is absent.
pub fn is_absent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NotFound))
}

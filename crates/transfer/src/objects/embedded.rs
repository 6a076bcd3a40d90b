//! A store that this program has open, with the interface of the client.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_buffer::Buffer;
use shoal_client::{
    BucketPage, ByteRange, DeleteResult, Error, Figure, GetResult, ListEntry, ListRequest, ObjectAttributes,
    Page, PutItem, PutOptions, PutResult, RejectRules, Result, Stat,
};
use shoal_engine::{ObjectKey, Store};
use tokio::task::JoinSet;

/// Attempts of a write while the store is too busy.
const BUSY_ATTEMPTS_MAX: u32 = 200;
/// The pause between two attempts: the store applies part of its backlog meanwhile.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// An open store.
#[derive(Clone)]
pub struct Embedded {
    pub(super) store: Store,
    pub(super) path: PathBuf,
}

impl Embedded {
    pub(super) async fn put(
        &self,
        bucket: &str,
        key: &[u8],
        value: Bytes,
        options: PutOptions,
    ) -> Result<PutResult> {
        let key = object_key(bucket, key)?;
        not_busy(|| self.store.put(&key, Buffer::from(value.clone()), options.clone())).await
    }

    pub(super) fn put_stream(
        &self,
        bucket: &str,
        key: &[u8],
        options: PutOptions,
    ) -> Result<shoal_engine::ValueWriter> {
        let key = object_key(bucket, key)?;
        self.store.put_stream(&key, options).map_err(from_error)
    }

    pub(super) async fn put_many(&self, bucket: &str, items: Vec<PutItem>) -> Vec<Result<PutResult>> {
        let put = |item: PutItem| {
            let (own, bucket) = (self.clone(), bucket.to_owned());
            async move { own.put(&bucket, &item.key, item.value, item.options).await }
        };
        all(items.into_iter().map(put)).await
    }

    pub(super) async fn get_stream(
        &self,
        bucket: &str,
        key: &[u8],
        range: ByteRange,
    ) -> Result<Option<EmbeddedGet>> {
        let key = object_key(bucket, key)?;
        let stream = self.store.get_stream(&key, range).await.map_err(from_error)?;
        Ok(stream.map(|stream| EmbeddedGet {
            info: from_info(stream.info()),
            stream,
            chunks: VecDeque::new(),
        }))
    }

    pub(super) async fn get_many(&self, bucket: &str, keys: Vec<Bytes>) -> Vec<Result<Option<GetResult>>> {
        let get = |key: Bytes| {
            let (own, bucket) = (self.clone(), bucket.to_owned());
            async move { own.get(&bucket, &key).await }
        };
        all(keys.into_iter().map(get)).await
    }

    async fn get(&self, bucket: &str, key: &[u8]) -> Result<Option<GetResult>> {
        let key = object_key(bucket, key)?;
        let object = self.store.get(&key, ByteRange::ALL).await.map_err(from_error)?;
        Ok(object.map(|object| GetResult { info: from_info(&object.info), value: contiguous(object.value) }))
    }

    pub(super) async fn head(&self, bucket: &str, key: &[u8]) -> Result<Option<ObjectAttributes>> {
        let info = self.store.head(&object_key(bucket, key)?).await.map_err(from_error)?;
        Ok(info.as_ref().map(from_info))
    }

    pub(super) async fn delete_many(
        &self,
        bucket: &str,
        keys: Vec<Bytes>,
        rules: RejectRules,
    ) -> Vec<Result<DeleteResult>> {
        let delete = |key: Bytes| {
            let (store, bucket) = (self.store.clone(), bucket.to_owned());
            async move {
                let key = object_key(&bucket, &key)?;
                not_busy(|| store.delete(&key, rules)).await
            }
        };
        all(keys.into_iter().map(delete)).await
    }

    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page<ListEntry>> {
        let page = self.store.list(request).await.map_err(from_error)?;
        let Page { entries, common_prefixes, next, damaged } = page;
        let entry = |(key, info): (Vec<u8>, _)| ListEntry { key: key.into(), info: from_info(&info) };
        Ok(Page { entries: entries.into_iter().map(entry).collect(), common_prefixes, next, damaged })
    }

    pub(super) async fn list_buckets(&self, start_after: &str) -> Result<BucketPage> {
        self.store.buckets(start_after, 0).await.map_err(from_error)
    }

    pub(super) async fn stat(&self) -> Result<Stat> {
        self.store.count_results().await.map_err(from_error)?;
        let stat = self.store.stat();
        let figure =
            |(name, unit, value): (&str, &str, u64)| Figure { name: name.into(), unit: unit.into(), value };
        Ok(Stat {
            server_version: env!("CARGO_PKG_VERSION").into(),
            block_bytes: BLOCK_BYTES as u32,
            objects: stat.objects_with_log(),
            read_only: stat.poisoned.clone(),
            blocks: stat.device_blocks,
            free_blocks: stat.free_blocks,
            figures: stat.figures().into_iter().map(figure).collect(),
            ..Stat::default()
        })
    }
}

/// Reads a value of an embedded store.
pub struct EmbeddedGet {
    pub(super) info: ObjectAttributes,
    stream: shoal_engine::ValueReader,
    chunks: VecDeque<Bytes>,
}

impl EmbeddedGet {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        while self.chunks.is_empty() {
            match self.stream.next().await.map_err(from_error)? {
                Some(piece) => self.chunks.extend(piece.into_chunks()),
                None => return Ok(None),
            }
        }
        Ok(self.chunks.pop_front())
    }
}

/// Writes, and repeats it while the store is busy.
async fn not_busy<T, F>(write: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = shoal_engine::Result<T>>,
{
    for _ in 1..BUSY_ATTEMPTS_MAX {
        match write().await {
            Err(shoal_engine::Error::Busy(_)) => tokio::time::sleep(BUSY_PAUSE).await,
            result => return result.map_err(from_error),
        }
    }
    write().await.map_err(from_error)
}

/// Runs all futures at the same time; returns results in their order.
async fn all<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Vec<Result<T>> {
    let mut set = JoinSet::new();
    let mut results = Vec::new();
    for (index, future) in futures.enumerate() {
        results.push(Err(Error::Unknown("the operation did not end".into())));
        set.spawn(async move { (index, future.await) });
    }
    while let Some(joined) = set.join_next().await {
        // A future that panicked keeps the initial error.
        if let Ok((index, result)) = joined
            && let Some(place) = results.get_mut(index)
        {
            *place = result;
        }
    }
    results
}

fn object_key(bucket: &str, key: &[u8]) -> Result<ObjectKey> {
    ObjectKey::new(bucket, key).map_err(from_error)
}

/// Copies only if the value has several pieces.
fn contiguous(value: Buffer) -> Bytes {
    if value.chunks().count() > 1 {
        return value.to_vec().into();
    }
    value.into_chunks().next().unwrap_or_default()
}

fn from_info(info: &shoal_engine::ObjectInfo) -> ObjectAttributes {
    ObjectAttributes {
        version: info.version,
        bytes: info.bytes,
        modified_ns: info.modified_ns,
        metadata: info.metadata.clone(),
        ttl_ns: info.expiry.map(|deadline| deadline.left_ns),
        expire_time_ns: info.expiry.map(|deadline| deadline.at_ns),
    }
}

pub(super) fn from_error(error: shoal_engine::Error) -> Error {
    use shoal_engine::Error as Engine;
    let text = error.to_string();
    match error {
        Engine::ConditionFailed { current, .. } => Error::ConditionFailed { rule: None, current },
        Engine::Full { .. } | Engine::NoRoom(_) => Error::Full(text),
        Engine::Busy(_) => Error::Busy(text),
        Engine::Corrupt { .. } => Error::Corrupt(text),
        Engine::Io(_) => Error::Device(text),
        Engine::Unknown(what) => Error::Unknown(what),
        Engine::Poisoned(_) | Engine::ReadOnly | Engine::Closed => Error::ReadOnly(text),
        Engine::Changed { .. } => Error::Changed,
        Engine::SnapshotDropped { .. } => Error::SnapshotDropped(text),
        // `Invalid`, `Unopenable`, and errors of later versions of the engine.
        _ => Error::Invalid(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn results_are_in_order_and_a_panic_is_an_unknown_result() {
        let futures = (0..50_u64).map(|index| async move {
            tokio::time::sleep(Duration::from_micros(50 - index)).await;
            assert!(index != 7, "one of them panics");
            Ok(index)
        });
        for (index, result) in all(futures).await.into_iter().enumerate() {
            match result {
                Ok(number) => assert_eq!(number, index as u64),
                Err(error) => assert!(index == 7 && matches!(error, Error::Unknown(_))),
            }
        }
    }

    /// A backup of a closed store with a dropped snapshot was reported as an invalid request.
    #[test]
    fn a_dropped_snapshot_is_named() {
        let error = shoal_engine::Error::SnapshotDropped { version: shoal_engine::Lsn(7), why: "it was old" };
        assert!(matches!(from_error(error), Error::SnapshotDropped(why) if why.contains("it was old")));
    }

    #[test]
    fn pieces_are_joined() {
        let mut value = Buffer::from(vec![1, 2]);
        assert_eq!(&contiguous(value.clone())[..], [1, 2]);
        value.append_copy(&[3]);
        assert_eq!(&contiguous(value)[..], [1, 2, 3]);
        assert!(contiguous(Buffer::new()).is_empty());
    }
}

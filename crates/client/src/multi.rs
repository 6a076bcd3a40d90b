//! Many objects of one bucket in few requests, each with a separate outcome.
//!
//! Items are sent in batches that fit in a message. Items that the server left out of an answer, and failed items that may be
//! repeated, go into a later batch; so each item has the outcome of a single call.

use std::collections::VecDeque;

use bytes::Bytes;
use shoal_api::v1;
use shoal_api::{CHUNK_BYTES_MAX, Code};
use shoal_base::limits::{BATCH_KEYS_MAX, VALUE_BYTES_SINGLE_MAX};
use shoal_base::task::Boxed;

use crate::client::Client;
use crate::error::Result;
use crate::object::{ByteRange, DeleteResult, GetResult, Lsn, PutOptions, PutResult, RejectRules};
use crate::retry::{Failed, Outcome};
use crate::wire;

/// Bytes of values in one request: as the server's limit.
const BATCH_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize;

/// One of several gets.
#[derive(Clone, Debug, Default)]
pub struct GetItem {
    /// The key.
    pub key: Bytes,
    /// The requested bytes.
    pub range: ByteRange,
}

/// One of several puts.
#[derive(Clone, Debug, Default)]
pub struct PutItem {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Conditions, metadata, modification time.
    pub options: PutOptions,
}

/// One of several deletes.
#[derive(Clone, Debug, Default)]
pub struct DeleteItem {
    /// The key.
    pub key: Bytes,
    /// Conditions.
    pub rules: RejectRules,
}

/// The result of one item of a batch.
enum Reply<T> {
    Done(Result<T, Failed>),
    /// There was no room for it in the answer.
    Omitted,
}

fn message(item: &PutItem) -> v1::MultiPutItem {
    let (ttl_ns, expire_time_ns) = wire::expiry(item.options.expiry);
    v1::MultiPutItem {
        ttl_ns,
        expire_time_ns,
        key: item.key.clone(),
        rules: wire::rules(item.options.rules),
        metadata: wire::metadata(item.options.metadata.clone()),
        modified_ns: item.options.modified_ns,
        value: item.value.clone(),
    }
}

impl Client {
    /// Several objects; `None` for a missing object. They are not one snapshot. In the order of `items`.
    pub fn multi_get<'a>(
        &'a self,
        bucket: &'a str,
        items: &'a [GetItem],
    ) -> Boxed<'a, Vec<Result<Option<GetResult>>>> {
        Box::pin(async move {
            let again = |outcome| outcome != Outcome::Refused;
            let results = self.settle(items.len(), |_| 0, again, |batch| self.ask_gets(bucket, items, batch));
            results.await.into_iter().map(|result| result.map_err(|failed| failed.error)).collect()
        })
    }

    /// Several puts at the same time, without an order and not atomic. In the order of `items`.
    pub fn multi_put<'a>(
        &'a self,
        bucket: &'a str,
        items: &'a [PutItem],
    ) -> Boxed<'a, Vec<Result<PutResult>>> {
        Box::pin(async move {
            let again = |outcome| outcome == Outcome::NotApplied;
            let bytes = |index: usize| items.get(index).map_or(0, weight);
            let results = self.settle(items.len(), bytes, again, |batch| self.ask_puts(bucket, items, batch));
            results.await.into_iter().map(|result| result.map_err(Failed::of_write)).collect()
        })
    }

    /// Several puts as one batch: if one condition does not hold, none is done, and after a crash either all of them exist or
    /// none. At most 1,000, and 4 MiB in all. In the order of `items`; a reader of several keys may still see a part.
    ///
    /// # Errors
    /// As [`Self::put`]: nothing was done, unless the outcome is unknown.
    pub fn put_batch<'a>(
        &'a self,
        bucket: &'a str,
        items: &'a [PutItem],
    ) -> Boxed<'a, Result<Vec<PutResult>>> {
        Box::pin(async move {
            let items: Vec<_> = items.iter().map(message).collect();
            let request = &v1::MultiPutRequest { bucket: bucket.into(), items, atomic: true };
            self.write(|id| async move {
                let answer = self.transport.call_as::<v1::MultiPut>(id, request.clone()).await?;
                if answer.results.len() != request.items.len() {
                    return Err(wire::protocol("it has another number of results"));
                }
                Ok(answer
                    .results
                    .into_iter()
                    .map(|result| PutResult { version: Lsn(result.version) })
                    .collect())
            })
            .await
        })
    }

    /// Several deletes, as [`Self::multi_put`].
    pub fn multi_delete<'a>(
        &'a self,
        bucket: &'a str,
        items: &'a [DeleteItem],
    ) -> Boxed<'a, Vec<Result<DeleteResult>>> {
        Box::pin(async move {
            let again = |outcome| outcome == Outcome::NotApplied;
            let results =
                self.settle(items.len(), |_| 0, again, |batch| self.ask_deletes(bucket, items, batch));
            results.await.into_iter().map(|result| result.map_err(Failed::of_write)).collect()
        })
    }

    async fn ask_gets(
        &self,
        bucket: &str,
        items: &[GetItem],
        batch: Vec<usize>,
    ) -> Result<Vec<Reply<Option<GetResult>>>, Failed> {
        let item =
            |item: &GetItem| v1::MultiGetItem { key: item.key.clone(), range: wire::range(item.range) };
        let request = v1::MultiGetRequest { bucket: bucket.into(), items: select(items, &batch, item) };
        let answer = self.transport.call::<v1::MultiGet>(request).await?;
        let mut replies: Vec<_> = answer.results.into_iter().map(|result| self.got(result)).collect();
        // If the first item of a batch was left out, it is too long for any batch: so each batch settles at least one.
        if let (Some(reply @ Reply::Omitted), Some(item)) =
            (replies.first_mut(), batch.first().and_then(|&i| items.get(i)))
        {
            *reply = Reply::Done(self.get(bucket, &item.key, item.range).await.map_err(Failed::refused));
        }
        Ok(replies)
    }

    fn got(&self, result: v1::MultiGetResult) -> Reply<Option<GetResult>> {
        if result.value_omitted {
            return Reply::Omitted;
        }
        let found = self
            .key_outcome(result.status)
            .and_then(|()| Ok(GetResult { info: wire::info(result.info)?, value: result.value }));
        Reply::Done(wire::found(found))
    }

    async fn ask_puts(
        &self,
        bucket: &str,
        items: &[PutItem],
        batch: Vec<usize>,
    ) -> Result<Vec<Reply<PutResult>>, Failed> {
        if let (&[_], Some(item)) = (&batch[..], batch.first().and_then(|&i| items.get(i)))
            && item.value.len() > CHUNK_BYTES_MAX
        {
            let result = self.put(bucket, &item.key, item.value.clone(), item.options.clone()).await;
            return Ok(vec![Reply::Done(result.map_err(Failed::refused))]);
        }
        let items = select(items, &batch, message);
        let request = v1::MultiPutRequest { bucket: bucket.into(), items, atomic: false };
        let answer = self.transport.call::<v1::MultiPut>(request).await?;
        let reply = |result: v1::MultiPutResult| {
            Reply::Done(self.key_outcome(result.status).map(|()| PutResult { version: Lsn(result.version) }))
        };
        Ok(answer.results.into_iter().map(reply).collect())
    }

    async fn ask_deletes(
        &self,
        bucket: &str,
        items: &[DeleteItem],
        batch: Vec<usize>,
    ) -> Result<Vec<Reply<DeleteResult>>, Failed> {
        let item =
            |item: &DeleteItem| v1::MultiDeleteItem { key: item.key.clone(), rules: wire::rules(item.rules) };
        let request = v1::MultiDeleteRequest { bucket: bucket.into(), items: select(items, &batch, item) };
        let answer = self.transport.call::<v1::MultiDelete>(request).await?;
        let reply = |result: v1::MultiDeleteResult| {
            let done = DeleteResult { deleted: result.deleted.map(Lsn), version: Lsn(result.version) };
            Reply::Done(self.key_outcome(result.status).map(|()| done))
        };
        Ok(answer.results.into_iter().map(reply).collect())
    }

    fn key_outcome(&self, status: Option<v1::KeyStatus>) -> Result<(), Failed> {
        let status = status.unwrap_or_default();
        if status.code == Code::Ok as i32 { Ok(()) } else { Err(wire::key_failed(status, self.server())) }
    }

    /// Sends batches until each of `count` items is done. `bytes` returns the size that an item adds to a request, `again`
    /// returns true if a failed item is sent again, and `ask` sends the items with these indices.
    async fn settle<T, F>(
        &self,
        count: usize,
        bytes: impl Fn(usize) -> usize,
        again: impl Fn(Outcome) -> bool,
        ask: impl Fn(Vec<usize>) -> F,
    ) -> Vec<Result<T, Failed>>
    where
        F: Future<Output = Result<Vec<Reply<T>>, Failed>>,
    {
        let mut results: Vec<Option<Result<T, Failed>>> = (0..count).map(|_| None).collect();
        let mut pending: VecDeque<usize> = (0..count).collect();
        let mut failed = VecDeque::new();
        let mut budget = self.retry.budget();
        while !pending.is_empty() {
            let batch = next_batch(&mut pending, &bytes);
            let mut omitted = Vec::new();
            for (index, reply) in batch.iter().copied().zip(replies(ask(batch.clone()).await, batch.len())) {
                match reply {
                    Reply::Omitted => omitted.push(index),
                    Reply::Done(result) => {
                        if result.as_ref().is_err_and(|error| again(error.outcome)) {
                            failed.push_back(index);
                        }
                        if let Some(place) = results.get_mut(index) {
                            *place = Some(result);
                        }
                    }
                }
            }
            omitted.into_iter().rev().for_each(|index| pending.push_front(index));
            if pending.is_empty() && !failed.is_empty() && budget.again().await {
                std::mem::swap(&mut pending, &mut failed);
            }
        }
        let done = |result: Option<_>| result.unwrap_or_else(|| Err(wire::protocol("an item has no result")));
        results.into_iter().map(done).collect()
    }
}

/// Takes items off `pending` that fit in one request, at least one.
fn next_batch(pending: &mut VecDeque<usize>, bytes: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut batch = Vec::new();
    let mut total = 0;
    while let Some(&index) = pending.front() {
        total += bytes(index);
        if !batch.is_empty() && (batch.len() == BATCH_KEYS_MAX || total > BATCH_BYTES_MAX) {
            break;
        }
        batch.push(index);
        pending.pop_front();
    }
    batch
}

/// One reply an item, for any answer.
fn replies<T>(answer: Result<Vec<Reply<T>>, Failed>, count: usize) -> Vec<Reply<T>> {
    let failed = match answer {
        Ok(replies) if replies.len() == count => return replies,
        // Then the outcome is unknown.
        Ok(_) => Failed { outcome: Outcome::Open, ..wire::protocol("it has not one result an item") },
        Err(failed) => failed,
    };
    (0..count).map(|_| Reply::Done(Err(failed.clone()))).collect()
}

fn select<I, M>(items: &[I], batch: &[usize], message: impl FnMut(&I) -> M) -> Vec<M> {
    batch.iter().filter_map(|&index| items.get(index)).map(message).collect()
}

/// Bytes that an item adds to a request; a streamed value fills it alone.
fn weight(item: &PutItem) -> usize {
    if item.value.len() > CHUNK_BYTES_MAX {
        return BATCH_BYTES_MAX + 1;
    }
    let metadata = &item.options.metadata;
    let user: usize = metadata.user.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    item.value.len() + item.key.len() + metadata.content_type.len() + user + 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_respect_both_limits() {
        let mut pending: VecDeque<usize> = (0..2500).collect();
        let sizes: Vec<usize> = std::iter::from_fn(|| {
            let batch = next_batch(&mut pending, |_| 1);
            (!batch.is_empty()).then_some(batch.len())
        })
        .collect();
        assert_eq!(sizes, [1000, 1000, 500]);

        let mut pending: VecDeque<usize> = (0..4).collect();
        let bytes = [BATCH_BYTES_MAX + 1, 10, BATCH_BYTES_MAX - 10, 1];
        let mut next = || next_batch(&mut pending, |index| bytes[index]);
        assert_eq!([next(), next(), next(), next()], [vec![0], vec![1, 2], vec![3], vec![]]);
    }
}

//! Several puts of one bucket in one request, each with a separate outcome.
//!
//! All of them are with the store at the same time, so that they share a flush. Short values without further options take their places in
//! the order of writes straight from the request's memory.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use shoal_api::v1;
use shoal_buffer::Buffer;
use shoal_engine::{Lsn, ObjectKey, PutOptions, SHORT_PUTS_MAX, Store, Ticket, Write};

use super::batch::{Batch, Item, encode};
use super::write_batch::write_batch;
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// Values of a batch of puts up to this length take their places one after the other: they are stored in the log, and wait for no device.
const PLACED_BYTES_MAX: usize = 16 << 10;

/// Expected bytes of a result.
const RESULT_BYTES_GUESS: usize = 12;

pub(crate) async fn multi_put(request: Authenticated<Bytes>) -> Result<Box<Buffer>, Failure> {
    let (message, admitted) = request.take();
    let batch = Batch::of(message)?;
    let store = admitted.to_each::<v1::MultiPut>(batch.bucket_name()?, batch.key_bytes())?;
    // A request that is not protobuf fails before any of it is executed.
    batch.items.iter().filter(|item| item.says_more).try_for_each(|item| whole(&batch, item).map(drop))?;
    if batch.is_atomic {
        return Ok(encode(write_batch(&admitted, &batch).await?.into_iter(), RESULT_BYTES_GUESS));
    }
    if admitted.request_id().is_some() {
        return Err(Failure::invalid("several puts can have a request id only as one write batch (atomic)"));
    }
    let items = &batch.items[..];
    let mut results: Vec<Result<Lsn, Failure>> = items.iter().map(|_| Ok(Lsn::NONE)).collect();
    let (mut placed, mut apart) = (Vec::new(), Vec::new());
    {
        // In one go, so that they share a batch.
        let mut begin = pin!(async {
            // If several found no place, each of them is tried alone first.
            let (mut at, mut alone_until) = (0, 0);
            while let Some(item) = items.get(at) {
                if at >= alone_until {
                    if let Some(pending) = place_short(store, &batch, &items[at..]) {
                        let count = pending.count();
                        placed.push((at, pending));
                        at += count;
                        continue;
                    }
                    alone_until = at + SHORT_PUTS_MAX;
                }
                match queue_put(store, &batch, item).await {
                    Ok(Started::Placed(pending)) => placed.push((at, pending)),
                    Ok(Started::Apart(put)) => apart.push((at, put)),
                    Err(failure) => results[at] = Err(failure),
                }
                at += 1;
            }
        });
        poll_fn(|context| store.gather(|| begin.as_mut().poll(context))).await;
    }
    let others = join_all(apart.into_iter().map(|(at, put)| {
        let put = put_one(store, *put);
        async move { (at, put.await) }
    }));
    // In the order in which they become durable.
    let waiting = async {
        let mut durable = Vec::with_capacity(placed.len());
        for (at, pending) in &placed {
            let last = poll_fn(|context| pending.poll_durable(context)).await;
            durable.push((*at, pending.count(), last.map(|last| pending.versions(last))));
        }
        durable
    };
    let (durable, others) = join(waiting, others).await;
    for (at, count, durable) in durable {
        let results = &mut results[at..at + count];
        match durable {
            Ok(versions) => results.iter_mut().zip(versions).for_each(|(result, lsn)| *result = Ok(lsn)),
            Err(error) => results.iter_mut().for_each(|result| *result = Err(Failure::of(&error))),
        }
    }
    for (at, result) in others {
        results[at] = result;
    }
    let results = results.into_iter().map(|result| match result {
        Ok(version) => v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version: version.0 },
        Err(failure) => v1::MultiPutResult { status: Some(failure.into_key_status()), version: 0 },
    });
    Ok(encode(results, RESULT_BYTES_GUESS))
}

fn whole(batch: &Batch<()>, item: &Item<()>) -> Result<v1::MultiPutItem, Failure> {
    batch.whole(item)
}

/// Queues the puts of short values at the start of `items` at once, if there are several.
fn place_short(store: &Store, batch: &Batch<()>, items: &[Item<()>]) -> Option<Ticket> {
    let short = items.iter().take(SHORT_PUTS_MAX).map_while(|item| {
        let key = batch.key(item).ok().filter(|_| !item.says_more)?;
        let value = batch.value(item);
        store.is_short(&key, value.len()).then_some((key, value))
    });
    let puts: Vec<_> = short.collect();
    if puts.len() < 2 {
        return None;
    }
    store.try_write(&puts)
}

/// The progress of a put that did not wait for others.
enum Started {
    /// It has its place in the order of writes.
    Placed(Ticket),
    /// It has rules, or a long value.
    Apart(Box<(ObjectKey, Bytes, PutOptions)>),
}

/// A put up to its place in the order of writes, if it gets there without waiting for the device.
async fn queue_put(store: &Store, batch: &Batch<()>, item: &Item<()>) -> Result<Started, Failure> {
    let (key, value) = (batch.key(item)?, batch.value(item));
    if !item.says_more
        && value.len() <= PLACED_BYTES_MAX
        && let Some(pending) = store.try_write(&[(&key, value)])
    {
        return Ok(Started::Placed(pending));
    }
    let item = whole(batch, item)?;
    let is_apart = item.rules.is_some() || item.value.len() > PLACED_BYTES_MAX;
    let end = (item.ttl_ns, item.expire_time_ns);
    let options = convert::put_options(item.rules, item.metadata, item.modified_ns, end)?;
    if is_apart {
        return Ok(Started::Apart(Box::new((key, item.value, options))));
    }
    let written = store.write(Write::put(&key, &item.value.into(), &options)).await;
    written.map(Started::Placed).map_err(|error| Failure::of(&error))
}

async fn put_one(
    store: &Store,
    (key, value, options): (ObjectKey, Bytes, PutOptions),
) -> Result<Lsn, Failure> {
    let rules = options.rules;
    match store.put(&key, value.into(), options).await {
        Ok(done) => Ok(done.version),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

//! Several puts of one bucket in one request, each with an outcome of its own.
//!
//! All of them are with the store at the same time, so that they share a flush. Short values with nothing said besides take
//! their places in the order of writes from where they lie in the request.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{join, join_all};
use prost::Message as _;
use shoal_api::v1;
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{Bucket, Lsn, ObjectKey, Pending, PutOptions, SHORT_PUTS_MAX, Store, Write};

use super::multi_delete::check_count;
use super::write_batch::write_batch;
use crate::answer::assembly::{Assembly, Value};
use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;
use shoal_api::fields::{Fields, bytes_of, not_protobuf, number_of, text_of};

/// Values of a batch of puts up to here take their places one behind the other: they ride in the log, and wait for no device.
const BEGUN_BYTES_MAX: usize = 16 << 10;

/// What a result is expected to have, in bytes.
const RESULT_BYTES_GUESS: usize = 12;

/// The field `results` of the answer.
const RESULTS: u32 = 1;

pub(crate) async fn multi_put(request: Authenticated<Bytes>) -> Result<Box<Buffer>, Failure> {
    let (message, admitted) = request.take();
    let (bucket, items) = match parse(&message)? {
        Parsed::Apart { bucket, items } => (bucket, items),
        Parsed::Together => {
            let message = v1::MultiPutRequest::decode(message).map_err(not_protobuf)?;
            return Ok(encode(write_batch(&admitted, message).await?.results.into_iter()));
        }
    };
    if admitted.identity().is_some() {
        return Err(Failure::invalid("several puts have an identity only where they are one step (atomic)"));
    }
    let mut results: Vec<Result<Lsn, Failure>> = items.iter().map(|_| Ok(Lsn::NONE)).collect();
    let (mut placed, mut apart) = (Vec::new(), Vec::new());
    {
        // In one go, so that they share a batch.
        let store = admitted.store();
        let mut begin = pin!(async {
            // Where several found no place, each of them is tried alone first.
            let (mut at, mut alone_until) = (0, 0);
            while let Some(item) = items.get(at) {
                if at >= alone_until {
                    if let Some(pending) = place_short(store, &bucket, &items[at..]) {
                        let count = pending.count();
                        placed.push((at, pending));
                        at += count;
                        continue;
                    }
                    alone_until = at + SHORT_PUTS_MAX;
                }
                match begin_put(&admitted, &bucket, &message, item).await {
                    Ok(Begun::Placed(pending)) => placed.push((at, pending)),
                    Ok(Begun::Apart(put)) => apart.push((at, put)),
                    Err(failure) => results[at] = Err(failure),
                }
                at += 1;
            }
        });
        poll_fn(|context| store.gather(|| begin.as_mut().poll(context))).await;
    }
    let others = join_all(apart.into_iter().map(|(at, put)| {
        let put = put_one(&admitted, *put);
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
    Ok(encode(results.into_iter().map(|result| match result {
        Ok(version) => v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version: version.0 },
        Err(failure) => v1::MultiPutResult { status: Some(failure.into_key_status()), version: 0 },
    })))
}

/// A request, taken apart.
enum Parsed<'a> {
    Apart {
        bucket: Bucket,
        items: Vec<Item<'a>>,
    },
    /// It is one step, of which others know.
    Together,
}

/// An item of a request.
struct Item<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Whether there is more in it than key and value.
    says_more: bool,
    /// All of it.
    whole: &'a [u8],
}

fn parse(message: &[u8]) -> Result<Parsed<'_>, Failure> {
    let mut bucket = "";
    let mut items = Vec::new();
    let mut is_atomic = false;
    let mut value_bytes = 0;
    for field in Fields::of(message) {
        match field? {
            (1, field) => bucket = text_of(field)?,
            (2, field) => {
                check_count(items.len() + 1)?;
                let item = parse_item(bytes_of(field)?)?;
                value_bytes += item.value.len();
                check_values(value_bytes)?;
                items.push(item);
            }
            (3, field) => is_atomic = number_of(field)? != 0,
            _ => {}
        }
    }
    let bucket = Bucket::new(convert::bucket(bucket)).map_err(|error| Failure::of(&error))?;
    Ok(if is_atomic { Parsed::Together } else { Parsed::Apart { bucket, items } })
}

/// Whether the values of a request may have so many bytes together.
fn check_values(value_bytes: usize) -> Result<(), Failure> {
    if value_bytes as u64 > VALUE_BYTES_SINGLE_MAX {
        return Err(Failure::invalid(format!(
            "the values of a request have at most {VALUE_BYTES_SINGLE_MAX} bytes together; these have more"
        )));
    }
    Ok(())
}

fn parse_item(message: &[u8]) -> Result<Item<'_>, Failure> {
    let mut item = Item { key: &[], value: &[], says_more: false, whole: message };
    for field in Fields::of(message) {
        match field? {
            (1, field) => item.key = bytes_of(field)?,
            (15, field) => item.value = bytes_of(field)?,
            _ => item.says_more = true,
        }
    }
    if item.says_more {
        // A request that is not protobuf fails before anything of it is done.
        v1::MultiPutItem::decode(message).map_err(not_protobuf)?;
    }
    Ok(item)
}

/// Places the puts of short values at the start of `items` together, where there are several.
fn place_short(store: &Store, bucket: &Bucket, items: &[Item<'_>]) -> Option<Pending> {
    let short = items.iter().take(SHORT_PUTS_MAX).map_while(|item| {
        let key = bucket.key(item.key).ok().filter(|_| !item.says_more)?;
        store.is_short(&key, item.value.len()).then_some((key, item.value))
    });
    let puts: Vec<_> = short.collect();
    if puts.len() < 2 {
        return None;
    }
    store.try_write(&puts)
}

/// How far a put came without waiting for others.
enum Begun {
    /// It has its place in the order of writes.
    Placed(Pending),
    /// It has rules, or a long value.
    Apart(Box<(ObjectKey, v1::MultiPutItem)>),
}

/// A put up to its place in the order of writes, where it gets there without waiting for the device.
async fn begin_put(
    admitted: &Authenticated<()>,
    bucket: &Bucket,
    message: &Bytes,
    item: &Item<'_>,
) -> Result<Begun, Failure> {
    let key = bucket.key(item.key).map_err(|error| Failure::of(&error))?;
    let store = admitted.store();
    if !item.says_more
        && item.value.len() <= BEGUN_BYTES_MAX
        && let Some(pending) = store.try_write(&[(&key, item.value)])
    {
        return Ok(Begun::Placed(pending));
    }
    let item = v1::MultiPutItem::decode(message.slice_ref(item.whole)).map_err(not_protobuf)?;
    if item.rules.is_some() || item.value.len() > BEGUN_BYTES_MAX {
        return Ok(Begun::Apart(Box::new((key, item))));
    }
    let expiry = convert::expiry(item.ttl_ns, item.expire_time_ns)?;
    let options = PutOptions { expiry, ..convert::put_options(item.rules, item.metadata, item.modified_ns) };
    let begun = store.write(Write::put(&key, &item.value.into(), &options)).await;
    begun.map(Begun::Placed).map_err(|error| Failure::of(&error))
}

async fn put_one(
    admitted: &Authenticated<()>,
    (key, item): (ObjectKey, v1::MultiPutItem),
) -> Result<Lsn, Failure> {
    let expiry = convert::expiry(item.ttl_ns, item.expire_time_ns)?;
    let options = PutOptions { expiry, ..convert::put_options(item.rules, item.metadata, item.modified_ns) };
    let rules = options.rules;
    match admitted.store().put(&key, item.value.into(), options).await {
        Ok(done) => Ok(done.version),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

fn encode(results: impl ExactSizeIterator<Item = v1::MultiPutResult>) -> Box<Buffer> {
    let mut answer = Assembly::new(results.len() * RESULT_BYTES_GUESS);
    results.for_each(|result| answer.add(RESULTS, &result, 0, Value::None));
    answer.finish()
}

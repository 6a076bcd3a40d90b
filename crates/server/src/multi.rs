//! Several objects of one bucket in one request, each with an outcome of its own.
//!
//! All writes of a request are with the store at the same time, so that they share a flush. Reads go in waves, and end
//! where the answer is full.

use std::future::poll_fn;
use std::pin::pin;

use futures_util::future::{join, join_all};
use prost::Message;
use shoal_api::{CHUNK_BYTES_MAX, v1};
use shoal_base::codec::{Reader, Truncated};
use shoal_base::limits::{BATCH_KEYS_MAX, VALUE_BYTES_SINGLE_MAX};
use shoal_engine::{Change, Error, Look, Lsn, Object, Once, Pending, Together, check_bucket};

use crate::auth::Authenticated;
use crate::convert;
use crate::failure::Failure;

/// Reads at the same time of one request: enough to keep a device busy, few enough that what they bring in for nothing
/// (where the answer is full) stays small.
const WAVE_KEYS: usize = 16;

/// Values of a batch of puts up to here take their places one behind the other: they ride in the log, and wait for no device.
const BEGUN_BYTES_MAX: usize = 16 << 10;

/// Bytes of one answer, results with all that is in them.
const ANSWER_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize;

pub(crate) async fn multi_get(
    request: Authenticated<v1::MultiGetRequest>,
) -> Result<v1::MultiGetResponse, Failure> {
    let (message, admitted) = request.take();
    check(&message.bucket, message.items.len())?;
    let mut results = Vec::with_capacity(message.items.len());
    // What is in the answer, and what was read for it: values that are too long were read for nothing, and count too.
    let (mut bytes, mut read) = (0, 0);
    for wave in message.items.chunks(WAVE_KEYS) {
        if read >= ANSWER_BYTES_MAX {
            results.extend(wave.iter().map(|_| omitted()));
            continue;
        }
        let gets = wave.iter().map(|item| get_one(&admitted, &message.bucket, item));
        for result in join_all(gets).await {
            let (result, value_bytes) = result.unwrap_or_else(|failure| (get_failed(failure), 0));
            let length = result.encoded_len();
            read += length.max(value_bytes);
            if bytes + length > ANSWER_BYTES_MAX {
                results.push(omitted());
            } else {
                bytes += length;
                results.push(result);
            }
        }
    }
    Ok(v1::MultiGetResponse { results })
}

/// One object, and how many bytes of its value were read.
async fn get_one(
    admitted: &Authenticated<()>,
    bucket: &str,
    item: &v1::MultiGetItem,
) -> Result<(v1::MultiGetResult, usize), Failure> {
    let key = convert::object_key(bucket, &item.key)?;
    let range = convert::range(item.range);
    let object = admitted.store().get(&key, convert::capped(range, CHUNK_BYTES_MAX as u64)).await;
    let object = object.map_err(|error| Failure::of(&error))?.ok_or_else(|| Failure::not_found(&key))?;
    let value_bytes = object.value.len();
    if range.within(object.info.bytes).1 > value_bytes as u64 {
        return Ok((omitted(), value_bytes));
    }
    let result = v1::MultiGetResult {
        status: Some(v1::KeyStatus::default()),
        info: Some(convert::info(&object.info)),
        value_omitted: false,
        value: convert::contiguous(object.value),
    };
    Ok((result, value_bytes))
}

fn omitted() -> v1::MultiGetResult {
    v1::MultiGetResult {
        status: Some(v1::KeyStatus::default()),
        value_omitted: true,
        ..v1::MultiGetResult::default()
    }
}

fn get_failed(failure: Failure) -> v1::MultiGetResult {
    v1::MultiGetResult { status: Some(failure.into_key_status()), ..v1::MultiGetResult::default() }
}

pub(crate) async fn multi_put(
    request: Authenticated<v1::MultiPutRequest>,
) -> Result<v1::MultiPutResponse, Failure> {
    let (message, admitted) = request.take();
    check(&message.bucket, message.items.len())?;
    if message.atomic {
        return put_together(&admitted, message).await;
    }
    if admitted.identity().is_some() {
        return Err(Failure::invalid("several puts have an identity only where they are one step (atomic)"));
    }
    let mut results = vec![v1::MultiPutResult::default(); message.items.len()];
    let mut apart = Vec::new();
    // Short values without conditions take their places one behind the other, without waiting and without a task for each;
    // in one go, so that they share a batch.
    let mut places = Vec::with_capacity(message.items.len());
    {
        let store = admitted.store();
        let mut begin = pin!(async {
            for (index, item) in message.items.into_iter().enumerate() {
                if item.rules.is_some() || item.value.len() > BEGUN_BYTES_MAX {
                    apart.push((index, item));
                } else {
                    places.push((index, begin_put(&admitted, &message.bucket, item).await));
                }
            }
        });
        poll_fn(|context| store.gather(|| begin.as_mut().poll(context))).await;
    }
    let others = join_all(apart.into_iter().map(|(index, item)| {
        let put = put_one(&admitted, &message.bucket, item);
        async move { (index, put.await) }
    }));
    let placed = async {
        let mut done = Vec::with_capacity(places.len());
        // In the order in which they become durable.
        for (index, place) in places {
            done.push((index, durable_version(place).await));
        }
        done
    };
    let (placed, others) = join(placed, others).await;
    for (index, result) in placed.into_iter().chain(others) {
        if let Some(place) = results.get_mut(index) {
            *place = put_result(result);
        }
    }
    Ok(v1::MultiPutResponse { results })
}

fn put_result(result: Result<u64, Failure>) -> v1::MultiPutResult {
    match result {
        Ok(version) => v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version },
        Err(failure) => v1::MultiPutResult { status: Some(failure.into_key_status()), version: 0 },
    }
}

/// A put up to its place in the order of writes.
async fn begin_put(
    admitted: &Authenticated<()>,
    bucket: &str,
    item: v1::MultiPutItem,
) -> Result<Pending, Failure> {
    let key = convert::object_key(bucket, &item.key)?;
    if item.metadata.is_none()
        && item.modified_ns.is_none()
        && let Some(pending) = admitted.store().put_at_once(&key, &item.value)
    {
        return Ok(pending);
    }
    let options = convert::put_options(item.rules, item.metadata, item.modified_ns);
    let begun = admitted.store().begin_put(&key, item.value.into(), options).await;
    begun.map_err(|error| Failure::of(&error))
}

async fn durable_version(begun: Result<Pending, Failure>) -> Result<u64, Failure> {
    begun?.durable().await.map(|version| version.0).map_err(|error| Failure::of(&error))
}

async fn put_one(admitted: &Authenticated<()>, bucket: &str, item: v1::MultiPutItem) -> Result<u64, Failure> {
    let key = convert::object_key(bucket, &item.key)?;
    let options = convert::put_options(item.rules, item.metadata, item.modified_ns);
    let rules = options.rules;
    match admitted.store().put(&key, item.value.into(), options).await {
        Ok(done) => Ok(done.version.0),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

/// All puts as one step: done as a whole or not at all, also over a crash.
async fn put_together(
    admitted: &Authenticated<()>,
    message: v1::MultiPutRequest,
) -> Result<v1::MultiPutResponse, Failure> {
    let (mut keys, mut rules, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    for item in message.items {
        let key = convert::object_key(&message.bucket, &item.key)?;
        let options = convert::put_options(item.rules, item.metadata, item.modified_ns);
        keys.push((key, if options.rules.is_empty() { Look::Nothing } else { Look::Version }));
        rules.push(options.rules);
        changes.push(Change::PutWith { value: item.value.into(), options: Box::new(options) });
    }
    if keys.is_empty() {
        return Ok(v1::MultiPutResponse::default());
    }
    let decide = |objects: &[Option<Object>]| {
        let current = |object: &Option<Object>| object.as_ref().map(|object| object.info.version);
        let rejected = rules.iter().zip(objects).position(|(rules, object)| rules.reject(current(object)));
        match rejected {
            None => (changes.clone(), Verdict { items: rules.len(), rejected: None }),
            Some(at) => {
                let rejected = Some((at, objects.get(at).and_then(current)));
                (changes.iter().map(|_| Change::Keep).collect(), Verdict { items: rules.len(), rejected })
            }
        }
    };
    let (verdict, last) = match admitted.identity() {
        None => {
            let done = admitted.store().update_together(&keys, decide).await;
            durable(done.map_err(|error| Failure::of(&error))?).await?
        }
        Some(identity) => {
            let done = admitted.store().update_once(identity, &keys, decide, Verdict::encode).await;
            match done.map_err(|error| Failure::of(&error))? {
                Once::Now(done) => durable(done).await?,
                Once::Before { version, answer } => {
                    let kept = answer.and_then(|answer| Verdict::decode(&answer).ok());
                    let kept = kept.filter(|kept| kept.items == keys.len()).ok_or_else(not_repeated)?;
                    (kept, version)
                }
            }
        }
    };
    if let Some((at, current)) = verdict.rejected {
        let error = Error::ConditionFailed { current };
        return Err(Failure::of_write(&error, &rules.get(at).copied().unwrap_or_default()));
    }
    // The records of a step are numbered one behind the other.
    let before = last.0.checked_sub(keys.len() as u64).ok_or_else(not_repeated)?;
    let result = |version| v1::MultiPutResult { status: Some(v1::KeyStatus::default()), version };
    Ok(v1::MultiPutResponse { results: (before..last.0).map(|before| result(before + 1)).collect() })
}

/// The identity is that of an earlier write, and this is not a repetition of it.
fn not_repeated() -> Failure {
    Failure::invalid("another write had this session and sequence: a repetition must be the same write")
}

/// What became of a step of puts, as it is kept for a repetition (`docs/format/object.md`).
struct Verdict {
    items: usize,
    /// The first item whose condition did not hold, and the version that was found of its object.
    rejected: Option<(usize, Option<Lsn>)>,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.rejected.is_some())];
        bytes.extend_from_slice(&(self.items as u32).to_le_bytes());
        if let Some((at, current)) = self.rejected {
            bytes.extend_from_slice(&(at as u32).to_le_bytes());
            bytes.extend_from_slice(&current.unwrap_or(Lsn::NONE).0.to_le_bytes());
        }
        bytes
    }

    /// # Errors
    /// [`Truncated`] where it is the answer of another kind of write.
    fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (is_rejected, items) = (reader.u8()?, reader.u32()? as usize);
        let rejected = match is_rejected {
            0 => None,
            1 => {
                let (at, current) = (reader.u32()? as usize, Lsn(reader.u64()?));
                Some((at, Some(current).filter(|&current| current != Lsn::NONE)))
            }
            _ => return Err(Truncated),
        };
        if reader.is_empty() { Ok(Self { items, rejected }) } else { Err(Truncated) }
    }
}

/// Waits until a step is durable; its answer, and the version of the last object that it wrote.
async fn durable<T>(done: Together<T>) -> Result<(T, Lsn), Failure> {
    let mut last = Lsn::NONE;
    for pending in done.pending {
        last = pending.durable().await.map_err(|error| Failure::of(&error))?;
    }
    Ok((done.answer, last))
}

pub(crate) async fn multi_delete(
    request: Authenticated<v1::MultiDeleteRequest>,
) -> Result<v1::MultiDeleteResponse, Failure> {
    let (message, admitted) = request.take();
    check(&message.bucket, message.items.len())?;
    let deletes = message.items.into_iter().map(|item| delete_one(&admitted, &message.bucket, item));
    let failed = |failure: Failure| v1::MultiDeleteResult {
        status: Some(failure.into_key_status()),
        ..v1::MultiDeleteResult::default()
    };
    let results = join_all(deletes).await.into_iter().map(|result| result.unwrap_or_else(failed));
    Ok(v1::MultiDeleteResponse { results: results.collect() })
}

async fn delete_one(
    admitted: &Authenticated<()>,
    bucket: &str,
    item: v1::MultiDeleteItem,
) -> Result<v1::MultiDeleteResult, Failure> {
    let key = convert::object_key(bucket, &item.key)?;
    let rules = convert::rules(item.rules);
    match admitted.store().delete(&key, rules).await {
        Ok(done) => Ok(v1::MultiDeleteResult {
            status: Some(v1::KeyStatus::default()),
            deleted: done.deleted.map(|version| version.0),
            version: done.version.0,
        }),
        Err(error) => Err(Failure::of_write(&error, &rules)),
    }
}

/// What is wrong for all items is said once.
fn check(bucket: &str, items: usize) -> Result<(), Failure> {
    check_bucket(convert::bucket(bucket)).map_err(|error| Failure::of(&error))?;
    if items > BATCH_KEYS_MAX {
        return Err(Failure::invalid(format!(
            "a request has at most {BATCH_KEYS_MAX} keys; this one has {items}"
        )));
    }
    Ok(())
}

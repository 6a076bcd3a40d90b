//! Strings: values as a whole, and parts of them. GETs and SETs of short values usually take the fast path instead
//! (`connection/fast_path.rs`).

use std::pin::pin;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{ByteRange, Change, Expiry, Object, ReadLevel};

use super::call::{Call, Finished, Outcome, SYNTAX, TOO_LONG, give_way_at, integer, is};
use super::expiry::{Unit, expiry_of};
use super::write::{new_expiry, new_value, set_value};
use crate::answer::{Answer, Failed};

/// Bytes of the values of an MGET that may stay in the cache while the others are read; further ones are copied.
const MGET_PINNED_BYTES_MAX: usize = 1 << 20;
/// Values that an MGET reads at a time.
const MGET_READS_MAX: usize = 16;

pub(super) const VALUE_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize;

/// The value, or null.
fn value_of(object: Option<&Object>) -> Answer {
    Answer::value(object.map(|object| object.value.clone()))
}

/// The bytes of the value; empty if there is no object.
pub(super) fn bytes_of(object: Option<&Object>) -> Vec<u8> {
    object.map(|object| object.value.to_vec()).unwrap_or_default()
}

pub(super) async fn get(call: Call) -> Outcome {
    call.answer_object(|object| Answer::value(object.map(|object| object.value))).await
}

/// The options of SET besides key and value.
#[derive(Default)]
struct SetOptions {
    if_missing: bool,
    if_exists: bool,
    get: bool,
    keep: bool,
    expiry: Expiry,
}

impl SetOptions {
    fn parse(call: &Call) -> Result<Self, Failed> {
        let mut options = Self::default();
        let mut words = call.rest(3).iter();
        let mut expiry = None;
        while let Some(word) = words.next() {
            match Unit::of_word(word) {
                Some(unit) if expiry.is_none() && !options.keep => {
                    expiry = Some((unit, words.next().ok_or(SYNTAX)?));
                }
                None if is(word, "nx") && !options.if_exists => options.if_missing = true,
                None if is(word, "xx") && !options.if_missing => options.if_exists = true,
                None if is(word, "get") => options.get = true,
                None if is(word, "keepttl") && expiry.is_none() => options.keep = true,
                _ => return Err(SYNTAX.into()),
            }
        }
        if let Some((unit, amount)) = expiry {
            options.expiry = expiry_of(call, unit, integer(amount)?)?;
        }
        Ok(options)
    }

    fn is_plain(&self) -> bool {
        !(self.if_missing || self.if_exists || self.get || self.keep)
    }
}

pub(super) async fn set(mut call: Call) -> Outcome {
    if let Some(received) = call.received.take() {
        return call.put_received(received).await;
    }
    let options = SetOptions::parse(&call)?;
    let value = call.word(2);
    if options.is_plain() {
        return call.put(value, options.expiry).await;
    }
    let look = if options.get { ReadLevel::Value } else { ReadLevel::Info };
    call.update(look, &mut |object| {
        let refused = if object.is_some() { options.if_missing } else { options.if_exists };
        let answer = match (options.get, refused) {
            (true, _) => value_of(object),
            (false, true) => Answer::Null,
            (false, false) => Answer::Ok,
        };
        if refused {
            return (Change::NoChange, answer);
        }
        let kept = object.and_then(|object| object.info.expiry).filter(|_| options.keep);
        (set_value(value, kept.map_or(options.expiry, Expiry::Same)), answer)
    })
    .await
}

pub(super) async fn setnx(call: Call) -> Outcome {
    call.update(ReadLevel::Info, &mut |object| match object {
        Some(_) => (Change::NoChange, Answer::Integer(0)),
        None => (set_value(call.word(2), Expiry::Never), Answer::Integer(1)),
    })
    .await
}

pub(super) async fn setex(call: Call, unit: Unit) -> Outcome {
    let expiry = expiry_of(&call, unit, call.integer(2)?)?;
    call.put(call.word(3), expiry).await
}

pub(super) async fn getset(call: Call) -> Outcome {
    call.update(ReadLevel::Value, &mut |object| (set_value(call.word(2), Expiry::Never), value_of(object)))
        .await
}

pub(super) async fn getdel(call: Call) -> Outcome {
    call.update(ReadLevel::Value, &mut |object| match object {
        None => (Change::NoChange, Answer::Null),
        some => (Change::Delete, value_of(some)),
    })
    .await
}

pub(super) async fn getex(call: Call) -> Outcome {
    // As in Redis, a wrong time matters only if the key exists.
    let expiry = match call.rest(2) {
        [] => Ok(None),
        [word] if is(word, "persist") => Ok(Some(Expiry::Never)),
        [word, amount] => {
            let unit = Unit::of_word(word).ok_or(SYNTAX)?;
            integer(amount).and_then(|amount| expiry_of(&call, unit, amount)).map(Some)
        }
        _ => return Err(SYNTAX.into()),
    };
    call.update(ReadLevel::Value, &mut |object| {
        let change = match (object, &expiry) {
            (Some(_), Err(Failed(problem))) => return (Change::NoChange, Answer::Error(problem.clone())),
            (Some(object), Ok(Some(expiry))) if object.info.expiry.is_some() || *expiry != Expiry::Never => {
                new_expiry(object, *expiry)
            }
            _ => Change::NoChange,
        };
        (change, value_of(object))
    })
    .await
}

pub(super) async fn getrange(call: Call) -> Outcome {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let key = call.key(1)?;
    let (info, mut pending) = call.head(&key, call.newest).await?;
    let Some(range) = info.and_then(|info| part(start, end, info.bytes)) else {
        return Ok(Finished::after(Answer::Bulk(Bytes::new()), pending));
    };
    if !call.newest {
        // The value may have changed by now: then this is the part of the new one.
        let object = call.read_part(&key, range).await?;
        let value = object.map_or_else(Buffer::new, |object| object.value);
        return Ok(Answer::Value(Box::new(value)).into());
    }
    let (object, newer) = call.read(&key, true).await?;
    pending = newer.or(pending);
    let value = object.map_or_else(Buffer::new, |object| {
        let (first, bytes) = range.within(object.info.bytes);
        object.value.range(first as usize, bytes as usize).unwrap_or_default()
    });
    Ok(Finished::after(Answer::Value(Box::new(value)), pending))
}

/// The bytes that Redis's `start` and `end` select, both included; negative ones count from the end.
fn part(start: i64, end: i64, bytes: u64) -> Option<ByteRange> {
    let bytes = i64::try_from(bytes).ok()?;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let from_start = |place: i64| if place < 0 { place.saturating_add(bytes).max(0) } else { place };
    // An end before the start of the string selects nothing, as in Redis 8; Redis 7 returned the first byte.
    let last = if end < 0 { end.saturating_add(bytes) } else { end }.min(bytes - 1);
    let first = from_start(start);
    if first > last {
        return None;
    }
    Some(ByteRange { first: first as u64, bytes: Some((last - first + 1) as u64) })
}

pub(super) async fn setrange(call: Call) -> Outcome {
    let offset = usize::try_from(call.integer(2)?).map_err(|_| "ERR offset is out of range")?;
    let new = call.word(3);
    let end = offset.saturating_add(new.len());
    call.update(ReadLevel::Value, &mut |object| {
        let mut value = bytes_of(object);
        if new.is_empty() {
            return (Change::NoChange, Answer::Integer(value.len() as i64));
        }
        if end > VALUE_BYTES_MAX {
            return (Change::NoChange, Answer::error(TOO_LONG));
        }
        value.resize(value.len().max(end), 0);
        if let Some(target) = value.get_mut(offset..end) {
            target.copy_from_slice(new);
        }
        let bytes = value.len() as i64;
        (new_value(object, value), Answer::Integer(bytes))
    })
    .await
}

pub(super) async fn append(call: Call) -> Outcome {
    call.update(ReadLevel::Value, &mut |object| {
        let mut value = bytes_of(object);
        if value.len() + call.word(2).len() > VALUE_BYTES_MAX {
            return (Change::NoChange, Answer::error(TOO_LONG));
        }
        value.extend_from_slice(call.word(2));
        let bytes = value.len() as i64;
        (new_value(object, value), Answer::Integer(bytes))
    })
    .await
}

pub(super) async fn strlen(call: Call) -> Outcome {
    call.answer_info(|info| Answer::Integer(info.map_or(0, |info| info.bytes as i64))).await
}

pub(super) async fn mget(call: Call) -> Outcome {
    let room = call.frontend.memory.room();
    let read = async |word: &Bytes| call.read_value(&call.frontend.key(word)?, &room).await;
    let most = call.frontend.options.limits.reply_bytes_max;
    let mut finished = Finished::from(Answer::Null);
    let (mut answers, mut bytes) = (Vec::new(), 0);
    let mut reads = pin!(stream::iter(call.rest(1)).map(read).buffered(MGET_READS_MAX));
    while let Some(read) = reads.next().await {
        let (mut answer, pending) = read?;
        bytes += answer.bytes();
        if bytes > most {
            return Err(format!("ERR the values have more than {most} bytes together").into());
        }
        if bytes > MGET_PINNED_BYTES_MAX {
            answer.own();
        }
        answers.push(answer);
        finished.pending.extend(pending);
        give_way_at(answers.len()).await;
    }
    finished.answer = Answer::Array(answers);
    Ok(finished)
}

/// Stores all pairs as one write batch. With [`ReadLevel::Info`], only if none of the keys exists.
pub(super) async fn mset(call: Call, look: ReadLevel) -> Outcome {
    let pairs = call.rest(1).chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(call.wrong_count());
    }
    let (mut keys, mut values) = (Vec::with_capacity(pairs.len()), Vec::with_capacity(pairs.len()));
    for pair in pairs {
        let [key, value] = pair else { continue };
        keys.push((call.frontend.key(key)?, look));
        values.push(value);
    }
    let if_missing = look != ReadLevel::Nothing;
    call.update_batch(&keys, &mut |objects| {
        if if_missing && objects.iter().any(Option::is_some) {
            return (values.iter().map(|_| Change::NoChange).collect(), Answer::Integer(0));
        }
        let done = if if_missing { Answer::Integer(1) } else { Answer::Ok };
        (values.iter().map(|value| set_value(value, Expiry::Never)).collect(), done)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_from_both_ends() {
        let range = |start, end, bytes| part(start, end, bytes).map(|range| range.within(bytes));
        assert_eq!(range(0, 3, 11), Some((0, 4)));
        assert_eq!(range(0, -1, 11), Some((0, 11)));
        assert_eq!(range(-4, -1, 11), Some((7, 4)));
        assert_eq!(range(5, 3, 11), None);
        assert_eq!(range(5, 5000, 11), Some((5, 6)));
        assert_eq!(range(-5000, 10_000, 11), Some((0, 11)));
        assert_eq!(range(0, 0, 0), None);
        assert_eq!(range(-1, -5, 11), None);
        assert_eq!(range(0, -100, 11), None, "as Redis 8 has it, and its tests want it");
        assert_eq!(range(-100, -50, 11), None);
        assert_eq!(range(i64::MIN, i64::MAX, 11), Some((0, 11)));
        assert_eq!(range(20, 30, 11), None);
    }
}

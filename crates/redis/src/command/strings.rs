//! Strings: values as a whole, and parts of them.

use std::pin::pin;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_buffer::Buffer;
use shoal_engine::{ByteRange, Change, Expiry, Look, Object, PutOptions};

use super::expiry::{Unit, expiry_of};
use super::{Call, KEYS_A_TURN, SYNTAX, TOO_LONG, give_way, integer, is};
use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::face::{new_expiry, new_value, set_value};

/// Bytes of all values in one answer to MGET: an answer stays in memory until the client took it.
const MGET_BYTES_MAX: usize = 64 << 20;
/// Of those so many bytes may lie in the cache while the others are read; further ones are copied.
const MGET_PINNED_BYTES_MAX: usize = 1 << 20;
/// Values that an MGET reads at a time.
const MGET_READS_MAX: usize = 16;

pub(super) const VALUE_BYTES_MAX: usize = VALUE_BYTES_SINGLE_MAX as usize;

/// The value, where there is one.
pub(super) fn value_of(object: Option<&Object>) -> Answer {
    object.map_or(Answer::Null, |object| Answer::Value(Box::new(object.value.clone())))
}

pub(super) async fn get(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    let (object, pending) = call.face.read(&key, call.newest).await?;
    let answer = object.map_or(Answer::Null, |object| Answer::Value(Box::new(object.value)));
    Ok(Finished::after(answer, pending))
}

/// What SET says besides key and value.
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
    if let Some(room) = call.room.take() {
        let key = call.face.key(call.word(1))?;
        let pending = call.face.store.begin_put_room(&key, room, PutOptions::default()).await?;
        return Ok(Finished::after(Answer::Ok, [pending]));
    }
    let options = SetOptions::parse(&call)?;
    let key = call.face.key(call.word(1))?;
    let value = call.word(2);
    if options.is_plain() {
        let put = PutOptions { expiry: options.expiry, ..PutOptions::default() };
        return call.face.put(&key, Buffer::from(value.clone()), put).await;
    }
    let look = if options.get { Look::Value } else { Look::Info };
    call.face
        .update(&key, look, |object| {
            let refused = if object.is_some() { options.if_missing } else { options.if_exists };
            let answer = match (options.get, refused) {
                (true, _) => value_of(object),
                (false, true) => Answer::Null,
                (false, false) => Answer::Ok,
            };
            if refused {
                return (Change::Keep, answer);
            }
            let kept = object.and_then(|object| object.info.expiry).filter(|_| options.keep);
            (set_value(value, kept.map_or(options.expiry, Expiry::Same)), answer)
        })
        .await
}

pub(super) async fn setnx(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Info, |object| match object {
            Some(_) => (Change::Keep, Answer::Integer(0)),
            None => (set_value(call.word(2), Expiry::Never), Answer::Integer(1)),
        })
        .await
}

pub(super) async fn setex(call: Call) -> Outcome {
    set_for(call, Unit::Seconds).await
}

pub(super) async fn psetex(call: Call) -> Outcome {
    set_for(call, Unit::Milliseconds).await
}

async fn set_for(call: Call, unit: Unit) -> Outcome {
    let expiry = expiry_of(&call, unit, call.integer(2)?)?;
    let key = call.face.key(call.word(1))?;
    let options = PutOptions { expiry, ..PutOptions::default() };
    call.face.put(&key, Buffer::from(call.word(3).clone()), options).await
}

pub(super) async fn getset(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    let change = |object: Option<&Object>| (set_value(call.word(2), Expiry::Never), value_of(object));
    call.face.update(&key, Look::Value, change).await
}

pub(super) async fn getdel(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Value, |object| match object {
            None => (Change::Keep, Answer::Null),
            some => (Change::Delete, value_of(some)),
        })
        .await
}

pub(super) async fn getex(call: Call) -> Outcome {
    let expiry = match call.rest(2) {
        [] => None,
        [word] if is(word, "persist") => Some(Expiry::Never),
        [word, amount] => {
            let unit = Unit::of_word(word).ok_or(SYNTAX)?;
            Some(expiry_of(&call, unit, integer(amount)?)?)
        }
        _ => return Err(SYNTAX.into()),
    };
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Value, |object| {
            let change = match (object, expiry) {
                (Some(object), Some(expiry)) if object.info.expiry.is_some() || expiry != Expiry::Never => {
                    new_expiry(object, expiry)
                }
                _ => Change::Keep,
            };
            (change, value_of(object))
        })
        .await
}

pub(super) async fn getrange(call: Call) -> Outcome {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let key = call.face.key(call.word(1))?;
    let (info, mut pending) = call.face.head(&key, call.newest).await?;
    let Some(range) = info.and_then(|info| part(start, end, info.bytes)) else {
        return Ok(Finished::after(Answer::Bulk(Bytes::new()), pending));
    };
    if !call.newest {
        // The value may be another one by now: then this is the part of that one.
        let object = call.face.store.get(&key, range).await?;
        let value = object.map_or_else(Buffer::new, |object| object.value);
        return Ok(Answer::Value(Box::new(value)).into());
    }
    let (object, newer) = call.face.read(&key, true).await?;
    pending = newer.or(pending);
    let value = object.map_or_else(Buffer::new, |object| {
        let (first, bytes) = range.within(object.info.bytes);
        object.value.range(first as usize, bytes as usize).unwrap_or_default()
    });
    Ok(Finished::after(Answer::Value(Box::new(value)), pending))
}

/// The bytes that Redis's `start` and `end` mean, both of them included; negative ones count from the end.
pub(super) fn part(start: i64, end: i64, bytes: u64) -> Option<ByteRange> {
    let bytes = i64::try_from(bytes).ok()?;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let from_start = |place: i64| if place < 0 { place.saturating_add(bytes).max(0) } else { place };
    // An end before the start of the string is no byte, as in Redis 8; Redis 7 gave the first byte.
    let last = if end < 0 { end.saturating_add(bytes) } else { end }.min(bytes - 1);
    let first = from_start(start);
    if first > last {
        return None;
    }
    Some(ByteRange { first: first as u64, bytes: Some((last - first + 1) as u64) })
}

pub(super) async fn setrange(call: Call) -> Outcome {
    let offset = usize::try_from(call.integer(2)?).map_err(|_| "ERR offset is out of range")?;
    let key = call.face.key(call.word(1))?;
    let new = call.word(3);
    let end = offset.saturating_add(new.len());
    call.face
        .update(&key, Look::Value, |object| {
            let mut value = object.map(|object| object.value.to_vec()).unwrap_or_default();
            if new.is_empty() {
                return (Change::Keep, Answer::Integer(value.len() as i64));
            }
            if end > VALUE_BYTES_MAX {
                return (Change::Keep, Answer::error(TOO_LONG));
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
    let key = call.face.key(call.word(1))?;
    call.face
        .update(&key, Look::Value, |object| {
            let mut value = object.map(|object| object.value.to_vec()).unwrap_or_default();
            if value.len() + call.word(2).len() > VALUE_BYTES_MAX {
                return (Change::Keep, Answer::error(TOO_LONG));
            }
            value.extend_from_slice(call.word(2));
            let bytes = value.len() as i64;
            (new_value(object, value), Answer::Integer(bytes))
        })
        .await
}

pub(super) async fn strlen(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    let (info, pending) = call.face.head(&key, call.newest).await?;
    Ok(Finished::after(Answer::Integer(info.map_or(0, |info| info.bytes as i64)), pending))
}

pub(super) async fn mget(call: Call) -> Outcome {
    let read = async |word: &Bytes| {
        let key = call.face.key(word)?;
        if !call.newest
            && let Some(value) = call.face.store.get_at_once(&key)
        {
            return Ok((value.map_or(Answer::Null, Answer::Bulk), None));
        }
        let (object, pending) = call.face.read(&key, call.newest).await?;
        Ok::<_, Failed>((
            object.map_or(Answer::Null, |object| Answer::Value(Box::new(object.value))),
            pending,
        ))
    };
    let mut finished = Finished::from(Answer::Null);
    let (mut answers, mut bytes) = (Vec::new(), 0);
    let mut reads = pin!(stream::iter(call.rest(1)).map(read).buffered(MGET_READS_MAX));
    while let Some(read) = reads.next().await {
        let (mut answer, pending) = read?;
        bytes += answer.bytes();
        if bytes > MGET_BYTES_MAX {
            return Err(format!("ERR the values have more than {MGET_BYTES_MAX} bytes together").into());
        }
        if bytes > MGET_PINNED_BYTES_MAX {
            answer.own();
        }
        answers.push(answer);
        finished.pending.extend(pending);
        if answers.len().is_multiple_of(KEYS_A_TURN) {
            give_way().await;
        }
    }
    finished.answer = Answer::Array(answers);
    Ok(finished)
}

/// The pairs of key and value behind the command's name.
fn pairs(call: &Call) -> Result<impl Iterator<Item = (&Bytes, &Bytes)>, Failed> {
    let words = call.rest(1);
    if !words.len().is_multiple_of(2) {
        return Err(call.wrong_count());
    }
    Ok(words.chunks_exact(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?))))
}

/// Stores all pairs as one step; where one of the keys exists and `if_missing` says so, none.
async fn set_pairs(call: &Call, if_missing: bool) -> Outcome {
    let look = if if_missing { Look::Info } else { Look::Nothing };
    let (mut keys, mut values) = (Vec::with_capacity(call.words.len() / 2), Vec::new());
    for (key, value) in pairs(call)? {
        keys.push((call.face.key(key)?, look));
        values.push(value);
    }
    let done = if if_missing { || Answer::Integer(1) } else { || Answer::Ok };
    call.face
        .update_together(&keys, |objects| {
            if objects.iter().any(Option::is_some) && if_missing {
                return (values.iter().map(|_| Change::Keep).collect(), Answer::Integer(0));
            }
            (values.iter().map(|value| set_value(value, Expiry::Never)).collect(), done())
        })
        .await
}

pub(super) async fn mset(call: Call) -> Outcome {
    set_pairs(&call, false).await
}

pub(super) async fn msetnx(call: Call) -> Outcome {
    set_pairs(&call, true).await
}

/// The integer at a place of the words that is an offset of a bit.
pub(super) fn bit_offset(word: &[u8]) -> Result<usize, Failed> {
    const WRONG: &str = "ERR bit offset is not an integer or out of range";
    let offset = integer(word).map_err(|_| WRONG)?;
    let offset = usize::try_from(offset).map_err(|_| WRONG)?;
    if offset / 8 >= VALUE_BYTES_MAX { Err(WRONG.into()) } else { Ok(offset) }
}

/// Whether a word is 0 or 1.
pub(super) fn bit(word: &[u8]) -> Result<bool, Failed> {
    match word {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err("ERR bit is not an integer or out of range".into()),
    }
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

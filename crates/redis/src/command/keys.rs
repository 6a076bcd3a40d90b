//! Keys as such: their existence and type, deleting, renaming and copying them.

use std::collections::HashSet;

use shoal_engine::{Change, Object, ObjectKey, ReadLevel};
use smallvec::SmallVec;

use super::access::Needs;
use super::call::{Call, Finished, NO_SUCH_KEY, Outcome, Part, SYNTAX, give_way_at, integer, is};
use super::write;
use crate::answer::Answer;

/// The maximum number of keys that a DEL deletes as one write batch, all of them or none. It deletes more keys one after the
/// other, so that other commands have their turn.
const KEYS_A_BATCH_MAX: usize = 32;

pub(super) const OBJECT_PARTS: &[Part] = &[
    Part::new("encoding", 1..=1, "<key>", "How Redis would store the value.", Needs::READ),
    Part::new("freq", 1..=1, "<key>", "Refused, as accesses are not counted.", Needs::READ),
    Part::HELP,
    Part::new(
        "idletime",
        1..=1,
        "<key>",
        "Seconds since the value was written; reads do not count.",
        Needs::READ,
    ),
    Part::new("refcount", 1..=1, "<key>", "1, if the key exists.", Needs::READ),
];

pub(super) async fn del(call: Call) -> Outcome {
    // Before any delete: a refused command changes nothing.
    let keys = call.rest(1).iter().map(|word| call.frontend.key(word)).collect::<Result<Vec<_>, _>>()?;
    if call.is_one_batch() {
        return delete_batch(&call, keys).await;
    }
    // A request above the limits of a write batch is refused before any delete; one by one it may be possible.
    if (2..=KEYS_A_BATCH_MAX).contains(&keys.len())
        && let Ok(finished) = delete_batch(&call, keys.clone()).await
    {
        return Ok(finished);
    }
    let (mut count, mut pending) = (0, SmallVec::new());
    for (number, key) in keys.into_iter().enumerate() {
        give_way_at(number).await;
        let (existed, waits) = write::delete(&call.frontend, &key).await?;
        count += i64::from(existed);
        pending.extend(waits);
    }
    Ok(Finished { pending, ..Answer::Integer(count).into() })
}

/// Deletes objects as one write batch; answers the number that existed. A key in a damaged range counts, because its existence
/// is unknown.
async fn delete_batch(call: &Call, keys: Vec<ObjectKey>) -> Outcome {
    let keys: Vec<_> = keys.into_iter().map(|key| (key, ReadLevel::Existence)).collect();
    call.update_batch(&keys, &mut |objects| {
        let mut named = HashSet::with_capacity(keys.len());
        let deleted = keys.iter().zip(objects).map(|((key, _), object)| {
            // A repeated key counts once.
            named.insert(key.encoded()) && object.is_some()
        });
        let deleted: Vec<bool> = deleted.collect();
        let count = deleted.iter().filter(|deleted| **deleted).count();
        let change = |deleted| if deleted { Change::Delete } else { Change::NoChange };
        (deleted.into_iter().map(change).collect(), Answer::Integer(count as i64))
    })
    .await
}

pub(super) async fn exists(call: Call) -> Outcome {
    let (mut count, mut pending) = (0, SmallVec::new());
    for (number, word) in call.rest(1).iter().enumerate() {
        give_way_at(number).await;
        let (info, waits) = call.head(&call.frontend.key(word)?, call.newest).await?;
        count += i64::from(info.is_some());
        pending.extend(waits);
    }
    Ok(Finished { pending, ..Answer::Integer(count).into() })
}

pub(super) async fn kind(call: Call) -> Outcome {
    call.answer_info(|info| Answer::line(if info.is_some() { "string" } else { "none" })).await
}

/// Redis's answer if it does not count accesses.
const NOT_COUNTED: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

pub(super) async fn object(call: Call) -> Outcome {
    /// Longer strings are not embedded in Redis's objects.
    const EMBEDDED_BYTES_MAX: usize = 44;
    let part = call.part()?;
    if part == "help" {
        return Ok(call.help().into());
    }
    let (object, pending) = call.read(&call.key(2)?, call.newest).await?;
    let answer = match (part, object) {
        (_, None) => Answer::Null,
        ("refcount", _) => Answer::Integer(1),
        ("freq", _) => Answer::error(NOT_COUNTED),
        // The time of the last read is not stored: that would cost a write for each read.
        ("idletime", Some(object)) => {
            let idle_ns = call.frontend.clock.wall_ns().saturating_sub(object.info.modified_ns);
            Answer::Integer((idle_ns / 1_000_000_000) as i64)
        }
        (_, Some(object)) if object.value.len() <= 20 && integer(&object.value.to_vec()).is_ok() => {
            Answer::text("int")
        }
        (_, Some(object)) if object.value.len() <= EMBEDDED_BYTES_MAX => Answer::text("embstr"),
        _ => Answer::text("raw"),
    };
    Ok(Finished::after(answer, pending))
}

/// Renames the object, as one write batch. If the new key exists, only if it may be replaced.
pub(super) async fn rename(call: Call, replace: bool) -> Outcome {
    let (from, to) = (call.key(1)?, call.key(2)?);
    let done = if replace { || Answer::Ok } else { || Answer::Integer(1) };
    if from == to {
        let (info, seen) = call.head(&from, true).await?;
        let kept = if replace { Answer::Ok } else { Answer::Integer(0) };
        return Ok(Finished::after(info.map_or(Answer::error(NO_SUCH_KEY), |_| kept), seen));
    }
    let mut decide = |objects: &[Option<Object>]| take_to(objects, replace, true, done());
    call.update_batch(&looks(from, to, replace), &mut decide).await
}

/// The keys of a rename or a copy, and the level at which each is looked at: the target only if it may be in the way.
fn looks(from: ObjectKey, to: ObjectKey, replace: bool) -> [(ObjectKey, ReadLevel); 2] {
    [(from, ReadLevel::Value), (to, if replace { ReadLevel::Nothing } else { ReadLevel::Info })]
}

/// The changes that rename or copy the first object to the second key, and the answer: `done` on success.
fn take_to(objects: &[Option<Object>], replace: bool, remove: bool, done: Answer) -> (Vec<Change>, Answer) {
    let (source, is_taken) = (objects.first().and_then(Option::as_ref), matches!(objects, [_, Some(_)]));
    let kept = |answer| (vec![Change::NoChange, Change::NoChange], answer);
    match source {
        None if remove => kept(Answer::error(NO_SUCH_KEY)),
        None => kept(Answer::Integer(0)),
        Some(_) if is_taken && !replace => kept(Answer::Integer(0)),
        Some(object) => {
            let put = write::new_expiry(object, object.info.expiry.into());
            (vec![if remove { Change::Delete } else { Change::NoChange }, put], done)
        }
    }
}

pub(super) async fn copy(call: Call) -> Outcome {
    let mut replace = false;
    let mut words = call.rest(3).iter();
    while let Some(word) = words.next() {
        if is(word, "replace") {
            replace = true;
        } else if is(word, "db") {
            if integer(words.next().ok_or(SYNTAX)?)? != 0 {
                return Err("ERR DB index is out of range".into());
            }
        } else {
            return Err(SYNTAX.into());
        }
    }
    let (from, to) = (call.key(1)?, call.key(2)?);
    if from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    let mut decide = |objects: &[Option<Object>]| take_to(objects, replace, false, Answer::Integer(1));
    call.update_batch(&looks(from, to, replace), &mut decide).await
}

//! Keys as such: whether they exist, what they are, deleting, renaming and copying them.

use shoal_engine::{Change, Look, Object, ObjectKey};
use smallvec::SmallVec;

use super::parts::help;
use super::{
    Call, KEYS_A_TURN, NO_SUCH_KEY, SYNTAX, give_way, integer, is, unknown_part, wrong_count_of_part,
};
use crate::answer::{Answer, Failed, Finished, Outcome};

/// So many keys are deleted as one step, all of them or none; more go one after the other, so that others have their turn.
const KEYS_A_STEP_MAX: usize = 32;

pub(super) async fn del(call: Call) -> Outcome {
    let (mut count, mut pending) = (0, SmallVec::new());
    // Before anything is deleted: a command that is refused did nothing.
    let keys = call.rest(1).iter().map(|word| call.face.key(word)).collect::<Result<Vec<_>, _>>()?;
    if call.face.is_one_step() {
        return call.face.delete_together(keys).await;
    }
    // What is too much for a step is refused before anything is done; one by one it may be possible.
    if (2..=KEYS_A_STEP_MAX).contains(&keys.len())
        && let Ok(finished) = call.face.delete_together(keys.clone()).await
    {
        return Ok(finished);
    }
    for (index, key) in keys.into_iter().enumerate() {
        if index > 0 && index.is_multiple_of(KEYS_A_TURN) {
            give_way().await;
        }
        let delete = |object: Option<&Object>| match object {
            Some(_) => (Change::Delete, 1),
            None => (Change::Keep, 0),
        };
        // A key in a damaged range counts: nobody knows whether it existed, and it does not any more.
        let updated = call.face.store.update(&key, Look::Existence, delete).await.map_err(Failed::from)?;
        count += updated.answer;
        pending.extend(updated.pending);
    }
    Ok(Finished { pending, ..Answer::Integer(count).into() })
}

pub(super) async fn exists(call: Call) -> Outcome {
    let (mut count, mut pending) = (0, SmallVec::new());
    for (index, word) in call.rest(1).iter().enumerate() {
        if index > 0 && index.is_multiple_of(KEYS_A_TURN) {
            give_way().await;
        }
        let (info, waits) = call.face.head(&call.face.key(word)?, call.newest).await?;
        count += i64::from(info.is_some());
        pending.extend(waits);
    }
    Ok(Finished { pending, ..Answer::Integer(count).into() })
}

pub(super) async fn kind(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    let (info, pending) = call.face.head(&key, call.newest).await?;
    Ok(Finished::after(Answer::Simple(if info.is_some() { "string" } else { "none" }), pending))
}

/// As Redis where it does not count accesses either.
const NOT_COUNTED: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

pub(super) async fn object(call: Call) -> Outcome {
    /// Longer strings are not embedded in Redis's objects.
    const EMBEDDED_BYTES_MAX: usize = 44;
    if is(call.word(1), "help") {
        return Ok(help(&call)?.into());
    }
    let parts = ["encoding", "refcount", "idletime", "freq"];
    let Some(part) = parts.into_iter().find(|part| is(call.word(1), part)) else {
        return Err(unknown_part(&call));
    };
    if call.words.len() != 3 {
        return Err(wrong_count_of_part(&call));
    }
    let key = call.face.key(call.word(2))?;
    let (object, pending) = call.face.read(&key, call.newest).await?;
    let answer = match (part, object) {
        (_, None) => Answer::Null,
        ("refcount", _) => Answer::Integer(1),
        ("freq", _) => Answer::error(NOT_COUNTED),
        // When it was read is not remembered: that would be a write for each read.
        ("idletime", Some(object)) => Answer::Integer(
            (call.face.clock.wall_ns().saturating_sub(object.info.modified_ns) / 1_000_000_000) as i64,
        ),
        (_, Some(object)) if object.value.len() <= 20 && is_integer(&object) => Answer::text("int"),
        (_, Some(object)) if object.value.len() <= EMBEDDED_BYTES_MAX => Answer::text("embstr"),
        _ => Answer::text("raw"),
    };
    Ok(Finished::after(answer, pending))
}

fn is_integer(object: &Object) -> bool {
    shoal_resp::parse_integer(&object.value.to_vec()).is_some()
}

pub(super) async fn rename(call: Call) -> Outcome {
    move_to(&call, true).await.map(|mut finished| {
        if matches!(finished.answer, Answer::Integer(_)) {
            finished.answer = Answer::Ok;
        }
        finished
    })
}

pub(super) async fn renamenx(call: Call) -> Outcome {
    move_to(&call, false).await
}

/// Gives the object another key, as one step; 1, or 0 where the key is taken and may not be.
async fn move_to(call: &Call, replace: bool) -> Outcome {
    let (from, to) = (call.face.key(call.word(1))?, call.face.key(call.word(2))?);
    if from == to {
        let (info, seen) = call.face.head(&from, true).await?;
        let answer = info.map_or(Answer::error(NO_SUCH_KEY), |_| Answer::flag(replace));
        return Ok(Finished::after(answer, seen));
    }
    call.face.update_together(&looks(from, to, replace), |objects| take_to(objects, replace, true)).await
}

/// What is looked at where one object takes another one's place: the other one only where it may be in the way.
fn looks(from: ObjectKey, to: ObjectKey, replace: bool) -> [(ObjectKey, Look); 2] {
    [(from, Look::Value), (to, if replace { Look::Nothing } else { Look::Info })]
}

/// The changes that give the first object the second one's key, or a copy of it.
fn take_to(objects: &[Option<Object>], replace: bool, remove: bool) -> (Vec<Change>, Answer) {
    let (source, target) =
        (objects.first().and_then(Option::as_ref), objects.get(1).and_then(Option::as_ref));
    let kept = |answer| (vec![Change::Keep, Change::Keep], answer);
    match source {
        None if remove => kept(Answer::error(NO_SUCH_KEY)),
        None => kept(Answer::Integer(0)),
        Some(_) if target.is_some() && !replace => kept(Answer::Integer(0)),
        Some(object) => {
            let (value, metadata) = (object.value.clone(), object.info.metadata.clone());
            let put = Change::Put { value, metadata, expiry: object.info.expiry.into() };
            (vec![if remove { Change::Delete } else { Change::Keep }, put], Answer::Integer(1))
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
    let (from, to) = (call.face.key(call.word(1))?, call.face.key(call.word(2))?);
    if from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    call.face.update_together(&looks(from, to, replace), |objects| take_to(objects, replace, false)).await
}

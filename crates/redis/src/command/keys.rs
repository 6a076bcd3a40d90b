//! Keys as such: whether they exist, what they are, deleting, renaming and copying them.

use shoal_engine::{Change, Look, Object};
use smallvec::SmallVec;

use super::{
    Call, KEYS_A_TURN, NO_SUCH_KEY, SYNTAX, give_way, integer, is, unknown_part, wrong_count_of_part,
};
use crate::answer::{Answer, Failed, Finished, Outcome};

pub(super) async fn del(call: Call) -> Outcome {
    let (mut count, mut pending) = (0, SmallVec::new());
    // Before anything is deleted: a command that is refused did nothing.
    let keys = call.rest(1).iter().map(|word| call.face.key(word)).collect::<Result<Vec<_>, _>>()?;
    for (index, key) in keys.into_iter().enumerate() {
        if index > 0 && index.is_multiple_of(KEYS_A_TURN) {
            give_way().await;
        }
        let delete = |object: Option<&Object>| match object {
            Some(_) => (Change::Delete, 1),
            None => (Change::Keep, 0),
        };
        let updated = call.face.store.update(&key, Look::Info, delete).await.map_err(Failed::from)?;
        count += updated.answer;
        pending.extend(updated.pending);
    }
    Ok(Finished { answer: Answer::Integer(count), pending })
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
    Ok(Finished { answer: Answer::Integer(count), pending })
}

pub(super) async fn kind(call: Call) -> Outcome {
    let key = call.face.key(call.word(1))?;
    let (info, pending) = call.face.head(&key, call.newest).await?;
    Ok(Finished::after(Answer::Simple(if info.is_some() { "string" } else { "none" }), pending))
}

pub(super) async fn object(call: Call) -> Outcome {
    /// Longer strings are not embedded in Redis's objects.
    const EMBEDDED_BYTES_MAX: usize = 44;
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
        ("idletime" | "freq", _) => Answer::Integer(0),
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

/// Gives the object another key; 1, or 0 where the key is taken and may not be.
async fn move_to(call: &Call, replace: bool) -> Outcome {
    let (from, to) = (call.face.key(call.word(1))?, call.face.key(call.word(2))?);
    let (object, seen) = call.face.read(&from, true).await?;
    let Some(object) = object else { return Ok(Finished::after(Answer::error(NO_SUCH_KEY), seen)) };
    if from == to {
        return Ok(Finished::after(Answer::flag(replace), seen));
    }
    let mut finished = put_copy(call, &to, &object, replace).await?;
    if matches!(finished.answer, Answer::Integer(1)) {
        let version = object.info.version;
        let delete = |now: Option<&Object>| match now {
            Some(now) if now.info.version == version || seen.is_some() => (Change::Delete, ()),
            _ => (Change::Keep, ()),
        };
        let updated = call.face.store.update(&from, Look::Info, delete).await.map_err(Failed::from)?;
        finished.pending.extend(updated.pending);
    }
    Ok(finished)
}

/// Stores an object under another key; 1, or 0 where there is one that may not be replaced.
async fn put_copy(call: &Call, to: &shoal_engine::ObjectKey, object: &Object, replace: bool) -> Outcome {
    call.face
        .update(to, Look::Info, |existing| {
            if existing.is_some() && !replace {
                return (Change::Keep, Answer::Integer(0));
            }
            let (value, metadata) = (object.value.clone(), object.info.metadata.clone());
            (Change::Put { value, metadata, expiry_ns: object.info.expiry_ns }, Answer::Integer(1))
        })
        .await
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
    let (object, seen) = call.face.read(&from, true).await?;
    let Some(object) = object else { return Ok(Finished::after(Answer::Integer(0), seen)) };
    let mut finished = put_copy(&call, &to, &object, replace).await?;
    finished.pending.extend(seen);
    Ok(finished)
}

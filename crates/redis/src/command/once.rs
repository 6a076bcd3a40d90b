//! Writes that are done once, however often a client sends them: `SHOAL.SESSION <session> <sequence> <command ...>`.
//!
//! The command's answer is kept with the write (R17 of the engine), so that a repetition gets it again. Commands that
//! write no keys are refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Deref;

use bytes::Bytes;
use shoal_buffer::Buffer;
use shoal_engine::{Change, Identity, Look, Object, ObjectKey, Once, PutOptions, RESULT_BYTES_MAX, Together};

use super::{Call, FaceRef, Run, find, is};
use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::face::Face;

const NOT_ONCE: &str = "ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys";
const FORGOTTEN: &str = "UNKNOWN the write was done; its answer was too long to be kept";

/// The face as one command sees it: its writes have the command's identity.
pub(crate) struct Caller {
    face: FaceRef,
    identity: Option<Identity>,
}

impl From<FaceRef> for Caller {
    fn from(face: FaceRef) -> Self {
        Self { face, identity: None }
    }
}

impl Deref for Caller {
    type Target = Face;

    fn deref(&self) -> &Face {
        &self.face
    }
}

impl Caller {
    /// Whether writes are to be done once.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Stores an object and answers OK.
    pub(crate) async fn put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Outcome {
        if self.identity.is_none() {
            let pending = self.store.begin_put(key, value, options).await?;
            return Ok(Finished::after(Answer::Ok, [pending]));
        }
        let change = Change::PutWith { value, options: Box::new(options) };
        self.update_together(&[(key.clone(), Look::Nothing)], |_| (vec![change.clone()], Answer::Ok)).await
    }

    /// Updates an object; what `decide` answers leaves when it is durable.
    pub(crate) async fn update(
        &self,
        key: &ObjectKey,
        look: Look,
        mut decide: impl FnMut(Option<&Object>) -> (Change, Answer),
    ) -> Outcome {
        if self.identity.is_none() {
            return self.face.update(key, look, decide).await;
        }
        let keys = [(key.clone(), look)];
        self.update_together(&keys, |objects| {
            let (change, answer) = decide(objects.first().and_then(Option::as_ref));
            (vec![change], answer)
        })
        .await
    }

    /// Deletes objects as one step; how many there were.
    pub(crate) async fn delete_together(&self, keys: Vec<ObjectKey>) -> Outcome {
        let keys: Vec<_> = keys.into_iter().map(|key| (key, Look::Info)).collect();
        self.update_together(&keys, |objects| {
            let mut changes = Vec::with_capacity(keys.len());
            let mut named = HashSet::with_capacity(keys.len());
            for ((key, _), object) in keys.iter().zip(objects) {
                // A key that is named twice counts once.
                let is_first = named.insert(key.encoded());
                changes.push(if object.is_some() && is_first { Change::Delete } else { Change::Keep });
            }
            let count = changes.iter().filter(|change| matches!(change, Change::Delete)).count();
            (changes, Answer::Integer(count as i64))
        })
        .await
    }

    /// Updates several objects as one step; what `decide` answers leaves when all of it is durable.
    pub(crate) async fn update_together(
        &self,
        keys: &[(ObjectKey, Look)],
        decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, Answer),
    ) -> Outcome {
        let Some(identity) = self.identity else {
            let Together { answer, pending } = self.store.update_together(keys, decide).await?;
            return Ok(Finished::after(answer, pending));
        };
        match self.store.update_once(identity, keys, decide, keep).await? {
            Once::Now(Together { answer, pending }) => Ok(Finished::after(answer, pending)),
            Once::Before { version, answer } => {
                let kept = answer.ok_or(FORGOTTEN)?;
                Ok(kept_answer(&kept, version.0).ok_or(FORGOTTEN)?.into())
            }
        }
    }
}

const OK: u8 = 0;
const INTEGER: u8 = 1;
const NULL: u8 = 2;
const BYTES: u8 = 3;
const ERROR: u8 = 4;
const VERSION: u8 = 5;

/// The bytes that an answer is kept as; too many of them where it is not kept.
fn keep(answer: &Answer) -> Vec<u8> {
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    match answer {
        Answer::Ok => vec![OK],
        Answer::Integer(value) => of(INTEGER, &value.to_le_bytes()),
        Answer::Null => vec![NULL],
        Answer::Bulk(bytes) => of(BYTES, bytes),
        Answer::Value(value) if value.len() < RESULT_BYTES_MAX => of(BYTES, &value.to_vec()),
        Answer::Error(text) => of(ERROR, text.as_bytes()),
        Answer::Version => vec![VERSION],
        _ => vec![0; RESULT_BYTES_MAX + 1],
    }
}

/// The answer that was kept, of a write with this version.
fn kept_answer(kept: &Bytes, version: u64) -> Option<Answer> {
    let (&kind, rest) = kept.split_first()?;
    Some(match kind {
        OK => Answer::Ok,
        INTEGER => Answer::Integer(i64::from_le_bytes(rest.try_into().ok()?)),
        NULL => Answer::Null,
        BYTES => Answer::Bulk(kept.slice_ref(rest)),
        ERROR => Answer::Error(Cow::Owned(String::from_utf8_lossy(rest).into_owned())),
        VERSION => Answer::Integer(version as i64),
        _ => return None,
    })
}

fn number(word: &[u8]) -> Result<u64, Failed> {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).ok_or(NOT_ONCE.into())
}

/// `SHOAL.SESSION NEW` gives a session; with a session, a sequence number and a command it does that command once.
pub(super) async fn session(call: Call) -> Outcome {
    if call.words.len() == 2 && is(call.word(1), "new") {
        let session = call.face.entropy.next_u64() >> 1;
        return Ok(Answer::Integer(session as i64).into());
    }
    let identity = Identity { session: number(call.word(1))?, sequence: number(call.word(2))? };
    let words = call.rest(3).to_vec();
    let name = words.first().ok_or(NOT_ONCE)?;
    let command = find(name).filter(|command| command.writes && command.keys.first == 1).ok_or(NOT_ONCE)?;
    let (Run::Task(run), true) = (command.run, command.takes(words.len())) else {
        return Err(format!("ERR wrong number of arguments for '{}' command", command.name).into());
    };
    let face = Caller { identity: Some(identity), face: call.face.face.clone() };
    // No command that walks over all keys comes here: it would have to wait for what was acknowledged.
    run(Call { face, words, room: None, command, newest: call.newest, before: None }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept() {
        let again =
            |answer: Answer| kept_answer(&keep(&answer).into(), 7).map(|answer| format!("{answer:?}"));
        let same = |answer: fn() -> Answer| assert_eq!(again(answer()), Some(format!("{:?}", answer())));
        same(|| Answer::Ok);
        same(|| Answer::Null);
        same(|| Answer::Integer(-5));
        same(|| Answer::Bulk(Bytes::from_static(b"value")));
        assert_eq!(again(Answer::Version), Some(format!("{:?}", Answer::Integer(7))));
        let value = Answer::Value(Box::new(Buffer::from(Bytes::from_static(b"value"))));
        assert_eq!(again(value), Some(format!("{:?}", Answer::Bulk(Bytes::from_static(b"value")))));
        assert!(
            matches!(kept_answer(&keep(&Answer::error("ERR no")).into(), 7), Some(Answer::Error(text)) if text == "ERR no")
        );
        assert!(keep(&Answer::Array(Vec::new())).len() > RESULT_BYTES_MAX);
        let long = Answer::Value(Box::new(Buffer::from(Bytes::from(vec![1; 600]))));
        assert!(keep(&long).len() > RESULT_BYTES_MAX);
        assert!(kept_answer(&Bytes::new(), 7).is_none());
    }
}

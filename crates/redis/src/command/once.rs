//! Writes that are done once, however often a client sends them: `SHOAL.SESSION <session> <sequence> <command ...>`.
//!
//! The command's answer is kept with the write (R17 of the engine), so that a repetition gets it again. Commands that
//! write no keys are refused.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Deref;
use std::rc::Rc;

use bytes::Bytes;
use shoal_buffer::Buffer;
use shoal_engine::{
    Change, Identity, Look, Object, ObjectInfo, ObjectKey, Once, Pending, PutOptions, RESULT_BYTES_MAX,
    Together,
};

use super::{Call, FaceRef, Run, find, is};
use crate::answer::{Answer, Failed, Finished, Outcome};
use crate::face::Face;
use crate::working::WorkingSet;

const NOT_ONCE: &str = "ERR SHOAL.SESSION takes a session, a sequence number and a command that writes keys";
pub(super) const FORGOTTEN: &str = "UNKNOWN the write was done; its answer was too long to be kept";

/// The face as one command sees it: its writes have the command's identity, or in a transaction all that it does is done to the
/// transaction's working set.
pub(crate) struct Caller {
    face: FaceRef,
    identity: Option<Identity>,
    working: Option<Rc<WorkingSet>>,
}

impl From<FaceRef> for Caller {
    fn from(face: FaceRef) -> Self {
        Self { face, identity: None, working: None }
    }
}

impl Deref for Caller {
    type Target = Face;

    fn deref(&self) -> &Face {
        &self.face
    }
}

impl Caller {
    /// The face within a transaction.
    pub(crate) fn within(face: FaceRef, working: Rc<WorkingSet>) -> Self {
        Self { face, identity: None, working: Some(working) }
    }

    /// Whether all that the command does must be one step: it is done once, or it is part of a transaction.
    pub(crate) fn is_one_step(&self) -> bool {
        self.identity.is_some() || self.working.is_some()
    }

    /// The working set of the transaction that the command is part of.
    pub(crate) fn working(&self) -> Option<&WorkingSet> {
        self.working.as_deref()
    }

    /// As [`Face::read`].
    pub(crate) async fn read(
        &self,
        key: &ObjectKey,
        newest: bool,
    ) -> Result<(Option<Object>, Option<Pending>), Failed> {
        match &self.working {
            Some(working) => Ok((working.see(key, Look::Value)?, None)),
            None => self.face.read(key, newest).await,
        }
    }

    /// As [`Face::head`].
    pub(crate) async fn head(
        &self,
        key: &ObjectKey,
        newest: bool,
    ) -> Result<(Option<ObjectInfo>, Option<Pending>), Failed> {
        match &self.working {
            Some(working) => Ok((working.see(key, Look::Info)?.map(|object| object.info), None)),
            None => self.face.head(key, newest).await,
        }
    }

    /// Stores an object and answers OK.
    pub(crate) async fn put(&self, key: &ObjectKey, value: Buffer, options: PutOptions) -> Outcome {
        if !self.is_one_step() {
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
        if !self.is_one_step() {
            return self.face.update(key, look, decide).await;
        }
        let keys = [(key.clone(), look)];
        self.update_together(&keys, |objects| {
            let (change, answer) = decide(objects.first().and_then(Option::as_ref));
            (vec![change], answer)
        })
        .await
    }

    /// Deletes objects as one step; how many there were, those among them of which nobody knows whether they existed.
    pub(crate) async fn delete_together(&self, keys: Vec<ObjectKey>) -> Outcome {
        let keys: Vec<_> = keys.into_iter().map(|key| (key, Look::Existence)).collect();
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
        mut decide: impl FnMut(&[Option<Object>]) -> (Vec<Change>, Answer),
    ) -> Outcome {
        if let Some(working) = &self.working {
            let see = |(key, look): &(ObjectKey, Look)| match look {
                Look::Nothing => Ok(None),
                look => working.see(key, *look),
            };
            let objects = keys.iter().map(see).collect::<Result<Vec<_>, _>>()?;
            let (changes, answer) = decide(&objects);
            keys.iter().zip(changes).for_each(|((key, _), change)| working.change(key, change));
            return Ok(answer.into());
        }
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
const TEXT: u8 = 6;
const LIST: u8 = 7;
const VERSION_BEFORE: u8 = 8;

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
        Answer::VersionBefore(behind) => of(VERSION_BEFORE, &behind.to_le_bytes()),
        Answer::Simple(text) => of(TEXT, text.as_bytes()),
        Answer::Array(answers) | Answer::Transaction(answers) => keep_list(answers.iter().map(Some)),
        _ => vec![0; RESULT_BYTES_MAX + 1],
    }
}

/// The same of the answers of a transaction, of which those of commands that are no part of it are not kept.
pub(super) fn keep_all(answers: &[Option<Answer>]) -> Vec<u8> {
    keep_list(answers.iter().map(Option::as_ref))
}

fn keep_list<'a>(answers: impl ExactSizeIterator<Item = Option<&'a Answer>>) -> Vec<u8> {
    let mut bytes = vec![LIST];
    for answer in answers {
        let kept = answer.map_or_else(|| vec![NULL], keep);
        bytes.extend_from_slice(&(kept.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&kept);
        if bytes.len() > RESULT_BYTES_MAX {
            break;
        }
    }
    bytes
}

/// The answer that was kept, of a write with this version.
pub(super) fn kept_answer(kept: &Bytes, version: u64) -> Option<Answer> {
    let (&kind, rest) = kept.split_first()?;
    Some(match kind {
        OK => Answer::Ok,
        INTEGER => Answer::Integer(i64::from_le_bytes(rest.try_into().ok()?)),
        NULL => Answer::Null,
        BYTES => Answer::Bulk(kept.slice_ref(rest)),
        ERROR => Answer::Error(Cow::Owned(String::from_utf8_lossy(rest).into_owned())),
        VERSION => Answer::Integer(version as i64),
        VERSION_BEFORE => {
            let behind = u64::from_le_bytes(rest.try_into().ok()?);
            Answer::Integer(version.saturating_sub(behind) as i64)
        }
        // Only these are told as plain text by a command that is kept.
        TEXT => Answer::Simple(["string", "none", "PONG"].into_iter().find(|text| text.as_bytes() == rest)?),
        LIST => {
            let (mut rest, mut answers) = (rest, Vec::new());
            while let Some((length, behind)) = rest.split_first_chunk() {
                let (answer, others) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                answers.push(kept_answer(&kept.slice_ref(answer), version)?);
                rest = others;
            }
            Answer::Array(answers)
        }
        _ => return None,
    })
}

fn number(word: &[u8]) -> Result<u64, Failed> {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).ok_or(NOT_ONCE.into())
}

/// Who an EXEC is: `SHOAL.SESSION <session> <sequence> EXEC`.
pub(crate) fn identity_of(words: &[Bytes]) -> Result<Option<Identity>, Failed> {
    match words {
        [_, session, sequence, _] => {
            Ok(Some(Identity { session: number(session)?, sequence: number(sequence)? }))
        }
        _ => Ok(None),
    }
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
    let face = Caller { identity: Some(identity), face: call.face.face.clone(), working: None };
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
        let list = || {
            Answer::Array(vec![Answer::Ok, Answer::Array(vec![Answer::Integer(1)]), Answer::Simple("none")])
        };
        assert_eq!(again(list()), Some(format!("{:?}", list())));
        assert_eq!(again(Answer::VersionBefore(2)), Some(format!("{:?}", Answer::Integer(5))));
        let many = Answer::Transaction((0..1_000).map(Answer::Integer).collect());
        assert!(keep(&many).len() > RESULT_BYTES_MAX);
        let long = Answer::Value(Box::new(Buffer::from(Bytes::from(vec![1; 600]))));
        assert!(keep(&long).len() > RESULT_BYTES_MAX);
        assert!(kept_answer(&Bytes::new(), 7).is_none());
    }
}

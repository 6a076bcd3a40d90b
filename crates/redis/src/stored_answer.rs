//! The stored form of an answer: the engine keeps it with a write that is done once (`SHOAL.SESSION`), so that a repetition gets
//! the same answer.

use std::borrow::Cow;

use bytes::Bytes;
use shoal_engine::RESULT_BYTES_MAX;

use crate::answer::{Answer, Failed};

const FORGOTTEN: &str = "UNKNOWN the write was done; its answer was too long to be kept";

const OK: u8 = 0;
const INTEGER: u8 = 1;
const NULL: u8 = 2;
const BYTES: u8 = 3;
const ERROR: u8 = 4;
const VERSION: u8 = 5;
const TEXT: u8 = 6;
const LIST: u8 = 7;
const VERSION_BEFORE: u8 = 8;

/// The stored form of an answer; more than `RESULT_BYTES_MAX` bytes for an answer that is not kept.
pub(crate) fn encode(answer: &Answer) -> Vec<u8> {
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
        Answer::Line(text) => of(TEXT, text.as_bytes()),
        Answer::Array(answers) | Answer::Transaction(answers) => encode_list(answers.iter().map(Some)),
        _ => vec![0; RESULT_BYTES_MAX + 1],
    }
}

/// The same for the answers of a transaction; the answers of commands outside of it are not kept.
pub(crate) fn encode_all(answers: &[Option<Answer>]) -> Vec<u8> {
    encode_list(answers.iter().map(Option::as_ref))
}

fn encode_list<'a>(answers: impl Iterator<Item = Option<&'a Answer>>) -> Vec<u8> {
    let mut bytes = vec![LIST];
    for answer in answers {
        let kept = encode(answer.unwrap_or(&Answer::Null));
        bytes.extend_from_slice(&(kept.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&kept);
        if bytes.len() > RESULT_BYTES_MAX {
            break;
        }
    }
    bytes
}

/// The stored answer of a write with this version.
///
/// # Errors
/// If none was kept.
pub(crate) fn answer_of(kept: Option<&Bytes>, version: u64) -> Result<Answer, Failed> {
    kept.and_then(|kept| decode(kept, version)).ok_or(FORGOTTEN.into())
}

fn decode(kept: &Bytes, version: u64) -> Option<Answer> {
    let (&kind, rest) = kept.split_first()?;
    let text = || Cow::Owned(String::from_utf8_lossy(rest).into_owned());
    Some(match kind {
        OK => Answer::Ok,
        INTEGER => Answer::Integer(i64::from_le_bytes(rest.try_into().ok()?)),
        NULL => Answer::Null,
        BYTES => Answer::Bulk(kept.slice_ref(rest)),
        ERROR => Answer::Error(text()),
        VERSION => Answer::Integer(version as i64),
        VERSION_BEFORE => {
            let behind = u64::from_le_bytes(rest.try_into().ok()?);
            Answer::Integer(version.saturating_sub(behind) as i64)
        }
        TEXT => Answer::Line(text()),
        LIST => {
            let (mut rest, mut answers) = (rest, Vec::new());
            while let Some((length, behind)) = rest.split_first_chunk() {
                let (answer, others) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                answers.push(decode(&kept.slice_ref(answer), version)?);
                rest = others;
            }
            Answer::Array(answers)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use shoal_buffer::Buffer;

    use super::*;

    #[test]
    fn answers_are_kept() {
        let again = |answer: Answer| decode(&encode(&answer).into(), 7).map(|answer| format!("{answer:?}"));
        let same = |answer: fn() -> Answer| assert_eq!(again(answer()), Some(format!("{:?}", answer())));
        same(|| Answer::Ok);
        same(|| Answer::Null);
        same(|| Answer::Integer(-5));
        same(|| Answer::Bulk(Bytes::from_static(b"value")));
        same(|| Answer::error("ERR no"));
        assert_eq!(again(Answer::Version), Some(format!("{:?}", Answer::Integer(7))));
        let value = Answer::Value(Box::new(Buffer::from(Bytes::from_static(b"value"))));
        assert_eq!(again(value), Some(format!("{:?}", Answer::Bulk(Bytes::from_static(b"value")))));
        same(|| {
            Answer::Array(vec![Answer::Ok, Answer::Array(vec![Answer::Integer(1)]), Answer::line("none")])
        });
        assert_eq!(again(Answer::VersionBefore(2)), Some(format!("{:?}", Answer::Integer(5))));
        let many = Answer::Transaction((0..1_000).map(Answer::Integer).collect());
        assert!(encode(&many).len() > RESULT_BYTES_MAX);
        let long = Answer::Value(Box::new(Buffer::from(Bytes::from(vec![1; 600]))));
        assert!(encode(&long).len() > RESULT_BYTES_MAX);
        assert!(decode(&Bytes::new(), 7).is_none());
    }
}

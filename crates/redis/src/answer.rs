//! The answer of a command, before it is written in the connection's version of the protocol.

use std::borrow::Cow;

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::Error;
use shoal_resp::Reply;

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// `OK`.
    Ok,
    /// Another line of text.
    Line(Cow<'static, str>),
    /// An error with its code.
    Error(Cow<'static, str>),
    Integer(i64),
    Null,
    Bulk(Bytes),
    /// A value in the chunks of its read.
    Value(Box<Buffer>),
    /// Text for people.
    Verbatim(String),
    Array(Vec<Answer>),
    /// An array of strings of bytes.
    Strings(Strings),
    Map(Vec<(Answer, Answer)>),
    Set(Vec<Answer>),
    /// Null in place of an array.
    NullArray,
    /// The answers of a transaction's commands.
    Transaction(Vec<Answer>),
    /// The version of the write that it waits for.
    Version,
    /// In a transaction: the version of its write of the key with this number; after all are placed, the version that precedes
    /// the last one by this number.
    VersionOf(usize),
    VersionBefore(u64),
}

impl Answer {
    /// An error with a fixed text.
    pub(crate) const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    /// A line with a fixed text.
    pub(crate) const fn line(text: &'static str) -> Self {
        Self::Line(Cow::Borrowed(text))
    }

    /// A constant string of bytes.
    pub(crate) fn text(text: &'static str) -> Self {
        Self::Bulk(Bytes::from_static(text.as_bytes()))
    }

    /// A string of bytes.
    pub(crate) fn string(text: String) -> Self {
        Self::Bulk(text.into())
    }

    /// 1 or 0.
    pub(crate) fn flag(value: bool) -> Self {
        Self::Integer(i64::from(value))
    }

    /// A value, or null.
    pub(crate) fn value(value: Option<Buffer>) -> Self {
        value.map_or(Self::Null, |value| Self::Value(Box::new(value)))
    }

    /// A map with constant keys.
    pub(crate) fn map<const COUNT: usize>(pairs: [(&'static str, Self); COUNT]) -> Self {
        Self::Map(pairs.into_iter().map(|(key, value)| (Self::text(key), value)).collect())
    }

    fn elements(&self) -> &[Self] {
        match self {
            Self::Array(answers) | Self::Set(answers) | Self::Transaction(answers) => answers,
            _ => &[],
        }
    }

    fn elements_mut(&mut self) -> &mut [Self] {
        match self {
            Self::Array(answers) | Self::Set(answers) | Self::Transaction(answers) => answers,
            _ => &mut [],
        }
    }

    /// Memory taken by it, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let inside = match self {
            Self::Error(text) | Self::Line(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Value(value) => value.len(),
            Self::Verbatim(text) => text.len(),
            Self::Strings(strings) => strings.memory(),
            Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
            other => other.elements().iter().map(Self::bytes).sum(),
        };
        size_of::<Self>() + inside
    }

    /// Cache memory that cannot be reused while the answer waits.
    pub(crate) fn pinned_bytes(&self) -> usize {
        match self {
            Self::Value(value) => pinned_bytes(value),
            other => other.elements().iter().map(Self::pinned_bytes).sum(),
        }
    }

    /// Copies the parts that are in the cache.
    pub(crate) fn own(&mut self) {
        match self {
            Self::Value(value) => value.own(),
            other => other.elements_mut().iter_mut().for_each(Self::own),
        }
    }

    /// Replaces the versions of a transaction's writes by the number of writes after each.
    pub(crate) fn place(&mut self, behind: &[u64]) {
        match self {
            Self::VersionOf(number) => {
                *self = Self::VersionBefore(behind.get(*number).copied().unwrap_or_default());
            }
            other => other.elements_mut().iter_mut().for_each(|answer| answer.place(behind)),
        }
    }

    /// Returns true if it contains the version of the write that it waits for. In an array, the version is first.
    pub(crate) fn wants_version(&self) -> bool {
        match self {
            Self::Version | Self::VersionBefore(_) => true,
            Self::Transaction(answers) => answers.iter().any(Self::wants_version),
            Self::Array(answers) => matches!(answers.first(), Some(Self::VersionBefore(_))),
            _ => false,
        }
    }

    /// Inserts the version of the write that it waited for, if it contains it.
    pub(crate) fn set_version(&mut self, version: u64) {
        match self {
            Self::Version => *self = Self::Integer(version as i64),
            Self::VersionBefore(behind) => *self = Self::Integer(version.saturating_sub(*behind) as i64),
            other if other.wants_version() => {
                other.elements_mut().iter_mut().for_each(|answer| answer.set_version(version));
            }
            _ => {}
        }
    }

    /// Writes the same answer for `times` commands; only `OK` and errors are shared by several.
    pub(crate) fn write_times(self, times: usize, reply: &mut Reply<'_>) {
        match self {
            Self::Ok => reply.ok(times),
            Self::Error(text) => (0..times).for_each(|_| reply.error(&text)),
            one => {
                assert_eq!(times, 1, "other answers are of one command");
                one.write(reply);
            }
        }
    }

    /// Writes it.
    pub(crate) fn write(self, reply: &mut Reply<'_>) {
        match self {
            Self::Ok => reply.ok(1),
            Self::Line(text) => reply.simple(&text),
            Self::Error(text) => reply.error(&text),
            Self::Integer(value) => reply.integer(value),
            Self::Null => reply.null(),
            Self::Bulk(bytes) => match bytes.len() {
                0..=COPY_BYTES_MAX => reply.bulk(&bytes),
                _ => reply.value(bytes.into()),
            },
            Self::Value(value) => reply.value(*value),
            Self::Verbatim(text) => reply.verbatim(&text),
            Self::NullArray => reply.null_array(),
            Self::Array(answers) | Self::Transaction(answers) => {
                reply.array(answers.len());
                answers.into_iter().for_each(|answer| answer.write(reply));
            }
            Self::Strings(strings) => {
                reply.array(strings.len());
                strings.iter().for_each(|bytes| reply.bulk(bytes));
            }
            Self::Set(answers) => {
                reply.set(answers.len());
                answers.into_iter().for_each(|answer| answer.write(reply));
            }
            Self::Map(pairs) => {
                reply.map(pairs.len());
                for (key, value) in pairs {
                    key.write(reply);
                    value.write(reply);
                }
            }
            Self::Version | Self::VersionOf(_) | Self::VersionBefore(_) => {
                unreachable!("a version is known when the write that it belongs to is durable")
            }
        }
    }
}

/// Strings of bytes that share one allocation: the keys of a page.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// The end of each string in `bytes`.
    ends: Vec<usize>,
}

impl Strings {
    pub(crate) fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Memory taken by the strings.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len() + size_of_val(&self.ends[..])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// Cache memory pinned by the chunks of a message, counted in frames: a chunk may start and stop inside one.
pub(crate) fn pinned_bytes(message: &Buffer) -> usize {
    let frames = |bytes: usize| bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
    message.external_lengths().map(frames).sum()
}

/// The error of a failed command, as text.
#[derive(Debug)]
pub(crate) struct Failed(pub Cow<'static, str>);

impl From<&'static str> for Failed {
    fn from(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Failed {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Full { .. } | Error::NoRoom(_) => "OOM",
            Error::Busy(_) => "TRYAGAIN",
            Error::Poisoned(_) | Error::ReadOnly => "READONLY",
            Error::Unknown(_) => "UNKNOWN",
            Error::Closed => "LOADING",
            Error::Corrupt { .. } => "DAMAGED",
            _ => "ERR",
        };
        Self(Cow::Owned(format!("{code} {error}")))
    }
}

impl From<Failed> for Answer {
    fn from(Failed(text): Failed) -> Self {
        Self::Error(text)
    }
}

#[cfg(test)]
mod tests {
    use shoal_resp::Protocol;

    use super::*;

    #[test]
    fn strings_are_written_as_an_array_of_bulks() {
        let words: [&[u8]; 4] = [b"a", b"", b"b\r\nc", &[7; 2_000]];
        for protocol in [Protocol::V2, Protocol::V3] {
            let mut strings = Strings::default();
            words.iter().for_each(|word| strings.push(word));
            assert!(strings.iter().eq(words) && strings.len() == words.len());
            let bulks = words.iter().map(|word| Answer::Bulk(Bytes::copy_from_slice(word))).collect();
            let [of_strings, of_bulks] = [Answer::Strings(strings), Answer::Array(bulks)].map(|answer| {
                let mut out = Buffer::new();
                answer.write(&mut Reply::new(&mut out, protocol));
                out.to_vec()
            });
            assert_eq!(of_strings, of_bulks);
        }
    }
}

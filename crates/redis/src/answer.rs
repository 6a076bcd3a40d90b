//! What a command answers, before it is written in the connection's version of the protocol.

use std::borrow::Cow;

use bytes::Bytes;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::{Error, Pending};
use shoal_resp::Reply;
use smallvec::SmallVec;

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// `OK`.
    Ok,
    /// Another short text.
    Simple(&'static str),
    /// An error with its code.
    Error(Cow<'static, str>),
    Integer(i64),
    Null,
    Bulk(Bytes),
    /// A value in the chunks that it was read in.
    Value(Box<Buffer>),
    /// Text for people.
    Verbatim(String),
    Array(Vec<Answer>),
    Map(Vec<(Answer, Answer)>),
    Set(Vec<Answer>),
    /// The version of the write that the answer waits for.
    Version,
}

impl Answer {
    /// An error with a fixed text.
    pub(crate) const fn error(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }

    /// A string of bytes that is known beforehand.
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

    /// Memory that it takes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Error(text) => text.len(),
                Self::Bulk(bytes) => bytes.len(),
                Self::Value(value) => value.len(),
                Self::Verbatim(text) => text.len(),
                Self::Array(answers) | Self::Set(answers) => answers.iter().map(Self::bytes).sum(),
                Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
                Self::Ok | Self::Simple(_) | Self::Integer(_) | Self::Null | Self::Version => 0,
            }
    }

    /// Writes the same answer of so many commands; only `OK` and errors are the same for several.
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
            Self::Simple(text) => reply.simple(text),
            Self::Error(text) => reply.error(&text),
            Self::Integer(value) => reply.integer(value),
            Self::Null => reply.null(),
            Self::Bulk(bytes) => match bytes.len() {
                0..=COPY_BYTES_MAX => reply.bulk(&bytes),
                _ => reply.value(bytes.into()),
            },
            Self::Value(value) => reply.value(*value),
            Self::Verbatim(text) => reply.verbatim(&text),
            Self::Array(answers) => {
                reply.array(answers.len());
                answers.into_iter().for_each(|answer| answer.write(reply));
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
            Self::Version => unreachable!("a version is known when the write that it belongs to is durable"),
        }
    }
}

/// Why a command failed: the text of its error.
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
            Error::Full { .. } => "OOM",
            Error::Busy(_) => "TRYAGAIN",
            Error::Poisoned(_) => "READONLY",
            Error::Unknown(_) => "UNKNOWN",
            Error::Closed => "LOADING",
            _ => "ERR",
        };
        Self(Cow::Owned(format!("{code} {error}")))
    }
}

/// A command is through but for what must be durable before its answer leaves.
#[derive(Debug)]
pub(crate) struct Finished {
    pub answer: Answer,
    pub pending: SmallVec<[Pending; 1]>,
}

impl Finished {
    /// An answer that leaves when `pending` is durable.
    pub(crate) fn after(answer: Answer, pending: impl IntoIterator<Item = Pending>) -> Self {
        Self { answer, pending: pending.into_iter().collect() }
    }
}

impl From<Answer> for Finished {
    fn from(answer: Answer) -> Self {
        Self { answer, pending: SmallVec::new() }
    }
}

impl From<Failed> for Finished {
    fn from(failed: Failed) -> Self {
        Answer::Error(failed.0).into()
    }
}

/// What a command comes to.
pub(crate) type Outcome = Result<Finished, Failed>;

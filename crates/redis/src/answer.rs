//! What a command answers, before it is written in the connection's version of the protocol.

use std::borrow::Cow;

use bytes::Bytes;
use shoal_base::BLOCK_BYTES;
use shoal_buffer::{Buffer, COPY_BYTES_MAX};
use shoal_engine::{Error, Pending, Watch};
use shoal_resp::Reply;
use smallvec::SmallVec;

use crate::command::Call;

/// An answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// `OK`.
    Ok,
    /// Another short text.
    Simple(&'static str),
    /// A line that is not known beforehand.
    Line(String),
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
    /// Nothing, where an array could be.
    NullArray,
    /// The answers of a transaction's commands.
    Transaction(Vec<Answer>),
    /// The version of the write that the answer waits for.
    Version,
    /// In a transaction: the version of its write of the key with this number; when all are placed, the version that is so many
    /// before the last one.
    VersionOf(usize),
    VersionBefore(u64),
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
                Self::Verbatim(text) | Self::Line(text) => text.len(),
                Self::Array(answers) | Self::Set(answers) | Self::Transaction(answers) => {
                    answers.iter().map(Self::bytes).sum()
                }
                Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
                Self::Ok | Self::Simple(_) | Self::Integer(_) | Self::Null | Self::NullArray => 0,
                Self::Version | Self::VersionOf(_) | Self::VersionBefore(_) => 0,
            }
    }

    /// Memory of the cache that cannot be used again as long as the answer waits.
    pub(crate) fn pinned_bytes(&self) -> usize {
        match self {
            Self::Value(value) => pinned_bytes(value),
            Self::Array(answers) | Self::Set(answers) | Self::Transaction(answers) => {
                answers.iter().map(Self::pinned_bytes).sum()
            }
            _ => 0,
        }
    }

    /// Copies what lies in the cache.
    pub(crate) fn own(&mut self) {
        match self {
            Self::Value(value) => value.own(),
            Self::Array(answers) | Self::Set(answers) | Self::Transaction(answers) => {
                answers.iter_mut().for_each(Self::own);
            }
            _ => {}
        }
    }

    /// Says of versions of a transaction's writes how many writes are behind them.
    pub(crate) fn placed(self, behind: &[u64]) -> Self {
        match self {
            Self::VersionOf(number) => Self::VersionBefore(behind.get(number).copied().unwrap_or_default()),
            Self::Array(answers) if matches!(answers.first(), Some(Self::VersionOf(_))) => {
                Self::Array(answers.into_iter().map(|answer| answer.placed(behind)).collect())
            }
            other => other,
        }
    }

    /// Whether it tells the version of the write that it waits for.
    pub(crate) fn wants_version(&self) -> bool {
        match self {
            Self::Version | Self::VersionBefore(_) => true,
            Self::Transaction(answers) => answers.iter().any(Self::wants_version),
            Self::Array(answers) => matches!(answers.first(), Some(Self::VersionBefore(_))),
            _ => false,
        }
    }

    /// The answer, where it tells the version of the write that it waited for.
    pub(crate) fn with_version(self, version: u64) -> Self {
        match self {
            Self::Version => Self::Integer(version as i64),
            Self::VersionBefore(behind) => Self::Integer(version.saturating_sub(behind) as i64),
            Self::Transaction(answers) => {
                Self::Transaction(answers.into_iter().map(|answer| answer.with_version(version)).collect())
            }
            Self::Array(answers) if matches!(answers.first(), Some(Self::VersionBefore(_))) => {
                Self::Array(answers.into_iter().map(|answer| answer.with_version(version)).collect())
            }
            other => other,
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

/// Memory of the cache that the chunks of a message pin, counted in frames: a chunk may begin and end inside one.
pub(crate) fn pinned_bytes(message: &Buffer) -> usize {
    let frames = |bytes: usize| bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES;
    message.external_lengths().map(frames).sum()
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
            Error::Poisoned(_) | Error::ReadOnly => "READONLY",
            Error::Unknown(_) => "UNKNOWN",
            Error::Closed => "LOADING",
            Error::Corrupt { .. } => "DAMAGED",
            _ => "ERR",
        };
        Self(Cow::Owned(format!("{code} {error}")))
    }
}

/// A command is through but for what must be durable before its answer leaves.
pub(crate) struct Finished {
    pub answer: Answer,
    pub pending: SmallVec<[Pending; 1]>,
    /// What its connection does then.
    pub effect: Option<Box<Effect>>,
}

/// What a command does to its connection.
pub(crate) enum Effect {
    /// It watches keys.
    Watch(Vec<Watch>),
    /// It runs these commands, which are about the connection; their answers are those with these numbers of the transaction's.
    Run(Vec<(usize, Call)>),
}

impl Finished {
    /// An answer that leaves when `pending` is durable.
    pub(crate) fn after(answer: Answer, pending: impl IntoIterator<Item = Pending>) -> Self {
        Self { answer, pending: pending.into_iter().collect(), effect: None }
    }
}

impl From<Answer> for Finished {
    fn from(answer: Answer) -> Self {
        Self { answer, pending: SmallVec::new(), effect: None }
    }
}

impl From<Failed> for Finished {
    fn from(failed: Failed) -> Self {
        Answer::Error(failed.0).into()
    }
}

/// What a command comes to.
pub(crate) type Outcome = Result<Finished, Failed>;

//! Errors of calls, sorted by the action that the caller can take.

use shoal_base::id::Current;

use crate::object::{Lsn, Rule};

/// The reason why a call failed. A write that fails with any error except [`Error::Unknown`] had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A condition of the write does not hold.
    #[error("the condition does not hold: the object's current version is {}", Current(*current))]
    ConditionFailed {
        /// The rule that rejected, if the server named it.
        rule: Option<Rule>,
        /// The object's current version; `None` if it does not exist.
        current: Option<Lsn>,
    },
    /// There is no such object. (If that is an ordinary answer, a call returns `None` instead.)
    #[error("there is no such object")]
    NotFound,
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The device is full.
    #[error("{0}")]
    Full(String),
    /// The server is overloaded, even after several attempts; try again later.
    #[error("{0}")]
    Busy(String),
    /// Stored bytes are damaged.
    #[error("{0}")]
    Corrupt(String),
    /// The server's device failed to read.
    #[error("{0}")]
    Device(String),
    /// The write may or may not have taken effect.
    #[error("the outcome of the write is not known: {0}; read the object to find out")]
    Unknown(String),
    /// An earlier failure of the device made the store read-only.
    #[error("{0}")]
    ReadOnly(String),
    /// The object changed while it was read in pieces.
    #[error("the object changed while it was read; read it again")]
    Changed,
    /// The store dropped the snapshot of a backup, because of its age or of the space that it held.
    #[error("{0}")]
    SnapshotDropped(String),
    /// The caller may not do this.
    #[error("{0}")]
    Denied(String),
    /// No server answers, or it is shutting down.
    #[error("no answer from the server at {server}: {reason}; is `shoal serve` running there?")]
    Unavailable {
        /// The server's address.
        server: String,
        /// The observed failure.
        reason: String,
    },
    /// The server's answer is not valid for this client.
    #[error("the server's answer is not understood: {0}; are client and server of the same version?")]
    Protocol(String),
    /// The caller's source of the value failed.
    #[error("cannot read the value that was to be stored: {0}")]
    Source(String),
}

/// A result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of a server that did not answer for `waited`.
pub(crate) fn silent(server: &str, waited: std::time::Duration) -> Error {
    let reason = format!(
        "nothing came for {} s, the longest wait (--timeout of a command, answer_timeout and call_timeout of a program)",
        waited.as_secs_f64()
    );
    Error::Unavailable { server: server.into(), reason }
}

/// The text of the innermost cause of an error: "Connection refused", not "transport error".
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

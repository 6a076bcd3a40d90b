//! The reasons for refusals, and their status codes.

use shoal_base::Run;
use tonic::{Code, Status};

/// The reason why the owner refuses a call. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The session ended: it was closed, or silent for too long. It does not own the space any more that it leased and did not commit.
    #[error("session {session} has ended")]
    Fenced {
        /// Its number.
        session: u64,
    },
    /// There is no free space of the wanted shape, or too many sessions or leases are out.
    #[error("no space: {what}")]
    NoSpace {
        /// The missing thing: a session, a lease.
        what: &'static str,
    },
    /// A run is not as the call assumes: not in use, not of the lease, or committed already.
    #[error("{run} {what}")]
    Wrong {
        /// The run.
        run: Run,
        /// The error in it, in words.
        what: &'static str,
    },
    /// The call itself is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// The file could not be written: nothing is changed any more until the service is restarted.
    #[error("the service cannot write its file: {0}")]
    Poisoned(String),
}

impl From<&Refusal> for Status {
    fn from(refusal: &Refusal) -> Self {
        let code = match refusal {
            Refusal::Fenced { .. } => Code::Aborted,
            Refusal::NoSpace { .. } => Code::ResourceExhausted,
            Refusal::Wrong { .. } => Code::FailedPrecondition,
            Refusal::Invalid(_) => Code::InvalidArgument,
            Refusal::Poisoned(_) => Code::DataLoss,
        };
        Self::new(code, refusal.to_string())
    }
}

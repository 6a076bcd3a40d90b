//! The errors of the store, and of memory, as errors of S3.

use shoal_engine::Error;
use shoal_http::NoRoom;

use crate::bucket::no_bucket;
use crate::request::error::{ErrorCode, S3Error};

/// An error of the store. A failed condition is answered where it was set.
pub(crate) fn failed(error: &Error) -> S3Error {
    let code = match error {
        Error::ConditionFailed { .. } => ErrorCode::PreconditionFailed,
        Error::Invalid(_) => ErrorCode::InvalidRequest,
        Error::NoBucket(name) => return no_bucket(name),
        Error::NoUpload(_) => ErrorCode::NoSuchUpload,
        Error::NoPart(_) => ErrorCode::InvalidPart,
        Error::BucketNotEmpty(_) => ErrorCode::BucketNotEmpty,
        Error::Full { .. } | Error::NoRoom(_) => ErrorCode::InsufficientStorage,
        Error::Busy(_) => ErrorCode::SlowDown,
        Error::Closed => ErrorCode::ServiceUnavailable,
        Error::Changed { .. } => ErrorCode::OperationAborted,
        // The effect of a write is unknown for an error that this program does not know.
        _ => ErrorCode::InternalError,
    };
    if code == ErrorCode::InternalError {
        // The operator must hear of these, not only the caller.
        tracing::warn!("{error}");
    }
    S3Error::new(code, error.to_string())
}

impl From<Error> for S3Error {
    fn from(error: Error) -> Self {
        failed(&error)
    }
}

impl From<NoRoom> for S3Error {
    fn from(no_room: NoRoom) -> Self {
        Self::new(ErrorCode::SlowDown, no_room.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDKs repeat 503, and neither 507 nor 400.
    #[test]
    fn only_a_busy_store_asks_for_a_repetition() {
        for (error, status) in [
            (Error::Busy("x"), 503),
            (Error::full(1, 0), 507),
            (Error::Invalid("x".into()), 400),
            (Error::NoBucket("x".into()), 404),
            (Error::BucketNotEmpty("x".into()), 409),
            (Error::Unknown("x".into()), 500),
            (Error::Corrupt { what: "x".into(), block: 1 }, 500),
        ] {
            assert_eq!(failed(&error).code.status().as_u16(), status, "{error}");
        }
    }
}

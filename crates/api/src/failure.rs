//! Encoding of failures: as `google.rpc.Status` in the trailer `grpc-status-details-bin`, which holds one [`Failure`]. Programs
//! in other languages find it with their gRPC library's "rich error" helpers.

use bytes::Bytes;
use prost::Message;

use crate::v1::Failure;

pub use tonic::Code;

/// The type of a [`Failure`] inside an `Any`.
const TYPE_URL: &str = "type.googleapis.com/shoal.v1.Failure";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// A failure with its status code and its message for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    /// The status code.
    pub code: Code,
    /// For people.
    pub message: String,
    /// For programs.
    pub failure: Failure,
}

impl Described {
    /// The status that carries it.
    #[must_use]
    pub fn into_status(self) -> tonic::Status {
        let any = Any { type_url: TYPE_URL.into(), value: self.failure.encode_to_vec().into() };
        let details = RpcStatus { code: self.code as i32, message: self.message.clone(), details: vec![any] };
        tonic::Status::with_details(self.code, self.message, details.encode_to_vec().into())
    }

    /// The failure in `status`. If its details are not a [`Failure`] (the status comes from another server, or the details are
    /// garbled), the failure is of the unspecified kind.
    #[must_use]
    pub fn from_status(status: &tonic::Status) -> Self {
        let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
        let ours = details.into_iter().find(|any| any.type_url == TYPE_URL);
        let failure = ours.and_then(|any| Failure::decode(any.value).ok()).unwrap_or_default();
        Self { code: status.code(), message: status.message().to_owned(), failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::failure::{Kind, Rule};

    #[test]
    fn failure_round_trips_through_status() {
        let failure = Failure {
            kind: Kind::ConditionFailed.into(),
            current_version: Some(7),
            rule: Rule::IfVersionNot.into(),
        };
        let described = Described { code: Code::FailedPrecondition, message: "no".into(), failure };
        let status = described.clone().into_status();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(Described::from_status(&status), described);
    }

    #[test]
    fn unknown_and_garbled_details_have_no_kind() {
        for details in [&b""[..], b"\xff\xff\xff", b"\x08\x09"] {
            let status = tonic::Status::with_details(Code::Internal, "x", Bytes::from_static(details));
            let described = Described::from_status(&status);
            assert_eq!(described.failure, Failure::default());
            assert_eq!((described.code, &described.message[..]), (Code::Internal, "x"));
        }
    }
}

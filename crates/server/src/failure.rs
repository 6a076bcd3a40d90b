//! Failures, as a status code and a typed detail: all errors of the store become errors of the protocol here. `docs/format/grpc.md` has the
//! table.

use shoal_api::v1::failure::{Kind, Rule};
use shoal_api::{Code, Described, v1};
use shoal_base::limits::VALUE_BYTES_SINGLE_MAX;
use shoal_engine::{Error, Lsn, ObjectKey, RejectRules};
use shoal_frontend::{TooSlow, access};
use shoal_http::NoRoom;
use tonic::Status;

use crate::auth::Denied;

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure(Described);

impl Failure {
    fn new(kind: Kind, code: Code, message: impl Into<String>) -> Self {
        let failure = v1::Failure { kind: kind.into(), ..v1::Failure::default() };
        Self(Described { code, message: message.into(), failure })
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(key: &ObjectKey) -> Self {
        Self::new(Kind::NotFound, Code::NotFound, format!("there is no object {key}"))
    }

    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(Kind::Overloaded, Code::ResourceExhausted, message)
    }

    /// The message is longer than the limit: nothing was done, and a repetition is useless.
    pub(crate) fn too_long(message_bytes_max: usize) -> Self {
        let message = format!(
            "the message has more than the {message_bytes_max} bytes that are taken; a value of more than \
             {VALUE_BYTES_SINGLE_MAX} bytes is sent in parts (PutStream), and many keys in several batches"
        );
        Self::new(Kind::Invalid, Code::ResourceExhausted, message)
    }

    /// A message in an encoding that is not accepted.
    pub(crate) fn encoding(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, Code::Unimplemented, message)
    }

    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(Kind::Busy, Code::Unavailable, message)
    }

    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, Code::PermissionDenied, message)
    }

    /// The caller has no valid credentials.
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, Code::Unauthenticated, message)
    }

    /// The call's time is over; a write may have been applied.
    pub(crate) fn deadline() -> Self {
        Self::new(Kind::UnknownOutcome, Code::DeadlineExceeded, "the deadline of the call has passed")
    }

    /// The caller of a stream has no credentials any more.
    pub(crate) fn revoked(denied: &Denied) -> Self {
        Self::unauthenticated(format!("the stream ends, because the credentials have changed: {denied}"))
    }

    pub(crate) fn too_slow(slow: TooSlow) -> Self {
        Self::new(Kind::TooSlow, Code::DeadlineExceeded, slow.to_string())
    }

    /// The client stopped before the end of its message.
    pub(crate) fn broken_off() -> Self {
        Self::new(
            Kind::Incomplete,
            Code::Cancelled,
            "the stream ended without its end message: nothing was stored",
        )
    }

    /// The server is stopping, and takes no further operations of a stream.
    pub(crate) fn stopping() -> Self {
        Self::new(
            Kind::Closed,
            Code::Unavailable,
            "the server is stopping: operations without an answer were not executed",
        )
    }

    /// The object has another version than the requested one.
    pub(crate) fn changed(current: Lsn) -> Self {
        let message = format!("the object has changed; its version is {current}");
        Self::new(Kind::Changed, Code::Aborted, message).with_current(Some(current))
    }

    /// The failure of a read, or of a write without rules.
    pub(crate) fn of(error: &Error) -> Self {
        Self::of_write(error, &RejectRules::default())
    }

    /// The failure of a write with these rules.
    pub(crate) fn of_write(error: &Error, rules: &RejectRules) -> Self {
        let (kind, code) = match error {
            Error::ConditionFailed { .. } => (Kind::ConditionFailed, Code::FailedPrecondition),
            Error::Invalid(_) => (Kind::Invalid, Code::InvalidArgument),
            Error::NoBucket(_) => (Kind::Invalid, Code::NotFound),
            Error::BucketNotEmpty(_) => (Kind::Invalid, Code::FailedPrecondition),
            Error::Full { .. } | Error::NoRoom(_) => (Kind::Full, Code::ResourceExhausted),
            Error::Busy(_) => (Kind::Busy, Code::Unavailable),
            Error::Corrupt { .. } => (Kind::Corrupt, Code::DataLoss),
            Error::Io(_) => (Kind::Device, Code::Internal),
            Error::Unknown(_) => (Kind::UnknownOutcome, Code::Unknown),
            Error::Poisoned(_) | Error::ReadOnly => (Kind::ReadOnly, Code::Internal),
            Error::Changed { .. } => (Kind::Changed, Code::Aborted),
            Error::SnapshotDropped { .. } => (Kind::SnapshotDropped, Code::Aborted),
            Error::Closed | Error::Unopenable(_) => (Kind::Closed, Code::Unavailable),
            // The effect of a write is unknown for an error that this program does not know.
            _ => (Kind::UnknownOutcome, Code::Unknown),
        };
        if matches!(kind, Kind::Corrupt | Kind::Device | Kind::UnknownOutcome) {
            // The operator must hear of these, not only the caller.
            tracing::warn!("{error}");
        }
        let failure = Self::new(kind, code, error.to_string());
        match error {
            Error::ConditionFailed { current, .. } => {
                failure.with_current(*current).with_rule(rules, *current)
            }
            _ => failure,
        }
    }

    /// A failed condition, for a service that knows only creation.
    pub(crate) fn already_exists(mut self, key: &ObjectKey) -> Self {
        self.0.code = Code::AlreadyExists;
        self.0.message = format!("the object {key} exists already");
        self
    }

    fn with_current(mut self, current: Option<Lsn>) -> Self {
        self.0.failure.current_version = current.map(|version| version.0);
        self
    }

    fn with_rule(mut self, rules: &RejectRules, current: Option<Lsn>) -> Self {
        let alone = RejectRules::default();
        let of_each = [
            (Rule::IfExists, RejectRules { if_exists: rules.if_exists, ..alone }),
            (Rule::IfMissing, RejectRules { if_missing: rules.if_missing, ..alone }),
            (Rule::IfVersionNot, RejectRules { if_version_not: rules.if_version_not, ..alone }),
            (Rule::IfVersionAtMost, RejectRules { if_version_at_most: rules.if_version_at_most, ..alone }),
        ];
        let rejects = of_each.iter().find(|(_, rule)| rule.reject(current));
        self.0.failure.rule = rejects.map_or(Rule::Unspecified, |(name, _)| *name).into();
        self
    }

    pub(crate) fn into_status(self) -> Status {
        self.0.into_status()
    }

    pub(crate) fn into_key_status(self) -> v1::KeyStatus {
        let Described { code, message, failure } = self.0;
        v1::KeyStatus { code: code as i32, message, failure: Some(failure) }
    }

    #[cfg(test)]
    pub(crate) fn kind(&self) -> Kind {
        self.0.failure.kind()
    }
}

/// The caller has no grant for its request.
impl From<access::NotAllowed> for Failure {
    fn from(denied: access::NotAllowed) -> Self {
        Self::denied(denied.to_string())
    }
}

/// There is no memory for the request or its answer.
impl From<NoRoom> for Failure {
    fn from(no_room: NoRoom) -> Self {
        Self::overloaded(no_room.to_string())
    }
}

/// The failure of a message in the transport.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self(Described::from_status(&status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_rejects_is_named() {
        let rules = |if_exists, if_missing, not: Option<u64>, at_most: Option<u64>| RejectRules {
            if_exists,
            if_missing,
            if_version_not: not.map(Lsn),
            if_version_at_most: at_most.map(Lsn),
        };
        for (rules, current, rule) in [
            (rules(true, false, None, Some(9)), Some(5), Rule::IfExists),
            (rules(true, true, None, None), None, Rule::IfMissing),
            (rules(false, false, Some(4), Some(9)), Some(5), Rule::IfVersionNot),
            (rules(false, false, Some(4), None), None, Rule::IfVersionNot),
            (rules(false, false, Some(5), Some(5)), Some(5), Rule::IfVersionAtMost),
        ] {
            let current = current.map(Lsn);
            assert!(rules.reject(current));
            let Failure(described) = Failure::of_write(&Error::ConditionFailed { current, at: 0 }, &rules);
            assert_eq!(described.code, Code::FailedPrecondition);
            assert_eq!(described.failure.rule(), rule);
            assert_eq!(described.failure.current_version, current.map(|version| version.0));
        }
    }

    /// A backup whose snapshot was dropped returned "the outcome of a write is not known": the error was treated as an unnamed one.
    #[test]
    fn a_dropped_snapshot_is_named() {
        let Failure(described) = Failure::of(&Error::SnapshotDropped { version: Lsn(7), why: "it was old" });
        assert_eq!((described.failure.kind(), described.code), (Kind::SnapshotDropped, Code::Aborted));
        assert!(described.message.contains("it was old") && described.message.contains("take a new one"));
    }

    #[test]
    fn a_refused_permit_says_overloaded() {
        let no_room = shoal_http::Flow::new(10, 10).connection().permit().grow(11).unwrap_err();
        assert_eq!(Failure::from(no_room).kind(), Kind::Overloaded);
    }

    #[test]
    fn failure_round_trips_through_tonic_status() {
        let failure = Failure::too_slow(TooSlow::Silent(std::time::Duration::from_secs(3)));
        assert_eq!(Failure::from(failure.clone().into_status()), failure);
    }
}

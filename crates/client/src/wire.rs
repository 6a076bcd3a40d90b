//! Conversions between the client's types and the messages.

use shoal_api::v1::failure::{Kind, Rule as WireRule};
use shoal_api::{Code, Described, v1};
use tonic::{ConnectError, Status};

use crate::error::{Error, innermost};
use crate::object::*;
use crate::retry::{Failed, Outcome};

pub(crate) fn rules(rules: RejectRules) -> Option<v1::RejectRules> {
    (rules != RejectRules::default()).then_some(v1::RejectRules {
        if_exists: rules.if_exists,
        if_missing: rules.if_missing,
        if_version_not: rules.if_version_not.map(|version| version.0),
        if_version_at_most: rules.if_version_at_most.map(|version| version.0),
    })
}

pub(crate) fn metadata(metadata: Metadata) -> Option<v1::Metadata> {
    let user = metadata.user.into_iter().map(|(name, value)| v1::UserMetadata { name, value }).collect();
    let message = v1::Metadata { content_type: metadata.content_type, user };
    (message != v1::Metadata::default()).then_some(message)
}

pub(crate) fn range(range: ByteRange) -> Option<v1::ByteRange> {
    (range != ByteRange::ALL).then_some(v1::ByteRange { first: range.first, bytes: range.bytes })
}

/// The time to live and the expire time of a write, in nanoseconds; at most one is set. [`Expiry::Same`] sends the reading that its
/// deadline is based on.
pub(crate) fn expiry(expiry: Expiry) -> (Option<u64>, Option<u64>) {
    match expiry {
        Expiry::Never => (None, None),
        Expiry::After(time) => (Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)), None),
        Expiry::Same(deadline) if deadline.is_relative() => (Some(deadline.left_ns), None),
        Expiry::At(at_ns) | Expiry::Same(Deadline { at_ns, .. }) => (None, Some(at_ns)),
    }
}

/// The attributes of an object in the server's answer; an answer without them is invalid.
pub(crate) fn info(info: Option<v1::ObjectInfo>) -> Result<ObjectAttributes, Failed> {
    let info = info.ok_or_else(no_info)?;
    Ok(ObjectAttributes {
        version: Lsn(info.version),
        bytes: info.bytes,
        modified_ns: info.modified_ns,
        metadata: metadata_of(info.metadata.unwrap_or_default()),
        ttl_ns: info.ttl_ns,
        expire_time_ns: info.expire_time_ns,
    })
}

pub(crate) fn no_info() -> Failed {
    protocol("it does not describe the object")
}

pub(crate) fn metadata_of(message: v1::Metadata) -> Metadata {
    Metadata {
        content_type: message.content_type,
        user: message.user.into_iter().map(|user| (user.name, user.value)).collect(),
        ..Metadata::default()
    }
}

/// An answer that violates the protocol. Repeating the request would not help.
pub(crate) fn protocol(what: &str) -> Failed {
    Failed::refused(Error::Protocol(what.into()))
}

/// `None` for a failure because there is no such object.
pub(crate) fn found<T>(result: Result<T, Failed>) -> Result<Option<T>, Failed> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Failed { error: Error::NotFound, .. }) => Ok(None),
        Err(failed) => Err(failed),
    }
}

/// The HTTP/2 library's text for a stream that the server refused. A refused stream was not processed and may be repeated (RFC
/// 9113, 8.7).
const REFUSED_STREAM: &str = "refused stream before processing any application logic";

/// The failure of `status`.
pub(crate) fn failed(status: &Status, server: &str) -> Failed {
    let described = Described::from_status(status);
    if described.failure.kind != i32::from(Kind::Unspecified) {
        return described_failure(described, server);
    }
    // Not from our handlers: from the transport, or from another program.
    let unavailable = || Error::Unavailable { server: server.into(), reason: reason(status) };
    // If the answer is a stream, the library returns another code.
    if reason(status).contains(REFUSED_STREAM) {
        return Failed { error: Error::Busy(reason(status)), outcome: Outcome::NotApplied };
    }
    match status.code() {
        Code::Unavailable if never_sent(status) => {
            Failed { error: unavailable(), outcome: Outcome::NotApplied }
        }
        Code::Unimplemented => protocol(&format!("it does not know the call: {}", status.message())),
        Code::OutOfRange => Failed::refused(Error::Invalid(status.message().into())),
        Code::PermissionDenied | Code::Unauthenticated => {
            Failed::refused(Error::Denied(status.message().into()))
        }
        _ => Failed { error: unavailable(), outcome: Outcome::Open },
    }
}

/// The failure of one key of several.
pub(crate) fn key_failed(status: v1::KeyStatus, server: &str) -> Failed {
    let code = Code::from(status.code);
    described_failure(
        Described { code, message: status.message, failure: status.failure.unwrap_or_default() },
        server,
    )
}

fn described_failure(described: Described, server: &str) -> Failed {
    let Described { failure, message, code } = described;
    let current = failure.current_version.map(Lsn);
    let rule = rule(failure.rule());
    let unavailable = |reason| Error::Unavailable { server: server.into(), reason };
    match failure.kind() {
        Kind::ConditionFailed => Failed::refused(Error::ConditionFailed { rule, current }),
        Kind::NotFound => Failed::refused(Error::NotFound),
        Kind::Invalid => Failed::refused(Error::Invalid(message)),
        Kind::Full => Failed::refused(Error::Full(message)),
        Kind::Busy | Kind::Overloaded => Failed { error: Error::Busy(message), outcome: Outcome::NotApplied },
        Kind::Corrupt => Failed::refused(Error::Corrupt(message)),
        Kind::Device => Failed::refused(Error::Device(message)),
        Kind::UnknownOutcome => Failed { error: Error::Unknown(message), outcome: Outcome::Open },
        Kind::ReadOnly => Failed::refused(Error::ReadOnly(message)),
        Kind::SnapshotDropped => Failed::refused(Error::SnapshotDropped(message)),
        Kind::Changed => Failed::refused(Error::Changed),
        Kind::Closed => Failed { error: unavailable(message), outcome: Outcome::NotApplied },
        Kind::Denied => Failed::refused(Error::Denied(message)),
        Kind::TooSlow | Kind::Incomplete => {
            Failed { error: unavailable(message), outcome: Outcome::NotApplied }
        }
        Kind::Unspecified => {
            Failed { error: unavailable(format!("{code:?}: {message}")), outcome: Outcome::Open }
        }
    }
}

fn rule(rule: WireRule) -> Option<Rule> {
    match rule {
        WireRule::Unspecified => None,
        WireRule::IfExists => Some(Rule::IfExists),
        WireRule::IfMissing => Some(Rule::IfMissing),
        WireRule::IfVersionNot => Some(Rule::IfVersionNot),
        WireRule::IfVersionAtMost => Some(Rule::IfVersionAtMost),
    }
}

/// Returns true if the connection could not even be opened.
fn never_sent(status: &Status) -> bool {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(status);
    while let Some(now) = error {
        if now.is::<ConnectError>() {
            return true;
        }
        error = now.source();
    }
    false
}

fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => innermost(source),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadline_is_read_once_per_write() {
        let seen = |end| Expiry::Same(Deadline { end, left_ns: 5, at_ns: 900 });
        for (given, sent) in [
            (Expiry::Never, (None, None)),
            (Expiry::After(Duration::from_nanos(7)), (Some(7), None)),
            (Expiry::After(Duration::MAX), (Some(u64::MAX), None)),
            (Expiry::At(8), (None, Some(8))),
            (seen(EndTime::Store(1)), (Some(5), None)),
            (seen(EndTime::Wall(900)), (None, Some(900))),
        ] {
            assert_eq!(expiry(given), sent, "{given:?}");
        }
    }

    #[test]
    fn a_refused_stream_was_not_applied() {
        let text = format!("stream error received: {REFUSED_STREAM}");
        // The second is the code of an answer that is a stream.
        for mut status in [Status::unavailable("tcp"), Status::unknown("tcp")] {
            status.set_source(std::sync::Arc::new(std::io::Error::other(text.clone())));
            let busy = Failed { error: Error::Busy(text.clone()), outcome: Outcome::NotApplied };
            assert_eq!(failed(&status, "s"), busy);
        }
    }

    fn of_kind(kind: Kind) -> Failed {
        let failure =
            v1::Failure { kind: kind.into(), current_version: Some(3), rule: WireRule::IfMissing.into() };
        let status = Described { code: Code::Internal, message: "m".into(), failure }.into_status();
        failed(&status, "s")
    }

    #[test]
    fn the_kind_of_a_failure_decides_its_error_and_outcome() {
        let condition = Error::ConditionFailed { rule: Some(Rule::IfMissing), current: Some(Lsn(3)) };
        assert_eq!(of_kind(Kind::ConditionFailed), Failed::refused(condition));
        assert_eq!(of_kind(Kind::Busy).outcome, Outcome::NotApplied);
        assert_eq!(of_kind(Kind::Full).outcome, Outcome::Refused);
        assert_eq!(
            of_kind(Kind::UnknownOutcome),
            Failed { error: Error::Unknown("m".into()), outcome: Outcome::Open }
        );
        assert_eq!(found::<()>(Err(of_kind(Kind::NotFound))), Ok(None));
    }

    #[test]
    fn foreign_status_leaves_outcome_unknown() {
        for code in
            [Code::Unavailable, Code::Cancelled, Code::Internal, Code::Unknown, Code::ResourceExhausted]
        {
            let failed = failed(&Status::new(code, "lost"), "s");
            assert_eq!(failed.outcome, Outcome::Open, "{code:?}");
            assert!(matches!(failed.of_write(), Error::Unknown(_)));
        }
    }
}

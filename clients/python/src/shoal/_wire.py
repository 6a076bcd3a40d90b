"""Between the types of this package and the messages; what a status stands for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from ._steps import Failed, Leaves
from .errors import (
    BusyError,
    ChangedError,
    ConditionFailedError,
    CorruptError,
    DeniedError,
    DeviceError,
    FullError,
    InvalidError,
    NotFoundError,
    ProtocolError,
    ReadOnlyError,
    Rule,
    ShoalError,
    TimedOutError,
    UnavailableError,
    UnknownOutcomeError,
)
from .objects import DeleteItem, Key, ObjectInfo, PutItem, Value
from .v1 import object_store_pb2 as pb

#: The longest chunk of a streamed value; longer values travel as streams.
CHUNK_BYTES_MAX = 1 << 20

#: Keys of a batch.
BATCH_KEYS_MAX = 1000

#: Bytes of a batch's values.
BATCH_BYTES_MAX = 4 << 20

#: The type of what a failure carries in `grpc-status-details-bin`.
FAILURE_URL = "type.googleapis.com/shoal.v1.Failure"

DETAILS_KEY = "grpc-status-details-bin"

#: How grpc says that a connection could not even be opened: nothing was sent then. A test asks grpc for each of them.
NEVER_SENT = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
    "empty address list",
)


class Status(Protocol):
    """What both kinds of errors of grpc offer."""

    def code(self) -> Any:
        """The status code."""

    def details(self) -> Any:
        """For people."""

    def trailing_metadata(self) -> Any:
        """The trailers."""


def key_bytes(key: Key) -> bytes:
    """A key's bytes."""
    if not isinstance(key, (str, bytes)):
        # What `bytes()` makes of other types is seldom meant: of a number, so many zeros.
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    return key.encode() if isinstance(key, str) else key


def value_bytes(value: Value) -> bytes:
    """A value as `bytes`; a copy only where it is none."""
    return value if isinstance(value, bytes) else bytes(memoryview(value))


def value_size(value: Value) -> int:
    """Bytes of a value; raises TypeError for what has none."""
    return memoryview(value).nbytes


def rules(item: PutItem | DeleteItem) -> pb.RejectRules | None:
    """Our conditions say when a write is done; the rules of the wire, when it is rejected."""
    message = pb.RejectRules(if_missing=item.if_exists, if_version_not=item.if_version_at)
    if isinstance(item, PutItem):
        message.if_exists = item.if_missing
        if item.if_version_above is not None:
            message.if_version_at_most = item.if_version_above
    return message if message.ByteSize() else None


def metadata(item: PutItem) -> pb.Metadata | None:
    """Content type and user metadata."""
    entries = [pb.UserMetadata(name=name, value=value) for name, value in item.user_entries()]
    if not item.content_type and not entries:
        return None
    return pb.Metadata(content_type=item.content_type, user=entries)


def deadline(item: PutItem) -> dict[str, Any]:
    """The end of an object's time, as fields of a message; none where it has none."""
    if item.ttl is not None and item.expire_time_ns is not None:
        raise InvalidError("ttl and expire_time_ns: one of them, or neither")
    if item.ttl is not None:
        if isinstance(item.ttl, timedelta):
            ns = item.ttl // timedelta(microseconds=1) * 1000
        elif isinstance(item.ttl, (int, float)) and math.isfinite(item.ttl):
            ns = round(item.ttl * 1_000_000_000)
        else:
            raise InvalidError(f"ttl: seconds or a timedelta, not {item.ttl!r}")
        return {"ttl_ns": _unsigned("ttl", ns)}
    if item.expire_time_ns is not None:
        return {"expire_time_ns": _unsigned("expire_time_ns", item.expire_time_ns)}
    return {}


def _unsigned(name: str, ns: int) -> int:
    if not 0 < ns < 1 << 64:
        raise InvalidError(f"{name}: above 0, and nanoseconds that fit in 64 bits")
    return ns


def byte_range(offset: int, length: int | None) -> pb.ByteRange | None:
    """`None` for the whole value."""
    if offset < 0 or (length is not None and length < 0):
        raise InvalidError("offset and length: 0 or more")
    return None if offset == 0 and length is None else pb.ByteRange(first=offset, bytes=length)


def within(offset: int, length: int | None, size: int) -> tuple[int, int]:
    """First byte and number of bytes of a range in a value of `size` bytes."""
    first = min(offset, size)
    rest = size - first
    return first, rest if length is None else min(length, rest)


def info(
    message: pb.GetResponse | pb.GetStreamResponse | pb.HeadResponse | pb.ListEntry | pb.MultiGetResult,
) -> ObjectInfo:
    """What an answer says about an object."""
    if not message.HasField("info"):
        raise protocol("it does not describe the object")
    about = message.info
    user = tuple((entry.name, entry.value) for entry in about.metadata.user)
    return ObjectInfo(
        about.version,
        about.bytes,
        about.modified_ns,
        about.metadata.content_type,
        user,
        about.ttl_ns if about.HasField("ttl_ns") else None,
        about.expire_time_ns if about.HasField("expire_time_ns") else None,
    )


def protocol(what: str) -> Failed:
    """An answer that breaks the rules. Sending the request again would not help."""
    return Failed(ProtocolError(f"the server's answer is not understood: {what}"), Leaves.REFUSED)


def failed(status: Status, server: str) -> Failed:
    """The failure that a status stands for."""
    message = status.details() or ""
    failure = _failure(status)
    if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED and failure.kind != pb.Failure.TOO_SLOW:
        # Ours, or the server was first to see that it is over.
        return silent(server)
    if failure.kind != pb.Failure.KIND_UNSPECIFIED:
        return described(failure, message)
    # Not from the store: from grpc itself, or from something in between.
    code: grpc.StatusCode = status.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        never = any(begin in message for begin in NEVER_SENT)
        error = UnavailableError(f"no answer from the server at {server}: {message}")
        return Failed(error, Leaves.NOT_APPLIED if never else Leaves.OPEN)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return protocol(f"it does not know the call: {message}")
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return Failed(DeniedError(message), Leaves.REFUSED)
    if code in (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.INVALID_ARGUMENT):
        return Failed(InvalidError(message), Leaves.REFUSED)
    return Failed(UnavailableError(f"{server}: {code.name}: {message}"), Leaves.OPEN)


def silent(server: str) -> Failed:
    """No answer in time."""
    return Failed(TimedOutError(f"the server at {server} did not answer in time"), Leaves.OPEN)


def of_key(status: pb.KeyStatus) -> Failed | None:
    """The failure of one key of several; `None` where it succeeded."""
    return described(status.failure, status.message) if status.code else None


def described(failure: pb.Failure, message: str) -> Failed:
    """The failure that the server describes."""
    kind = failure.kind
    current = failure.current_version if failure.HasField("current_version") else None
    if kind == pb.Failure.CONDITION_FAILED:
        return Failed(ConditionFailedError(_RULES.get(failure.rule), current), Leaves.REFUSED)
    if kind == pb.Failure.CHANGED:
        return Failed(ChangedError(message or "the object changed", current), Leaves.REFUSED)
    error, leaves = _KINDS.get(kind, (UnavailableError, Leaves.OPEN))
    return Failed(error(message or f"failure of kind {kind}"), leaves)


# Our conditions are the opposite of the wire's rules.
_RULES: Mapping[int, Rule] = {
    pb.Failure.IF_EXISTS: Rule.IF_MISSING,
    pb.Failure.IF_MISSING: Rule.IF_EXISTS,
    pb.Failure.IF_VERSION_NOT: Rule.IF_VERSION_AT,
    pb.Failure.IF_VERSION_AT_MOST: Rule.IF_VERSION_ABOVE,
}

_KINDS: Mapping[int, tuple[Callable[[str], ShoalError], Leaves]] = {
    pb.Failure.NOT_FOUND: (NotFoundError, Leaves.REFUSED),
    pb.Failure.INVALID: (InvalidError, Leaves.REFUSED),
    pb.Failure.FULL: (FullError, Leaves.REFUSED),
    pb.Failure.BUSY: (BusyError, Leaves.NOT_APPLIED),
    pb.Failure.OVERLOADED: (BusyError, Leaves.NOT_APPLIED),
    pb.Failure.CORRUPT: (CorruptError, Leaves.REFUSED),
    pb.Failure.DEVICE: (DeviceError, Leaves.REFUSED),
    pb.Failure.UNKNOWN_OUTCOME: (UnknownOutcomeError, Leaves.OPEN),
    pb.Failure.READ_ONLY: (ReadOnlyError, Leaves.REFUSED),
    pb.Failure.CLOSED: (UnavailableError, Leaves.NOT_APPLIED),
    pb.Failure.DENIED: (DeniedError, Leaves.REFUSED),
    pb.Failure.TOO_SLOW: (UnavailableError, Leaves.NOT_APPLIED),
    pb.Failure.INCOMPLETE: (UnavailableError, Leaves.NOT_APPLIED),
    pb.Failure.SNAPSHOT_DROPPED: (BusyError, Leaves.REFUSED),
}


def _failure(status: Status) -> pb.Failure:
    """What the status carries for programs; unspecified where it is nothing of ours."""
    failure = pb.Failure()
    for key, value in status.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        try:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.type_url == FAILURE_URL:
                    failure.ParseFromString(detail.value)
        except DecodeError:
            # Garbled details: the status code has to do.
            failure.Clear()
    return failure

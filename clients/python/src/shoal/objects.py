"""What calls take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from .errors import ShoalError

T = TypeVar("T")

#: A key: 1 to 1,024 bytes of any kind. A `str` stands for its UTF-8.
Key = bytes | str

#: A user's own metadata: names and values, together at most 2 KiB.
UserMetadata = Mapping[str, bytes] | Sequence[tuple[str, bytes]]

#: How long an object lives: seconds, or a timedelta.
TimeToLive = float | timedelta

#: A value. What is no `bytes` is copied.
Value = bytes | bytearray | memoryview


@dataclass(frozen=True)
class ObjectInfo:
    """What is known about an object."""

    #: Only grows, and is never used twice for a key, not even after a delete.
    version: int
    #: Length of the whole value in bytes.
    size: int
    #: Modification time in nanoseconds since the Unix epoch.
    modified_ns: int
    #: MIME type; empty where unknown.
    content_type: str = ""
    #: The user's own metadata, in the order in which it was given.
    user_metadata: tuple[tuple[str, bytes], ...] = ()
    #: Nanoseconds until the object's time is over, as the server counted them when it answered; `None`: it has no end.
    ttl_ns: int | None = None
    #: What the wall clock will show then, in nanoseconds since the Unix epoch; `None`: it has no end.
    expire_time_ns: int | None = None


@dataclass(frozen=True)
class Object:
    """An object, or a range of it."""

    #: About the whole object.
    info: ObjectInfo
    #: The bytes that were asked for.
    value: bytes = field(repr=False)

    @property
    def version(self) -> int:
        """The object's version."""
        return self.info.version


@dataclass(frozen=True)
class Deleted:
    """What a delete did."""

    #: The version that was deleted, where the store had to look it up for a condition.
    deleted: int | None
    #: The version of the delete itself.
    version: int


@dataclass(frozen=True)
class ListEntry:
    """One object of a listing."""

    key: bytes
    info: ObjectInfo


@dataclass(frozen=True)
class ListPage:
    """A page of a listing, in the order of the keys' bytes."""

    entries: tuple[ListEntry, ...]
    #: Rolled-up prefixes, where there was a delimiter.
    common_prefixes: tuple[bytes, ...]
    #: The `start_after` of the next page; `None` at the end. A page may be short, even empty, and yet have it.
    next_start_after: bytes | None


@dataclass(frozen=True)
class GetItem:
    """One of several gets."""

    key: Key
    #: The first byte that is wanted.
    offset: int = 0
    #: How many bytes; `None`: all up to the end.
    length: int | None = None


@dataclass(frozen=True)
class PutItem:
    """One of several puts. The arguments of :meth:`shoal.Client.put`."""

    key: Key
    value: Value = field(repr=False)
    if_missing: bool = False
    if_exists: bool = False
    if_version_at: int | None = None
    if_version_above: int | None = None
    content_type: str = ""
    user_metadata: UserMetadata | None = None
    modified_ns: int | None = None
    #: How long the object lives, in seconds or as a timedelta; `None`: see `expire_time_ns`.
    ttl: TimeToLive | None = None
    #: Until when it lives by the wall clock, in nanoseconds since the Unix epoch; `None`, as `ttl`: for ever.
    expire_time_ns: int | None = None

    def user_entries(self) -> list[tuple[str, bytes]]:
        """The user's metadata in order."""
        user = self.user_metadata or ()
        return list(user.items()) if isinstance(user, Mapping) else list(user)


@dataclass(frozen=True)
class DeleteItem:
    """One of several deletes."""

    key: Key
    if_exists: bool = False
    if_version_at: int | None = None


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How one of several operations ended: with a value or with an error."""

    _value: T | None
    #: What went wrong; `None` where nothing did.
    error: ShoalError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return self.error is None

    def result(self) -> T:
        """The value; raises the error where there is one."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # T itself may be optional


@dataclass(frozen=True)
class CreateOrGet:
    """What :meth:`shoal.Client.create_or_get` found or made."""

    #: Whether this call created the object.
    created: bool
    version: int
    #: The object's value: the one that was given, or the one that was there.
    value: bytes = field(repr=False)


@dataclass(frozen=True)
class CompareAndSet:
    """What :meth:`shoal.Client.compare_and_set` did; true where it stored the value."""

    done: bool
    #: The object's version now: the new one where it is done, else the one that was in the way; `None`: no object.
    version: int | None

    def __bool__(self) -> bool:
        """Whether the value was stored."""
        return self.done


@dataclass(frozen=True)
class Figure:
    """One figure of the server."""

    value: int
    #: As "count", "bytes", "ns".
    unit: str


@dataclass(frozen=True)
class Stat:
    """Figures about the store and the server."""

    server_version: str
    #: Why the store refuses writes; empty: it takes them.
    read_only_reason: str
    uptime_ns: int
    block_bytes: int
    objects: int
    blocks: int
    free_blocks: int
    #: Everything else by name, as "server.connections". New names may come.
    figures: Mapping[str, Figure]

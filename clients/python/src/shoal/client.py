"""The client for threads."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import IO, TypeVar

from . import _multi, _single, _update, _wire
from ._receive import Download
from ._request_id import RequestIds
from ._retry import Core
from ._send import Upload
from ._steps import Verb
from ._sync import SyncWire
from .errors import SourceError
from .objects import (
    CompareAndSet,
    CreateOrGet,
    Deleted,
    DeleteItem,
    GetItem,
    Key,
    ListEntry,
    ListPage,
    Object,
    ObjectInfo,
    Outcome,
    PutItem,
    Stat,
    TimeToLive,
    UserMetadata,
    Value,
)
from .options import Options, Tls, Token
from .v1 import object_store_pb2 as pb

T = TypeVar("T")

#: A file is read in pieces of so many bytes.
READ_BYTES = 1 << 20


class Client:
    """A client of one server, for any number of threads.

    Connections are opened by the calls that need them, also after one broke. Every call takes `bucket` (else the client's)
    and `timeout`: seconds for the call as a whole, with its retries; without it each wait for the server may take
    `answer_timeout`. Every call raises a :class:`~shoal.ShoalError`; a write that fails with anything but
    :class:`~shoal.UnknownOutcomeError` had no effect.

    After a fork a child makes a client of its own, as always with grpc.
    """

    def __init__(
        self,
        server: str = "127.0.0.1:7411",
        *,
        bucket: str = "",
        tls: Tls | None = None,
        token: Token | None = None,
        token_without_tls: bool = False,
        once: bool = True,
        attempts: int = 6,
        connect_timeout: float = 5.0,
        answer_timeout: float = 60.0,
    ) -> None:
        """Does not wait for the server; :meth:`wait_ready` does.

        `server`: "host:port", "host" (port 7411), or either behind "http://" or "https://" (TLS with the usual authorities).
        `bucket`: the one that is meant where a call names none; empty: "default".
        `token`: a bearer token or what gives one; `token_without_tls` lets it travel to another machine unencrypted.
        `once`: gives each write a request id, by which the server does it once, so that it can be sent again after a broken
        connection; that costs the server a second small record a write. Values over 1 MiB, and several writes that are not
        one write batch, have none: they may end as :class:`~shoal.UnknownOutcomeError`.
        `attempts`: how often a call is sent at most; the pauses are 10 ms, then four times as long each up to 1 s.
        `connect_timeout`, `answer_timeout`: seconds.
        """
        options = Options(
            server, bucket, tls, token, token_without_tls, once, attempts, connect_timeout, answer_timeout
        ).checked()
        self._options = options
        self._core = Core(options.bucket, options.attempts, options.answer_timeout, RequestIds() if once else None)
        self._wire = SyncWire(options)

    @property
    def server(self) -> str:
        """The server as "host:port"."""
        return self._options.server

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until there is a connection; raises :class:`~shoal.TimedOutError`."""
        self._wire.wait_ready(timeout)

    def close(self) -> None:
        """Closes the connection; calls that are under way fail."""
        self._wire.close()

    def __enter__(self) -> Client:
        """Closes in the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    def __repr__(self) -> str:
        """With the address."""
        return f"{type(self).__name__}({self.server!r})"

    # ---- One object ----

    def put(
        self,
        key: Key,
        value: Value,
        *,
        if_missing: bool = False,
        if_exists: bool = False,
        if_version_at: int | None = None,
        if_version_above: int | None = None,
        content_type: str = "",
        user_metadata: UserMetadata | None = None,
        modified_ns: int | None = None,
        ttl: TimeToLive | None = None,
        expire_time_ns: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Stores an object and gives its version. It is durable then. A value over 1 MiB travels as a stream.

        The conditions say when it is done; where one does not hold: :class:`~shoal.ConditionFailedError` with the current
        version. `if_missing`: there is no object. `if_exists`: there is one. `if_version_at`: there is one of just this
        version. `if_version_above`: there is none, or it is newer than this version.

        `ttl`: the object is gone after so many seconds (or a timedelta), in elapsed time. `expire_time_ns`: it is gone when the
        wall clock shows this, in nanoseconds since the Unix epoch. Without either it stays, also if the key had an end before.
        """
        item = PutItem(
            key,
            value,
            if_missing,
            if_exists,
            if_version_at,
            if_version_above,
            content_type,
            user_metadata,
            modified_ns,
            ttl,
            expire_time_ns,
        )
        return self._run(_single.put(self._core, self._bucket(bucket), item, timeout))

    def get(
        self,
        key: Key,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> Object | None:
        """The object, or `length` bytes of it from `offset` on (what lies behind its end is left out); `None`: there is none.

        All bytes are of one version. With `version`, only of that one: else :class:`~shoal.ChangedError`.
        """
        item = GetItem(key, offset, length)
        return self._run(_single.get(self._core, self._bucket(bucket), item, version, timeout))

    def head(self, key: Key, *, bucket: str | None = None, timeout: float | None = None) -> ObjectInfo | None:
        """What is known about an object, without its value; `None`: there is none."""
        return self._run(_single.head(self._core, self._bucket(bucket), _wire.key_bytes(key), timeout))

    def delete(
        self,
        key: Key,
        *,
        if_exists: bool = False,
        if_version_at: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> Deleted:
        """Deletes an object. Deleting what does not exist succeeds, unless a condition says otherwise."""
        item = DeleteItem(key, if_exists, if_version_at)
        return self._run(_single.delete(self._core, self._bucket(bucket), item, timeout))

    # ---- Values in pieces ----

    def put_stream(
        self,
        key: Key,
        *,
        if_missing: bool = False,
        if_exists: bool = False,
        if_version_at: int | None = None,
        if_version_above: int | None = None,
        content_type: str = "",
        user_metadata: UserMetadata | None = None,
        modified_ns: int | None = None,
        ttl: TimeToLive | None = None,
        expire_time_ns: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> PutStream:
        """Begins to store a value that comes in pieces: up to 5 GiB, in constant memory. Conditions as with :meth:`put`.

        with client.put_stream("video") as stream:
            stream.write(piece)
        print(stream.version)
        """
        item = PutItem(
            key,
            b"",
            if_missing,
            if_exists,
            if_version_at,
            if_version_above,
            content_type,
            user_metadata,
            modified_ns,
            ttl,
            expire_time_ns,
        )
        return PutStream(self._wire, Upload(self._core, self._bucket(bucket), item, self._core.limit(timeout)))

    def put_from(
        self,
        key: Key,
        source: IO[bytes] | Iterable[Value],
        *,
        if_missing: bool = False,
        if_exists: bool = False,
        if_version_at: int | None = None,
        if_version_above: int | None = None,
        content_type: str = "",
        user_metadata: UserMetadata | None = None,
        modified_ns: int | None = None,
        ttl: TimeToLive | None = None,
        expire_time_ns: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Stores what a binary file, or anything that gives pieces, has up to its end; the version.

        Where the source fails nothing is stored: :class:`~shoal.SourceError`.
        """
        stream = self.put_stream(
            key,
            if_missing=if_missing,
            if_exists=if_exists,
            if_version_at=if_version_at,
            if_version_above=if_version_above,
            content_type=content_type,
            user_metadata=user_metadata,
            modified_ns=modified_ns,
            ttl=ttl,
            expire_time_ns=expire_time_ns,
            bucket=bucket,
            timeout=timeout,
        )
        with stream:
            for piece in _pieces(source):
                stream.write(piece)
        return stream.version

    def get_stream(
        self,
        key: Key,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> GetStream:
        """The object to be read piece by piece, in constant memory; :class:`~shoal.NotFoundError` where there is none.

        A connection that breaks is replaced, and reading goes on where it stopped, with the same version.

        with client.get_stream("video") as stream:
            for piece in stream: ...
        """
        item = GetItem(key, offset, length)
        opened = _single.get_stream(self._core, self._bucket(bucket), item, version, timeout)
        return GetStream(self._wire, self._core, self._run(opened), timeout)

    # ---- Several objects ----

    def multi_get(
        self, items: Iterable[Key | GetItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[Object | None]]:
        """Several objects in few requests, in the order of `items`. No common snapshot."""
        wanted = [item if isinstance(item, GetItem) else GetItem(item) for item in items]
        return self._run(_multi.multi_get(self._core, self._bucket(bucket), wanted, timeout))

    def multi_put(
        self, items: Iterable[PutItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[int]]:
        """Several puts in few requests; the versions, in the order of `items`. No order among them, and not all or nothing."""
        return self._run(_multi.multi_put(self._core, self._bucket(bucket), list(items), timeout))

    def multi_delete(
        self, items: Iterable[Key | DeleteItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[Deleted]]:
        """Several deletes, as :meth:`multi_put`."""
        wanted = [item if isinstance(item, DeleteItem) else DeleteItem(item) for item in items]
        return self._run(_multi.multi_delete(self._core, self._bucket(bucket), wanted, timeout))

    def put_together(
        self, items: Sequence[PutItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[int]:
        """Several puts as one write batch: all of them or none, also over a crash; their versions. At most 1,000 and 4 MiB."""
        return self._run(_multi.put_together(self._core, self._bucket(bucket), items, timeout))

    # ---- Made of several calls ----

    def create_or_get(
        self,
        key: Key,
        value: Value,
        *,
        content_type: str = "",
        user_metadata: UserMetadata | None = None,
        ttl: TimeToLive | None = None,
        expire_time_ns: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> CreateOrGet:
        """Stores the object where there is none, else gives the one that is there. Of several callers one creates."""
        item = PutItem(
            key,
            value,
            content_type=content_type,
            user_metadata=user_metadata,
            ttl=ttl,
            expire_time_ns=expire_time_ns,
        )
        return self._run(_update.create_or_get(self._core, self._bucket(bucket), item, timeout))

    def compare_and_set(
        self,
        key: Key,
        value: Value,
        expected: int | None,
        *,
        content_type: str = "",
        user_metadata: UserMetadata | None = None,
        ttl: TimeToLive | None = None,
        expire_time_ns: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> CompareAndSet:
        """Stores the value where the object has the version `expected` (`None`: where there is no object).

        The answer is true where it was stored; its `version` is the current one either way.
        """
        item = PutItem(
            key,
            value,
            content_type=content_type,
            user_metadata=user_metadata,
            ttl=ttl,
            expire_time_ns=expire_time_ns,
        )
        return self._run(_update.compare_and_set(self._core, self._bucket(bucket), item, expected, timeout))

    def update(
        self,
        key: Key,
        change: Callable[[bytes | None], Value | None],
        *,
        rounds: int = 1000,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Replaces the value by `change(value)` (`None`: there is no object), if nobody else wrote; the new version.

        `change` is called again where somebody else was faster, so it should have no other effects. Where it gives `None`,
        the object stays as it is, and so does this. Content type, user metadata and the end of its time stay.
        After `rounds` times: :class:`~shoal.ChangedError`.
        """
        return self._run(_update.update(self._core, self._bucket(bucket), key, change, rounds, timeout))

    # ---- Listing ----

    def list_page(
        self,
        prefix: Key = b"",
        *,
        delimiter: Key = b"",
        start_after: Key = b"",
        page_size: int = 0,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> ListPage:
        """One page of the keys, in the order of their bytes.

        Keys with `delimiter` behind the prefix are rolled up into one common prefix. `page_size`: up to 1,000; 0: 1,000.
        """
        request = pb.ListRequest(
            bucket=self._bucket(bucket),
            prefix=_wire.key_bytes(prefix),
            delimiter=_wire.key_bytes(delimiter),
            start_after=_wire.key_bytes(start_after),
            page_size=page_size,
        )
        return self._run(_single.list_page(self._core, request, timeout))

    def list_pages(
        self,
        prefix: Key = b"",
        *,
        delimiter: Key = b"",
        start_after: Key = b"",
        page_size: int = 0,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[ListPage]:
        """All pages; `timeout` is for each. No common snapshot."""
        following: bytes | None = _wire.key_bytes(start_after)
        while following is not None:
            page = self.list_page(
                prefix,
                delimiter=delimiter,
                start_after=following,
                page_size=page_size,
                bucket=bucket,
                timeout=timeout,
            )
            yield page
            following = page.next_start_after

    def list(
        self,
        prefix: Key = b"",
        *,
        start_after: Key = b"",
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[ListEntry]:
        """All objects whose keys begin with `prefix`, in the order of the keys' bytes, page by page as they are taken."""
        for page in self.list_pages(prefix, start_after=start_after, bucket=bucket, timeout=timeout):
            yield from page.entries

    def stat(self, *, timeout: float | None = None) -> Stat:
        """Figures about the store and the server."""
        return self._run(_single.stat(self._core, timeout))

    def _bucket(self, bucket: str | None) -> str:
        return self._core.bucket if bucket is None else bucket

    def _run(self, verb: Verb[T]) -> T:
        return self._wire.run(verb)


class PutStream:
    """A value on its way to the server; for one thread at a time. Without :meth:`finish` nothing is stored.

    As a context manager it finishes at the end of the block, or gives up where that raises.
    """

    def __init__(self, wire: SyncWire, upload: Upload) -> None:
        """:meth:`Client.put_stream` makes it."""
        self._wire = wire
        self._upload = upload
        self._version: int | None = None
        self._over = False

    @property
    def version(self) -> int:
        """The object's version, after :meth:`finish`."""
        if self._version is None:
            raise ValueError("the stream is not finished")
        return self._version

    def write(self, value: Value) -> None:
        """Takes the next bytes. Waits where the server is slower than the caller. Never leaves an unknown outcome."""
        self._begin()
        self._wire.run(self._upload.write(value))
        self._over = False

    def finish(self) -> int:
        """The value is complete: makes it durable and visible; its version."""
        self._begin()
        self._version = self._wire.run(self._upload.finish())
        return self._version

    def cancel(self) -> None:
        """Gives up; nothing is stored."""
        self._over = True
        self._wire.run(self._upload.cancel())

    def _begin(self) -> None:
        if self._over:
            raise ValueError("the stream is over")
        # Unless this goes well; write() takes it back.
        self._over = True

    def __enter__(self) -> PutStream:
        """Finishes in the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes, or gives up after an exception."""
        if kind is not None:
            self.cancel()
        elif not self._over:
            self.finish()


class GetStream:
    """A value on its way from the server; for one thread at a time. Gives its pieces as an iterator."""

    def __init__(self, wire: SyncWire, core: Core, download: Download, timeout: float | None) -> None:
        """:meth:`Client.get_stream` makes it."""
        self._wire = wire
        self._core = core
        self._download = download
        self._timeout = timeout

    @property
    def info(self) -> ObjectInfo:
        """What is known about the whole object."""
        return self._download.info

    def __iter__(self) -> Iterator[bytes]:
        """The pieces, at most 1 MiB each."""
        return self

    def __next__(self) -> bytes:
        """The next piece. The call's `timeout` is for each."""
        piece = self._wire.run(self._download.next(self._core.limit(self._timeout)))
        if piece is None:
            raise StopIteration
        return piece

    def read(self) -> bytes:
        """All that is left."""
        return b"".join(self)

    def close(self) -> None:
        """Takes no more."""
        self._wire.run(self._download.close())

    def __enter__(self) -> GetStream:
        """Closes in the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()


def _pieces(source: IO[bytes] | Iterable[Value]) -> Iterator[Value]:
    """The pieces of a source; its exceptions as SourceError."""
    try:
        if hasattr(source, "read"):
            while piece := source.read(READ_BYTES):
                yield piece
        else:
            yield from source
    except Exception as error:
        raise SourceError(f"cannot read the value that was to be stored: {error}") from error


__all__ = ["Client", "GetStream", "PutStream"]

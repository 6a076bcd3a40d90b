"""The client for asyncio. Each call is that of :class:`shoal.Client`, awaited."""

from __future__ import annotations

import asyncio
import builtins
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import IO, Any, TypeVar, cast

from . import _multi, _single, _update, _wire
from ._aio import AioWire
from ._receive import Download
from ._request_id import RequestIds
from ._retry import Core
from ._send import Upload
from ._steps import Verb
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

#: What gives the pieces of a value.
AsyncSource = IO[bytes] | AsyncIterable[Value] | Iterable[Value]


class AsyncClient:
    """A client of one server, for the event loop in which it is used first. As :class:`shoal.Client`, with `await`.

    A call that is cancelled is given up at once; a write is then wholly done or wholly not.
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
        self._wire = AioWire(options)

    @property
    def server(self) -> str:
        """The server as "host:port"."""
        return self._options.server

    async def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until there is a connection; raises :class:`~shoal.TimedOutError`."""
        await self._wire.wait_ready(timeout)

    async def close(self) -> None:
        """Closes the connection; calls that are under way fail."""
        await self._wire.close()

    async def __aenter__(self) -> AsyncClient:
        """Closes in the end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        await self.close()

    def __repr__(self) -> str:
        """With the address."""
        return f"{type(self).__name__}({self.server!r})"

    # ---- One object ----

    async def put(
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
        return await self._run(_single.put(self._core, self._bucket(bucket), item, timeout))

    async def get(
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
        return await self._run(_single.get(self._core, self._bucket(bucket), item, version, timeout))

    async def head(self, key: Key, *, bucket: str | None = None, timeout: float | None = None) -> ObjectInfo | None:
        """What is known about an object, without its value; `None`: there is none."""
        return await self._run(_single.head(self._core, self._bucket(bucket), _wire.key_bytes(key), timeout))

    async def delete(
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
        return await self._run(_single.delete(self._core, self._bucket(bucket), item, timeout))

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
    ) -> AsyncPutStream:
        """Begins to store a value that comes in pieces: up to 5 GiB, in constant memory. Conditions as with :meth:`put`.

        async with client.put_stream("video") as stream:
            await stream.write(piece)
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
        return AsyncPutStream(self._wire, Upload(self._core, self._bucket(bucket), item, self._core.limit(timeout)))

    async def put_from(
        self,
        key: Key,
        source: AsyncSource,
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

        A file whose `read` is no coroutine is read in a thread.

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
        async with stream:
            async for piece in _pieces(source):
                await stream.write(piece)
        return stream.version

    async def get_stream(
        self,
        key: Key,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGetStream:
        """The object to be read piece by piece, in constant memory; :class:`~shoal.NotFoundError` where there is none.

        A connection that breaks is replaced, and reading goes on where it stopped, with the same version.

        async with await client.get_stream("video") as stream:
            async for piece in stream: ...
        """
        item = GetItem(key, offset, length)
        opened = _single.get_stream(self._core, self._bucket(bucket), item, version, timeout)
        return AsyncGetStream(self._wire, self._core, await self._run(opened), timeout)

    # ---- Several objects ----

    async def multi_get(
        self, items: Iterable[Key | GetItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[Object | None]]:
        """Several objects in few requests, in the order of `items`. No common snapshot."""
        wanted = [item if isinstance(item, GetItem) else GetItem(item) for item in items]
        return await self._run(_multi.multi_get(self._core, self._bucket(bucket), wanted, timeout))

    async def multi_put(
        self, items: Iterable[PutItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[int]]:
        """Several puts in few requests; the versions, in the order of `items`. No order among them, and not all or nothing."""
        return await self._run(_multi.multi_put(self._core, self._bucket(bucket), list(items), timeout))

    async def multi_delete(
        self, items: Iterable[Key | DeleteItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[Outcome[Deleted]]:
        """Several deletes, as :meth:`multi_put`."""
        wanted = [item if isinstance(item, DeleteItem) else DeleteItem(item) for item in items]
        return await self._run(_multi.multi_delete(self._core, self._bucket(bucket), wanted, timeout))

    async def put_together(
        self, items: Sequence[PutItem], *, bucket: str | None = None, timeout: float | None = None
    ) -> builtins.list[int]:
        """Several puts as one write batch: all of them or none, also over a crash; their versions. At most 1,000 and 4 MiB."""
        return await self._run(_multi.put_together(self._core, self._bucket(bucket), items, timeout))

    # ---- Made of several calls ----

    async def create_or_get(
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
        return await self._run(_update.create_or_get(self._core, self._bucket(bucket), item, timeout))

    async def compare_and_set(
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
        return await self._run(_update.compare_and_set(self._core, self._bucket(bucket), item, expected, timeout))

    async def update(
        self,
        key: Key,
        change: Callable[[bytes | None], Value | Awaitable[Value | None] | None],
        *,
        rounds: int = 1000,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> int | None:
        """Replaces the value by `change(value)` (`None`: there is no object), if nobody else wrote; the new version.

        `change` may be a coroutine. It is called again where somebody else was faster, so it should have no other effects.
        Where it gives `None`, the object stays as it is. Content type, user metadata and the end of its time stay.
        After `rounds` times:
        :class:`~shoal.ChangedError`.
        """
        return await self._run(_update.update(self._core, self._bucket(bucket), key, change, rounds, timeout))

    # ---- Listing ----

    async def list_page(
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
        return await self._run(_single.list_page(self._core, request, timeout))

    async def list_pages(
        self,
        prefix: Key = b"",
        *,
        delimiter: Key = b"",
        start_after: Key = b"",
        page_size: int = 0,
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[ListPage]:
        """All pages; `timeout` is for each. No common snapshot."""
        following: bytes | None = _wire.key_bytes(start_after)
        while following is not None:
            page = await self.list_page(
                prefix,
                delimiter=delimiter,
                start_after=following,
                page_size=page_size,
                bucket=bucket,
                timeout=timeout,
            )
            yield page
            following = page.next_start_after

    async def list(
        self,
        prefix: Key = b"",
        *,
        start_after: Key = b"",
        bucket: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[ListEntry]:
        """All objects whose keys begin with `prefix`, in the order of the keys' bytes, page by page as they are taken."""
        async for page in self.list_pages(prefix, start_after=start_after, bucket=bucket, timeout=timeout):
            for entry in page.entries:
                yield entry

    async def stat(self, *, timeout: float | None = None) -> Stat:
        """Figures about the store and the server."""
        return await self._run(_single.stat(self._core, timeout))

    def _bucket(self, bucket: str | None) -> str:
        return self._core.bucket if bucket is None else bucket

    async def _run(self, verb: Verb[T]) -> T:
        return await self._wire.run(verb)


class AsyncPutStream:
    """A value on its way to the server; for one task at a time. Without :meth:`finish` nothing is stored.

    As a context manager it finishes at the end of the block, or gives up where that raises.
    """

    def __init__(self, wire: AioWire, upload: Upload) -> None:
        """:meth:`AsyncClient.put_stream` makes it."""
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

    async def write(self, value: Value) -> None:
        """Takes the next bytes. Waits where the server is slower than the caller. Never leaves an unknown outcome."""
        self._begin()
        await self._wire.run(self._upload.write(value))
        self._over = False

    async def finish(self) -> int:
        """The value is complete: makes it durable and visible; its version."""
        self._begin()
        self._version = await self._wire.run(self._upload.finish())
        return self._version

    async def cancel(self) -> None:
        """Gives up; nothing is stored."""
        self._over = True
        await self._wire.run(self._upload.cancel())

    def _begin(self) -> None:
        if self._over:
            raise ValueError("the stream is over")
        # Unless this goes well; write() takes it back.
        self._over = True

    async def __aenter__(self) -> AsyncPutStream:
        """Finishes in the end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes, or gives up after an exception."""
        if kind is not None:
            await self.cancel()
        elif not self._over:
            await self.finish()


class AsyncGetStream:
    """A value on its way from the server; for one task at a time. Gives its pieces as an iterator."""

    def __init__(self, wire: AioWire, core: Core, download: Download, timeout: float | None) -> None:
        """:meth:`AsyncClient.get_stream` makes it."""
        self._wire = wire
        self._core = core
        self._download = download
        self._timeout = timeout

    @property
    def info(self) -> ObjectInfo:
        """What is known about the whole object."""
        return self._download.info

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces, at most 1 MiB each."""
        return self

    async def __anext__(self) -> bytes:
        """The next piece. The call's `timeout` is for each."""
        piece = await self._wire.run(self._download.next(self._core.limit(self._timeout)))
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def read(self) -> bytes:
        """All that is left."""
        return b"".join([piece async for piece in self])

    async def close(self) -> None:
        """Takes no more."""
        await self._wire.run(self._download.close())

    async def __aenter__(self) -> AsyncGetStream:
        """Closes in the end."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        await self.close()


async def _pieces(source: AsyncSource) -> AsyncIterator[Value]:
    """The pieces of a source; its exceptions as SourceError."""
    try:
        if isinstance(source, AsyncIterable):
            async for piece in source:
                yield piece
        elif isinstance(source, Iterable) and not hasattr(source, "read"):
            for piece in source:
                yield piece
        else:
            while piece := await _read(source):
                yield piece
    except Exception as error:
        raise SourceError(f"cannot read the value that was to be stored: {error}") from error


async def _read(source: Any) -> Value:
    """The next piece of a file. What blocks does so in a thread of its own."""
    if inspect.iscoroutinefunction(source.read):
        return cast(Value, await source.read(READ_BYTES))
    return cast(Value, await asyncio.to_thread(source.read, READ_BYTES))


__all__ = ["AsyncClient", "AsyncGetStream", "AsyncPutStream"]

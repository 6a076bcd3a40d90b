"""A value on its way from the server. A connection that breaks is replaced, and reading goes on where it stopped."""

from __future__ import annotations

from typing import Any

from . import _wire
from ._retry import Core, pause_after, read
from ._steps import GET_STREAM, Failed, Leaves, Limit, Verb, pause
from .errors import ChangedError, NotFoundError
from .objects import GetItem, ObjectInfo
from .v1 import object_store_pb2 as pb


class Download:
    """One value, or a range of it; all bytes are of the version in `info`."""

    def __init__(self, core: Core, bucket: str, item: GetItem, info: ObjectInfo, first: bytes, call: Any) -> None:
        """What the first message of `call` said."""
        self._core = core
        self._bucket = bucket
        self._key = item.key
        self._first = first
        self._call = call
        self._offset, self._rest = _wire.within(item.offset, item.length, info.size)
        self.info = info

    @property
    def rest(self) -> int:
        """Bytes that were not given yet."""
        return self._rest

    def next(self, limit: Limit) -> Verb[bytes | None]:
        """The next piece; `None` at the end."""
        attempt = 1
        while self._rest:
            try:
                piece = yield from self._piece(limit)
            except Failed as failed:
                seconds = pause_after(attempt)
                again = failed.leaves is not Leaves.REFUSED and attempt < self._core.attempts
                if not again or not limit.allows(seconds):
                    raise failed.error from failed.__cause__
                attempt += 1
                yield from pause(seconds)
                yield from self._reopen(limit)
                continue
            if len(piece) > self._rest:
                raise _wire.protocol(f"{len(piece)} byte(s) came where {self._rest} are left").error
            if piece:
                self._rest -= len(piece)
                self._offset += len(piece)
                return piece
        yield from self.close()
        return None

    def close(self) -> Verb[None]:
        """Takes no more."""
        if self._call is not None:
            call, self._call = self._call, None
            self._rest = 0
            yield lambda wire: wire.cancel(call)

    def _piece(self, limit: Limit) -> Verb[bytes]:
        if self._first:
            piece, self._first = self._first, b""
            return piece
        seconds = limit.left()
        message: pb.GetStreamResponse | None = yield lambda wire: wire.receive(self._call, seconds)
        if message is None:
            raise _wire.protocol(f"{self._rest} byte(s) of the value are missing")
        return message.chunk

    def _reopen(self, limit: Limit) -> Verb[None]:
        rest = GetItem(self._key, self._offset, self._rest)
        call, self._call = self._call, None
        yield lambda wire: wire.cancel(call)
        try:
            again = yield from open_download(self._core, self._bucket, rest, self.info.version, limit)
        except NotFoundError as error:
            raise ChangedError("the object was deleted while it was read") from error
        self._first, self._call = again._first, again._call


def open_download(core: Core, bucket: str, item: GetItem, version: int | None, limit: Limit) -> Verb[Download]:
    """Begins to read; with `version`, only that one."""
    request = pb.GetStreamRequest(
        bucket=bucket,
        key=_wire.key_bytes(item.key),
        range=_wire.byte_range(item.offset, item.length),
        version=version,
    )

    def attempt() -> Verb[Download]:
        call: Any = yield lambda wire: wire.open_receive(GET_STREAM, request)
        seconds = limit.left()
        message: pb.GetStreamResponse | None = yield lambda wire: wire.receive(call, seconds)
        if message is None:
            raise _wire.protocol("the stream is empty")
        return Download(core, bucket, item, _wire.info(message), message.chunk, call)

    return (yield from read(core, limit, attempt))

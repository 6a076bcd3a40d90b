"""A value on its way to the server.

Nothing is stored before the last message, which only :meth:`Upload.end` sends: whatever fails earlier, the write was not
applied.
"""

from __future__ import annotations

from typing import Any

from . import _wire
from ._retry import Core, error_of_write
from ._steps import PUT_STREAM, Failed, Leaves, Limit, Verb
from .objects import PutItem, Value
from .v1 import object_store_pb2 as pb

#: Pieces shorter than this are gathered: a message for each would cost more than the copy.
GATHER_BYTES = 256 << 10


class Upload:
    """One stream. After a failure only :meth:`cancel` may follow."""

    def __init__(self, core: Core, bucket: str, item: PutItem, limit: Limit) -> None:
        """Sends nothing yet; `item.value` is not looked at."""
        self._header = pb.PutStreamHeader(
            bucket=bucket,
            key=_wire.key_bytes(item.key),
            rules=_wire.rules(item),
            metadata=_wire.metadata(item),
            modified_ns=item.modified_ns,
            **_wire.deadline(item),
        )
        self._limit = limit
        self._call: Any = None
        self._gathered = bytearray()
        self._bytes = 0

    def send(self, value: Value) -> Verb[None]:
        """The next bytes."""
        view = memoryview(value).cast("B")
        self._bytes += len(view)
        if len(self._gathered) + len(view) < GATHER_BYTES:
            self._gathered += view
            return
        # What was gathered goes first, and with it as much as makes a whole chunk.
        if self._gathered:
            fill = min(len(view), _wire.CHUNK_BYTES_MAX - len(self._gathered))
            self._gathered += view[:fill]
            view = view[fill:]
            yield from self._send_gathered()
        for start in range(0, len(view), _wire.CHUNK_BYTES_MAX):
            chunk = bytes(view[start : start + _wire.CHUNK_BYTES_MAX])
            yield from self._message(pb.PutStreamRequest(chunk=chunk))

    def end(self) -> Verb[int]:
        """The value is complete; the object's version."""
        yield from self._send_gathered()
        yield from self._message(pb.PutStreamRequest(end=pb.PutStreamEnd(bytes=self._bytes)))
        seconds = self._limit.left()
        answer: pb.PutResponse = yield lambda wire: wire.finish(self._call, seconds)
        self._call = None
        return answer.version

    def write(self, value: Value) -> Verb[None]:
        """As :meth:`send`, for a caller who sees errors and not attempts."""
        try:
            yield from self.send(value)
        except Failed as failed:
            yield from self.cancel()
            raise failed.error from failed.__cause__

    def finish(self) -> Verb[int]:
        """As :meth:`end`, for a caller who sees errors and not attempts."""
        try:
            return (yield from self.end())
        except Failed as failed:
            yield from self.cancel()
            raise error_of_write(failed) from failed.__cause__

    def cancel(self) -> Verb[None]:
        """Gives up; nothing is stored unless the end was sent."""
        if self._call is not None:
            yield lambda wire: wire.cancel(self._call)
            self._call = None

    def _send_gathered(self) -> Verb[None]:
        if self._gathered:
            chunk = bytes(self._gathered)
            self._gathered.clear()
            yield from self._message(pb.PutStreamRequest(chunk=chunk))

    def _message(self, message: pb.PutStreamRequest) -> Verb[None]:
        try:
            if self._call is None:
                self._call = yield lambda wire: wire.open_send(PUT_STREAM)
                yield from self._message(pb.PutStreamRequest(header=self._header))
            seconds = self._limit.left()
            yield lambda wire: wire.send(self._call, message, seconds)
        except Failed as failed:
            # Before the end was taken an open outcome is none.
            if failed.leaves is Leaves.OPEN:
                failed.leaves = Leaves.NOT_APPLIED
            raise

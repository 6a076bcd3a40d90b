"""Request ids of writes: a session, and a number in it, by which the server does a repeated write once.

The server keeps the results of a session's writes in 64 places, by the number modulo 64. So a session is used as 64 lanes:
a write takes a free lane, whose numbers are its own modulo 64, and nobody else uses it until the write has ended. So no
result is overwritten whose write may still be repeated.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: Lanes of a session: as many as the server keeps results.
LANES = 64

#: Sessions of one client: with more writes than lanes under way, a write waits for nothing and has no request id.
SESSIONS_MAX = 64


@dataclass(frozen=True)
class RequestId:
    """The id of a write: a session, and the number in it."""

    session: int
    sequence: int

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers that carry it to the server."""
        return (("shoal-session", str(self.session)), ("shoal-sequence", str(self.sequence)))


class RequestIds:
    """The lanes of a client; for any thread."""

    def __init__(self) -> None:
        """No session yet."""
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        # The request ids that were used last are used first, so that the server keeps few results.
        self._free: list[RequestId] = []
        self._sessions = 0
        self._process = os.getpid()

    @contextmanager
    def take(self) -> Iterator[RequestId | None]:
        """A request id that no write had; `None` where too many writes are under way."""
        request_id = self._take()
        process = self._process
        try:
            yield request_id
        finally:
            if request_id is not None:
                with self._lock:
                    if process == self._process:
                        self._free.append(RequestId(request_id.session, request_id.sequence + LANES))

    def _take(self) -> RequestId | None:
        with self._lock:
            if self._process != os.getpid():
                # A fork: the parent goes on with these lanes, and two writes with one request id would be taken for one.
                self._forget()
            if not self._free and self._sessions < SESSIONS_MAX:
                self._sessions += 1
                session = secrets.randbits(64)
                self._free = [RequestId(session, sequence) for sequence in reversed(range(LANES))]
            return self._free.pop() if self._free else None

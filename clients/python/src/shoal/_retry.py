"""When a call is sent again, and after which pause.

A read may always be sent again. A write is sent again only where it is known that it was not applied; where it has a
request id the server does it once, and it is sent again like a read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ._request_id import RequestId, RequestIds
from ._steps import Failed, Leaves, Limit, Verb, pause
from .errors import ConditionFailedError, ShoalError, UnknownOutcomeError

T = TypeVar("T")

#: The first pause in seconds; each further one is four times as long.
PAUSE_FIRST = 0.010

#: The longest pause in seconds.
PAUSE_MAX = 1.0


@dataclass(frozen=True)
class Core:
    """What every verb of a client knows."""

    bucket: str
    attempts: int
    answer_timeout: float
    request_ids: RequestIds | None

    def limit(self, timeout: float | None) -> Limit:
        """For a call that begins now."""
        return Limit(timeout, self.answer_timeout)


def pause_after(attempt: int) -> float:
    """Seconds after attempt number `attempt` (from 1), give or take half: who failed together must not come back together."""
    seconds: float = min(PAUSE_FIRST * 4 ** min(attempt - 1, 8), PAUSE_MAX)
    return seconds * random.uniform(0.5, 1.5)


def read(core: Core, limit: Limit, attempt: Callable[[], Verb[T]]) -> Verb[T]:
    """Sends what changes nothing until it succeeds, it cannot, or it was sent often enough."""
    try:
        return (yield from again(core, limit, attempt, lambda leaves: leaves is not Leaves.REFUSED))
    except Failed as failed:
        raise failed.error from failed.__cause__


def write(core: Core, limit: Limit, attempt: Callable[[RequestId | None], Verb[T]]) -> Verb[T]:
    """The same for a write: one with a request id like a read, another one only where it was not applied."""
    if core.request_ids is not None:
        with core.request_ids.take() as request_id:
            if request_id is not None:
                return (yield from _once(core, limit, lambda: attempt(request_id)))
    return (yield from write_plain(core, limit, lambda: attempt(None)))


def write_plain(core: Core, limit: Limit, attempt: Callable[[], Verb[T]]) -> Verb[T]:
    """A write without a request id."""
    try:
        return (yield from again(core, limit, attempt, lambda leaves: leaves is Leaves.NOT_APPLIED))
    except Failed as failed:
        raise error_of_write(failed) from failed.__cause__


def _once(core: Core, limit: Limit, attempt: Callable[[], Verb[T]]) -> Verb[T]:
    open_before = False

    def more(leaves: Leaves) -> bool:
        nonlocal open_before
        open_before |= leaves is Leaves.OPEN
        return leaves is not Leaves.REFUSED

    try:
        return (yield from again(core, limit, attempt, more))
    except Failed as failed:
        # After an attempt that was perhaps applied only a success and the write's own condition are certain.
        if open_before and not isinstance(failed.error, ConditionFailedError):
            failed.leaves = Leaves.OPEN
        raise error_of_write(failed) from failed.__cause__


def error_of_write(failed: Failed) -> ShoalError:
    """The error of a write that ends with this attempt."""
    if failed.leaves is not Leaves.OPEN or isinstance(failed.error, UnknownOutcomeError):
        return failed.error
    return UnknownOutcomeError(f"the outcome of the write is not known ({failed.error}); read the object to find out")


def again(core: Core, limit: Limit, attempt: Callable[[], Verb[T]], more: Callable[[Leaves], bool]) -> Verb[T]:
    """Sends it until it succeeds, `more` says no, or it was sent often enough."""
    count = 1
    while True:
        try:
            return (yield from attempt())
        except Failed as failed:
            seconds = pause_after(count)
            if not more(failed.leaves) or count >= core.attempts or not limit.allows(seconds):
                raise
        yield from pause(seconds)
        count += 1

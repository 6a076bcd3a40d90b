"""What is made of several calls: create or get, compare and set, read-modify-write."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from . import _single, _wire
from ._retry import Core
from ._steps import Limit, Verb, pause
from .errors import ChangedError, ConditionFailedError
from .objects import CompareAndSet, CreateOrGet, GetItem, Key, ObjectInfo, PutItem, Value

#: How often an object that comes and goes is tried again.
ROUNDS_MAX = 16

#: The longest pause between two rounds of an update, in seconds.
UPDATE_PAUSE_MAX = 0.050


def create_or_get(core: Core, bucket: str, item: PutItem, timeout: float | None) -> Verb[CreateOrGet]:
    """The object that is there, or else this one."""
    limit = core.limit(timeout)
    item = replace(item, if_missing=True)
    for _ in range(ROUNDS_MAX):
        try:
            if _wire.value_size(item.value) <= _wire.CHUNK_BYTES_MAX:
                answer = yield from _single.put_or_existing(core, bucket, item, limit.rest())
                if not answer.HasField("existing"):
                    return CreateOrGet(True, answer.version, _wire.value_bytes(item.value))
                if not answer.value_omitted:
                    return CreateOrGet(False, answer.version, answer.value)
            else:
                version = yield from _single.put(core, bucket, item, limit.rest())
                return CreateOrGet(True, version, _wire.value_bytes(item.value))
        except ConditionFailedError:
            # A stream does not bring the object that is there.
            pass
        found = yield from _single.get(core, bucket, GetItem(item.key), None, limit.rest())
        if found is not None:
            return CreateOrGet(False, found.version, found.value)
    raise ChangedError(f"the object came and went {ROUNDS_MAX} times")


def compare_and_set(
    core: Core, bucket: str, item: PutItem, expected: int | None, timeout: float | None
) -> Verb[CompareAndSet]:
    """Stores a value where the object has just the version that is expected; `None`: where there is none."""
    item = replace(item, if_missing=expected is None, if_version_at=expected)
    try:
        return CompareAndSet(True, (yield from _single.put(core, bucket, item, timeout)))
    except ConditionFailedError as error:
        return CompareAndSet(False, error.current_version)


def update(
    core: Core,
    bucket: str,
    key: Key,
    change: Callable[[bytes | None], Any],
    rounds: int,
    timeout: float | None,
) -> Verb[int | None]:
    """Reads, lets `change` make the new value, and stores it unless somebody was faster: then again."""
    limit = core.limit(timeout)
    current = None
    for number in range(rounds):
        found = yield from _single.get(core, bucket, GetItem(key), None, limit.rest())
        new = yield from _changed(change, None if found is None else found.value)
        if new is None:
            return None
        item = PutItem(key, new) if found is None else _again(key, new, found.info)
        expected = None if found is None else found.version
        done = yield from compare_and_set(core, bucket, item, expected, limit.rest())
        if done:
            return done.version
        current = done.version
        yield from _yield_to_others(number, limit)
    raise ChangedError(f"others changed the object {rounds} times in between", current)


def _again(key: Key, value: Value, info: ObjectInfo) -> PutItem:
    """A new value; what else is known about the object stays, and its time ends when it would have ended."""
    ttl = None if info.ttl_ns is None else timedelta(microseconds=max(1, info.ttl_ns // 1000))
    return PutItem(key, value, content_type=info.content_type, user_metadata=info.user_metadata, ttl=ttl)


def _changed(change: Callable[[bytes | None], Any], old: bytes | None) -> Verb[Value | None]:
    new: Value | None = yield lambda wire: wire.ask(lambda: change(old))
    return new


def _yield_to_others(number: int, limit: Limit) -> Verb[None]:
    # The first rounds go at once: with few writers one of them wins.
    if number >= 2:
        seconds = random.uniform(0, min(0.001 * 2 ** min(number, 8), UPDATE_PAUSE_MAX))
        if limit.allows(seconds):
            yield from pause(seconds)

"""Many objects of one bucket in few requests, each with an outcome of its own.

Items go in batches that fit in a message. What the server left out of an answer, and what failed but may be sent again,
goes into a later batch; so each item ends like a single call would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from . import _wire
from ._request_id import RequestId
from ._retry import Core, error_of_write, pause_after, write
from ._single import deleted, get, put
from ._steps import MULTI_DELETE, MULTI_GET, MULTI_PUT, Failed, Leaves, Limit, Verb, pause, unary
from .errors import InvalidError, ShoalError
from .objects import Deleted, DeleteItem, GetItem, Object, Outcome, PutItem
from .v1 import object_store_pb2 as pb

T = TypeVar("T")

#: What a batch gave for one item: how it ended, how the attempt failed, or `None`: there was no room for it in the answer.
Reply = Outcome[T] | Failed | None


def multi_get(
    core: Core, bucket: str, items: Sequence[GetItem], timeout: float | None
) -> Verb[list[Outcome[Object | None]]]:
    """Several objects."""
    limit = core.limit(timeout)

    def ask(batch: list[int]) -> Verb[list[Reply[Object | None]]]:
        chosen = [items[index] for index in batch]
        wanted = [
            pb.MultiGetItem(key=_wire.key_bytes(item.key), range=_wire.byte_range(item.offset, item.length))
            for item in chosen
        ]
        answer = yield from unary(MULTI_GET, pb.MultiGetRequest(bucket=bucket, items=wanted), limit)
        replies = [_got(result) for result in answer.results]
        if replies and replies[0] is None:
            # The first of a batch is left out only where it is too long for any: so each batch settles at least one.
            replies[0] = yield from _alone(get(core, bucket, chosen[0], None, limit.rest()))
        return replies

    return (yield from _settle(core, limit, [0] * len(items), lambda leaves: leaves is not Leaves.REFUSED, ask))


def multi_put(core: Core, bucket: str, items: Sequence[PutItem], timeout: float | None) -> Verb[list[Outcome[int]]]:
    """Several puts."""
    limit = core.limit(timeout)

    def ask(batch: list[int]) -> Verb[list[Reply[int]]]:
        chosen = [items[index] for index in batch]
        if _wire.value_size(chosen[0].value) > _wire.CHUNK_BYTES_MAX:
            # It fills a batch of its own.
            return [(yield from _alone(put(core, bucket, chosen[0], limit.rest())))]
        request = pb.MultiPutRequest(bucket=bucket, items=[_put_item(item) for item in chosen])
        answer = yield from unary(MULTI_PUT, request, limit)
        return [_wire.of_key(result.status) or Outcome(result.version) for result in answer.results]

    weights = [_weight(item) for item in items]
    return (yield from _settle(core, limit, weights, lambda leaves: leaves is Leaves.NOT_APPLIED, ask, True))


def multi_delete(
    core: Core, bucket: str, items: Sequence[DeleteItem], timeout: float | None
) -> Verb[list[Outcome[Deleted]]]:
    """Several deletes."""
    limit = core.limit(timeout)

    def ask(batch: list[int]) -> Verb[list[Reply[Deleted]]]:
        chosen = [items[index] for index in batch]
        wanted = [pb.MultiDeleteItem(key=_wire.key_bytes(item.key), rules=_wire.rules(item)) for item in chosen]
        answer = yield from unary(MULTI_DELETE, pb.MultiDeleteRequest(bucket=bucket, items=wanted), limit)
        return [_wire.of_key(result.status) or Outcome(deleted(result)) for result in answer.results]

    again: Callable[[Leaves], bool] = lambda leaves: leaves is Leaves.NOT_APPLIED  # noqa: E731
    return (yield from _settle(core, limit, [0] * len(items), again, ask, True))


def put_together(core: Core, bucket: str, items: Sequence[PutItem], timeout: float | None) -> Verb[list[int]]:
    """Several puts as one write batch; their versions."""
    if not items:
        return []
    limit = core.limit(timeout)
    request = pb.MultiPutRequest(bucket=bucket, items=[_put_item(item) for item in items], atomic=True)
    if sum(_weight(item) for item in items) > _wire.BATCH_BYTES_MAX or len(items) > _wire.BATCH_KEYS_MAX:
        raise InvalidError(f"a write batch has at most {_wire.BATCH_KEYS_MAX} objects and 4 MiB")

    def attempt(request_id: RequestId | None) -> Verb[list[int]]:
        answer = yield from unary(MULTI_PUT, request, limit, request_id)
        if len(answer.results) != len(items):
            raise _wire.protocol("it has not one result an item")
        return [result.version for result in answer.results]

    return (yield from write(core, limit, attempt))


def _put_item(item: PutItem) -> pb.MultiPutItem:
    return pb.MultiPutItem(
        key=_wire.key_bytes(item.key),
        rules=_wire.rules(item),
        metadata=_wire.metadata(item),
        modified_ns=item.modified_ns,
        **_wire.deadline(item),
        value=_wire.value_bytes(item.value),
    )


def _weight(item: PutItem) -> int:
    """What an item adds to a request in bytes, in round figures."""
    user = sum(len(name) * 4 + len(value) + 16 for name, value in item.user_entries())
    return _wire.value_size(item.value) + len(item.key) * 4 + len(item.content_type) * 4 + user + 64


def _got(result: pb.MultiGetResult) -> Reply[Object | None]:
    if result.value_omitted:
        return None
    if result.status.failure.kind == pb.Failure.NOT_FOUND:
        return Outcome(None)
    return _wire.of_key(result.status) or Outcome(Object(_wire.info(result), result.value))


def _alone(verb: Verb[T]) -> Verb[Reply[T]]:
    """An item that went by itself: its retries are behind it."""
    try:
        return Outcome((yield from verb))
    except ShoalError as error:
        return Outcome(None, error)


def _settle(
    core: Core,
    limit: Limit,
    weights: Sequence[int],
    again: Callable[[Leaves], bool],
    ask: Callable[[list[int]], Verb[list[Reply[T]]]],
    writes: bool = False,
) -> Verb[list[Outcome[T]]]:
    """Sends batches until each item is done."""
    outcomes: dict[int, Outcome[T]] = {}
    pending = deque(range(len(weights)))
    later: deque[int] = deque()
    attempt = 1
    while pending:
        batch = next_batch(pending, weights)
        omitted = []
        for index, reply in zip(batch, (yield from _replies(ask(batch), len(batch))), strict=True):
            if reply is None:
                omitted.append(index)
            elif isinstance(reply, Outcome):
                outcomes[index] = reply
            else:
                outcomes[index] = Outcome(None, error_of_write(reply) if writes else reply.error)
                if again(reply.leaves):
                    later.append(index)
        pending.extendleft(reversed(omitted))
        seconds = pause_after(attempt)
        if not pending and later and attempt < core.attempts and limit.allows(seconds):
            yield from pause(seconds)
            attempt += 1
            pending, later = later, deque()
    return [outcomes[index] for index in range(len(weights))]


def _replies(asked: Verb[list[Reply[T]]], count: int) -> Verb[list[Reply[T]]]:
    """One reply an item, whatever the answer was."""
    try:
        replies = yield from asked
        if len(replies) == count:
            return replies
        # What was done is not known then.
        failed = _wire.protocol("it has not one result an item")
        failed.leaves = Leaves.OPEN
    except Failed as caught:
        failed = caught
    return [failed] * count


def next_batch(pending: deque[int], weights: Sequence[int]) -> list[int]:
    """Takes items off that fit in one request, at least one; one that travels as a stream goes alone."""
    batch: list[int] = []
    total = 0
    while pending and len(batch) < _wire.BATCH_KEYS_MAX:
        weight = weights[pending[0]]
        alone = weight > _wire.CHUNK_BYTES_MAX
        if batch and (alone or total + weight > _wire.BATCH_BYTES_MAX):
            break
        batch.append(pending.popleft())
        total += weight
        if alone:
            break
    return batch

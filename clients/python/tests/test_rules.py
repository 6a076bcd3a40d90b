"""What needs no server: addresses, request ids, retries, batches, and that both clients offer the same."""

from __future__ import annotations

import inspect
import os
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import shoal
from shoal import _multi, _retry, _steps, _wire
from shoal._request_id import LANES, SESSIONS_MAX, RequestId, RequestIds
from shoal._retry import Core
from shoal._steps import Failed, Leaves, Limit, Method, Verb
from shoal.options import Options
from shoal.v1 import object_store_pb2 as pb


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("http://127.0.0.1:80", "127.0.0.1:80"),
        ("http://localhost/", "localhost:7411"),
        ("localhost", "localhost:7411"),
        ("https://example.org", "example.org:7411"),
        ("[::1]:9", "[::1]:9"),
        ("[::1]", "[::1]:7411"),
    ],
)
def test_addresses(given: str, meant: str) -> None:
    assert Options(given).checked().server == meant


@pytest.mark.parametrize(
    "wrong", ["", "ftp://a", "a b", "a/b", "user@host:1", "host:port", "a:", ":80", "a?b", "a:70000"]
)
def test_wrong_addresses(wrong: str) -> None:
    with pytest.raises(shoal.InvalidError):
        shoal.Client(wrong)


def test_options() -> None:
    assert Options("https://a").checked().tls == shoal.Tls()
    refused: list[dict[str, Any]] = [
        {"server": "http://a", "tls": shoal.Tls()},
        {"server": "a", "tls": shoal.Tls(cert=b"x")},
        {"server": "a", "attempts": 0},
        {"server": "a", "answer_timeout": 0},
        {"server": "example.org", "token": "secret"},
    ]
    for wrong in refused:
        with pytest.raises(shoal.InvalidError):
            shoal.Client(**wrong)
    taken: list[dict[str, Any]] = [
        {"server": "example.org", "token": "secret", "tls": shoal.Tls()},
        {"server": "example.org", "token": "secret", "token_without_tls": True},
        {"server": "127.0.0.2", "token": "secret"},
        {"server": "[::1]", "token": lambda: "secret"},
    ]
    for right in taken:
        assert Options(**right).checked().metadata() == (("authorization", "Bearer secret"),)
    for token in ("", "a\nb", "ä"):
        with pytest.raises(shoal.InvalidError):
            Options("localhost", token=token).checked().metadata()


def test_secrets_are_not_shown() -> None:
    client = shoal.Client("localhost", token="secret")
    tls = shoal.Tls(key=b"secret", cert=b"c")
    assert "secret" not in repr(client) + repr(client._options) + repr(tls)
    client.close()


def test_no_request_id_is_given_twice_and_a_lane_has_one_write() -> None:
    request_ids = RequestIds()
    seen: set[RequestId] = set()
    for count in range(0, 150, 3):
        held = [request_ids.take() for _ in range(count)]
        taken = [context.__enter__() for context in held]
        assert None not in taken
        fresh = {request_id for request_id in taken if request_id is not None}
        assert len({(request_id.session, request_id.sequence % LANES) for request_id in fresh}) == count
        assert not fresh & seen
        seen |= fresh
        for context in held:
            context.__exit__(None, None, None)


def test_there_are_only_so_many_request_ids() -> None:
    request_ids = RequestIds()
    held = [request_ids.take() for _ in range(LANES * SESSIONS_MAX)]
    assert None not in [context.__enter__() for context in held]
    with request_ids.take() as further:
        assert further is None
    held[0].__exit__(None, None, None)
    with request_ids.take() as further:
        assert further is not None


def test_a_child_of_a_fork_has_sessions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    request_ids = RequestIds()
    before = request_ids.take()
    parent = before.__enter__()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with request_ids.take() as child:
        assert child is not None
        assert parent is not None
        assert child.session != parent.session
    # What ends in the child of the parent's write gives no lane back.
    before.__exit__(None, None, None)
    free = [request_ids._take() for _ in range(LANES)]
    assert parent.session not in {request_id.session for request_id in free if request_id is not None}


class NoNetwork:
    """Runs verbs that ask for pauses only."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def run(self, verb: Verb[Any]) -> Any:
        result: Any = None
        while True:
            try:
                step = verb.send(result)
            except StopIteration as stop:
                return stop.value
            result = step(self)  # type: ignore[arg-type]


def failing(leaves: list[Leaves | str]) -> tuple[Callable[..., Verb[str]], list[int]]:
    """An attempt that fails so, one after the other; text is a success. And how often it was made."""
    left = deque(leaves)
    made: list[int] = []

    def attempt(_: object = None) -> Verb[str]:
        made.append(1)
        now = left.popleft() if len(left) > 1 else left[0]
        if isinstance(now, str):
            return now
        yield from ()
        raise Failed(shoal.BusyError("busy"), now)

    return attempt, made


@pytest.mark.parametrize(
    ("leaves", "reads", "plain", "once"),
    [(Leaves.REFUSED, 1, 1, 1), (Leaves.NOT_APPLIED, 3, 3, 3), (Leaves.OPEN, 3, 1, 3)],
)
def test_the_outcome_decides_whether_a_call_is_sent_again(leaves: Leaves, reads: int, plain: int, once: int) -> None:
    limit = Limit(None, 1.0)
    expected = shoal.UnknownOutcomeError if leaves is Leaves.OPEN else shoal.BusyError
    attempt, made = failing([leaves])
    with pytest.raises(shoal.BusyError):
        NoNetwork().run(_retry.read(Core("", 3, 1.0, None), limit, attempt))
    assert len(made) == reads
    for request_ids, count in ((None, plain), (RequestIds(), once)):
        attempt, made = failing([leaves])
        network = NoNetwork()
        with pytest.raises(expected):
            network.run(_retry.write(Core("", 3, 1.0, request_ids), limit, attempt))
        assert (len(made), len(network.pauses)) == (count, count - 1)


def test_after_an_open_attempt_only_the_writes_own_answer_is_certain() -> None:
    core, limit = Core("", 3, 1.0, RequestIds()), Limit(None, 1.0)
    attempt, _ = failing([Leaves.OPEN, "done"])
    assert NoNetwork().run(_retry.write(core, limit, attempt)) == "done"
    attempt, _ = failing([Leaves.OPEN, Leaves.REFUSED])
    with pytest.raises(shoal.UnknownOutcomeError):
        NoNetwork().run(_retry.write(core, limit, attempt))

    count = 0

    def condition(_: object) -> Verb[str]:
        nonlocal count
        count += 1
        if count == 1:
            raise Failed(shoal.UnavailableError("lost"), Leaves.OPEN)
        yield from ()
        raise Failed(shoal.ConditionFailedError(None, 3), Leaves.REFUSED)

    with pytest.raises(shoal.ConditionFailedError):
        NoNetwork().run(_retry.write(core, limit, condition))


def test_pauses_grow_and_are_bounded() -> None:
    for attempt in range(1, 100):
        assert 0.005 <= _retry.pause_after(attempt) <= 1.5
    assert _retry.pause_after(1) <= 0.015


def test_batches_keep_to_both_limits() -> None:
    pending = deque(range(2500))
    assert [len(_multi.next_batch(pending, [1] * 2500)) for _ in range(3)] == [1000, 1000, 500]
    full = _wire.BATCH_BYTES_MAX
    chunk = _wire.CHUNK_BYTES_MAX
    weights = [chunk + 1, 10, chunk, chunk, chunk, chunk - 10, 1, full + 1]
    pending = deque(range(8))
    batches = [_multi.next_batch(pending, weights) for _ in range(4)]
    assert batches == [[0], [1, 2, 3, 4, 5], [6], [7]]
    assert not pending


def test_ranges() -> None:
    assert _wire.within(0, None, 10) == (0, 10)
    assert _wire.within(4, 3, 10) == (4, 3)
    assert _wire.within(4, 30, 10) == (4, 6)
    assert _wire.within(40, 30, 10) == (10, 0)


def test_every_kind_of_failure_has_an_error() -> None:
    for name, number in pb.Failure.Kind.items():
        if name == "KIND_UNSPECIFIED":
            continue
        failed = _wire.described(pb.Failure(kind=name), "why")
        assert isinstance(failed.error, shoal.ShoalError), name
        open_ones = [pb.Failure.UNKNOWN_OUTCOME]
        assert (failed.leaves is Leaves.OPEN) == (number in open_ones), name
    later = _wire.described(pb.Failure(kind=99), "")  # type: ignore[arg-type]
    assert later.leaves is Leaves.OPEN
    rules = {_wire._RULES.get(number) for name, number in pb.Failure.Rule.items() if name != "RULE_UNSPECIFIED"}
    assert rules == set(shoal.Rule)


def test_errors_survive_pickle() -> None:
    error = pickle.loads(pickle.dumps(shoal.ConditionFailedError(shoal.Rule.IF_MISSING, 7)))
    assert (error.rule, error.current_version) == (shoal.Rule.IF_MISSING, 7)
    changed = pickle.loads(pickle.dumps(shoal.ChangedError("m", 7)))
    assert (str(changed), changed.current_version) == ("m", 7)
    assert str(pickle.loads(pickle.dumps(shoal.FullError("full")))) == "full"


def test_methods_are_those_of_the_schema() -> None:
    service = pb.DESCRIPTOR.services_by_name["ObjectStore"]
    assert service.full_name == _steps.SERVICE
    methods = [value for value in vars(_steps).values() if isinstance(value, Method)]
    assert len(methods) == 11
    for method in methods:
        described = service.methods_by_name[method.name]
        assert described.input_type is method.request.DESCRIPTOR
        assert described.output_type is method.response.DESCRIPTOR


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (shoal.Client, shoal.AsyncClient),
        (shoal.PutStream, shoal.AsyncPutStream),
        (shoal.GetStream, shoal.AsyncGetStream),
    ],
)
def test_both_clients_offer_the_same(kind: type, other: type) -> None:
    def public(of: type) -> dict[str, list[str]]:
        members = inspect.getmembers(of, lambda member: inspect.isfunction(member) or isinstance(member, property))
        return {
            name: [] if isinstance(member, property) else _arguments(member)
            for name, member in members
            if not name.startswith("_") or name == "__init__"
        }

    def _arguments(function: Callable[..., object]) -> list[str]:
        parameters = inspect.signature(function).parameters.values()
        return [f"{parameter.name}={parameter.default}:{parameter.kind}" for parameter in parameters]

    assert public(kind) == public(other)
    assert public(kind)

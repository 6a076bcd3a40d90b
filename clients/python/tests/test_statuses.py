"""Against a server in this process that answers as it is told: failures, TLS, tokens, silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import status_pb2

import shoal
from shoal import _wire
from shoal.v1 import object_store_pb2 as pb
from shoal.v1 import object_store_pb2_grpc as rpc

from .conftest import Connect
from .harness import free_port

Answer = Callable[[Any, grpc.ServicerContext], Any]


class Told(rpc.ObjectStoreServicer):
    """Each call takes the next of `answers`; the last one stays. Keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []

    def Put(self, request: pb.PutRequest, context: grpc.ServicerContext) -> Any:
        return self._next(request, context)

    def Get(self, request: pb.GetRequest, context: grpc.ServicerContext) -> Any:
        return self._next(request, context)

    def MultiPut(self, request: pb.MultiPutRequest, context: grpc.ServicerContext) -> Any:
        return self._next(request, context)

    def MultiGet(self, request: pb.MultiGetRequest, context: grpc.ServicerContext) -> Any:
        return self._next(request, context)

    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> Any:
        return self._next(request, context)

    def PutStream(self, requests: Iterator[pb.PutStreamRequest], context: grpc.ServicerContext) -> Any:
        return self._next(requests, context)

    def GetStream(self, request: pb.GetStreamRequest, context: grpc.ServicerContext) -> Any:
        yield from self._next(request, context)

    def _next(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request, context)


@pytest.fixture
def told() -> Iterator[tuple[Told, str]]:
    """The server and its address."""
    yield from serving(None)


def serving(credentials: grpc.ServerCredentials | None) -> Iterator[tuple[Told, str]]:
    servicer = Told()
    server = grpc.server(ThreadPoolExecutor(8))
    rpc.add_ObjectStoreServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(None).wait()


def fail(code: grpc.StatusCode, message: str = "m", **failure: Any) -> Answer:
    """A failure of the store where `failure` is given, else of the transport."""

    def answer(_: Any, context: grpc.ServicerContext) -> Any:
        if failure:
            detail = AnyMessage(type_url=_wire.FAILURE_URL, value=pb.Failure(**failure).SerializeToString())
            other = AnyMessage(type_url="type.googleapis.com/google.rpc.Help", value=b"\xff\xff")
            status = status_pb2.Status(code=code.value[0], message=message, details=[other, detail])
            context.set_trailing_metadata(((_wire.DETAILS_KEY, status.SerializeToString()),))
        context.abort(code, message)

    return answer


def fixed(answer: Any) -> Answer:
    return lambda _, __: answer


def done(version: int) -> Answer:
    """A put's answer; takes a stream to its end before."""

    def answer(request: Any, _: grpc.ServicerContext) -> pb.PutResponse:
        if not isinstance(request, pb.PutRequest):
            assert [*request][-1].HasField("end")
        return pb.PutResponse(version=version)

    return answer


BUSY = fail(grpc.StatusCode.UNAVAILABLE, kind=pb.Failure.BUSY)
LOST = fail(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def test_a_busy_store_is_asked_again_with_the_same_request_id(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    servicer.answers = [BUSY, LOST, BUSY, done(7)]
    assert connect(address).put("k", b"v") == 7
    assert len(servicer.requests) == 4
    request_ids = {(each["shoal-session"], each["shoal-sequence"]) for each in servicer.metadata}
    assert len(request_ids) == 1
    servicer.answers = [done(8)]
    client = connect(address)
    client.put("k", b"v")
    client.put("k", b"v")
    first, second = servicer.metadata[-2:]
    assert first["shoal-session"] == second["shoal-session"]
    assert int(second["shoal-sequence"]) == int(first["shoal-sequence"]) + 64


def test_without_request_ids_only_writes_not_applied_are_sent_again(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    client = connect(address, once=False)
    servicer.answers = [BUSY, BUSY, done(7)]
    assert client.put("k", b"v") == 7
    servicer.answers = [LOST, done(8)]
    with pytest.raises(shoal.UnknownOutcomeError, match="Socket closed"):
        client.put("k", b"v")
    assert len(servicer.requests) == 4
    assert not any("shoal-session" in each for each in servicer.metadata)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (fail(grpc.StatusCode.RESOURCE_EXHAUSTED, kind=pb.Failure.FULL), shoal.FullError),
        (fail(grpc.StatusCode.RESOURCE_EXHAUSTED, kind=pb.Failure.OVERLOADED), shoal.BusyError),
        (fail(grpc.StatusCode.DATA_LOSS, kind=pb.Failure.CORRUPT), shoal.CorruptError),
        (fail(grpc.StatusCode.INTERNAL, kind=pb.Failure.DEVICE), shoal.DeviceError),
        (fail(grpc.StatusCode.INTERNAL, kind=pb.Failure.READ_ONLY), shoal.ReadOnlyError),
        (fail(grpc.StatusCode.PERMISSION_DENIED, kind=pb.Failure.DENIED), shoal.DeniedError),
        (fail(grpc.StatusCode.UNKNOWN, kind=pb.Failure.UNKNOWN_OUTCOME), shoal.UnknownOutcomeError),
        (fail(grpc.StatusCode.UNAUTHENTICATED, "no token"), shoal.DeniedError),
        (fail(grpc.StatusCode.UNIMPLEMENTED), shoal.ProtocolError),
        (fail(grpc.StatusCode.OUT_OF_RANGE), shoal.InvalidError),
        (fail(grpc.StatusCode.INTERNAL), shoal.UnknownOutcomeError),
        (fail(grpc.StatusCode.CANCELLED), shoal.UnknownOutcomeError),
    ],
)
def test_each_status_stands_for_an_error(
    connect: Connect, told: tuple[Told, str], answer: Answer, error: type[shoal.ShoalError]
) -> None:
    servicer, address = told
    servicer.answers = [answer]
    with pytest.raises(error) as caught:
        connect(address, attempts=2).put("k", b"v")
    assert type(caught.value) is error
    assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_a_failed_condition_says_which_and_what_is_there(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    condition: dict[str, Any] = {
        "kind": pb.Failure.CONDITION_FAILED,
        "current_version": 5,
        "rule": pb.Failure.IF_EXISTS,
    }
    servicer.answers = [fail(grpc.StatusCode.FAILED_PRECONDITION, **condition)]
    with pytest.raises(shoal.ConditionFailedError, match="version 5") as caught:
        connect(address).put("k", b"v", if_missing=True)
    assert (caught.value.rule, caught.value.current_version) == (shoal.Rule.IF_MISSING, 5)
    assert servicer.requests[0].rules == pb.RejectRules(if_exists=True)


def test_garbled_details_leave_the_code(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told

    def garbled(_: Any, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata(((_wire.DETAILS_KEY, b"\xff\xff\xff"),))
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    servicer.answers = [garbled]
    with pytest.raises(shoal.DeniedError):
        connect(address).get("k")


def test_an_answer_that_is_not_understood(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    client = connect(address, attempts=2)
    one = pb.ObjectInfo(version=1, bytes=1)
    for answer in (pb.GetResponse(value=b"x"), pb.GetResponse(info=one), pb.GetResponse(info=one, value=b"xy")):
        servicer.answers = [fixed(answer)]
        with pytest.raises(shoal.ProtocolError):
            client.get("k")
    streams: list[list[pb.GetStreamResponse]] = [[], [pb.GetStreamResponse(info=one)]]
    streams.append([pb.GetStreamResponse(info=one, chunk=b"xy")])
    for messages in streams:
        servicer.answers = [fixed(messages)]
        with pytest.raises(shoal.ProtocolError):
            client.get_stream("k").read()
    servicer.answers = [lambda _, __: pb.ListResponse(next_start_after=b"")]
    with pytest.raises(shoal.ProtocolError):
        list(client.list())
    servicer.answers = [lambda _, __: pb.MultiPutResponse()]
    for outcome in client.multi_put([shoal.PutItem("k", b"")]):
        assert isinstance(outcome.error, shoal.UnknownOutcomeError)


def test_items_that_failed_go_again_by_themselves(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    busy = pb.KeyStatus(code=14, message="busy", failure=pb.Failure(kind=pb.Failure.BUSY))
    full = pb.KeyStatus(code=8, message="full", failure=pb.Failure(kind=pb.Failure.FULL))
    lost = pb.KeyStatus(code=2, message="lost", failure=pb.Failure(kind=pb.Failure.UNKNOWN_OUTCOME))
    good = pb.MultiPutResult(version=3)
    servicer.answers = [
        lambda _, __: pb.MultiPutResponse(
            results=[good, *(pb.MultiPutResult(status=status) for status in (busy, full, lost))]
        ),
        BUSY,
        lambda _, __: pb.MultiPutResponse(results=[good]),
    ]
    outcomes = connect(address).multi_put([shoal.PutItem(str(number), b"") for number in range(4)])
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [type(None), type(None), shoal.FullError, shoal.UnknownOutcomeError]
    assert [[item.key for item in request.items] for request in servicer.requests[1:]] == [[b"1"], [b"1"]]


def test_a_listing_goes_on_over_failures(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    info = pb.ObjectInfo(version=1)
    servicer.answers = [
        lambda _, __: pb.ListResponse(entries=[pb.ListEntry(key=b"a", info=info)], next_start_after=b"a"),
        LOST,
        lambda _, __: pb.ListResponse(next_start_after=b"b"),
        lambda _, __: pb.ListResponse(entries=[pb.ListEntry(key=b"c", info=info)]),
    ]
    assert [entry.key for entry in connect(address).list()] == [b"a", b"c"]
    assert [request.start_after for request in servicer.requests] == [b"", b"a", b"a", b"b"]


def test_a_download_that_breaks_goes_on_with_the_same_version(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    info = pb.ObjectInfo(version=9, bytes=6)

    def breaks(_: Any, context: grpc.ServicerContext) -> Iterator[pb.GetStreamResponse]:
        yield pb.GetStreamResponse(info=info, chunk=b"ab")
        yield pb.GetStreamResponse(chunk=b"cd")
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    servicer.answers = [breaks, LOST, lambda _, __: iter([pb.GetStreamResponse(info=info, chunk=b"ef")])]
    assert connect(address).get_stream("k").read() == b"abcdef"
    last = servicer.requests[-1]
    assert (last.version, last.range.first, last.range.bytes) == (9, 4, 2)


def test_a_get_whose_object_changes_in_between_starts_again(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    size = _wire.CHUNK_BYTES_MAX + 1
    old, new = pb.ObjectInfo(version=1, bytes=size), pb.ObjectInfo(version=2, bytes=2)
    changed = fail(grpc.StatusCode.ABORTED, kind=pb.Failure.CHANGED, current_version=2)
    servicer.answers = [
        lambda _, __: pb.GetResponse(info=old, value=bytes(size - 1)),
        changed,
        lambda _, __: pb.GetResponse(info=new, value=b"ab"),
    ]
    found = connect(address).get("k")
    assert found is not None
    assert (found.version, found.value) == (2, b"ab")
    servicer.answers = [lambda request, context: _always_changing(request, context, old, changed)]
    with pytest.raises(shoal.ChangedError) as caught:
        connect(address).get("k")
    assert caught.value.current_version == 2


def _always_changing(request: Any, context: grpc.ServicerContext, old: pb.ObjectInfo, changed: Answer) -> Any:
    if isinstance(request, pb.GetRequest):
        return pb.GetResponse(info=old, value=bytes(old.bytes - 1))
    return changed(request, context)


def test_an_answer_before_the_end_of_a_put_stream(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    servicer.answers = [fail(grpc.StatusCode.RESOURCE_EXHAUSTED, kind=pb.Failure.FULL)]
    with pytest.raises(shoal.FullError):
        connect(address).put("k", bytes(32 << 20))
    # A busy store is asked again, from the start of the value.
    received: list[int] = []

    def takes(requests: Iterator[pb.PutStreamRequest], _: grpc.ServicerContext) -> pb.PutResponse:
        messages = list(requests)
        assert messages[0].HasField("header")
        assert messages[-1].end.bytes == sum(len(message.chunk) for message in messages)
        received.append(messages[-1].end.bytes)
        return pb.PutResponse(version=4)

    servicer.answers = [fixed(pb.PutResponse(version=1))]
    with pytest.raises(shoal.ProtocolError, match="before"):
        connect(address).put("k", bytes(32 << 20))
    servicer.answers = [BUSY, takes]
    assert connect(address).put("k", bytes(3 << 20)) == 4
    assert received == [3 << 20]


def test_a_stream_that_falls_silent_is_given_up(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    release = threading.Event()

    def stalls(_: Any, __: grpc.ServicerContext) -> Iterator[pb.GetStreamResponse]:
        yield pb.GetStreamResponse(info=pb.ObjectInfo(version=1, bytes=4), chunk=b"ab")
        release.wait(20)

    servicer.answers = [stalls]
    stream = connect(address, answer_timeout=0.2, attempts=1).get_stream("k")
    pieces = iter(stream)
    assert next(pieces) == b"ab"
    with pytest.raises(shoal.TimedOutError):
        next(pieces)
    release.set()


def test_how_grpc_says_that_nothing_was_sent(connect: Connect) -> None:
    """Where this fails grpc has changed its words: `_wire.NEVER_SENT`."""
    for address in (f"127.0.0.1:{free_port()}", "nobody.invalid:1"):
        client = connect(address, attempts=1, once=False, connect_timeout=2)
        with pytest.raises(shoal.UnavailableError):
            client.put("k", b"v")


def test_a_token_is_with_every_call(connect: Connect, told: tuple[Told, str]) -> None:
    servicer, address = told
    tokens = iter(["one", "two", "three", "four"])
    servicer.answers = [BUSY, done(1)]
    client = connect(address, token=lambda: next(tokens))
    client.put("k", b"v")
    servicer.answers = [lambda _, __: iter([pb.GetStreamResponse(info=pb.ObjectInfo(version=1))])]
    client.get_stream("k").read()
    servicer.answers = [done(2)]
    client.put("k", bytes(2 << 20))
    seen = [each.get("authorization") for each in servicer.metadata]
    assert seen == ["Bearer one", "Bearer two", "Bearer three", "Bearer four"]


def test_tls(connect: Connect) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("shoal.test", "127.0.0.1")
    pair = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
    trusted = authority.cert_pem.bytes()
    mine = authority.issue_cert("me")
    me: dict[str, Any] = {"cert": mine.cert_chain_pems[0].bytes(), "key": mine.private_key_pem.bytes()}
    for mutual in (False, True):
        credentials = grpc.ssl_server_credentials([pair], trusted if mutual else None, mutual)
        for servicer, address in serving(credentials):
            servicer.answers = [done(1)]
            port = address.rsplit(":", 1)[1]
            known = shoal.Tls(ca=trusted, **(me if mutual else {}))
            named = shoal.Tls(ca=trusted, server_name="shoal.test", **(me if mutual else {}))
            assert connect(address, tls=known, token="t").put("k", b"v") == 1
            assert connect(f"https://localhost:{port}", tls=named).put("k", b"v") == 1
            wrong: list[shoal.Tls | None] = [None, shoal.Tls(ca=stranger.cert_pem.bytes())]
            wrong += [shoal.Tls(ca=trusted, server_name="other.test")]
            wrong += [shoal.Tls(ca=trusted)] if mutual else []
            for tls in wrong:
                client = connect(address, tls=tls, attempts=1, connect_timeout=2, answer_timeout=5)
                with pytest.raises((shoal.UnavailableError, shoal.UnknownOutcomeError)):
                    client.put("k", b"v")
            assert len(servicer.requests) == 2


def test_a_client_that_is_closed_under_a_call(told: tuple[Told, str]) -> None:
    servicer, address = told
    asked, release = threading.Event(), threading.Event()

    def stalls(_: Any, __: grpc.ServicerContext) -> pb.GetResponse:
        asked.set()
        release.wait(20)
        return pb.GetResponse(info=pb.ObjectInfo(version=1))

    servicer.answers = [stalls]
    client = shoal.Client(address)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "k")
        assert asked.wait(10)
        client.close()
        with pytest.raises(shoal.InvalidError, match="closed"):
            waiting.result()

    async def run() -> None:
        other = shoal.AsyncClient(address)
        asked.clear()
        waiting = asyncio.create_task(other.get("k"))
        assert await asyncio.to_thread(asked.wait, 10)
        await other.close()
        with pytest.raises(shoal.InvalidError, match="closed"):
            await waiting

    asyncio.run(run())
    release.set()

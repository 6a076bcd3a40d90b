"""Lost answers, cut lines and servers that are killed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import shoal

from .conftest import Connect
from .harness import Line, Server

MIB = 1 << 20


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Does something in another thread; its failure is the test's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    if failures:
        raise failures[0]


def applied_then_killed(server: Server, line: Line, seen: Callable[[], bool]) -> Callable[[], None]:
    """Waits until the server has done the write whose answer is lost, kills it with SIGKILL and starts it again."""

    def work() -> None:
        end = time.monotonic() + 10
        while not (seen() and line.lost):
            assert time.monotonic() < end, "the write never reached the server"
            time.sleep(0.005)
        server.kill()
        line.cut()
        line.deaf.clear()
        server.start()

    return work


def exists(server: Server, key: str) -> Callable[[], bool]:
    """Whether an object is there, by a line of its own."""

    def look() -> bool:
        with shoal.Client(server.address) as other:
            return other.head(key) is not None

    return look


def test_a_write_whose_answer_is_lost_is_done_once(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address, attempts=10)
    client.put("other", b"")
    line.deaf.set()
    with meanwhile(applied_then_killed(server, line, exists(server, "k"))):
        # Without its request id the second attempt would find the first one's object and fail.
        version = client.put("k", b"once", if_missing=True)
    found = client.get("k")
    assert found is not None
    assert (found.value, found.version) == (b"once", version)
    with pytest.raises(shoal.ConditionFailedError) as caught:
        client.put("k", b"twice", if_missing=True)
    assert caught.value.current_version == version


def test_one_write_batch_whose_answer_is_lost_is_done_once(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address, attempts=10)
    client.put("other", b"")
    line.deaf.set()
    items = [shoal.PutItem("a", b"1", if_missing=True), shoal.PutItem("b", b"1", if_missing=True)]
    with meanwhile(applied_then_killed(server, line, exists(server, "b"))):
        versions = client.put_together(items)
    assert [getattr(client.head(key), "version", None) for key in ("a", "b")] == versions


def test_a_delete_whose_answer_is_lost_is_done_once(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address, attempts=10)
    version = client.put("k", b"")
    line.deaf.set()
    there = exists(server, "k")
    with meanwhile(applied_then_killed(server, line, lambda: not there())):
        deleted = client.delete("k", if_version_at=version)
    assert deleted.deleted == version


def test_without_a_request_id_the_outcome_is_unknown(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address, attempts=10, once=False)
    client.put("other", b"")
    line.deaf.set()
    with meanwhile(applied_then_killed(server, line, exists(server, "k"))), pytest.raises(shoal.UnknownOutcomeError):
        client.put("k", b"once", if_missing=True)
    assert client.head("k") is not None


def test_calls_wait_for_a_server_that_comes_back(server: Server, connect: Connect) -> None:
    # Without a request id, too: nothing was sent where nobody listens.
    for once in (True, False):
        client = connect(server.address, attempts=12, once=once)
        client.put("k", b"before")
        server.kill()

        def later() -> None:
            time.sleep(0.7)
            server.start()

        with meanwhile(later):
            if once:
                client.put("k", b"after")
            else:
                # The first call may meet the connection just as it breaks.
                try:
                    client.put("k", b"after")
                except shoal.UnknownOutcomeError:
                    client.put("k", b"after")
        found = client.get("k")
        assert found is not None
        assert found.value == b"after"


def test_no_server(connect: Connect, server: Server) -> None:
    server.stop()
    client = connect(server.address, attempts=3)
    for call in (
        lambda: client.get("k"),
        lambda: client.put("k", b""),
        lambda: client.put("k", bytes(2 * MIB)),
        lambda: client.get_stream("k"),
        lambda: client.stat(),
        lambda: client.multi_get(["k"])[0].result(),
        lambda: client.multi_put([shoal.PutItem("k", b"")])[0].result(),
    ):
        with pytest.raises(shoal.UnavailableError, match=server.address):
            call()
    start = time.monotonic()
    with pytest.raises(shoal.UnavailableError):
        connect(server.address, attempts=1000).get("k", timeout=0.5)
    assert time.monotonic() - start < 5
    with pytest.raises(shoal.TimedOutError):
        client.wait_ready(0.3)


def test_a_stream_goes_on_over_a_cut_line(server: Server, line: Line, connect: Connect) -> None:
    value = os.urandom(24 * MIB)
    with shoal.Client(server.address) as direct:
        direct.put("k", value)
    client = connect(line.address, attempts=10)
    pieces = []
    with client.get_stream("k") as stream:
        for number, piece in enumerate(stream):
            pieces.append(piece)
            if number % 7 == 3:
                line.cut()
    assert b"".join(pieces) == value


def test_a_stream_whose_object_changes_under_a_cut_line(server: Server, line: Line, connect: Connect) -> None:
    with shoal.Client(server.address) as direct:
        for change in (lambda: direct.put("k", os.urandom(24 * MIB)), lambda: direct.delete("k")):
            direct.put("k", os.urandom(24 * MIB))
            client = connect(line.address, attempts=10)
            with client.get_stream("k") as stream, pytest.raises(shoal.ChangedError):
                for _ in stream:
                    # First the cut: during a slow change gRPC would read the whole stream ahead.
                    line.cut()
                    change()


def test_a_put_stream_over_a_cut_line_stores_nothing(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address)
    stream = client.put_stream("k")
    stream.write(os.urandom(3 * MIB))
    line.cut()
    with pytest.raises(shoal.UnavailableError):
        for _ in range(100):
            stream.write(os.urandom(MIB))
    assert client.get("k") is None
    # The same from memory is sent again from its start, since nothing was stored.
    value = os.urandom(48 * MIB)

    def soon() -> None:
        time.sleep(0.02)
        line.cut()

    with meanwhile(soon):
        try:
            client.put("k", value)
        except shoal.UnknownOutcomeError:
            # Cut behind the last message.
            assert True
    client.put("k", value)
    assert client.get_stream("k").read() == value


def test_a_server_that_says_nothing(server: Server, line: Line, connect: Connect) -> None:
    client = connect(line.address, answer_timeout=0.3, attempts=2)
    client.put("k", bytes(8 * MIB))
    stream = client.get_stream("k")
    writing = client.put_stream("other")
    writing.write(bytes(MIB))
    line.deaf.set()
    with pytest.raises(shoal.TimedOutError):
        client.get("k")
    with pytest.raises(shoal.UnknownOutcomeError):
        client.put("k", b"")
    with pytest.raises(shoal.UnknownOutcomeError):
        writing.finish()
    with pytest.raises(shoal.UnavailableError):
        for _ in stream:
            continue
    start = time.monotonic()
    with pytest.raises(shoal.TimedOutError):
        connect(line.address, attempts=1000).get("k", timeout=0.4)
    assert time.monotonic() - start < 5


def test_a_counter_over_three_kills(server: Server) -> None:
    """Four threads count while the server is killed: no acknowledged count is lost, none is done twice."""
    stop = threading.Event()
    counted = [0] * 4
    unknown = [0] * 4

    def count(number: int) -> None:
        with shoal.Client(server.address, attempts=20) as client:
            while not stop.is_set():
                try:
                    client.update("n", lambda old: str(int(old or 0) + 1).encode())
                    counted[number] += 1
                except shoal.UnknownOutcomeError:
                    unknown[number] += 1

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.4)
        server.kill()
        time.sleep(0.05)
        server.start()
    time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    with shoal.Client(server.address) as client:
        found = client.get("n")
    assert found is not None
    assert min(counted) > 0
    assert unknown == [0] * 4, "with a request id and enough attempts every outcome is known"
    assert int(found.value) == sum(counted)


def test_a_cancelled_put_is_wholly_there_or_wholly_absent(server: Server) -> None:
    async def run() -> None:
        async with shoal.AsyncClient(server.address) as client:
            await client.wait_ready()
            for number in range(40):
                value = bytes([number]) * (5 * MIB if number % 4 == 0 else 50_000)
                task = asyncio.create_task(client.put(f"k{number}", value))
                await asyncio.sleep(number * 0.0002)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                    # It was faster.
                    raise asyncio.CancelledError
            for number in range(40):
                found = await client.get(f"k{number}")
                assert found is None or set(found.value) == {number}
            # The lanes of the cancelled writes are free again, and take the next writes.
            await asyncio.gather(*(client.put(f"k{number}", b"next") for number in range(200)))
            for number in range(40):
                found = await client.get(f"k{number}")
                assert found is not None
                assert found.value == b"next"

    asyncio.run(run())


def test_many_tasks_race_for_one_key(server: Server) -> None:
    async def run() -> None:
        async with shoal.AsyncClient(server.address) as client:

            async def add(old: bytes | None) -> bytes:
                await asyncio.sleep(0)
                return str(int(old or 0) + 1).encode()

            await asyncio.gather(*(client.update("n", add) for _ in range(60)))
            found = await client.get("n")
            assert found is not None
            assert found.value == b"60"
            made = await asyncio.gather(*(client.create_or_get("once", bytes([i])) for i in range(100)))
            winners = [outcome for outcome in made if outcome.created]
            assert len(winners) == 1
            assert {(outcome.version, outcome.value) for outcome in made} == {(winners[0].version, winners[0].value)}

    asyncio.run(run())

"""Every call against a real server."""

from __future__ import annotations

import hashlib
import io
import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import shoal
from shoal.options import Options

from .conftest import Connect
from .harness import Server

MIB = 1 << 20


def test_an_object_goes_in_and_out(client: shoal.Client) -> None:
    before = time.time_ns()
    version = client.put("k", b"hello", content_type="text/plain", user_metadata={"b": b"\x00\xff", "a": b""})
    found = client.get("k")
    assert found is not None
    assert (found.value, found.version) == (b"hello", version)
    info = client.head("k")
    assert info == found.info
    assert (info.size, info.content_type) == (5, "text/plain")
    assert info.user_metadata == (("b", b"\x00\xff"), ("a", b""))
    assert before - 10**9 <= info.modified_ns <= time.time_ns() + 10**9
    deleted = client.delete("k")
    assert deleted.version > version
    assert client.get("k") is None
    assert client.head("k") is None
    assert client.delete("k").version > deleted.version


@pytest.mark.parametrize("size", [0, 1, 4095, 65536, MIB, MIB + 1, 5 * MIB + 17])
def test_values_of_all_sizes(client: shoal.Client, size: int) -> None:
    value = random.Random(size).randbytes(size)
    version = client.put(b"\x00\xff", value, modified_ns=12345)
    found = client.get(b"\x00\xff")
    assert found is not None
    assert found.value == value
    assert (found.version, found.info.size, found.info.modified_ns) == (version, size, 12345)


def test_a_time_to_live_is_given_and_shown(client: shoal.Client) -> None:
    hour = 3_600_000_000_000

    def about(key: str) -> shoal.ObjectInfo:
        info = client.head(key)
        assert info is not None
        return info

    def lives_an_hour(info: shoal.ObjectInfo) -> bool:
        left, end = info.ttl_ns, info.expire_time_ns
        if left is None or end is None:
            return False
        return hour - 120 * 10**9 < left <= hour and abs(end - time.time_ns() - left) < 60 * 10**9

    at = time.time_ns() + hour
    client.put("seconds", b"v", ttl=3600)
    client.put("delta", b"v", ttl=timedelta(hours=1))
    client.put("wall", b"v", expire_time_ns=at)
    client.put("long", bytes(2 * MIB), ttl=3600.0)
    with client.put_stream("stream", ttl=3600) as stream:
        stream.write(b"v")
    client.put_from("from", io.BytesIO(b"v"), ttl=3600)
    assert client.create_or_get("created", b"v", ttl=3600).created
    assert client.compare_and_set("compared", b"v", None, ttl=3600)
    for outcome in client.multi_put([shoal.PutItem("multi", b"v", ttl=3600)]):
        outcome.result()
    client.put_together([shoal.PutItem("together", b"v", ttl=3600), shoal.PutItem("ever", b"v")])
    keys = ["seconds", "delta", "wall", "long", "stream", "from", "created", "compared", "multi", "together"]
    for key in keys:
        assert lives_an_hour(about(key)), (key, about(key))
        found = client.get(key)
        assert found is not None
        assert lives_an_hour(found.info)
    assert about("wall").expire_time_ns == at
    listed = {entry.key.decode(): entry.info for entry in client.list()}
    assert set(listed) == {*keys, "ever"}
    assert all(lives_an_hour(info) == (key != "ever") for key, info in listed.items())
    assert (listed["ever"].ttl_ns, listed["ever"].expire_time_ns) == (None, None)
    # A new value of an update lives as long; a put without an end has none.
    client.update("seconds", lambda old: (old or b"") + b"w")
    assert lives_an_hour(about("seconds"))
    client.put("seconds", b"v")
    assert about("seconds").ttl_ns is None


def test_an_object_is_gone_when_its_time_is_over(client: shoal.Client) -> None:
    client.put("k", b"v", ttl=0.05)
    deadline = time.monotonic() + 60
    while client.get("k") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.head("k") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": 1e12},
        {"ttl": 1, "expire_time_ns": 1},
        {"expire_time_ns": 0},
    ],
)
def test_a_wrong_time_to_live_is_refused(client: shoal.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(shoal.InvalidError):
        client.put("k", b"v", **wrong)
    assert client.head("k") is None


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, shared_server: Server, bucket: str
) -> None:
    # Nothing listens there.
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    client = connect(shared_server.address, bucket=bucket, attempts=1)
    client.put("k", b"v")
    far = dict(Options("shoal.example:7411").checked().channel())
    assert "grpc.enable_http_proxy" not in far


def test_kinds_of_values(client: shoal.Client) -> None:
    wide = memoryview(bytes(range(16))).cast("I")
    for value in (bytearray(b"abc"), memoryview(b"abc"), wide):
        client.put("k", value)
        found = client.get("k")
        assert found is not None
        assert found.value == bytes(value)
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            client.put("k", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        client.get(5)  # type: ignore[arg-type]


def test_ranges(client: shoal.Client) -> None:
    value = random.Random(1).randbytes(3 * MIB)
    client.put("k", value)
    for offset, length in [(0, None), (5, 10), (MIB - 1, 2), (7, 2 * MIB), (3 * MIB - 1, 99), (9 * MIB, None), (4, 0)]:
        found = client.get("k", offset=offset, length=length)
        assert found is not None
        end = None if length is None else offset + length
        assert found.value == value[offset:end]
        assert found.info.size == len(value)
        assert client.get_stream("k", offset=offset, length=length).read() == value[offset:end]
    with pytest.raises(shoal.InvalidError):
        client.get("k", offset=-1)


def test_conditions(client: shoal.Client) -> None:
    first = client.put("k", b"1", if_missing=True)
    with pytest.raises(shoal.ConditionFailedError) as caught:
        client.put("k", b"2", if_missing=True)
    assert (caught.value.rule, caught.value.current_version) == (shoal.Rule.IF_MISSING, first)
    second = client.put("k", b"2", if_version_at=first)
    with pytest.raises(shoal.ConditionFailedError) as caught:
        client.put("k", b"3", if_version_at=first)
    assert (caught.value.rule, caught.value.current_version) == (shoal.Rule.IF_VERSION_AT, second)
    with pytest.raises(shoal.ConditionFailedError) as caught:
        client.put("k", b"3", if_version_above=second)
    assert (caught.value.rule, caught.value.current_version) == (shoal.Rule.IF_VERSION_ABOVE, second)
    third = client.put("k", b"3", if_version_above=first)
    with pytest.raises(shoal.ConditionFailedError):
        client.delete("k", if_version_at=second)
    assert client.delete("k", if_version_at=third).deleted == third
    for attempt in (
        lambda: client.put("k", b"4", if_exists=True),
        lambda: client.put("k", b"4", if_version_at=third),
        lambda: client.delete("k", if_exists=True),
    ):
        with pytest.raises(shoal.ConditionFailedError) as caught:
            attempt()
        assert caught.value.current_version is None
    assert client.put("k", b"5", if_version_above=third) > third


def test_conditions_of_large_values(client: shoal.Client) -> None:
    value = os.urandom(2 * MIB)
    version = client.put("k", value, if_missing=True)
    with pytest.raises(shoal.ConditionFailedError) as caught:
        client.put("k", value, if_missing=True)
    assert caught.value.current_version == version


def test_reads_of_one_version(client: shoal.Client) -> None:
    old = client.put("k", b"old")
    assert client.get("k", version=old) is not None
    new = client.put("k", b"new")
    for read in (lambda: client.get("k", version=old), lambda: client.get_stream("k", version=old)):
        with pytest.raises(shoal.ChangedError) as caught:
            read()
        assert caught.value.current_version in (new, None)


def test_the_server_refuses_invalid_requests(client: shoal.Client) -> None:
    for key in ("", b"x" * 1025):
        with pytest.raises(shoal.InvalidError):
            client.put(key, b"")
    with pytest.raises(shoal.InvalidError):
        client.put("k", b"", bucket="No Such Name")
    with pytest.raises(shoal.InvalidError):
        client.put("k", b"", content_type="x" * 256)
    with pytest.raises(shoal.NotFoundError):
        client.get_stream("nothing")
    assert client.get("nothing") is None
    assert client.stat().server_version


def test_a_stream_of_64_mib(client: shoal.Client) -> None:
    piece = os.urandom(MIB + 13)
    sent = hashlib.sha256()
    with client.put_stream("large", content_type="x/y") as stream:
        total = 0
        while total < 64 * MIB:
            stream.write(piece)
            sent.update(piece)
            total += len(piece)
    received = hashlib.sha256()
    with client.get_stream("large") as reading:
        assert (reading.info.size, reading.info.version) == (total, stream.version)
        assert reading.info.content_type == "x/y"
        for part in reading:
            assert 0 < len(part) <= MIB
            received.update(part)
    assert received.digest() == sent.digest()
    client.delete("large")


def test_a_stream_of_small_pieces(client: shoal.Client) -> None:
    source = random.Random(3)
    pieces = [source.randbytes(source.choice([0, 1, 100, 70_000, 300_000])) for _ in range(60)]
    with client.put_stream("k") as stream:
        for piece in pieces:
            stream.write(piece)
    assert client.get_stream("k").read() == b"".join(pieces)
    with client.put_stream("empty"):
        pass
    assert client.get_stream("empty").read() == b""


def test_a_stream_that_is_given_up_stores_nothing(client: shoal.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.put_stream("k") as stream:
        stream.write(os.urandom(3 * MIB))
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="over"):
        stream.write(b"more")
    with pytest.raises(ValueError, match="not finished"):
        _ = stream.version
    assert client.get("k") is None
    finished = client.put_stream("k")
    finished.write(b"x")
    assert finished.finish() == finished.version
    with pytest.raises(ValueError, match="over"):
        finished.finish()


def test_a_stream_that_the_server_refuses(client: shoal.Client) -> None:
    piece = os.urandom(MIB)
    # Often: the refusal comes while a message is under way, or between two.
    for _ in range(30):
        with pytest.raises(shoal.InvalidError), client.put_stream("x" * 2000) as stream:
            for _ in range(200):
                stream.write(piece)


def test_a_reader_may_stop_early(client: shoal.Client) -> None:
    client.put("k", os.urandom(8 * MIB))
    with client.get_stream("k") as stream:
        assert next(iter(stream))
    assert client.get_stream("k", length=3).read()


def test_sources(client: shoal.Client) -> None:
    value = os.urandom(3 * MIB)
    client.put_from("file", io.BytesIO(value), if_missing=True)
    assert client.get_stream("file").read() == value
    client.put_from("pieces", [b"ab", b"", bytearray(b"c")])
    assert client.get_stream("pieces").read() == b"abc"

    def fails() -> Iterator[bytes]:
        yield os.urandom(2 * MIB)
        raise OSError("torn")

    with pytest.raises(shoal.SourceError, match="torn") as caught:
        client.put_from("bad", fails())
    assert isinstance(caught.value.__cause__, OSError)
    assert client.get("bad") is None


def test_several_objects(client: shoal.Client) -> None:
    items = [shoal.PutItem(f"k{i}", bytes([i % 256]) * i) for i in range(2100)]
    outcomes = client.multi_put(items)
    versions = [outcome.result() for outcome in outcomes]
    assert len(set(versions)) == 2100
    found = client.multi_get([item.key for item in items] + ["nothing", shoal.GetItem("k9", 3, 2)])
    for item, version, outcome in zip(items, versions, found, strict=False):
        got = outcome.result()
        assert got is not None
        assert (got.value, got.version) == (item.value, version)
    assert found[2100].ok
    assert found[2100].result() is None
    part = found[2101].result()
    assert part is not None
    assert part.value == b"\x09\x09"
    deleted = client.multi_delete(["k0", shoal.DeleteItem("k1", if_version_at=1), "nothing"])
    assert [outcome.ok for outcome in deleted] == [True, False, True]
    with pytest.raises(shoal.ConditionFailedError):
        deleted[1].result()


def test_several_values_that_do_not_fit_in_one_message(client: shoal.Client) -> None:
    sizes = [3 * MIB, 900_000, 900_000, 0, MIB, MIB + 1, 900_000, 900_000, 5]
    items = [shoal.PutItem(str(i), os.urandom(size)) for i, size in enumerate(sizes)]
    assert all(outcome.ok for outcome in client.multi_put(items))
    found = [outcome.result() for outcome in client.multi_get([item.key for item in items])]
    assert [None if got is None else got.value for got in found] == [item.value for item in items]


def test_each_of_several_has_its_outcome(client: shoal.Client) -> None:
    there = client.put("there", b"")
    outcomes = client.multi_put(
        [
            shoal.PutItem("there", b"x", if_missing=True),
            shoal.PutItem("", b"x"),
            shoal.PutItem("new", b"x", if_missing=True),
            shoal.PutItem("there", b"x" * (2 * MIB), if_version_at=there + 1),
        ]
    )
    kinds = [type(outcome.error) for outcome in outcomes]
    assert kinds == [shoal.ConditionFailedError, shoal.InvalidError, type(None), shoal.ConditionFailedError]
    assert client.multi_put([]) == []
    assert client.multi_get([]) == []


def test_several_puts_as_one_write_batch(client: shoal.Client) -> None:
    versions = client.put_together([shoal.PutItem("a", b"1"), shoal.PutItem("b", b"1")])
    assert [getattr(client.head(key), "version", None) for key in ("a", "b")] == versions
    with pytest.raises(shoal.ConditionFailedError):
        client.put_together([shoal.PutItem("a", b"2"), shoal.PutItem("b", b"2", if_version_at=versions[0])])
    assert [getattr(client.head(key), "version", None) for key in ("a", "b")] == versions
    with pytest.raises(shoal.InvalidError):
        client.put_together([shoal.PutItem(str(i), b"") for i in range(1001)])
    assert client.put_together([]) == []


def test_create_or_get(client: shoal.Client) -> None:
    made = client.create_or_get("k", b"mine")
    assert (made.created, made.value) == (True, b"mine")
    found = client.create_or_get("k", b"other")
    assert (found.created, found.value, found.version) == (False, b"mine", made.version)
    for size in (MIB, MIB + 1, 5 * MIB):
        value = os.urandom(size)
        made = client.create_or_get(str(size), value)
        assert (made.created, made.value) == (True, value)
        for other in (b"", bytes(MIB + 1)):
            found = client.create_or_get(str(size), other)
            assert (found.created, found.value, found.version) == (False, value, made.version)


def test_compare_and_set(client: shoal.Client) -> None:
    made = client.compare_and_set("k", b"1", None)
    assert made
    assert not client.compare_and_set("k", b"2", None)
    assert made.version is not None
    lost = client.compare_and_set("k", b"2", made.version + 1)
    assert (bool(lost), lost.version) == (False, made.version)
    assert client.compare_and_set("k", b"2", made.version)
    client.delete("k")
    assert client.compare_and_set("k", b"3", made.version).version is None


def test_update(client: shoal.Client) -> None:
    assert client.update("n", lambda old: b"1" if old is None else None) is not None
    assert client.update("n", lambda old: b"1" if old is None else None) is None
    client.put("n", b"1", content_type="x/y", user_metadata=[("a", b"1"), ("a", b"2")])
    client.update("n", lambda old: str(int(old or 0) + 1).encode())
    found = client.get("n")
    assert found is not None
    assert (found.value, found.info.content_type) == (b"2", "x/y")
    assert found.info.user_metadata == (("a", b"1"), ("a", b"2"))

    def meddle(old: bytes | None) -> bytes:
        client_put()
        return b"never"

    calls = 0

    def client_put() -> None:
        nonlocal calls
        calls += 1
        other.put("n", b"other")

    with shoal.Client(client.server, bucket=client._core.bucket) as other, pytest.raises(shoal.ChangedError):
        client.update("n", meddle, rounds=4)
    assert calls == 4


HOSTILE = [
    b"\x00",
    b"\x00\x00",
    b"\x00\xff",
    b"\n",
    b" ",
    b"%2F",
    b"../../etc/passwd",
    b"//",
    b"a",
    b"a/",
    b"a/\x00",
    b"a/b",
    b"a0",
    b"\xc3\x28",
    "é/ü".encode(),
    b"\xed\xa0\x80",
    b"\xff",
    b"\xff" * 1024,
]


def test_listing_hostile_keys(client: shoal.Client) -> None:
    for number, key in enumerate(HOSTILE):
        client.put(key, bytes(number))
    assert [entry.key for entry in client.list()] == sorted(HOSTILE)
    assert [entry.info.size for entry in client.list()] == [HOSTILE.index(key) for key in sorted(HOSTILE)]
    for prefix in (b"\x00", b"a", b"a/", b"\xff", b"\xff\xff", b"none"):
        expected = sorted(key for key in HOSTILE if key.startswith(prefix))
        assert [entry.key for entry in client.list(prefix)] == expected
    for after in [*HOSTILE, b"a/\x01", b"\xfe"]:
        expected = sorted(key for key in HOSTILE if key > after)
        assert [entry.key for entry in client.list(start_after=after)] == expected
    for key in HOSTILE:
        found = client.get(key)
        assert found is not None
        assert len(found.value) == HOSTILE.index(key)


def test_listing_by_pages(client: shoal.Client) -> None:
    keys = sorted(f"{i % 7}/{i:04}".encode() for i in range(500))
    assert all(outcome.ok for outcome in client.multi_put([shoal.PutItem(key, b"") for key in keys]))
    assert [entry.key for entry in client.list()] == keys
    pages = list(client.list_pages(page_size=37))
    assert all(len(page.entries) <= 37 for page in pages)
    assert [entry.key for page in pages for entry in page.entries] == keys
    rolled = [prefix for page in client.list_pages(delimiter="/", page_size=2) for prefix in page.common_prefixes]
    assert rolled == [f"{i}/".encode() for i in range(7)]
    page = client.list_page("3/", delimiter="/")
    assert not page.common_prefixes
    assert [entry.key for entry in page.entries] == [key for key in keys if key.startswith(b"3/")]
    with pytest.raises(shoal.InvalidError):
        client.list_page(page_size=5000)


def test_buckets(connect: Connect, shared_server: Server, bucket: str) -> None:
    client = connect(shared_server.address)
    client.put("k", b"here", bucket=bucket)
    assert client.get("k") is None
    assert client.get("k", bucket=bucket) is not None
    assert client.get("k", bucket="nobody-wrote-here") is None


def test_stat(client: shoal.Client) -> None:
    stat = client.stat()
    assert (stat.block_bytes, stat.read_only_reason) == (4096, "")
    assert stat.blocks >= stat.free_blocks > 0
    assert all(figure.unit for figure in stat.figures.values())


def test_threads_race_for_one_key(shared_server: Server, bucket: str) -> None:
    with shoal.Client(shared_server.address, bucket=bucket) as client:
        created: list[bool] = []

        def work() -> None:
            created.append(client.create_or_get("once", b"x").created)
            for _ in range(25):
                client.update("n", lambda old: str(int(old or 0) + 1).encode())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = client.get("n")
        assert found is not None
        assert found.value == b"200"
        assert sorted(created) == [False] * 7 + [True]


def test_a_closed_client_says_so(connect: Connect, shared_server: Server) -> None:
    client = connect(shared_server.address)
    client.put("k", b"")
    client.close()
    for call in (lambda: client.get("k"), lambda: client.get_stream("k"), lambda: client.put("k", bytes(2 * MIB))):
        with pytest.raises(shoal.InvalidError, match="closed"):
            call()

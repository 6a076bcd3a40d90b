"""Fixtures: servers and clients of both kinds."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import shoal

from .harness import ROOT, Awaited, Line, Server

#: Makes a client for an address; closes it in the end.
Connect = Callable[..., shoal.Client]

_numbers = itertools.count()


def _folder() -> Path:
    # Below the build's folder where there is one, because that is on a disk: /tmp may be memory.
    target = ROOT / "target"
    return Path(tempfile.mkdtemp(prefix="pytest.", dir=target if target.is_dir() else None))


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """One that all tests share; each uses a bucket of its own."""
    server = Server(_folder())
    yield server
    try:
        server.stop()
    finally:
        server.remove()


@pytest.fixture
def server() -> Iterator[Server]:
    """One that the test may kill."""
    server = Server(_folder())
    yield server
    server.remove()


@pytest.fixture
def line(server: Server) -> Iterator[Line]:
    """A line to it that the test may cut."""
    line = Line(server.address)
    yield line
    line.close()


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients, of either kind."""
    made: list[Any] = []
    loop = asyncio.new_event_loop() if request.param == "async" else None

    def make(address: str, **options: Any) -> shoal.Client:
        if loop is None:
            client: Any = shoal.Client(address, **options)
        else:
            client = Awaited(loop, shoal.AsyncClient(address, **options))
        made.append(client)
        return cast(shoal.Client, client)

    yield make
    for client in made:
        client.close()
    if loop is not None:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.fixture
def bucket() -> str:
    """One that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def client(connect: Connect, shared_server: Server, bucket: str) -> shoal.Client:
    """A client of the shared server."""
    return connect(shared_server.address, bucket=bucket)

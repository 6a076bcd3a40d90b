"""What the tests stand on: a real server, a line to it that can be cut, and the asynchronous client without `await`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def shoal_binary() -> Path | None:
    """By SHOAL_BIN, or what was built here last."""
    named = os.environ.get("SHOAL_BIN")
    if named:
        return Path(named)
    built = [path for path in (ROOT / "target" / kind / "shoal" for kind in ("release", "debug")) if path.exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def free_port() -> int:
    """One that nobody listens on; below those that the kernel gives to clients, for one that connects to a port of those
    while nobody listens there may be given that very port and talk to itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class Server:
    """A `shoal serve` on a data file of its own, that can be killed and started again."""

    def __init__(self, folder: Path, *options: str, address: str | None = None) -> None:
        binary = shoal_binary()
        if binary is None or not binary.exists():
            pytest.skip("no shoal binary: set SHOAL_BIN, or build it in target/")
        self.folder = folder
        self._binary = binary
        self._options = options
        self.address = address or f"127.0.0.1:{free_port()}"
        self._log = folder / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [str(self._binary), "serve", "--data", str(self.folder / "store"), "--size", "512M"]
        command += ["--cache", "32M", "--listen", self.address, "--resp", "off", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host, port = self.address.rsplit(":", 1)
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"the server does not start: {self._log.read_text()}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """As a crash: SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """In order; the exit code must say so."""
        if self._process is None:
            return
        self._process.terminate()
        assert self._process.wait(20) == 0, self._log.read_text()
        self._process = None

    def remove(self) -> None:
        """Kills it and removes its files."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def serve_knows(option: str) -> bool:
    """Whether `shoal serve` has an option."""
    binary = shoal_binary()
    if binary is None or not binary.exists():
        return False
    text = subprocess.run([str(binary), "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return re.search(rf"{option}\b", text) is not None


class Line:
    """A TCP line to a server that can lose the server's answers, and be cut."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: While set, what the server says goes nowhere.
        self.deaf = threading.Event()
        #: Bytes that went nowhere.
        self.lost = 0
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def cut(self) -> None:
        """Resets all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _hang_up(end)

    def close(self) -> None:
        """For good."""
        _hang_up(self._listener)
        self._acceptor.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            gone = threading.Barrier(2, action=functools.partial(_close_all, (client, server)))
            for source, sink, answers in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._copy, args=(source, sink, answers, gone), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool, gone: threading.Barrier) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if answers and self.deaf.is_set():
                    self.lost += len(piece)
                else:
                    sink.sendall(piece)
        _hang_up(source)
        _hang_up(sink)
        # Both directions have ended: nobody uses the sockets any more.
        gone.wait()


def _close_all(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        end.close()


def _hang_up(end: socket.socket) -> None:
    """Wakes whoever waits for it in another thread."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class Awaited:
    """The asynchronous client, one of its streams or listings, as if it were the synchronous one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **named: Any) -> Any:
            return self._done(value(*args, **named))

        return call

    def __enter__(self) -> Any:
        self._loop.run_until_complete(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run_until_complete(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def _done(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            result = self._loop.run_until_complete(result)
        streams = (shoal.AsyncPutStream, shoal.AsyncGetStream)
        return Awaited(self._loop, result) if isinstance(result, streams) or inspect.isasyncgen(result) else result

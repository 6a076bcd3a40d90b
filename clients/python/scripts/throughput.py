"""How many calls a second this client makes: `python scripts/throughput.py [HOST:PORT]`, about 40 seconds.

Each line is one way to use the client, in one process: calls (or objects) a second, the median time of one and the CPU time
of this process for one. The Python interpreter is what limits all of them, not the server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import shoal

SECONDS = 2.0
KEYS = 1000


def report(name: str, count: int, seconds: float, cpu: float, times: list[float]) -> None:
    """One line."""
    median = statistics.median(times) * 1e6
    print(f"{name:34} {count / seconds:9.0f} /s   p50 {median:8.0f} us   cpu {cpu / count * 1e6:6.0f} us", flush=True)


def threads(name: str, number: int, call: Callable[[int], object], objects: int = 1) -> None:
    """Calls from so many threads."""
    numbers, times = itertools.count(), []
    end = time.perf_counter() + SECONDS

    def work() -> None:
        while (start := time.perf_counter()) < end:
            call(next(numbers))
            times.append(time.perf_counter() - start)

    workers = [threading.Thread(target=work) for _ in range(number)]
    cpu, start = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    report(name, len(times) * objects, time.perf_counter() - start, time.process_time() - cpu, times)


async def tasks(name: str, number: int, call: Callable[[int], Awaitable[object]]) -> None:
    """Calls from so many tasks."""
    numbers, times = itertools.count(), []
    end = time.perf_counter() + SECONDS

    async def work() -> None:
        while (start := time.perf_counter()) < end:
            await call(next(numbers))
            times.append(time.perf_counter() - start)

    cpu, start = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(number)))
    report(name, len(times), time.perf_counter() - start, time.process_time() - cpu, times)


def key(number: int) -> str:
    """One of few keys."""
    return f"throughput/{number % KEYS}"


async def asynchronous(server: str, size: str, value: bytes) -> None:
    """The lines of the asynchronous client."""
    async with shoal.AsyncClient(server) as client:
        await tasks(f"put {size}, 100 tasks", 100, lambda number: client.put(key(number), value))
        await tasks(f"get {size}, 100 tasks", 100, lambda number: client.get(key(number)))


def blocking(client: shoal.Client, plain: shoal.Client, size: str, value: bytes) -> None:
    """The lines of the synchronous client."""
    items = [shoal.PutItem(key(number), value) for number in range(KEYS)]
    client.multi_put(items)
    # The first puts of a length make the data file grow, and are slower: they would be counted against the first line.
    for item in items:
        plain.put(item.key, item.value)
    for number in (1, 8):
        threads(f"put {size}, {number} thread(s)", number, lambda number: client.put(key(number), value))
        threads(f"get {size}, {number} thread(s)", number, lambda number: client.get(key(number)))
    threads(f"put {size}, 1 thread, once=False", 1, lambda number: plain.put(key(number), value))
    batch = items if size == "100 B" else items[:60]
    threads(f"multi_put {size}, {len(batch)} at a time", 1, lambda _: client.multi_put(batch), len(batch))
    wanted = [item.key for item in batch]
    threads(f"multi_get {size}, {len(batch)} at a time", 1, lambda _: client.multi_get(wanted), len(batch))


def main() -> None:
    """All lines."""
    server = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7411"
    with shoal.Client(server) as client, shoal.Client(server, once=False) as plain:
        for size, value in (("100 B", os.urandom(100)), ("64 KiB", os.urandom(65536))):
            blocking(client, plain, size, value)
            asyncio.run(asynchronous(server, size, value))
        large = os.urandom(64 << 20)
        threads("put 64 MiB (MiB/s)", 1, lambda _: client.put("throughput/large", large), 64)
        threads("get 64 MiB (MiB/s)", 1, lambda _: client.get("throughput/large"), 64)
        client.multi_delete([*(key(number) for number in range(KEYS)), "throughput/large"])


if __name__ == "__main__":
    main()

"""Transactions of redis-py: `transactions.py HOST:PORT`."""

import sys
import threading

import redis


def check(seen: object, expected: object) -> None:
    if seen != expected:
        raise SystemExit(f"{seen!r} where {expected!r} was expected")


def pipelines(client: redis.Redis) -> None:
    # The default pipeline is a transaction.
    with client.pipeline() as pipe:
        pipe.set("py:a", 1).incr("py:a").expire("py:a", 100).get("py:a").ttl("py:a")
        check(pipe.execute(), [True, 2, True, b"2", 100])
    # One command that fails: the others are done.
    with client.pipeline() as pipe:
        pipe.set("py:text", "x").incr("py:text").append("py:text", "y")
        check([type(answer) for answer in pipe.execute(raise_on_error=False)], [bool, redis.ResponseError, int])
    check(client.get("py:text"), b"xy")
    # One that is refused as it is queued: nothing is done.
    with client.pipeline() as pipe:
        pipe.set("py:text", "z").execute_command("GET")
        try:
            pipe.execute()
            raise SystemExit("a wrong command was executed")
        except redis.ResponseError:
            check(client.get("py:text"), b"xy")
    with client.pipeline() as pipe:
        for number in range(1_000):
            pipe.set(f"py:many:{number}", number)
        check(pipe.execute(), [True] * 1_000)
    with client.pipeline(transaction=False) as pipe:
        check(pipe.get("py:many:999").delete("py:a").execute(), [b"999", 1])


def watched(client: redis.Redis) -> None:
    """The example of redis-py's documentation: count up without INCR, by many at once."""
    client.delete("py:count")

    def count() -> None:
        for _ in range(25):
            with client.pipeline() as pipe:
                while True:
                    try:
                        pipe.watch("py:count")
                        value = int(pipe.get("py:count") or 0)
                        pipe.multi()
                        pipe.set("py:count", value + 1)
                        pipe.execute()
                        break
                    except redis.WatchError:
                        continue

    def count_by_transaction() -> None:
        def next_count(pipe: redis.client.Pipeline) -> None:
            value = int(pipe.get("py:count") or 0)
            pipe.multi()
            pipe.set("py:count", value + 1)

        for _ in range(25):
            client.transaction(next_count, "py:count")

    threads = [threading.Thread(target=target) for target in (count, count_by_transaction) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(client.get("py:count"), b"200")


def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    for protocol in (2, 3):
        client = redis.Redis(host=host, port=int(port), protocol=protocol)
        pipelines(client)
        watched(client)
    print(f"redis-py {redis.__version__}: transactions are well")


main()

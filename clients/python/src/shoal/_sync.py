"""The network for threads: each step blocks until it is done."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ._request_id import RequestId
from ._steps import Failed, Leaves, Method, Verb
from ._wire import failed, protocol, silent
from .errors import InvalidError
from .options import Options

T = TypeVar("T")

#: Messages of a stream that wait for the connection.
QUEUE_MESSAGES_MAX = 2


class SyncWire:
    """One channel; for any thread."""

    def __init__(self, options: Options) -> None:
        """Connects with the first call."""
        self._options = options
        self._server = options.server
        self._calls: dict[str, Any] = {}
        self._watchdog = _Watchdog()
        if options.tls is None:
            self._channel = grpc.insecure_channel(options.server, options.channel())
        else:
            tls = options.tls
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self._channel = grpc.secure_channel(options.server, credentials, options.channel())

    def run(self, verb: Verb[T]) -> T:
        """Does what a verb asks for, up to its end."""
        advance: Callable[[], Any] = lambda: next(verb)  # noqa: E731
        try:
            while True:
                try:
                    step = advance()
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                try:
                    result = step(self)
                except Failed as error:
                    advance = _thrower(verb, error)
                else:
                    advance = _sender(verb, result)
        finally:
            verb.close()

    def wait_ready(self, seconds: float) -> None:
        """Until there is a connection."""
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(seconds)
        except grpc.FutureTimeoutError:
            raise silent(self._server).error from None
        finally:
            ready.cancel()

    def close(self) -> None:
        """Ends the calls under way."""
        self._channel.close()
        self._watchdog.close()

    def unary(self, method: Method[Any, Any], request: Message, request_id: RequestId | None, seconds: float) -> Any:
        """One message there, one back."""
        metadata = self._options.metadata()
        if request_id is not None:
            metadata += request_id.metadata()
        call = self._callable(method, self._channel.unary_unary)
        return self._attempt(lambda: call(request, timeout=seconds, metadata=metadata))

    def open_send(self, method: Method[Any, Any]) -> _Sending:
        """Begins a stream of messages there, one back."""
        sending = _Sending(self._server)
        call = self._callable(method, self._channel.stream_unary)
        metadata = self._options.metadata()
        self._attempt(lambda: sending.begin(call.future(iter(sending), metadata=metadata)))
        return sending

    def send(self, call: _Sending, message: Message, seconds: float) -> None:
        """The next message of it."""
        call.push(message, seconds)

    def finish(self, call: _Sending, seconds: float) -> Any:
        """No message follows: the answer."""
        return call.finish(seconds)

    def open_receive(self, method: Method[Any, Any], request: Message) -> Any:
        """Begins one message there, a stream of messages back."""
        call = self._callable(method, self._channel.unary_stream)
        metadata = self._options.metadata()
        return self._attempt(lambda: call(request, metadata=metadata))

    def receive(self, call: Any, seconds: float) -> Any:
        """The next message of it; `None` at the end."""
        watch = self._watchdog.watch(seconds, call.cancel)
        try:
            return self._attempt(lambda: next(call, None))
        except Failed:
            if watch.expired:
                raise silent(self._server) from None
            raise
        finally:
            self._watchdog.done(watch)

    def cancel(self, call: Any) -> None:
        """Gives a stream up, either way."""
        if call is not None:
            call.cancel()

    def pause(self, seconds: float) -> None:
        """Waits."""
        time.sleep(seconds)

    def ask(self, function: Callable[[], Any]) -> Any:
        """Calls a function of the caller's."""
        return function()

    def _callable(self, method: Method[Any, Any], make: Any) -> Any:
        # Two threads may both make one: either will do.
        call = self._calls.get(method.name)
        if call is None:
            call = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            self._calls[method.name] = call
        return call

    def _attempt(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except grpc.RpcError as error:
            raise failed(error, self._server) from error
        except ValueError as error:
            # The only one that grpc raises here: the channel was closed.
            raise Failed(InvalidError(f"the client is closed: {error}"), Leaves.REFUSED) from error


def _thrower(verb: Verb[T], error: Failed) -> Callable[[], Any]:
    return lambda: verb.throw(error)


def _sender(verb: Verb[T], result: Any) -> Callable[[], Any]:
    return lambda: verb.send(result)


class _Sending:
    """The messages of one stream, from the caller's thread to grpc's, which takes them as an iterator."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._ended = False
        self._over = False
        self._call: Any = None

    def begin(self, call: Any) -> None:
        self._call = call
        call.add_done_callback(lambda _: self._stop())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended or self._over)
            if self._over or not self._queue:
                raise StopIteration
            message = self._queue.popleft()
            self._changed.notify_all()
            return message

    def push(self, message: Message, seconds: float) -> None:
        """Waits where the server is slower than the caller."""
        with self._changed:
            room = self._changed.wait_for(lambda: self._over or len(self._queue) < QUEUE_MESSAGES_MAX, seconds)
            if not self._over:
                if not room:
                    raise silent(self._server)
                self._queue.append(message)
                self._changed.notify_all()
                return
        # An answer before the end can only be a failure.
        self._answer(0)
        raise protocol("it answered before the value was complete")

    def finish(self, seconds: float) -> Any:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        return self._answer(seconds)

    def cancel(self) -> None:
        self._call.cancel()
        self._stop()

    def _answer(self, seconds: float) -> Any:
        try:
            return self._call.result(seconds)
        except grpc.FutureTimeoutError:
            raise silent(self._server) from None
        except grpc.FutureCancelledError as error:
            raise silent(self._server) from error
        except grpc.RpcError as error:
            raise failed(error, self._server) from error

    def _stop(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()


class _Watch:
    """One wait for a message."""

    __slots__ = ("cancel", "end", "expired")

    def __init__(self, end: float, cancel: Callable[[], Any]) -> None:
        self.end = end
        self.cancel = cancel
        self.expired = False


class _Watchdog:
    """Cancels streams on which no message comes in time: grpc itself has a deadline for a whole stream only.

    One thread for all, started by the first stream; it looks at what is watched when the earliest end has come.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: set[_Watch] = set()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, seconds: float, cancel: Callable[[], Any]) -> _Watch:
        watch = _Watch(time.monotonic() + seconds, cancel)
        with self._changed:
            self._watched.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-watchdog", daemon=True)
                self._thread.start()
            elif watch.end < self._wakes:
                self._changed.notify()
        return watch

    def done(self, watch: _Watch) -> None:
        with self._changed:
            self._watched.discard(watch)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                late = [watch for watch in self._watched if watch.end <= now]
                self._watched.difference_update(late)
                for watch in late:
                    watch.expired = True
                if not late:
                    self._wakes = min((watch.end for watch in self._watched), default=float("inf"))
                    wait = None if self._wakes == float("inf") else self._wakes - now
                    self._changed.wait(wait)
            # Without the lock: a cancelled call runs callbacks.
            for watch in late:
                watch.cancel()

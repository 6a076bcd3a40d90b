"""The network for asyncio: each step is awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from ._request_id import RequestId
from ._steps import Failed, Leaves, Method, Verb
from ._wire import failed, protocol, silent
from .errors import InvalidError
from .options import Options

T = TypeVar("T")


class AioWire:
    """One channel, of the event loop in which the first call is made."""

    def __init__(self, options: Options) -> None:
        """Connects with the first call."""
        self._options = options
        self._server = options.server
        self._calls: dict[str, Any] = {}
        self._channel: Any = None
        self._closed = False

    async def run(self, verb: Verb[T]) -> T:
        """Does what a verb asks for, up to its end. Where this is cancelled, so is the call under way."""
        result: Any = None
        error: Failed | None = None
        try:
            while True:
                try:
                    step = verb.send(result) if error is None else verb.throw(error)
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                result, error = None, None
                try:
                    # The verbs know one wire; this one gives awaitables of what they ask for.
                    result = await step(self)
                except Failed as caught:
                    error = caught
        finally:
            verb.close()

    async def wait_ready(self, seconds: float) -> None:
        """Until there is a connection."""
        try:
            await asyncio.wait_for(self._open().channel_ready(), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise silent(self._server).error from None

    async def close(self) -> None:
        """Ends the calls under way."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def unary(
        self, method: Method[Any, Any], request: Message, request_id: RequestId | None, seconds: float
    ) -> Any:
        """One message there, one back."""
        metadata = self._options.metadata()
        if request_id is not None:
            metadata += request_id.metadata()
        call = self._callable(method, "unary_unary")
        return await self._attempt(call(request, timeout=seconds, metadata=metadata))

    async def open_send(self, method: Method[Any, Any]) -> Any:
        """Begins a stream of messages there, one back."""
        return _Sending(self._callable(method, "stream_stream")(metadata=self._options.metadata()))

    async def send(self, call: Any, message: Message, seconds: float) -> None:
        """The next message of it."""
        try:
            await asyncio.wait_for(call.write(message), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise silent(self._server) from None
        except (grpc.RpcError, asyncio.InvalidStateError):
            # An answer before the end can only be a failure.
            await self._attempt(call.failure())
            raise protocol("it answered before the value was complete") from None

    async def finish(self, call: Any, seconds: float) -> Any:
        """No message follows: the answer."""

        try:
            return await asyncio.wait_for(self._attempt(call.answer()), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise silent(self._server) from None

    async def open_receive(self, method: Method[Any, Any], request: Message) -> Any:
        """Begins one message there, a stream of messages back."""
        return self._callable(method, "unary_stream")(request, metadata=self._options.metadata())

    async def receive(self, call: Any, seconds: float) -> Any:
        """The next message of it; `None` at the end."""
        try:
            message = await asyncio.wait_for(self._attempt(call.read()), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise silent(self._server) from None
        return None if message is grpc.aio.EOF else message

    async def cancel(self, call: Any) -> None:
        """Gives a stream up, either way."""
        if call is not None:
            call.cancel()

    async def pause(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def ask(self, function: Callable[[], Any]) -> Any:
        """Calls a function of the caller's, and awaits what it gives where that is awaitable."""
        result = function()
        return await result if inspect.isawaitable(result) else result

    def _open(self) -> Any:
        if self._closed:
            raise Failed(InvalidError("the client is closed"), Leaves.REFUSED)
        if self._channel is None:
            tls = self._options.tls
            if tls is None:
                self._channel = grpc.aio.insecure_channel(self._server, self._options.channel())
            else:
                credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
                self._channel = grpc.aio.secure_channel(self._server, credentials, self._options.channel())
        return self._channel

    def _callable(self, method: Method[Any, Any], kind: str) -> Any:
        channel = self._open()
        call = self._calls.get(method.name)
        if call is None:
            call = getattr(channel, kind)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            self._calls[method.name] = call
        return call

    async def _attempt(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise failed(error, self._server) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise Failed(InvalidError(f"the client is closed: {error}"), Leaves.REFUSED) from error
        except asyncio.CancelledError:
            if self._closed and not _is_cancelled():
                # Not the caller gave it up: grpc cancels what is under way when the channel is closed.
                raise Failed(InvalidError("the client was closed"), Leaves.OPEN) from None
            raise


class _Sending:
    """A call with messages there and one back, as a stream both ways: only of such a call grpc.aio reads the status at once.

    Where the server ends it while a message is under way, grpc.aio puts an INTERNAL of its own in the place of that status, a
    moment after it or before it. What the server said is what counts here.
    """

    # The details of that error, and the seconds that the server's may come after it.
    _OWN = "Internal error from Core"
    _PATIENCE = 1.0

    def __init__(self, call: Any) -> None:
        self._call = call
        self._failure: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._ended)
        self.write = call.write
        self.cancel = call.cancel

    async def answer(self) -> Any:
        """No message follows: the one that came back."""
        await self._call.done_writing()
        message = await self._call.read()
        if message is grpc.aio.EOF or await self._call.code() is not grpc.StatusCode.OK:
            await self.failure()
            raise protocol("it answered nothing")
        return message

    async def failure(self) -> None:
        """Raises what the server ended the call with, if that is a failure."""
        # Behind an answer that nobody has read the server's status is not seen.
        waited = 0.0
        while self._failure is not None and self._failure.details() == self._OWN:
            if waited >= self._PATIENCE:
                return
            await asyncio.sleep(0.01)
            waited += 0.01
            self._ended(self._call)
        if self._failure is not None:
            raise self._failure

    def _ended(self, call: Any) -> None:
        """Called by grpc with the first status, and it is kept: what is asked for is there, so nothing is waited for."""
        code = _there(call.code())
        if code is not grpc.StatusCode.OK:
            self._failure = grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(), _there(call.trailing_metadata()), _there(call.details())
            )


def _there(answer: Coroutine[Any, Any, T]) -> T:
    """What an awaitable gives that does not have to wait."""
    try:
        answer.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("grpc has the status of a call that has ended")


def _is_cancelled() -> bool:
    """Whether somebody cancels this task; before Python 3.11 tasks do not say."""
    task = asyncio.current_task()
    cancelling = getattr(task, "cancelling", None)
    return cancelling is not None and cancelling() > 0

"""How one implementation of each call serves both clients.

A call is a generator (a *verb*) that yields what it needs from the network (a *step*) and is sent what came of it, or has
:class:`Failed` thrown into it. It neither blocks nor awaits; :class:`shoal._sync.SyncWire` and :class:`shoal._aio.AioWire` do.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ._request_id import RequestId
from .errors import ShoalError, TimedOutError
from .v1 import object_store_pb2 as pb

T = TypeVar("T")
Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)

SERVICE = "shoal.v1.ObjectStore"


@dataclass(frozen=True)
class Method(Generic[Req, Resp]):
    """A method of the service and its messages."""

    name: str
    request: type[Req]
    response: type[Resp]

    @property
    def path(self) -> str:
        """As in the request's `:path`."""
        return f"/{SERVICE}/{self.name}"


PUT = Method("Put", pb.PutRequest, pb.PutResponse)
GET = Method("Get", pb.GetRequest, pb.GetResponse)
HEAD = Method("Head", pb.HeadRequest, pb.HeadResponse)
DELETE = Method("Delete", pb.DeleteRequest, pb.DeleteResponse)
LIST = Method("List", pb.ListRequest, pb.ListResponse)
MULTI_GET = Method("MultiGet", pb.MultiGetRequest, pb.MultiGetResponse)
MULTI_PUT = Method("MultiPut", pb.MultiPutRequest, pb.MultiPutResponse)
MULTI_DELETE = Method("MultiDelete", pb.MultiDeleteRequest, pb.MultiDeleteResponse)
PUT_STREAM = Method("PutStream", pb.PutStreamRequest, pb.PutResponse)
GET_STREAM = Method("GetStream", pb.GetStreamRequest, pb.GetStreamResponse)
STAT = Method("Stat", pb.StatRequest, pb.StatResponse)


class Leaves(enum.Enum):
    """What a failed attempt leaves open."""

    #: Not applied, and it would be no different the next time.
    REFUSED = enum.auto()
    #: Not applied, and the next attempt may succeed.
    NOT_APPLIED = enum.auto()
    #: Perhaps applied.
    OPEN = enum.auto()


class Failed(Exception):
    """A failed attempt; never leaves this package."""

    def __init__(self, error: ShoalError, leaves: Leaves) -> None:
        """What the caller would see, and what it leaves open."""
        super().__init__(str(error))
        self.error = error
        self.leaves = leaves


class Limit:
    """How long a call may take: in all where the caller says so, and each silence of the server."""

    def __init__(self, timeout: float | None, answer: float) -> None:
        """In seconds, from now."""
        self._end = None if timeout is None else time.monotonic() + timeout
        self._answer = answer

    def left(self) -> float:
        """Seconds for the next answer; raises where there are none."""
        if self._end is None:
            return self._answer
        left = self._end - time.monotonic()
        if left <= 0:
            raise Failed(TimedOutError("the call's timeout is over"), Leaves.NOT_APPLIED)
        return min(left, self._answer)

    def rest(self) -> float | None:
        """Seconds for what follows as a whole; `None` where the caller set no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def allows(self, pause: float) -> bool:
        """Whether there is time left after a pause."""
        return self._end is None or time.monotonic() + pause < self._end


class Wire(Protocol):
    """What a step may ask of the network. The asynchronous wire gives awaitables of the same."""

    def unary(self, method: Method[Any, Any], request: Message, request_id: RequestId | None, seconds: float) -> Any:
        """One message there, one back."""

    def open_send(self, method: Method[Any, Any]) -> Any:
        """Begins a stream of messages there, one back."""

    def send(self, call: Any, message: Message, seconds: float) -> Any:
        """The next message of it."""

    def finish(self, call: Any, seconds: float) -> Any:
        """No message follows: the answer."""

    def open_receive(self, method: Method[Any, Any], request: Message) -> Any:
        """Begins one message there, a stream of messages back."""

    def receive(self, call: Any, seconds: float) -> Any:
        """The next message of it; `None` at the end."""

    def cancel(self, call: Any) -> Any:
        """Gives a stream up, either way."""

    def pause(self, seconds: float) -> Any:
        """Waits."""

    def ask(self, function: Callable[[], Any]) -> Any:
        """Calls a function of the caller's; the asynchronous wire awaits what it gives, where it is awaitable."""


Step = Callable[[Wire], Any]
Verb = Generator[Step, Any, T]


def unary(method: Method[Req, Resp], request: Req, limit: Limit, request_id: RequestId | None = None) -> Verb[Resp]:
    """One message there, one back."""
    seconds = limit.left()
    answer: Resp = yield lambda wire: wire.unary(method, request, request_id, seconds)
    return answer


def pause(seconds: float) -> Verb[None]:
    """Waits."""
    yield lambda wire: wire.pause(seconds)

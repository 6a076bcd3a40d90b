"""Client of Shoal, a store for lots of small objects.

>>> import shoal
>>> with shoal.Client("127.0.0.1:7411") as client:
...     version = client.put("greeting", b"hello")
...     client.get("greeting").value
b'hello'

:class:`Client` is for threads, :class:`AsyncClient` for asyncio; both have the same calls. `shoal.v1` has the raw stubs.
"""

from .aio import AsyncClient, AsyncGetStream, AsyncPutStream
from .client import Client, GetStream, PutStream
from .errors import (
    BusyError,
    ChangedError,
    ConditionFailedError,
    CorruptError,
    DeniedError,
    DeviceError,
    FullError,
    InvalidError,
    NotFoundError,
    ProtocolError,
    ReadOnlyError,
    Rule,
    ShoalError,
    SourceError,
    TimedOutError,
    UnavailableError,
    UnknownOutcomeError,
)
from .objects import (
    CompareAndSet,
    CreateOrGet,
    Deleted,
    DeleteItem,
    Figure,
    GetItem,
    Key,
    ListEntry,
    ListPage,
    Object,
    ObjectInfo,
    Outcome,
    PutItem,
    Stat,
    TimeToLive,
    UserMetadata,
    Value,
)
from .options import DEFAULT_PORT, Tls, Token

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_PORT",
    "AsyncClient",
    "AsyncGetStream",
    "AsyncPutStream",
    "BusyError",
    "ChangedError",
    "Client",
    "CompareAndSet",
    "ConditionFailedError",
    "CorruptError",
    "CreateOrGet",
    "DeleteItem",
    "Deleted",
    "DeniedError",
    "DeviceError",
    "Figure",
    "FullError",
    "GetItem",
    "GetStream",
    "InvalidError",
    "Key",
    "ListEntry",
    "ListPage",
    "NotFoundError",
    "Object",
    "ObjectInfo",
    "Outcome",
    "ProtocolError",
    "PutItem",
    "PutStream",
    "ReadOnlyError",
    "Rule",
    "ShoalError",
    "SourceError",
    "Stat",
    "TimeToLive",
    "TimedOutError",
    "Tls",
    "Token",
    "UnavailableError",
    "UnknownOutcomeError",
    "UserMetadata",
    "Value",
]

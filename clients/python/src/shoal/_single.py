"""The calls on one object: put, get, head, delete; and list, stat."""

from __future__ import annotations

from . import _wire
from ._receive import Download, open_download
from ._request_id import RequestId
from ._retry import Core, read, write, write_plain
from ._send import Upload
from ._steps import DELETE, GET, HEAD, LIST, PUT, STAT, Failed, Limit, Verb, unary
from .errors import ChangedError, NotFoundError, ProtocolError
from .objects import (
    Deleted,
    DeleteItem,
    Figure,
    GetItem,
    ListEntry,
    ListPage,
    Object,
    ObjectInfo,
    PutItem,
    Stat,
)
from .v1 import object_store_pb2 as pb

#: How often an object that changes while it is read in pieces is read again.
CHANGES_MAX = 5


def put(core: Core, bucket: str, item: PutItem, timeout: float | None) -> Verb[int]:
    """Stores one object; its version."""
    limit = core.limit(timeout)
    if _wire.value_size(item.value) > _wire.CHUNK_BYTES_MAX:
        return (yield from write_plain(core, limit, lambda: _put_stream(core, bucket, item, limit)))
    request = _put_request(bucket, item)

    def attempt(request_id: RequestId | None) -> Verb[int]:
        return (yield from unary(PUT, request, limit, request_id)).version

    return (yield from write(core, limit, attempt))


def put_or_existing(core: Core, bucket: str, item: PutItem, timeout: float | None) -> Verb[pb.PutResponse]:
    """Stores one object of at most 1 MiB where there is none; else the answer has the object that is there."""
    limit = core.limit(timeout)
    request = _put_request(bucket, item)
    request.return_existing = True
    return (yield from write(core, limit, lambda request_id: unary(PUT, request, limit, request_id)))


def _put_request(bucket: str, item: PutItem) -> pb.PutRequest:
    return pb.PutRequest(
        bucket=bucket,
        key=_wire.key_bytes(item.key),
        rules=_wire.rules(item),
        metadata=_wire.metadata(item),
        modified_ns=item.modified_ns,
        **_wire.deadline(item),
        value=_wire.value_bytes(item.value),
    )


def _put_stream(core: Core, bucket: str, item: PutItem, limit: Limit) -> Verb[int]:
    upload = Upload(core, bucket, item, limit)
    try:
        yield from upload.send(item.value)
        return (yield from upload.end())
    except Failed:
        yield from upload.cancel()
        raise


def get(core: Core, bucket: str, item: GetItem, version: int | None, timeout: float | None) -> Verb[Object | None]:
    """One object or a range of it. All bytes are of one version."""
    limit = core.limit(timeout)
    changes = 0
    while True:
        try:
            return (yield from _get_once(core, bucket, item, version, limit))
        except ChangedError:
            if version is not None or changes == CHANGES_MAX:
                raise
            changes += 1


def _get_once(core: Core, bucket: str, item: GetItem, version: int | None, limit: Limit) -> Verb[Object | None]:
    request = pb.GetRequest(
        bucket=bucket,
        key=_wire.key_bytes(item.key),
        range=_wire.byte_range(item.offset, item.length),
        value_bytes_max=_wire.CHUNK_BYTES_MAX,
        version=version,
    )

    def attempt() -> Verb[Object]:
        answer = yield from unary(GET, request, limit)
        about = _wire.info(answer)
        _, wanted = _wire.within(item.offset, item.length, about.size)
        if len(answer.value) != min(wanted, _wire.CHUNK_BYTES_MAX):
            raise _wire.protocol(f"{len(answer.value)} byte(s) came of {wanted}")
        return Object(about, answer.value)

    try:
        head = yield from read(core, limit, attempt)
    except NotFoundError:
        return None
    first, wanted = _wire.within(item.offset, item.length, head.info.size)
    have = len(head.value)
    if have == wanted:
        return head
    pieces = [head.value]
    try:
        rest = GetItem(item.key, first + have, wanted - have)
        download = yield from open_download(core, bucket, rest, head.version, limit)
        while (piece := (yield from download.next(limit))) is not None:
            pieces.append(piece)
    except NotFoundError as error:
        raise ChangedError("the object was deleted while it was read") from error
    return Object(head.info, b"".join(pieces))


def get_stream(core: Core, bucket: str, item: GetItem, version: int | None, timeout: float | None) -> Verb[Download]:
    """The object to be read piece by piece."""
    return (yield from open_download(core, bucket, item, version, core.limit(timeout)))


def head(core: Core, bucket: str, key: bytes, timeout: float | None) -> Verb[ObjectInfo | None]:
    """What is known about an object."""
    limit = core.limit(timeout)

    def attempt() -> Verb[ObjectInfo]:
        return _wire.info((yield from unary(HEAD, pb.HeadRequest(bucket=bucket, key=key), limit)))

    try:
        return (yield from read(core, limit, attempt))
    except NotFoundError:
        return None


def delete(core: Core, bucket: str, item: DeleteItem, timeout: float | None) -> Verb[Deleted]:
    """Deletes one object."""
    limit = core.limit(timeout)
    request = pb.DeleteRequest(bucket=bucket, key=_wire.key_bytes(item.key), rules=_wire.rules(item))

    def attempt(request_id: RequestId | None) -> Verb[Deleted]:
        return deleted((yield from unary(DELETE, request, limit, request_id)))

    return (yield from write(core, limit, attempt))


def deleted(answer: pb.DeleteResponse | pb.MultiDeleteResult) -> Deleted:
    """What an answer says about a delete."""
    return Deleted(answer.deleted if answer.HasField("deleted") else None, answer.version)


def list_page(core: Core, request: pb.ListRequest, timeout: float | None) -> Verb[ListPage]:
    """One page of keys."""
    limit = core.limit(timeout)

    def attempt() -> Verb[ListPage]:
        answer = yield from unary(LIST, request, limit)
        entries = tuple(ListEntry(entry.key, _wire.info(entry)) for entry in answer.entries)
        following = answer.next_start_after if answer.HasField("next_start_after") else None
        return ListPage(entries, tuple(answer.common_prefixes), following)

    page = yield from read(core, limit, attempt)
    if page.next_start_after is not None and page.next_start_after <= request.start_after:
        # Without progress the listing would never end.
        raise ProtocolError("a page of the listing does not follow the page before")
    return page


def stat(core: Core, timeout: float | None) -> Verb[Stat]:
    """Figures about the server."""
    limit = core.limit(timeout)
    answer = yield from read(core, limit, lambda: unary(STAT, pb.StatRequest(), limit))
    return Stat(
        answer.server_version,
        answer.read_only_reason,
        answer.uptime_ns,
        answer.block_bytes,
        answer.objects,
        answer.blocks,
        answer.free_blocks,
        {figure.name: Figure(figure.value, figure.unit) for figure in answer.figures},
    )

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectRules(_message.Message):
    __slots__ = ("if_exists", "if_missing", "if_version_not", "if_version_at_most")
    IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    IF_MISSING_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_NOT_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    if_exists: bool
    if_missing: bool
    if_version_not: int
    if_version_at_most: int
    def __init__(self, if_exists: bool = ..., if_missing: bool = ..., if_version_not: _Optional[int] = ..., if_version_at_most: _Optional[int] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("content_type", "user")
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    content_type: str
    user: _containers.RepeatedCompositeFieldContainer[UserMetadata]
    def __init__(self, content_type: _Optional[str] = ..., user: _Optional[_Iterable[_Union[UserMetadata, _Mapping]]] = ...) -> None: ...

class UserMetadata(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class ObjectInfo(_message.Message):
    __slots__ = ("version", "bytes", "modified_ns", "metadata", "ttl_ns", "expire_time_ns")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    version: int
    bytes: int
    modified_ns: int
    metadata: Metadata
    ttl_ns: int
    expire_time_ns: int
    def __init__(self, version: _Optional[int] = ..., bytes: _Optional[int] = ..., modified_ns: _Optional[int] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., ttl_ns: _Optional[int] = ..., expire_time_ns: _Optional[int] = ...) -> None: ...

class ByteRange(_message.Message):
    __slots__ = ("first", "bytes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    first: int
    bytes: int
    def __init__(self, first: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("bucket", "key", "rules", "metadata", "modified_ns", "return_existing", "ttl_ns", "expire_time_ns", "value")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    RETURN_EXISTING_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    rules: RejectRules
    metadata: Metadata
    modified_ns: int
    return_existing: bool
    ttl_ns: int
    expire_time_ns: int
    value: bytes
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., modified_ns: _Optional[int] = ..., return_existing: bool = ..., ttl_ns: _Optional[int] = ..., expire_time_ns: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("version", "existing", "value_omitted", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXISTING_FIELD_NUMBER: _ClassVar[int]
    VALUE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    existing: ObjectInfo
    value_omitted: bool
    value: bytes
    def __init__(self, version: _Optional[int] = ..., existing: _Optional[_Union[ObjectInfo, _Mapping]] = ..., value_omitted: bool = ..., value: _Optional[bytes] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("bucket", "key", "range", "value_bytes_max", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    range: ByteRange
    value_bytes_max: int
    version: int
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ..., range: _Optional[_Union[ByteRange, _Mapping]] = ..., value_bytes_max: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("info", "value")
    INFO_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    value: bytes
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., value: _Optional[bytes] = ...) -> None: ...

class HeadRequest(_message.Message):
    __slots__ = ("bucket", "key")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class HeadResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("bucket", "key", "rules")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    rules: RejectRules
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted", "version")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    version: int
    def __init__(self, deleted: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "delimiter", "start_after", "page_size")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELIMITER_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: bytes
    delimiter: bytes
    start_after: bytes
    page_size: int
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[bytes] = ..., delimiter: _Optional[bytes] = ..., start_after: _Optional[bytes] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("entries", "common_prefixes", "next_start_after", "damaged")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMON_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_START_AFTER_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ListEntry]
    common_prefixes: _containers.RepeatedScalarFieldContainer[bytes]
    next_start_after: bytes
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    def __init__(self, entries: _Optional[_Iterable[_Union[ListEntry, _Mapping]]] = ..., common_prefixes: _Optional[_Iterable[bytes]] = ..., next_start_after: _Optional[bytes] = ..., damaged: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ...) -> None: ...

class ListBucketsRequest(_message.Message):
    __slots__ = ("start_after", "page_size")
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    start_after: str
    page_size: int
    def __init__(self, start_after: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListBucketsResponse(_message.Message):
    __slots__ = ("buckets", "more", "damaged")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    damaged: int
    def __init__(self, buckets: _Optional[_Iterable[str]] = ..., more: bool = ..., damaged: _Optional[int] = ...) -> None: ...

class DamagedRange(_message.Message):
    __slots__ = ("tablet", "to", "block", "why")
    TABLET_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    tablet: int
    to: bytes
    block: int
    why: str
    def __init__(self, tablet: _Optional[int] = ..., to: _Optional[bytes] = ..., block: _Optional[int] = ..., why: _Optional[str] = ..., **kwargs) -> None: ...

class ListEntry(_message.Message):
    __slots__ = ("key", "info")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    info: ObjectInfo
    def __init__(self, key: _Optional[bytes] = ..., info: _Optional[_Union[ObjectInfo, _Mapping]] = ...) -> None: ...

class KeyStatus(_message.Message):
    __slots__ = ("code", "message", "failure")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    failure: Failure
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class MultiGetRequest(_message.Message):
    __slots__ = ("bucket", "items")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    items: _containers.RepeatedCompositeFieldContainer[MultiGetItem]
    def __init__(self, bucket: _Optional[str] = ..., items: _Optional[_Iterable[_Union[MultiGetItem, _Mapping]]] = ...) -> None: ...

class MultiGetItem(_message.Message):
    __slots__ = ("key", "range")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    range: ByteRange
    def __init__(self, key: _Optional[bytes] = ..., range: _Optional[_Union[ByteRange, _Mapping]] = ...) -> None: ...

class MultiGetResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MultiGetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[MultiGetResult, _Mapping]]] = ...) -> None: ...

class MultiGetResult(_message.Message):
    __slots__ = ("status", "info", "value_omitted", "value")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    VALUE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    status: KeyStatus
    info: ObjectInfo
    value_omitted: bool
    value: bytes
    def __init__(self, status: _Optional[_Union[KeyStatus, _Mapping]] = ..., info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., value_omitted: bool = ..., value: _Optional[bytes] = ...) -> None: ...

class MultiPutRequest(_message.Message):
    __slots__ = ("bucket", "items", "atomic")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    items: _containers.RepeatedCompositeFieldContainer[MultiPutItem]
    atomic: bool
    def __init__(self, bucket: _Optional[str] = ..., items: _Optional[_Iterable[_Union[MultiPutItem, _Mapping]]] = ..., atomic: bool = ...) -> None: ...

class MultiPutItem(_message.Message):
    __slots__ = ("key", "rules", "metadata", "modified_ns", "ttl_ns", "expire_time_ns", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    rules: RejectRules
    metadata: Metadata
    modified_ns: int
    ttl_ns: int
    expire_time_ns: int
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., modified_ns: _Optional[int] = ..., ttl_ns: _Optional[int] = ..., expire_time_ns: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class MultiPutResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MultiPutResult]
    def __init__(self, results: _Optional[_Iterable[_Union[MultiPutResult, _Mapping]]] = ...) -> None: ...

class MultiPutResult(_message.Message):
    __slots__ = ("status", "version")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    status: KeyStatus
    version: int
    def __init__(self, status: _Optional[_Union[KeyStatus, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class MultiDeleteRequest(_message.Message):
    __slots__ = ("bucket", "items")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    items: _containers.RepeatedCompositeFieldContainer[MultiDeleteItem]
    def __init__(self, bucket: _Optional[str] = ..., items: _Optional[_Iterable[_Union[MultiDeleteItem, _Mapping]]] = ...) -> None: ...

class MultiDeleteItem(_message.Message):
    __slots__ = ("key", "rules")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    rules: RejectRules
    def __init__(self, key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ...) -> None: ...

class MultiDeleteResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MultiDeleteResult]
    def __init__(self, results: _Optional[_Iterable[_Union[MultiDeleteResult, _Mapping]]] = ...) -> None: ...

class MultiDeleteResult(_message.Message):
    __slots__ = ("status", "deleted", "version")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    status: KeyStatus
    deleted: int
    version: int
    def __init__(self, status: _Optional[_Union[KeyStatus, _Mapping]] = ..., deleted: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class PutStreamRequest(_message.Message):
    __slots__ = ("header", "chunk", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: PutStreamHeader
    chunk: bytes
    end: PutStreamEnd
    def __init__(self, header: _Optional[_Union[PutStreamHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., end: _Optional[_Union[PutStreamEnd, _Mapping]] = ...) -> None: ...

class PutStreamHeader(_message.Message):
    __slots__ = ("bucket", "key", "rules", "metadata", "modified_ns", "ttl_ns", "expire_time_ns")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    rules: RejectRules
    metadata: Metadata
    modified_ns: int
    ttl_ns: int
    expire_time_ns: int
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., modified_ns: _Optional[int] = ..., ttl_ns: _Optional[int] = ..., expire_time_ns: _Optional[int] = ...) -> None: ...

class PutStreamEnd(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ("bucket", "key", "range", "version")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: bytes
    range: ByteRange
    version: int
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[bytes] = ..., range: _Optional[_Union[ByteRange, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ("info", "chunk")
    INFO_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    info: ObjectInfo
    chunk: bytes
    def __init__(self, info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class OperationsRequest(_message.Message):
    __slots__ = ("bucket", "operations")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, bucket: _Optional[str] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("number", "action", "key", "rules", "metadata", "modified_ns", "range", "request_id", "ttl_ns", "expire_time_ns", "value")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[Operation.Action]
        GET: _ClassVar[Operation.Action]
        PUT: _ClassVar[Operation.Action]
        DELETE: _ClassVar[Operation.Action]
        HEAD: _ClassVar[Operation.Action]
    ACTION_UNSPECIFIED: Operation.Action
    GET: Operation.Action
    PUT: Operation.Action
    DELETE: Operation.Action
    HEAD: Operation.Action
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    number: int
    action: Operation.Action
    key: bytes
    rules: RejectRules
    metadata: Metadata
    modified_ns: int
    range: ByteRange
    request_id: RequestId
    ttl_ns: int
    expire_time_ns: int
    value: bytes
    def __init__(self, number: _Optional[int] = ..., action: _Optional[_Union[Operation.Action, str]] = ..., key: _Optional[bytes] = ..., rules: _Optional[_Union[RejectRules, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., modified_ns: _Optional[int] = ..., range: _Optional[_Union[ByteRange, _Mapping]] = ..., request_id: _Optional[_Union[RequestId, _Mapping]] = ..., ttl_ns: _Optional[int] = ..., expire_time_ns: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class RequestId(_message.Message):
    __slots__ = ("session", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class OperationsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("number", "status", "version", "deleted", "info", "value_omitted", "value")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    VALUE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    number: int
    status: KeyStatus
    version: int
    deleted: int
    info: ObjectInfo
    value_omitted: bool
    value: bytes
    def __init__(self, number: _Optional[int] = ..., status: _Optional[_Union[KeyStatus, _Mapping]] = ..., version: _Optional[int] = ..., deleted: _Optional[int] = ..., info: _Optional[_Union[ObjectInfo, _Mapping]] = ..., value_omitted: bool = ..., value: _Optional[bytes] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("server_version", "read_only_reason", "uptime_ns", "block_bytes", "objects", "blocks", "free_blocks", "figures", "frontends")
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_REASON_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    FRONTENDS_FIELD_NUMBER: _ClassVar[int]
    server_version: str
    read_only_reason: str
    uptime_ns: int
    block_bytes: int
    objects: int
    blocks: int
    free_blocks: int
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    frontends: _containers.RepeatedCompositeFieldContainer[FrontendFigures]
    def __init__(self, server_version: _Optional[str] = ..., read_only_reason: _Optional[str] = ..., uptime_ns: _Optional[int] = ..., block_bytes: _Optional[int] = ..., objects: _Optional[int] = ..., blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., frontends: _Optional[_Iterable[_Union[FrontendFigures, _Mapping]]] = ...) -> None: ...

class FrontendFigures(_message.Message):
    __slots__ = ("name", "requests")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests: _containers.RepeatedCompositeFieldContainer[RequestFigures]
    def __init__(self, name: _Optional[str] = ..., requests: _Optional[_Iterable[_Union[RequestFigures, _Mapping]]] = ...) -> None: ...

class RequestFigures(_message.Message):
    __slots__ = ("operation", "result", "buckets", "sum_ns")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    SUM_NS_FIELD_NUMBER: _ClassVar[int]
    operation: str
    result: str
    buckets: _containers.RepeatedScalarFieldContainer[int]
    sum_ns: int
    def __init__(self, operation: _Optional[str] = ..., result: _Optional[str] = ..., buckets: _Optional[_Iterable[int]] = ..., sum_ns: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ReportPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[ReportPart, _Mapping]]] = ...) -> None: ...

class ReportPart(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class MovingRequest(_message.Message):
    __slots__ = ("pause",)
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    pause: bool
    def __init__(self, pause: bool = ...) -> None: ...

class MovingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrowRequest(_message.Message):
    __slots__ = ("bytes", "force")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    force: bool
    def __init__(self, bytes: _Optional[int] = ..., force: bool = ...) -> None: ...

class GrowResponse(_message.Message):
    __slots__ = ("bytes_before", "bytes", "bytes_of_room")
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_OF_ROOM_FIELD_NUMBER: _ClassVar[int]
    bytes_before: int
    bytes: int
    bytes_of_room: int
    def __init__(self, bytes_before: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_of_room: _Optional[int] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: BackupSince
    def __init__(self, since: _Optional[_Union[BackupSince, _Mapping]] = ...) -> None: ...

class BackupSince(_message.Message):
    __slots__ = ("store", "version", "pages", "up_to_tablet", "up_to_key")
    STORE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    UP_TO_TABLET_FIELD_NUMBER: _ClassVar[int]
    UP_TO_KEY_FIELD_NUMBER: _ClassVar[int]
    store: bytes
    version: int
    pages: bytes
    up_to_tablet: int
    up_to_key: bytes
    def __init__(self, store: _Optional[bytes] = ..., version: _Optional[int] = ..., pages: _Optional[bytes] = ..., up_to_tablet: _Optional[int] = ..., up_to_key: _Optional[bytes] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("name", "unit", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    value: int
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class FreeSpaceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreeSpaceResponse(_message.Message):
    __slots__ = ("block_bytes", "blocks", "group_blocks", "gaps_and_blocks")
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GAPS_AND_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    blocks: int
    group_blocks: int
    gaps_and_blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., group_blocks: _Optional[int] = ..., gaps_and_blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "current_version", "rule")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failure.Kind]
        CONDITION_FAILED: _ClassVar[Failure.Kind]
        NOT_FOUND: _ClassVar[Failure.Kind]
        INVALID: _ClassVar[Failure.Kind]
        FULL: _ClassVar[Failure.Kind]
        BUSY: _ClassVar[Failure.Kind]
        OVERLOADED: _ClassVar[Failure.Kind]
        CORRUPT: _ClassVar[Failure.Kind]
        DEVICE: _ClassVar[Failure.Kind]
        UNKNOWN_OUTCOME: _ClassVar[Failure.Kind]
        READ_ONLY: _ClassVar[Failure.Kind]
        CHANGED: _ClassVar[Failure.Kind]
        CLOSED: _ClassVar[Failure.Kind]
        DENIED: _ClassVar[Failure.Kind]
        TOO_SLOW: _ClassVar[Failure.Kind]
        INCOMPLETE: _ClassVar[Failure.Kind]
        SNAPSHOT_DROPPED: _ClassVar[Failure.Kind]
    KIND_UNSPECIFIED: Failure.Kind
    CONDITION_FAILED: Failure.Kind
    NOT_FOUND: Failure.Kind
    INVALID: Failure.Kind
    FULL: Failure.Kind
    BUSY: Failure.Kind
    OVERLOADED: Failure.Kind
    CORRUPT: Failure.Kind
    DEVICE: Failure.Kind
    UNKNOWN_OUTCOME: Failure.Kind
    READ_ONLY: Failure.Kind
    CHANGED: Failure.Kind
    CLOSED: Failure.Kind
    DENIED: Failure.Kind
    TOO_SLOW: Failure.Kind
    INCOMPLETE: Failure.Kind
    SNAPSHOT_DROPPED: Failure.Kind
    class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RULE_UNSPECIFIED: _ClassVar[Failure.Rule]
        IF_EXISTS: _ClassVar[Failure.Rule]
        IF_MISSING: _ClassVar[Failure.Rule]
        IF_VERSION_NOT: _ClassVar[Failure.Rule]
        IF_VERSION_AT_MOST: _ClassVar[Failure.Rule]
    RULE_UNSPECIFIED: Failure.Rule
    IF_EXISTS: Failure.Rule
    IF_MISSING: Failure.Rule
    IF_VERSION_NOT: Failure.Rule
    IF_VERSION_AT_MOST: Failure.Rule
    KIND_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    kind: Failure.Kind
    current_version: int
    rule: Failure.Rule
    def __init__(self, kind: _Optional[_Union[Failure.Kind, str]] = ..., current_version: _Optional[int] = ..., rule: _Optional[_Union[Failure.Rule, str]] = ...) -> None: ...

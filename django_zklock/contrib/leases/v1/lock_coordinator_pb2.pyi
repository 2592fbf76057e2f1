from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_LOCK: _ClassVar[Kind]
    KIND_READ: _ClassVar[Kind]
    KIND_WRITE: _ClassVar[Kind]
    KIND_SEMAPHORE: _ClassVar[Kind]
KIND_LOCK: Kind
KIND_READ: Kind
KIND_WRITE: Kind
KIND_SEMAPHORE: Kind

class RecordLockRequest(_message.Message):
    __slots__ = ("resource_path", "client_id", "session_timeout_ms", "wait_blocking", "wait_limit_ms", "kind", "limit", "signed_token", "request_id")
    RESOURCE_PATH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_BLOCKING_FIELD_NUMBER: _ClassVar[int]
    WAIT_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SIGNED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    resource_path: str
    client_id: str
    session_timeout_ms: int
    wait_blocking: bool
    wait_limit_ms: int
    kind: Kind
    limit: int
    signed_token: bool
    request_id: str
    def __init__(self, resource_path: _Optional[str] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., wait_blocking: bool = ..., wait_limit_ms: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., limit: _Optional[int] = ..., signed_token: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class RecordLockResponse(_message.Message):
    __slots__ = ("acquired", "acquired_znode_path", "fencing_token", "lease_expires_at", "lease_id", "lease_duration_ms", "place", "detail", "signed_token")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_ZNODE_PATH_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SIGNED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    acquired: bool
    acquired_znode_path: str
    fencing_token: int
    lease_expires_at: int
    lease_id: str
    lease_duration_ms: int
    place: int
    detail: str
    signed_token: str
    def __init__(self, acquired: bool = ..., acquired_znode_path: _Optional[str] = ..., fencing_token: _Optional[int] = ..., lease_expires_at: _Optional[int] = ..., lease_id: _Optional[str] = ..., lease_duration_ms: _Optional[int] = ..., place: _Optional[int] = ..., detail: _Optional[str] = ..., signed_token: _Optional[str] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("lease_id", "sent_at")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    sent_at: int
    def __init__(self, lease_id: _Optional[str] = ..., sent_at: _Optional[int] = ...) -> None: ...

class LeaseState(_message.Message):
    __slots__ = ("state", "lease_id", "lease_expires_at", "lease_duration_ms", "release_requested", "detail", "fencing_token", "sent_at")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LeaseState.State]
        STATE_HELD: _ClassVar[LeaseState.State]
        STATE_OVER: _ClassVar[LeaseState.State]
    STATE_UNSPECIFIED: LeaseState.State
    STATE_HELD: LeaseState.State
    STATE_OVER: LeaseState.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    state: LeaseState.State
    lease_id: str
    lease_expires_at: int
    lease_duration_ms: int
    release_requested: bool
    detail: str
    fencing_token: int
    sent_at: int
    def __init__(self, state: _Optional[_Union[LeaseState.State, str]] = ..., lease_id: _Optional[str] = ..., lease_expires_at: _Optional[int] = ..., lease_duration_ms: _Optional[int] = ..., release_requested: bool = ..., detail: _Optional[str] = ..., fencing_token: _Optional[int] = ..., sent_at: _Optional[int] = ...) -> None: ...

class ReleaseLockRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class ReleaseLockResponse(_message.Message):
    __slots__ = ("released", "detail")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    released: bool
    detail: str
    def __init__(self, released: bool = ..., detail: _Optional[str] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    INVALID_ARGUMENT: _ClassVar[ErrorCode]
    UNAVAILABLE: _ClassVar[ErrorCode]
    NOT_CONTROLLER: _ClassVar[ErrorCode]
    NO_SUCH_GROUP: _ClassVar[ErrorCode]
    GROUP_EXISTS: _ClassVar[ErrorCode]
    GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    GROUP_EPHEMERAL: _ClassVar[ErrorCode]
    NOT_MEMBER: _ClassVar[ErrorCode]
    STALE_GENERATION: _ClassVar[ErrorCode]
    ALREADY_MEMBER: _ClassVar[ErrorCode]
    NOT_ASSIGNED: _ClassVar[ErrorCode]
    REBALANCING: _ClassVar[ErrorCode]
    LIMIT_EXCEEDED: _ClassVar[ErrorCode]
    TOPIC_MISMATCH: _ClassVar[ErrorCode]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY: _ClassVar[Phase]
    PREPARING: _ClassVar[Phase]
    STABLE: _ClassVar[Phase]
OK: ErrorCode
INTERNAL: ErrorCode
INVALID_ARGUMENT: ErrorCode
UNAVAILABLE: ErrorCode
NOT_CONTROLLER: ErrorCode
NO_SUCH_GROUP: ErrorCode
GROUP_EXISTS: ErrorCode
GROUP_NOT_EMPTY: ErrorCode
GROUP_EPHEMERAL: ErrorCode
NOT_MEMBER: ErrorCode
STALE_GENERATION: ErrorCode
ALREADY_MEMBER: ErrorCode
NOT_ASSIGNED: ErrorCode
REBALANCING: ErrorCode
LIMIT_EXCEEDED: ErrorCode
TOPIC_MISMATCH: ErrorCode
EMPTY: Phase
PREPARING: Phase
STABLE: Phase

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("stream", "subject")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    stream: str
    subject: str
    def __init__(self, stream: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "partitions", "places")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping[str, object]]]] = ...) -> None: ...

class TopicPartition(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "rewind", "error", "created_ns")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    rewind: bool
    error: Error
    created_ns: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., rewind: _Optional[bool] = ..., error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., created_ns: _Optional[int] = ...) -> None: ...

class Controller(_message.Message):
    __slots__ = ("id", "subject")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    id: str
    subject: str
    def __init__(self, id: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("consumer_id", "client_id", "topics", "assignment", "session_timeout_ms")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    client_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    assignment: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    session_timeout_ms: int
    def __init__(self, consumer_id: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., assignment: _Optional[_Iterable[_Union[TopicPartition, _Mapping[str, object]]]] = ..., session_timeout_ms: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "error", "controller", "session_timeout_ms", "generation", "topics", "members", "ephemeral", "assignor", "phase")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: Error
    controller: Controller
    session_timeout_ms: int
    generation: int
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    ephemeral: bool
    assignor: str
    phase: Phase
    def __init__(self, name: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., controller: _Optional[_Union[Controller, _Mapping[str, object]]] = ..., session_timeout_ms: _Optional[int] = ..., generation: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping[str, object]]]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping[str, object]]]] = ..., ephemeral: _Optional[bool] = ..., assignor: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("names", "stored")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    stored: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., stored: _Optional[bool] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("error", "groups")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping[str, object]]]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("name", "session_timeout_ms", "topics", "ephemeral", "assignor", "immediate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    IMMEDIATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    session_timeout_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    ephemeral: bool
    assignor: str
    immediate: bool
    def __init__(self, name: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping[str, object]]]] = ..., ephemeral: _Optional[bool] = ..., assignor: _Optional[str] = ..., immediate: _Optional[bool] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("error", "group")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    error: Error
    group: Group
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., group: _Optional[_Union[Group, _Mapping[str, object]]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("error", "results")
    class Result(_message.Message):
        __slots__ = ("name", "error")
        NAME_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        name: str
        error: Error
        def __init__(self, name: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping[str, object]]] = ...) -> None: ...
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    results: _containers.RepeatedCompositeFieldContainer[DeleteGroupResponse.Result]
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., results: _Optional[_Iterable[_Union[DeleteGroupResponse.Result, _Mapping[str, object]]]] = ...) -> None: ...

class RegisterConsumerRequest(_message.Message):
    __slots__ = ("group", "client_id", "consumer_id", "topics", "session_timeout_ms", "generation", "wait_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    consumer_id: str
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    session_timeout_ms: int
    generation: int
    wait_ms: int
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., consumer_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping[str, object]]]] = ..., session_timeout_ms: _Optional[int] = ..., generation: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class RegisterConsumerResponse(_message.Message):
    __slots__ = ("error", "generation", "partitions", "session_timeout_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    generation: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    session_timeout_ms: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ..., session_timeout_ms: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "consumer_id", "generation", "client_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer_id: str
    generation: int
    client_id: str
    def __init__(self, group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., generation: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("error", "generation")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    error: Error
    generation: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., generation: _Optional[int] = ...) -> None: ...

class RewindConsumerRequest(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ...) -> None: ...

class RewindConsumerResponse(_message.Message):
    __slots__ = ("error", "offsets")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("group", "consumer_id", "generation", "offsets", "client_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer_id: str
    generation: int
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    client_id: str
    def __init__(self, group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., generation: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ..., client_id: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("error", "offsets")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "consumer_id", "client_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    consumer_id: str
    client_id: str
    def __init__(self, group: _Optional[str] = ..., consumer_id: _Optional[str] = ..., client_id: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("group", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, group: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping[str, object]]]] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("error", "offsets")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, error: _Optional[_Union[Error, _Mapping[str, object]]] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping[str, object]]]] = ...) -> None: ...

class GroupRecord(_message.Message):
    __slots__ = ("name", "session_timeout_ms", "topics", "ephemeral", "assignor", "immediate", "generation", "phase", "members", "offsets", "controller_id", "controller_incarnation", "rewound", "offsets_revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    IMMEDIATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    session_timeout_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    ephemeral: bool
    assignor: str
    immediate: bool
    generation: int
    phase: Phase
    members: _containers.RepeatedCompositeFieldContainer[MemberRecord]
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetsRecord]
    controller_id: str
    controller_incarnation: str
    rewound: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    offsets_revision: int
    def __init__(self, name: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping[str, object]]]] = ..., ephemeral: _Optional[bool] = ..., assignor: _Optional[str] = ..., immediate: _Optional[bool] = ..., generation: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., members: _Optional[_Iterable[_Union[MemberRecord, _Mapping[str, object]]]] = ..., offsets: _Optional[_Iterable[_Union[OffsetsRecord, _Mapping[str, object]]]] = ..., controller_id: _Optional[str] = ..., controller_incarnation: _Optional[str] = ..., rewound: _Optional[_Iterable[_Union[TopicPartition, _Mapping[str, object]]]] = ..., offsets_revision: _Optional[int] = ...) -> None: ...

class MemberRecord(_message.Message):
    __slots__ = ("consumer_id", "client_id", "topics", "session_timeout_ms", "generation", "ready", "assignment")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    client_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    session_timeout_ms: int
    generation: int
    ready: bool
    assignment: _containers.RepeatedCompositeFieldContainer[AssignedRecord]
    def __init__(self, consumer_id: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., session_timeout_ms: _Optional[int] = ..., generation: _Optional[int] = ..., ready: _Optional[bool] = ..., assignment: _Optional[_Iterable[_Union[AssignedRecord, _Mapping[str, object]]]] = ...) -> None: ...

class AssignedRecord(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class OffsetsRecord(_message.Message):
    __slots__ = ("topic", "offsets", "created_ns")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class CreatedNsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CREATED_NS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    offsets: _containers.ScalarMap[int, int]
    created_ns: _containers.ScalarMap[int, int]
    def __init__(self, topic: _Optional[str] = ..., offsets: _Optional[_Mapping[int, int]] = ..., created_ns: _Optional[_Mapping[int, int]] = ...) -> None: ...

class OffsetsChangeRecord(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetsRecord]
    def __init__(self, offsets: _Optional[_Iterable[_Union[OffsetsRecord, _Mapping[str, object]]]] = ...) -> None: ...

class CoordinatorRecord(_message.Message):
    __slots__ = ("id", "incarnation", "subject", "lease_ms", "assignors")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNORS_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: str
    subject: str
    lease_ms: int
    assignors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[str] = ..., subject: _Optional[str] = ..., lease_ms: _Optional[int] = ..., assignors: _Optional[_Iterable[str]] = ...) -> None: ...

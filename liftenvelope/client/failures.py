"""Translation of failed calls into this package's errors: the only code that reads server codes and texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from liftenvelope._checks import MAX_INT64
from liftenvelope._deadlines import SUBJECT_CAUSES, ack_timeout
from liftenvelope.client.retries import Fate, fate_of
from liftenvelope.errors import (
    AckTimeoutError,
    AlreadyMemberError,
    CallTimeoutError,
    CursorsUnavailableError,
    EncryptionFailedError,
    FencedError,
    GroupError,
    IncorrectOffsetError,
    LiftEnvelopeError,
    MessageTooLargeError,
    NoSuchGroupError,
    NoSuchPartitionError,
    NoSuchStreamError,
    NotLeaderError,
    NotMemberError,
    PartitionPausedError,
    PermissionDeniedError,
    PublishError,
    ReadonlyPartitionError,
    ServerError,
    ServerProtocolError,
    StreamDeletedError,
    StreamExistsError,
    TransportError,
)
from liftenvelope.rpc.status import NOT_RECORDED, PUBLISH_AGAIN, CallNotProcessedError, RpcError, StatusCode

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

__all__ = [
    "call_error",
    "decode",
    "is_denial",
    "no_such_partition",
    "no_such_stream",
    "partition_paused",
    "publish_async_error",
    "publish_call_error",
    "resolved_start",
]

_M = TypeVar("_M", bound="ProtobufMessage")

#: Causes of a missing ack for a message published to a stream. Paused and read-only partitions are not among
#: them: the server resumes a paused one, and refuses a message for a read-only one immediately.
STREAM_ACK_CAUSES: Final = (
    "fewer than min_isr replicas are in sync (ack policy ALL); the partition has no leader; "
    "the server is slow or unreachable"
)
#: Causes of a missing ack for a message published to a subject.
SUBJECT_ACK_CAUSES: Final = f"fewer than min_isr replicas are in sync (ack policy ALL); {SUBJECT_CAUSES}"

_GROUP_METHODS: Final = frozenset(
    {
        "JoinConsumerGroup",
        "LeaveConsumerGroup",
        "FetchConsumerGroupAssignments",
        "ReportConsumerGroupCoordinator",
    }
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """Maps a status code, a part of its text and the methods to an error. An empty text matches any text."""

    kind: type[ServerError] | type[GroupError]
    code: StatusCode
    text: str = ""
    methods: frozenset[str] | None = None


def _rule(
    kind: type[ServerError] | type[GroupError], code: StatusCode, text: str = "", *methods: str
) -> _Rule:
    return _Rule(kind, code, text, frozenset(methods) if methods else None)


_C = StatusCode
# The first match counts, so specific rules come before general ones. Source of the texts: liftbridge
# server/api.go, metadata.go, partition.go, cursors.go.
_RULES: Final = (
    _rule(StreamExistsError, _C.ALREADY_EXISTS, "", "CreateStream"),
    _rule(NoSuchGroupError, _C.NOT_FOUND, "", *_GROUP_METHODS),
    _rule(NoSuchGroupError, _C.FAILED_PRECONDITION, "No such consumer group", *_GROUP_METHODS),
    _rule(NoSuchStreamError, _C.FAILED_PRECONDITION, "stream does not exist", *_GROUP_METHODS),
    _rule(AlreadyMemberError, _C.FAILED_PRECONDITION, "already a member", *_GROUP_METHODS),
    _rule(NotMemberError, _C.FAILED_PRECONDITION, "not a member", *_GROUP_METHODS),
    _rule(NotLeaderError, _C.FAILED_PRECONDITION, "not the consumer group coordinator", *_GROUP_METHODS),
    _rule(FencedError, _C.FAILED_PRECONDITION, "not currently assigned this partition", "Subscribe"),
    _rule(PartitionPausedError, _C.FAILED_PRECONDITION, "commit log was closed", "Subscribe"),
    _rule(PartitionPausedError, _C.INTERNAL, "segment has been closed", "Subscribe"),
    _rule(StreamDeletedError, _C.NOT_FOUND, "commit log was deleted", "Subscribe"),
    _rule(ReadonlyPartitionError, _C.RESOURCE_EXHAUSTED, "End of readonly partition", "Subscribe"),
    _rule(NotLeaderError, _C.FAILED_PRECONDITION, "leader"),
    # Before "artition": the text ends with the stream's name, which may contain that.
    _rule(NoSuchStreamError, _C.NOT_FOUND, "o such stream"),
    _rule(NoSuchPartitionError, _C.NOT_FOUND, "artition"),
    _rule(NoSuchStreamError, _C.NOT_FOUND, "tream"),
    _rule(NoSuchStreamError, _C.NOT_FOUND, "", "DeleteStream"),
    _rule(NotLeaderError, _C.INTERNAL, "no known metadata leader"),
    _rule(NotLeaderError, _C.INTERNAL, "nats: no responders available for request"),
    _rule(NotLeaderError, _C.INTERNAL, "node is not the leader"),
    _rule(NotLeaderError, _C.INTERNAL, "leadership transfer in progress"),
    _rule(CursorsUnavailableError, _C.INTERNAL, "Cursors stream does not exist"),
)


#: Liftbridge's texts for a call forbidden by its policy, and for a client certificate without a name. Their
#: code is UNKNOWN; SetCursor returns INTERNAL if the client must not publish to ``__cursors``.
_DENIALS: Final = ("The client is not authorized to call ", "Failed to retrieve client ID")


def is_denial(error: RpcError | TransportError) -> bool:
    """Return whether the server refused a call because the client is not allowed to make it."""
    if not isinstance(error, RpcError):
        return False
    if error.code in (StatusCode.UNKNOWN, StatusCode.INTERNAL):
        return any(text in error.description for text in _DENIALS)
    return error.code == StatusCode.PERMISSION_DENIED


def decode(kind: type[_M], data: bytes, about: str) -> _M:
    """Decode a server's answer.

    Args:
        kind: Expected message type.
        data: The serialized answer.
        about: Subject of the call; begins the error text.

    Raises:
        ServerProtocolError: The answer is not a valid message of that type.
    """
    try:
        return kind.FromString(data)
    except DecodeError as exc:
        text = f"{about}: the server's answer is no {kind.__name__}: {data[:40]!r}"
        raise ServerProtocolError(text, 0, True) from exc


def call_error(method: str, error: RpcError | TransportError, about: str) -> LiftEnvelopeError:
    """Return the error to raise for a call that failed.

    Args:
        method: Name of the method, such as ``CreateStream``.
        error: Failure of the call.
        about: Subject of the call, such as ``stream 'orders'``; begins the error text.
    """
    if isinstance(error, TransportError):
        return type(error)(f"{about}: {error}", error.published, error.sent)
    if fate_of(error) is Fate.TIMED_OUT:
        late = error.code == StatusCode.DEADLINE_EXCEEDED
        what = "answered in time" if late else "decided in time, and may still be carried out"
        return CallTimeoutError(f"{about}: {method} was not {what}: {error.description}")
    if is_denial(error):
        return PermissionDeniedError(error.code, f"{about}: {method} was refused: {error.description}")
    for rule in _RULES:
        fits = rule.code == error.code and rule.text in error.description
        if fits and (rule.methods is None or method in rule.methods):
            return _made(rule.kind, error, about)
    if method in _GROUP_METHODS and error.code == StatusCode.FAILED_PRECONDITION:
        return GroupError(f"{about}: {error.description}")
    return RpcError(error.code, f"{about}: {error.description}")


def _made(
    kind: type[ServerError] | type[GroupError], error: RpcError, about: str
) -> ServerError | GroupError:
    if kind is PartitionPausedError:
        return partition_paused(error, about)
    text = f"{about}: {error.description}"
    return kind(error.code, text) if issubclass(kind, ServerError) else kind(text)


def no_such_stream(name: str) -> NoSuchStreamError:
    """Return the error for a stream that is in no metadata."""
    return NoSuchStreamError(StatusCode.NOT_FOUND, f"there is no stream {name!r}")


def no_such_partition(stream: str, partition: int, known: int) -> NoSuchPartitionError:
    """Return the error for a partition that is not among those ``known`` in the metadata of its stream."""
    text = f"stream {stream!r} has no partition {partition}, but {known} from 0"
    return NoSuchPartitionError(StatusCode.NOT_FOUND, text)


def partition_paused(error: ServerError | RpcError, about: str) -> PartitionPausedError:
    """Return the error for a paused partition. The server's text alone does not tell what to do."""
    remedy = "subscribe with resume=True, or wake it by a publish"
    return PartitionPausedError(
        error.code, f"{about}: the partition is paused: {remedy} (server: {error.description})"
    )


#: Errors of a unary publish: status code, part of the text, exception class. The first match counts.
_PUBLISH_RULES: Final[tuple[tuple[StatusCode, str, type[ServerError]], ...]] = (
    (_C.INVALID_ARGUMENT, "exceeds max replication size", MessageTooLargeError),
    (_C.UNKNOWN, "maximum payload exceeded", MessageTooLargeError),
    (_C.UNKNOWN, "incorrect expected offset", IncorrectOffsetError),
    (_C.INTERNAL, "ncrypt", EncryptionFailedError),
    (_C.FAILED_PRECONDITION, "", ReadonlyPartitionError),
)


def publish_call_error(
    method: str, error: RpcError | TransportError, about: str, correlation_id: str, causes: str
) -> LiftEnvelopeError:
    """Return the error for a failed unary publish. It tells if the message may be stored.

    Args:
        method: Publish or PublishToSubject.
        error: Failure of the call.
        about: Partition or subject; begins the error text.
        correlation_id: Correlation id of the message.
        causes: Usual causes of a missing ack.
    """
    text = f"{about}: {error}"
    if isinstance(error, CallNotProcessedError):
        return TransportError(text, 0, False)
    if isinstance(error, RpcError) and (why := _why_not_stored(method, error)):
        return AckTimeoutError(f"{about}: {why}", correlation_id, False)
    if isinstance(error, TransportError) or error.code in (StatusCode.UNAVAILABLE, StatusCode.CANCELLED):
        return TransportError(f"{text}; the message may be stored", 1, True)
    if error.code == StatusCode.DEADLINE_EXCEEDED:
        return ack_timeout(f"the message on {about}", correlation_id, causes=causes)
    for code, part, kind in _PUBLISH_RULES:
        if error.code == code and part in error.description:
            return kind(code, f"{about}: {error.description}")
    return call_error(method, error, about)


def _why_not_stored(method: str, error: RpcError) -> str:
    """Return why a message is certain not to be stored, and may be once it is published again; else empty."""
    if PUBLISH_AGAIN in error.description:
        return error.description
    is_undecided = error.code != StatusCode.DEADLINE_EXCEEDED and fate_of(error) is Fate.TIMED_OUT
    if method == "Publish" and is_undecided:
        # The cluster decides nothing but the resumption of a paused partition, and before the publish.
        return f"the message is not stored: {error.description}"
    return ""


#: Exception class by code of PublishAsyncError. The codes 0 to 7 are UNKNOWN, BAD_REQUEST, NOT_FOUND,
#: INTERNAL, READONLY, INCORRECT_OFFSET, ENCRYPTION_FAILED, PERMISSION_DENIED.
_ASYNC_ERRORS: Final[dict[int, type[ServerError]]] = {
    2: NoSuchStreamError,
    4: ReadonlyPartitionError,
    5: IncorrectOffsetError,
    6: EncryptionFailedError,
    7: PermissionDeniedError,
}


#: Texts for a message that is too large: from Liftbridge (replication limit) and from NATS (maximum payload).
_TOO_LARGE_TEXTS: Final = ("exceeds max replication size", "maximum payload exceeded")


#: Text of a gateway for a message without an ack, with the code UNKNOWN.
_UNKNOWN_OUTCOME: Final = "may be stored"
#: Text of a gateway for a message that NATS has refused. Liftbridge publishes before it refuses.
_NOT_STORED: Final = "the message is not stored"


def publish_async_error(
    code: int, text: str, about: str, correlation_id: str
) -> ServerError | AckTimeoutError:
    """Return the error for a message that a PublishAsync stream reports as failed or of unknown outcome."""
    if code == 0 and _UNKNOWN_OUTCOME in text:
        return AckTimeoutError(f"{about}: {text}", correlation_id)
    if NOT_RECORDED in text:  # Liftbridge resumes a paused partition, and so the API has no code for it
        return PartitionPausedError(code, f"{about}: {text}")
    if PUBLISH_AGAIN in text:
        return AckTimeoutError(f"{about}: {text}", correlation_id, False)
    kind = _ASYNC_ERRORS.get(code, PublishError)
    if any(part in text for part in _TOO_LARGE_TEXTS):
        kind = MessageTooLargeError
    elif code == 2 and "o such partition" in text:
        kind = NoSuchPartitionError
    if kind is PermissionDeniedError and _NOT_STORED in text:
        return PermissionDeniedError(code, f"{about}: PublishAsync was refused: {text}")
    if kind is PermissionDeniedError:
        stored = "the message may be stored: Liftbridge publishes it before it refuses it"
        return PermissionDeniedError(code, f"{about}: PublishAsync was refused: {text}; {stored}", sent=True)
    return kind(code, f"{about}: {text}")


#: An offset has at most 19 digits.
_BEFORE_START: Final = re.compile(r"Stop offset is before start offset: -?\d+ < (\d{1,19})(?!\d)")


def resolved_start(error: RpcError) -> int | None:
    """Return the start offset in a refusal whose stop offset is below the start; None for other errors.

    A number beyond 64 bits is not an offset, so it counts as another error.
    """
    found = _BEFORE_START.search(error.description)
    if found is None or error.code != StatusCode.INVALID_ARGUMENT:
        return None
    offset = int(found[1])
    return offset if offset <= MAX_INT64 else None

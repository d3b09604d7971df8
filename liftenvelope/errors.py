"""Exceptions of liftenvelope: every error that the package raises on purpose.

One ``except`` for the base class, :class:`LiftEnvelopeError`, covers the package. Its subclasses distinguish
the cases that a caller may handle differently. All errors can be pickled.
:attr:`LiftEnvelopeError.retriable` tells if the same call may succeed on a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from liftenvelope._showing import Outcomes
    from liftenvelope.envelope import Ack

__all__ = [
    "AckTimeoutError",
    "AlreadyMemberError",
    "BadMagicError",
    "BadRequestError",
    "CallTimeoutError",
    "ChecksumError",
    "ConnectionClosedError",
    "ConsumerDeletedError",
    "ConsumerExistsError",
    "ConsumerNotFoundError",
    "CursorsUnavailableError",
    "EncryptionFailedError",
    "EnvelopeError",
    "EnvelopeTooLargeError",
    "FencedError",
    "GroupError",
    "IncorrectOffsetError",
    "InternalError",
    "InvalidConfigError",
    "JetStreamError",
    "LiftEnvelopeError",
    "MalformedEnvelopeError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "MessageTtlError",
    "MissingExtraError",
    "NoCursorError",
    "NoJetStreamError",
    "NoSuchGroupError",
    "NoSuchPartitionError",
    "NoSuchStreamError",
    "NotLeaderError",
    "NotMemberError",
    "OffsetOutOfRangeError",
    "PartitionPausedError",
    "PermissionDeniedError",
    "PublishError",
    "PushConsumerError",
    "ReadonlyPartitionError",
    "ResourcesExceededError",
    "ServerError",
    "ServerProtocolError",
    "StreamDeletedError",
    "StreamExistsError",
    "StreamMessageTooLargeError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamSealedError",
    "StreamStoreFailedError",
    "SubjectsOverlapError",
    "SubscriptionLostError",
    "TransportError",
    "TruncatedEnvelopeError",
    "UnsupportedByServerError",
    "UnsupportedVersionError",
    "UsageError",
    "UsageTypeError",
    "WrongLastMessageIdError",
    "WrongLastSequenceError",
    "WrongStreamError",
    "WrongTypeError",
    "jetstream_error",
    "publish_error",
]


class LiftEnvelopeError(Exception):
    """Base of every error of this package."""

    #: True if a retry of the same call may succeed without any change on the caller's side.
    retriable: ClassVar[bool] = False
    #: ``PublishSummary`` on the error that ends a ``publish_many``; otherwise None.
    summary: Outcomes[LiftEnvelopeError] | None = None
    sent: bool = False  #: True if the message of a failed publish may be stored: its outcome is unknown.


class UsageError(LiftEnvelopeError, ValueError):
    """The call is invalid; the message names the offending value. Nothing was sent."""

    #: Names of arguments in the message, which a command replaces by those of its options.
    arguments: tuple[str, ...] = ()


class UsageTypeError(UsageError, TypeError):
    """An argument has a type that the call does not accept. Also a :class:`TypeError`."""


class MissingExtraError(LiftEnvelopeError, ImportError):
    """A part of the package needs an optional dependency; the message has the ``pip install`` to run."""


class EnvelopeError(LiftEnvelopeError, ValueError):
    """Bytes are not a valid envelope, or a message can't be encoded as one.

    Attributes:
        offset: Position of the fault in the data, in bytes from the start of the envelope.
            None if the fault is in a value to encode.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def __str__(self) -> str:
        message: str = self.args[0]
        return message if self.offset is None else f"{message} (at byte {self.offset})"


class TruncatedEnvelopeError(EnvelopeError):
    """The data ends inside the header or a field."""


class BadMagicError(EnvelopeError):
    """The data does not begin with the envelope's magic number: an ordinary NATS message."""


class UnsupportedVersionError(EnvelopeError):
    """The envelope has a protocol version other than 0."""


class WrongTypeError(EnvelopeError):
    """The envelope is valid but has another type, such as an ack where a message was expected."""


class ChecksumError(EnvelopeError):
    """The CRC-32C in the header does not match the payload."""


class EnvelopeTooLargeError(EnvelopeError):
    """The message would break a size limit of the format or of the server."""


class MalformedEnvelopeError(EnvelopeError):
    """The header or the protobuf payload breaks the rules of the format."""


class TransportError(LiftEnvelopeError, ConnectionError):
    """The connection is closed, draining, or was lost.

    Attributes:
        published: For a batch: number of messages handed to the connection, from the first on. These may
            or may not have arrived. 0 for a single message that was never sent.
        sent: For one message: True if it was handed to the connection. The message then may be stored, and
            publishing it again may store it twice. If False, publishing it again is safe.
    """

    retriable = True

    def __init__(self, message: str, published: int = 0, sent: bool = False) -> None:
        super().__init__(message)
        self.args = (message, published, sent)  # set here: OSError would read them as errno and strerror
        self.published = published
        self.sent = sent

    def __str__(self) -> str:
        return str(self.args[0])


class AckTimeoutError(LiftEnvelopeError, TimeoutError):
    """No ack arrived in time.

    If :attr:`sent` is true, the outcome is unknown: the message may be stored, and publishing it again may
    store it twice. If :attr:`sent` is false, the message is not stored, and publishing it again is safe.

    Attributes:
        correlation_id: Id that the ack would have carried.
        sent: True if the message was handed to the connection. NATS may still have refused it.
    """

    retriable = True

    def __init__(self, message: str, correlation_id: str = "", sent: bool = True) -> None:
        super().__init__(message)
        self.args = (message, correlation_id, sent)  # set here: OSError would read them as errno and so on
        self.correlation_id = correlation_id
        self.sent = sent

    def __str__(self) -> str:
        return str(self.args[0])


class ServerError(LiftEnvelopeError):
    """A server refused an operation.

    Attributes:
        code: The server's error number, kept even if this version of the package has no name for it; 0 if
            the server sent none.
        description: The server's error text, or the name of the code if the server sent none.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code = code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code})" if self.code else self.description


class PublishError(ServerError):
    """An ack reports that the message was not stored.

    Attributes:
        ack: The ack. Its ``offset`` is meaningless: servers leave it 0.
    """

    def __init__(self, code: int, description: str, ack: Ack | None = None) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, ack)
        self.ack = ack


class IncorrectOffsetError(PublishError):
    """The expected offset is not the next one of the partition (optimistic concurrency)."""


class MessageTooLargeError(PublishError):
    """The message is larger than ``clustering.replication.max.bytes`` of the server, 1 MiB by default."""


class EncryptionFailedError(PublishError):
    """The server could not encrypt the message at rest."""


class StreamExistsError(ServerError):
    """A stream with that name already exists."""


class NoSuchStreamError(ServerError):
    """No stream with that name exists."""


class NoSuchPartitionError(ServerError):
    """The stream has no partition with that number."""


class ReadonlyPartitionError(ServerError):
    """The partition is read-only. From a subscription: all messages were read, and none will follow."""


class PartitionPausedError(ServerError):
    """The partition is paused. Publish to it through gRPC, or subscribe with ``resume=True``, to wake it."""


class StreamDeletedError(ServerError):
    """The stream was deleted during a read."""


class NotLeaderError(ServerError):
    """The partition's leader or the group's coordinator was not found in time."""

    retriable = True


class PermissionDeniedError(ServerError):
    """The server does not allow this client to make the call.

    Attributes:
        sent: True if the refused message may still be stored: Liftbridge's PublishAsync publishes a message
            before it refuses it. False if nothing was done.
    """

    def __init__(self, code: int, description: str, sent: bool = False) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, sent)
        self.sent = sent


class CursorsUnavailableError(ServerError):
    """The server has no cursors: its ``cursors.stream.partitions`` is 0, or it has only just started."""

    retriable = True


class ConnectionClosedError(TransportError):
    """The connection or the client was closed or drained. A retry needs a new one."""

    retriable = False


class ServerProtocolError(TransportError):
    """The server violated its protocol, or exceeded a limit; the message names it."""


class JetStreamError(ServerError):
    """JetStream refused an operation.

    Attributes:
        code: Kind of error, like an HTTP status: 400, 404, 503 and so on.
        err_code: JetStream's error number, more precise than ``code``; 0 if the server sent none.
        description: The server's error text.
    """

    def __init__(self, code: int, description: str, err_code: int = 0) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, err_code)
        self.err_code = err_code

    def __str__(self) -> str:
        precise = f", error {self.err_code}" if self.err_code else ""
        return f"{self.description} (code {self.code}{precise})"


class NoJetStreamError(JetStreamError):
    """No server answers on the subject: JetStream is off or starting, or has no such stream or consumer."""

    retriable = True


class BadRequestError(JetStreamError):
    """The server rejected the request, or a pull, as invalid."""


class StreamNotFoundError(JetStreamError):
    """No stream with that name exists."""


class StreamNameInUseError(JetStreamError):
    """A stream with that name exists: with another configuration, or where a restore makes it."""


class SubjectsOverlapError(JetStreamError):
    """Another stream records one of the subjects."""


class InvalidConfigError(JetStreamError):
    """The server rejected the configuration of a stream, or the change of it."""


class StreamSealedError(JetStreamError):
    """The stream is sealed: its messages and configuration can't change."""


class ConsumerNotFoundError(JetStreamError):
    """The stream has no consumer with that name."""


class ConsumerExistsError(JetStreamError):
    """The stream already has a consumer with that name, with another configuration."""


class ConsumerDeletedError(JetStreamError):
    """The consumer or its stream was deleted during a read."""


class PushConsumerError(JetStreamError):
    """The consumer pushes its messages to a subject, so messages can't be pulled from it."""


class MessageNotFoundError(JetStreamError):
    """The stream has no such message."""


class WrongLastSequenceError(JetStreamError):
    """The last sequence of the stream or subject is not the one that the publish expected."""


class WrongLastMessageIdError(JetStreamError):
    """The last message id of the stream is not the one that the publish expected."""


class WrongStreamError(JetStreamError):
    """The subject is recorded by another stream than the publish expected."""


class MessageTtlError(JetStreamError):
    """The message's time to live is malformed, or the stream does not allow one."""


class StreamMessageTooLargeError(JetStreamError):
    """The message is larger than the stream's ``max_msg_size``."""


class StreamStoreFailedError(JetStreamError):
    """The message was not stored: the stream is full and discards new messages, or its store failed."""


class ResourcesExceededError(JetStreamError):
    """A limit of the account or server is reached: memory, storage, streams or consumers."""


class UnsupportedByServerError(LiftEnvelopeError):
    """The server is too old for the request, or configured without support for it."""


class CallTimeoutError(LiftEnvelopeError, TimeoutError):
    """The server did not answer, or its cluster did not decide, in time. The call may be carried out."""

    retriable = True


class OffsetOutOfRangeError(LiftEnvelopeError):
    """The partition ends before an offset already read: it lost messages, or the stream was recreated.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        wanted: Next offset to read.
        newest: Newest offset of the partition, -1 if it is empty.
    """

    def __init__(self, message: str, stream: str, partition: int, wanted: int, newest: int) -> None:
        super().__init__(message, stream, partition, wanted, newest)
        self.stream, self.partition = stream, partition
        self.wanted, self.newest = wanted, newest

    def __str__(self) -> str:
        return str(self.args[0])


class SubscriptionLostError(TransportError):
    """A subscription was lost for ``resubscribe_wait`` seconds. A new one at its position skips nothing."""


class GroupError(LiftEnvelopeError):
    """A consumer group operation failed."""


class NoSuchGroupError(GroupError):
    """No group with that name exists: a group ends with its last member."""


class NotMemberError(GroupError):
    """The consumer is not a member of the group: it never joined, has left, or missed its heartbeats."""


class AlreadyMemberError(GroupError):
    """The group already has a member with that id: another consumer, or this one before a restart."""


class FencedError(GroupError):
    """Another consumer of the group has taken over the partition."""


class NoCursorError(GroupError):
    """The consumer was to start at its cursor, but has no cursor."""


_PUBLISH_ERRORS: dict[int, tuple[type[PublishError], str]] = {
    1: (PublishError, "the server failed to store the message and gave no reason"),
    2: (IncorrectOffsetError, "the expected offset is not the next one of the partition"),
    3: (MessageTooLargeError, "the message is larger than the server replicates"),
    4: (EncryptionFailedError, "the server could not encrypt the message"),
}


def publish_error(ack: Ack) -> PublishError:
    """Return the error that an ack reports; an unknown code keeps its number."""
    kind, reason = _PUBLISH_ERRORS.get(ack.error, (PublishError, "the server did not store the message"))
    where = f" (stream {ack.stream!r}, correlation id {ack.correlation_id!r})"
    return kind(int(ack.error), reason + where, ack)


_JETSTREAM_ERRORS: dict[int, type[JetStreamError]] = {
    **dict.fromkeys((10003, 10025), BadRequestError),
    **dict.fromkeys((10008, 10039, 10076), NoJetStreamError),
    **dict.fromkeys((10013, 10105, 10148), ConsumerExistsError),
    **dict.fromkeys((10014, 10149), ConsumerNotFoundError),
    **dict.fromkeys((10002, 10023, 10026, 10027, 10028, 10047), ResourcesExceededError),
    **dict.fromkeys((10037, 10043), MessageNotFoundError),
    **dict.fromkeys((10071, 10164), WrongLastSequenceError),
    **dict.fromkeys((10165, 10166), MessageTtlError),
    10052: InvalidConfigError,
    10054: StreamMessageTooLargeError,
    **dict.fromkeys((10058, 10130), StreamNameInUseError),
    10059: StreamNotFoundError,
    10060: WrongStreamError,
    10065: SubjectsOverlapError,
    10070: WrongLastMessageIdError,
    10077: StreamStoreFailedError,
    10109: StreamSealedError,
}


def jetstream_error(code: int, err_code: int, description: str) -> JetStreamError:
    """Return the error for JetStream's codes. Codes without an own class give a JetStreamError."""
    default = NoJetStreamError if code == 503 and not err_code else JetStreamError
    kind = _JETSTREAM_ERRORS.get(err_code, default)
    return kind(code, description or "the server gave no reason", err_code)


class InternalError(LiftEnvelopeError):
    """A defect in liftenvelope itself. Please report it."""

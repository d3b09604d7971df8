"""The exception tree of liftenvelope: every error that the package raises on purpose.

One base, :class:`LiftEnvelopeError`, so that one ``except`` covers the package; below it one class for
each thing that a caller might do differently. All of them can be pickled, and each says through
:attr:`LiftEnvelopeError.retriable` whether the same call may succeed when it is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from liftenvelope.client.publish_summary import PublishSummary
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

    #: Whether the same call, made again, may succeed without any change on the caller's side.
    retriable: ClassVar[bool] = False
    #: Of the error that ends a ``publish_many``: what became of its messages.
    summary: PublishSummary | None = None


class UsageError(LiftEnvelopeError, ValueError):
    """The call is wrong; the message names the offending value. Nothing was sent."""


class UsageTypeError(UsageError, TypeError):
    """An argument has a type that the call does not take. Also a :class:`TypeError`."""


class MissingExtraError(LiftEnvelopeError, ImportError):
    """A part of the package needs an optional dependency; the message is the ``pip install`` to run."""


class EnvelopeError(LiftEnvelopeError, ValueError):
    """Bytes are not a valid envelope, or a message can't be made into one.

    Attributes:
        offset: Where in the data the fault was found, in bytes from the start of the envelope.
            None when the fault is in what was to be encoded.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message, offset)
        self.offset = offset

    def __str__(self) -> str:
        message: str = self.args[0]
        return message if self.offset is None else f"{message} (at byte {self.offset})"


class TruncatedEnvelopeError(EnvelopeError):
    """The data ends before the header or a field does."""


class BadMagicError(EnvelopeError):
    """The data does not begin with the envelope's magic number: an ordinary NATS message."""


class UnsupportedVersionError(EnvelopeError):
    """The envelope has a protocol version other than 0."""


class WrongTypeError(EnvelopeError):
    """A sound envelope of another message type, such as an ack where a message was expected."""


class ChecksumError(EnvelopeError):
    """The CRC-32C in the header is not that of the payload."""


class EnvelopeTooLargeError(EnvelopeError):
    """The message would break a size limit of the format or of the server."""


class MalformedEnvelopeError(EnvelopeError):
    """The header or the protobuf payload breaks the rules of the format."""


class TransportError(LiftEnvelopeError, ConnectionError):
    """The connection is closed, draining, or was lost.

    Attributes:
        published: For a batch, how many of its messages had been handed to the connection, counted from
            the first; these may or may not have arrived. 0 for a single message that never left.
        sent: Where this is the outcome of one message: whether it had been handed to the connection. If so
            it may be stored, and publishing it again may store it twice; if not, that is safe.
    """

    retriable = True

    def __init__(self, message: str, published: int = 0, sent: bool = False) -> None:
        super().__init__(message)
        self.args = (message, published, sent)  # set here: OSError would take them for errno and strerror
        self.published = published
        self.sent = sent

    def __str__(self) -> str:
        return str(self.args[0])


class AckTimeoutError(LiftEnvelopeError, TimeoutError):
    """No ack came in time.

    The outcome is unknown when :attr:`sent` is true: the message may have been stored, so publishing it
    again may store it twice. It is known, and publishing again is safe, when :attr:`sent` is false.

    Attributes:
        correlation_id: The id that the ack would have carried.
        sent: Whether the message had been handed to the connection.
    """

    retriable = True

    def __init__(self, message: str, correlation_id: str = "", sent: bool = True) -> None:
        super().__init__(message)
        self.args = (message, correlation_id, sent)  # set here: OSError would take them for errno and so on
        self.correlation_id = correlation_id
        self.sent = sent

    def __str__(self) -> str:
        return str(self.args[0])


class ServerError(LiftEnvelopeError):
    """A server refused an operation.

    Attributes:
        code: The server's own number, kept also when this version of the package has no name for it; 0 where
            it sends none.
        description: The server's own text, or the name of the code where it sends none.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code = code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code})" if self.code else self.description


class PublishError(ServerError):
    """An ack came, and it says that the message was not stored.

    Attributes:
        ack: The ack itself. Its ``offset`` is meaningless: servers leave it 0.
    """

    def __init__(self, code: int, description: str, ack: Ack | None = None) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, ack)
        self.ack = ack


class IncorrectOffsetError(PublishError):
    """The expected offset is not the one that the message would have got (optimistic concurrency)."""


class MessageTooLargeError(PublishError):
    """The message is larger than ``clustering.replication.max.bytes`` of the server, 1 MiB by default."""


class EncryptionFailedError(PublishError):
    """The server could not encrypt the message at rest."""


class StreamExistsError(ServerError):
    """There is a stream of that name already."""


class NoSuchStreamError(ServerError):
    """There is no stream of that name."""


class NoSuchPartitionError(ServerError):
    """The stream has no partition of that number."""


class ReadonlyPartitionError(ServerError):
    """The partition takes no messages; of a subscription: all was read, and no more will come."""


class PartitionPausedError(ServerError):
    """The partition is paused. Publish to it through gRPC, or subscribe with ``resume=True``, to wake it."""


class StreamDeletedError(ServerError):
    """The stream was deleted while it was read."""


class NotLeaderError(ServerError):
    """No broker was found in time that leads the partition, or coordinates the group."""

    retriable = True


class PermissionDeniedError(ServerError):
    """The server does not allow this client to make the call.

    Attributes:
        sent: Whether this is the outcome of a message that may be stored all the same: Liftbridge's
            PublishAsync publishes a message before it refuses it. False if nothing was done.
    """

    def __init__(self, code: int, description: str, sent: bool = False) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, sent)
        self.sent = sent


class CursorsUnavailableError(ServerError):
    """The server keeps no cursors: ``cursors.stream.partitions`` is 0 there; or it has only just started."""

    retriable = True


class ConnectionClosedError(TransportError):
    """The connection was closed, or drained, while something was read from it."""


class ServerProtocolError(TransportError):
    """The server sent what its protocol does not allow, or more than a limit, which the message names."""


class JetStreamError(ServerError):
    """JetStream refused an operation.

    Attributes:
        code: The kind of error, in the manner of HTTP: 400, 404, 503 and so on.
        err_code: JetStream's own number, more precise than ``code``; 0 where the server gives none.
        description: The server's own text.
    """

    def __init__(self, code: int, description: str, err_code: int = 0) -> None:
        ServerError.__init__(self, code, description)
        self.args = (code, description, err_code)
        self.err_code = err_code

    def __str__(self) -> str:
        precise = f", error {self.err_code}" if self.err_code else ""
        return f"{self.description} (code {self.code}{precise})"


class NoJetStreamError(JetStreamError):
    """Nothing answers on the subject: JetStream is off, not up yet, or knows no stream or consumer there."""

    retriable = True


class BadRequestError(JetStreamError):
    """The server could not make sense of the request, or of a pull."""


class StreamNotFoundError(JetStreamError):
    """There is no stream of that name."""


class StreamNameInUseError(JetStreamError):
    """There is a stream of that name already, with another configuration."""


class SubjectsOverlapError(JetStreamError):
    """Another stream records one of the subjects."""


class InvalidConfigError(JetStreamError):
    """The server takes no such configuration of a stream, or no such change of it."""


class StreamSealedError(JetStreamError):
    """The stream is sealed: nothing in it changes any more."""


class ConsumerNotFoundError(JetStreamError):
    """The stream has no consumer of that name."""


class ConsumerExistsError(JetStreamError):
    """The stream has a consumer of that name already, with another configuration."""


class ConsumerDeletedError(JetStreamError):
    """The consumer, or its stream, was deleted while it was read."""


class PushConsumerError(JetStreamError):
    """The consumer pushes its messages to a subject, so nothing can be pulled from it."""


class MessageNotFoundError(JetStreamError):
    """The stream has no such message."""


class WrongLastSequenceError(JetStreamError):
    """The last sequence, of the stream or of a subject, is not the one that the publish expected."""


class WrongLastMessageIdError(JetStreamError):
    """The last message id of the stream is not the one that the publish expected."""


class WrongStreamError(JetStreamError):
    """Another stream than the one that the publish expected records the subject."""


class MessageTtlError(JetStreamError):
    """The time to live of the message is malformed, or the stream allows none."""


class StreamMessageTooLargeError(JetStreamError):
    """The message is larger than the stream's ``max_msg_size``."""


class StreamStoreFailedError(JetStreamError):
    """The message was not stored: the stream is full and discards new messages, or its store failed."""


class ResourcesExceededError(JetStreamError):
    """A limit of the account or of the server is reached: on memory, storage, streams or consumers."""


class UnsupportedByServerError(LiftEnvelopeError):
    """The server is too old for what was asked; the message says what it did instead."""


class CallTimeoutError(LiftEnvelopeError, TimeoutError):
    """The server did not answer in time. Whether it did what was asked is unknown."""

    retriable = True


class OffsetOutOfRangeError(LiftEnvelopeError):
    """The partition ends before an offset that had been read: it lost messages, or the stream is a new one.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        wanted: The offset that was to be read next.
        newest: The newest offset that there is, -1 for none.
    """

    def __init__(self, message: str, stream: str, partition: int, wanted: int, newest: int) -> None:
        super().__init__(message, stream, partition, wanted, newest)
        self.stream = stream
        self.partition = partition
        self.wanted = wanted
        self.newest = newest

    def __str__(self) -> str:
        return str(self.args[0])


class SubscriptionLostError(TransportError):
    """The connection of a subscription was lost, and could not be made again in ``resubscribe_wait`` seconds.

    Nothing is skipped by subscribing again at the subscription's position.
    """


class GroupError(LiftEnvelopeError):
    """Something is wrong with a consumer group, or with a consumer's place in it."""


class NoSuchGroupError(GroupError):
    """There is no group of that name: a group goes with its last member."""


class NotMemberError(GroupError):
    """The consumer is no member of the group: it never was, has left, or was silent for too long."""


class AlreadyMemberError(GroupError):
    """The group has a member of that id: another consumer, or this one before it was started again."""


class FencedError(GroupError):
    """Another consumer of the group has taken the partition over."""


class NoCursorError(GroupError):
    """The consumer was told to begin at its cursor, and there is none."""


_PUBLISH_ERRORS: dict[int, tuple[type[PublishError], str]] = {
    1: (PublishError, "the server failed to store the message and gave no reason"),
    2: (IncorrectOffsetError, "the expected offset is not the next one of the partition"),
    3: (MessageTooLargeError, "the message is larger than the server replicates"),
    4: (EncryptionFailedError, "the server could not encrypt the message"),
}


def publish_error(ack: Ack) -> PublishError:
    """The error that an ack reports; an unknown code keeps its number."""
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
    10058: StreamNameInUseError,
    10059: StreamNotFoundError,
    10060: WrongStreamError,
    10065: SubjectsOverlapError,
    10070: WrongLastMessageIdError,
    10077: StreamStoreFailedError,
    10109: StreamSealedError,
}


def jetstream_error(code: int, err_code: int, description: str) -> JetStreamError:
    """The error of that number; one without a class of its own here keeps its numbers."""
    kind = _JETSTREAM_ERRORS.get(err_code, JetStreamError)
    if not err_code and code == 503:
        kind = NoJetStreamError
    return kind(code, description or "the server gave no reason", err_code)


class InternalError(LiftEnvelopeError):
    """A defect in liftenvelope itself. Please report it."""

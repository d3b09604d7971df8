"""The exception tree of liftenvelope: every error that the package raises on purpose.

One base, :class:`LiftEnvelopeError`, so that one ``except`` covers the package; below it one class for
each thing that a caller might do differently. All of them can be pickled, and each says through
:attr:`LiftEnvelopeError.retriable` whether the same call may succeed when it is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from liftenvelope.envelope import Ack

__all__ = [
    "AckTimeoutError",
    "BadMagicError",
    "ChecksumError",
    "EncryptionFailedError",
    "EnvelopeError",
    "EnvelopeTooLargeError",
    "IncorrectOffsetError",
    "InternalError",
    "LiftEnvelopeError",
    "MalformedEnvelopeError",
    "MessageTooLargeError",
    "MissingExtraError",
    "PublishError",
    "ServerError",
    "TransportError",
    "TruncatedEnvelopeError",
    "UnsupportedVersionError",
    "UsageError",
    "UsageTypeError",
    "WrongTypeError",
    "publish_error",
]


class LiftEnvelopeError(Exception):
    """Base of every error of this package."""

    #: Whether the same call, made again, may succeed without any change on the caller's side.
    retriable: ClassVar[bool] = False


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
        code: The server's own number, kept also when this version of the package has no name for it.
        description: The server's own text, or the name of the code where it sends none.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code = code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (code {self.code})"


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


class InternalError(LiftEnvelopeError):
    """A defect in liftenvelope itself. Please report it."""

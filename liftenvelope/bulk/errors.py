"""Errors of bulk reads and writes, in addition to the errors that servers report."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, ServerProtocolError, TransportError

__all__ = ["ArchiveBusyError", "ReadLostError", "RetentionError", "ServerProtocolError", "WriteFailedError"]


class ArchiveBusyError(LiftEnvelopeError):
    """Another run is writing the same files of an archive. Retry when the other run has ended."""

    retriable = True


class RetentionError(LiftEnvelopeError):
    """Messages at the start of the requested range are gone from the stream.

    Retention, a purge or a deletion removed the messages, either before the read began or because the removal
    overtook the read.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition; 0 for a JetStream stream.
        wanted: Offset of the first missing message.
        oldest: Offset of the oldest message in the stream.
    """

    def __init__(self, message: str, stream: str, partition: int, wanted: int, oldest: int) -> None:
        super().__init__(message, stream, partition, wanted, oldest)
        self.stream = stream
        self.partition = partition
        self.wanted = wanted
        self.oldest = oldest

    def __str__(self) -> str:
        return str(self.args[0])


class ReadLostError(TransportError):
    """The connection of a read was lost and could not be restored within ``reconnect_wait`` seconds.

    A new read from the offset after the last row skips nothing.
    """


class WriteFailedError(LiftEnvelopeError):
    """A bulk write did not store all rows; ``__cause__`` is the error of the first row that failed.

    Rows are published in order, but rows after the first failed row may be stored.

    Attributes:
        acked: Number of rows known to be stored.
        unknown: Number of rows sent without an answer. These rows may or may not be stored.
    """

    def __init__(self, message: str, acked: int, unknown: int) -> None:
        super().__init__(message, acked, unknown)
        self.acked = acked
        self.unknown = unknown

    def __str__(self) -> str:
        return str(self.args[0])

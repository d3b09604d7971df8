"""What can go wrong with a bulk read or write, beside what the servers say."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, ServerProtocolError, TransportError

__all__ = ["ArchiveBusyError", "ReadLostError", "RetentionError", "ServerProtocolError", "WriteFailedError"]


class ArchiveBusyError(LiftEnvelopeError):
    """Another run adds to the same files of an archive. Run again when it has ended."""

    retriable = True


class RetentionError(LiftEnvelopeError):
    """Messages of the range that is read are gone from the beginning of the stream.

    Its limits (retention), a purge, or a deletion took them: before the read began, or because that was
    faster than the read.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition, 0 of a JetStream stream.
        wanted: Offset of the first message that is gone.
        oldest: Offset of the oldest message that there is.
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
    """The connection of a read was lost, and could not be made again in ``reconnect_wait`` seconds.

    Nothing is skipped by reading again from the offset after the last row.
    """


class WriteFailedError(LiftEnvelopeError):
    """A bulk write did not store all rows; the cause is the error of the first that failed.

    Rows are published in order, but others may be stored behind the first that failed.

    Attributes:
        acked: How many rows are stored for sure.
        unknown: How many were sent and not answered: whether they are stored is unknown.
    """

    def __init__(self, message: str, acked: int, unknown: int) -> None:
        super().__init__(message, acked, unknown)
        self.acked = acked
        self.unknown = unknown

    def __str__(self) -> str:
        return str(self.args[0])

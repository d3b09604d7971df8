"""Errors of bulk reads and writes, in addition to the errors that servers report."""

from __future__ import annotations

from liftenvelope.errors import LiftEnvelopeError, ServerProtocolError, TransportError

__all__ = [
    "ArchiveBusyError",
    "BackupDamagedError",
    "BackupTooLargeError",
    "ReadLostError",
    "RestoreError",
    "RestoreUnfinishedError",
    "RetentionError",
    "ServerProtocolError",
    "StreamRecreatedError",
    "TableCommitError",
    "TableError",
    "TableSchemaError",
    "WriteFailedError",
]


class ArchiveBusyError(LiftEnvelopeError):
    """Another run is writing the same files of an archive. Retry when the other run has ended."""

    retriable = True


class BackupDamagedError(LiftEnvelopeError):
    """A backup lacks a part, or differs from what was written: take another backup."""


class BackupTooLargeError(LiftEnvelopeError):
    """The server sent more than a backup may have: raise ``max_bytes`` if the stream is that large."""


class RestoreError(LiftEnvelopeError):
    """A restored stream differs from its archive or backup."""


class RestoreUnfinishedError(RestoreError):
    """A restore of a backup failed, and the unfinished stream could not be deleted.

    ``__cause__`` is the reason of the failure. The next restore of the stream deletes what is unfinished.
    """

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


class TableError(LiftEnvelopeError):
    """A table can't be created, read or written; ``__cause__`` is the error of the table's library."""


class TableCommitError(TableError):
    """The catalogue or the storage of a table refused all attempts for ``commit_wait`` seconds.

    Rows of the last attempt may or may not be in the table. The next call finds out, and gives each message
    once.
    """

    retriable = True


class TableSchemaError(TableError):
    """A column of the stream does not fit the column of that name in the table.

    Attributes:
        column: Name of the column, with dots before the names of nested fields.
        table_type: Type in the table.
        stream_type: Type in the stream.
    """

    def __init__(self, message: str, column: str, table_type: str, stream_type: str) -> None:
        super().__init__(message, column, table_type, stream_type)
        self.column = column
        self.table_type = table_type
        self.stream_type = stream_type

    def __str__(self) -> str:
        return str(self.args[0])


class StreamRecreatedError(TableError):
    """A stream was deleted and created again: the offsets in the table are those of its predecessor.

    Attributes:
        stream: Name of the stream.
        known_ns: Creation time of the predecessor, in ns since 1970.
        created_ns: Creation time of the stream, in ns since 1970.
    """

    def __init__(self, message: str, stream: str, known_ns: int, created_ns: int) -> None:
        super().__init__(message, stream, known_ns, created_ns)
        self.stream = stream
        self.known_ns = known_ns
        self.created_ns = created_ns

    def __str__(self) -> str:
        return str(self.args[0])


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

"""Publish an archive into a JetStream stream, each row once, also if a restore is killed and repeated.

Each message gets the id ``restore-<stream>-<partition>-<offset in the archive>``, which the server keeps in
the message. So the last message of the target says where to go on, however long ago the previous run was.
Messages of a killed run that arrive late are refused as duplicates, within the ``duplicate_window`` of the
target.

A target that refused a message may have stored later ones that were in flight. The refused message could only
be stored behind them, so such a restore can't go on. It shows in the sequences: a refused message takes none,
while one that retention removed has taken its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope._showing import html_fields
from liftenvelope.bulk._archive.continuing import MESSAGE_ID, restore_prefix
from liftenvelope.bulk._archive.names import FoundFile, resolve
from liftenvelope.bulk._archive.places import ArchivePlace, find_place
from liftenvelope.bulk._archive.restore_payload import ArchivedMessages, messages_of
from liftenvelope.bulk._archive.row_groups import rows_of_groups
from liftenvelope.bulk._engine.schema import HEADERS
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk._reads.reading import count, read
from liftenvelope.bulk.access import Access, ServerKind, Source, find_target
from liftenvelope.bulk.errors import RestoreError
from liftenvelope.bulk.ranges import OnProgress, Progress
from liftenvelope.bulk.writing import write
from liftenvelope.errors import UsageError
from liftenvelope.payload import PayloadChoice, PayloadFormat, as_payload

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.fs as pafs
    import pyarrow.parquet as pq
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")
    pq = require("pyarrow.parquet", "bulk")

__all__ = ["Restored", "restore"]

#: Headers that tell the server to refuse, to delete or to join messages. A write leaves out the last ones.
_ORDERS: Final = (MESSAGE_ID, "Nats-Rollup", "Nats-Expected-", "Nats-Batch-")
_NEEDED: Final = ("value", "offset", "subject")
#: Columns that tell which row a message was.
_PLACE: Final = ("headers", "offset")
_COUNTED_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """Outcome of a restore.

    Attributes:
        rows: Number of messages that this run published; with ``dry_run``, that it would publish.
        skipped: Number of rows that the stream had from earlier runs.
        verified: Number of rows that were read back and compared; 0 without ``verify``.
        keeps_offsets: True if every message has the offset that it has in the archive.
    """

    rows: int
    skipped: int
    verified: int
    keeps_offsets: bool

    def _repr_html_(self) -> str:
        return html_fields(self)


def restore(
    archive: str | os.PathLike[str],
    source: Source,
    stream: str,
    *,
    filesystem: pafs.FileSystem | None = None,
    archived_stream: str | None = None,
    partition: int = 0,
    subject: str | None = None,
    payload: PayloadChoice = None,
    verify: bool = False,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> Restored:
    """Publish an archive of Parquet files into a JetStream stream, in the order of its offsets.

    The stream must exist, be empty or hold the beginning of an earlier restore of the same archive, and get
    no messages of others meanwhile. The message ids of the archive are replaced, and headers that would make
    the server refuse, delete or join messages (``Nats-Expected-...``, ``Nats-Rollup``, ``Nats-Batch-...``)
    are left out. The server sets new timestamps.

    Args:
        archive: Folder or URL, as for :func:`to_parquet`.
        source: NATS servers, as for :func:`read`.
        stream: Name of the stream to publish into.
        filesystem: As for :func:`to_parquet`.
        archived_stream: Name of the stream in the archive. Default: ``stream``.
        partition: Number of the partition in the archive. Default 0.
        subject: Subject of all messages. Default: those of the archive.
        payload: Format of an archive that was made with ``payload=``: its rows are encoded again. Bad
            messages that it kept get their own values.
        verify: True to read the whole stream back and compare each message with its row.
        dry_run: True to check the stream, read the archive and encode its rows, and publish nothing.
        progress: As for :func:`write`.
        access: As for :func:`read`.

    Raises:
        UsageError: An argument is invalid, the archive has no files of the stream, or the stream has messages
            that are not of this archive.
        RestoreError: An earlier restore stored rows behind one that was refused: restore into an empty
            stream. Or a message differs from its row, with ``verify``.
        WriteFailedError: Not all rows are stored: call again to go on.
        LiftEnvelopeError: As for :func:`read`.

    Example:
        >>> bulk.restore("archive/orders", "nats://localhost:4222", "ORDERS")  # doctest: +SKIP
    """
    if find_target(source, access).kind is not ServerKind.NATS:
        raise UsageError("source must be a nats:// URL: a restore needs message ids, which JetStream has")
    kind = as_payload(payload)
    name = stream if archived_stream is None else archived_stream
    rows = _ArchivedRows(find_place(archive, filesystem, name), name, partition, subject, kind)
    last = _last_message(source, stream, rows.prefix, access)
    if last is not None:
        _check_whole(source, stream, rows, last, access)
    had = 0 if last is None else count(source, stream, access=access)
    missing = rows.reader(0 if last is None else last[1] + 1)
    if dry_run:
        keeps = _next_offset(source, stream, access) == had and last in (None, (had - 1, had - 1))
        return _planned(missing, had, keeps, progress)
    written = write(source, stream, missing, progress=progress, access=access)
    verified = _verify(source, stream, rows, access) if verify else 0
    total = count(source, stream, access=access)
    # As many messages as offsets up to the last one, here and in the archive: none is missing in between.
    keeps = _last_message(source, stream, rows.prefix, access) == (total - 1, total - 1)
    return Restored(written.acked - written.duplicates, had, verified, keeps)


def _last_message(source: Source, stream: str, prefix: str, access: Access | None) -> tuple[int, int] | None:
    """Return the offset of the stream's last message, and its offset in the archive; None if there is none.

    Raises:
        UsageError: The message is not of this archive.
    """
    last = read(source, stream, start="latest", columns=_PLACE, access=access).read_all().to_pylist()
    return _archived_place(last[-1], stream, prefix) if last else None


def _archived_place(message: dict[str, Any], stream: str, prefix: str) -> tuple[int, int]:
    """Return the offset of a message, and its offset in the archive.

    Raises:
        UsageError: The message is not of this archive.
    """
    found = dict(message["headers"] or ()).get(MESSAGE_ID, b"").decode("utf-8", "replace")
    if not found.startswith(prefix) or not found.removeprefix(prefix).isdecimal():
        text = f"stream must be empty, or hold the beginning of this restore, got {stream!r} with others"
        raise UsageError(f"{text}: its message at offset {message['offset']} has the id {found!r:.100}")
    return message["offset"], int(found.removeprefix(prefix))


def _check_whole(
    source: Source, stream: str, rows: _ArchivedRows, last: tuple[int, int], access: Access | None
) -> None:
    """Check that earlier runs stored every row from the stream's first message to its last one.

    Raises:
        UsageError: The first message is not of this archive.
        RestoreError: The stream took fewer or more messages than the archive has between the two.
    """
    reader = read(source, stream, columns=_PLACE, batch_rows=1, access=access)
    with contextlib.closing(reader):
        batch = next(iter(reader), None)
    if batch is None:
        return  # retention has removed all of them just now
    first = _archived_place(batch.to_pylist()[0], stream, rows.prefix)
    stored, archived = last[0] - first[0] + 1, rows.count(first[1], last[1] + 1)
    if stored != archived:
        place = f"of the archive from offset {first[1]} to {last[1]}"
        hint = "a message was refused, or others publish; end that, and restore into an empty stream"
        raise RestoreError(f"{stream!r} must have got {archived} messages {place}, got {stored}: {hint}")


def _next_offset(source: Source, stream: str, access: Access | None) -> int:
    """Return the offset of the next message of a stream."""
    with contextlib.closing(JetStreamSource(find_target(source, access), stream)) as found:
        return found.extent(0).end


def _planned(
    missing: pa.RecordBatchReader, had: int, keeps_offsets: bool, progress: OnProgress | None
) -> Restored:
    """Return the outcome of publishing messages, from encoding all of them."""
    rows = nbytes = 0
    for batch in missing:
        rows += batch.num_rows
        nbytes += batch.column("value").nbytes
        if progress is not None:
            progress(Progress(rows=rows, bytes=nbytes, done=rows, total=None))
        ident = dict(batch.column("headers")[-1].as_py())[MESSAGE_ID]
        keeps_offsets = keeps_offsets and int(ident.rpartition(b"-")[2]) == had + rows - 1
    return Restored(rows, had, 0, keeps_offsets)


class _ArchivedRows:
    """Rows of one partition of an archive, with new message ids.

    Attributes:
        prefix: Beginning of the message ids.
    """

    def __init__(
        self,
        place: ArchivePlace,
        stream: str,
        partition: int,
        subject: str | None,
        kind: PayloadFormat | None,
    ) -> None:
        self.prefix: Final = restore_prefix(stream, partition)
        self._place = place
        self._subject = subject
        self._kind = kind
        self._title = f"the archive of {stream!r}"
        self._files = _chain(place, partition)
        if not self._files:
            text = f"archive must have files of partition {partition} of stream {stream!r}, got none"
            hint = "name the stream of the archive by archived_stream, or restore a backup by restore_backup"
            raise UsageError(f"{text}: {hint}")
        columns = next(filter(None, (self._reading(file).columns for file in self._files)), None)
        for column in _NEEDED if subject is None else _NEEDED[:2]:
            if columns is not None and column not in columns:
                raise UsageError(f"archive must have the column {column!r}, got {columns}")

    def reader(self, start: int) -> pa.RecordBatchReader:
        """Return a reader of the rows from an offset on, as :func:`write` takes them."""
        batches = self._batches(start)
        schema = pa.schema({"value": pa.binary(), "headers": HEADERS, "subject": pa.string()})
        return pa.RecordBatchReader.from_batches(schema, batches)

    def count(self, start: int, stop: int) -> int:
        """Return the number of messages in a range of offsets."""
        found, before = 0, -1
        for file in self._files:
            if file.start >= stop or (file.stop is not None and file.stop <= start):
                continue
            for batch in rows_of_groups(_opened(self._place, file), _COUNTED_ROWS, ["offset"]):
                offsets = batch["offset"].filter(
                    pc.and_(pc.greater_equal(batch["offset"], start), pc.less(batch["offset"], stop))
                )
                if len(offsets):  # a message with many rows has its offset in each, also in the next batch
                    found += pc.count_distinct(offsets).as_py() - (offsets[0].as_py() == before)
                    before = offsets[-1].as_py()
        return found

    def _batches(self, start: int) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            if file.stop is not None and file.stop <= start:
                continue
            for batch in self._reading(file).batches():
                offsets = batch.column("offset").to_pylist()
                first = next((i for i, offset in enumerate(offsets) if offset >= start), len(offsets))
                if first < len(offsets):
                    yield self._published(batch.slice(first), offsets[first:])

    def _published(self, batch: pa.RecordBatch, offsets: Sequence[int]) -> pa.RecordBatch:
        count, ident = len(offsets), self.prefix.encode()
        given = batch.column("headers").to_pylist() if "headers" in batch.schema.names else [()] * count
        headers = [
            [
                *(one for one in row or () if not one[0].startswith(_ORDERS)),
                (MESSAGE_ID, b"%b%d" % (ident, at)),
            ]
            for row, at in zip(given, offsets, strict=True)
        ]
        subjects = (
            pa.repeat(pa.scalar(self._subject, pa.string()), count)
            if self._subject is not None
            else batch.column("subject").cast(pa.string())
        )
        columns = [batch.column("value"), pa.array(headers, HEADERS), subjects]
        return pa.RecordBatch.from_arrays(columns, names=["value", "headers", "subject"])

    def _reading(self, file: FoundFile) -> ArchivedMessages:
        return messages_of(_opened(self._place, file), self._title, self._kind)


def _chain(place: ArchivePlace, partition: int) -> list[FoundFile]:
    """Return the files of a partition that have each offset once, in order."""
    files = [one for one in place.files() if one.partition == partition]
    ends = [(one, _end_of(place, one) if one.stop is None else one.stop) for one in files]
    return resolve(ends)[0]


def _end_of(place: ArchivePlace, file: FoundFile) -> int:
    """Return the end of a file of an older version."""
    metadata = _opened(place, file).metadata.metadata or {}
    return int(metadata.get(b"liftenvelope.stop", b"0"))


def _opened(place: ArchivePlace, file: FoundFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(place.open(file.path))
    except pa.ArrowInvalid as exc:
        raise UsageError(f"archive must have Parquet files, got {file.path!r}: {exc}") from exc


def _verify(source: Source, stream: str, rows: _ArchivedRows, access: Access | None) -> int:
    """Compare every message of the stream with its row, in bounded memory; return their number.

    Raises:
        RestoreError: A message differs, is missing, or is one too many.
    """
    columns = ["value", "headers", "subject"]
    stored = _messages(read(source, stream, columns=columns, parallel=1, access=access))
    compared = 0
    for row in _messages(rows.reader(0)):
        if (found := next(stored, None)) != row:
            text = f"message {compared} of {stream!r} must be that of the archive, got {found!r:.200}"
            raise RestoreError(f"{text} for {row!r:.200}: restore into an empty stream")
        compared += 1
    if (found := next(stored, None)) is not None:
        raise RestoreError(f"{stream!r} must have {compared} messages, got more: the next is {found!r:.200}")
    return compared


def _messages(reader: pa.RecordBatchReader) -> Iterator[tuple[bytes, dict[str, bytes], str]]:
    for batch in reader:
        columns = [batch.column(name).to_pylist() for name in ("value", "headers", "subject")]
        for value, headers, subject in zip(*columns, strict=True):
            yield value, dict(headers or ()), subject

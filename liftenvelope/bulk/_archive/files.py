"""Files of an archive: the offsets that they cover, and files being written."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import require
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk._archive.layout import Layout
from liftenvelope.bulk._archive.names import ArchiveNames, FoundFile, resolve
from liftenvelope.bulk._archive.places import ArchivePlace
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk._reads.copying import CopyPlan, CopyRecord, CopyRows, merged_record
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    from liftenvelope.bulk._engine.schema import pa

    pq = require("pyarrow.parquet", "bulk")

__all__ = ["ArchiveFile", "ArchiveFolder", "ReachedOffsets", "Rotation", "check_parquet", "recorded"]

_STREAM, _CREATED, _PARTITION, _START, _STOP, _RECORD = (
    f"liftenvelope.{name}".encode() for name in ("stream", "created", "partition", "start", "stop", "record")
)


def recorded(metadata: Mapping[bytes, bytes] | None) -> CopyRecord:
    """Return the options of the run that made a file; those of a plain run for a file of an older version.

    Raises:
        ValueError: The metadata is damaged.
    """
    found = (metadata or {}).get(_RECORD)
    return CopyRecord() if found is None else CopyRecord.load(found.decode())


@dataclass(frozen=True, slots=True)
class ReachedOffsets:
    """Content of an archive.

    Attributes:
        offsets: Offset after the last one that the files cover, by partition, for those with files.
        blanks: Last file, by partition, for those whose last file has no rows.
        created: Creation time in ns since 1970 of the stream of the last file, by partition; 0 if not known.
        record: Options of the files; None without files.
    """

    offsets: Mapping[int, int]
    blanks: Mapping[int, FoundFile]
    created: Mapping[int, int]
    record: CopyRecord | None


@dataclass(frozen=True, slots=True)
class _FileNotes:
    """Metadata of a file: offset after the last one, options, number of rows, creation time of the stream."""

    stop: int
    record: CopyRecord
    rows: int
    created_ns: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """Limits at which a file is finished.

    Attributes:
        rows: Maximum number of rows; None for no limit.
        nbytes: Size in bytes.
        seconds: Age in seconds; None for no limit.
    """

    rows: int | None
    nbytes: int
    seconds: float | None


def check_parquet(schema: pa.Schema) -> None:
    """Check that Parquet has all types of a schema.

    Raises:
        UsageError: It lacks one.
    """
    if _fault(schema) is None:  # a writer for each column would take 1.6 ms
        return
    for field in schema:
        if (fault := _fault(pa.schema([field]))) is not None:
            text = f"payload must have types that Parquet has, got {field.type} for column {field.name!r}"
            raise UsageError(f"{text}: leave it out by columns=") from fault


def _fault(schema: pa.Schema) -> Exception | None:
    """Return the error of a Parquet writer for a schema; None if it takes all types."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError) as exc:  # OSError: a negative scale
        return exc
    return None


class ArchiveFolder:
    """Archive files of one stream.

    Attributes:
        place: Place of the files.
        layout: Division of rows among folders.
        title: Name of the archive, for errors.
        rotation: Limits at which a file is finished.
        compression: Codec of pyarrow.
        created_ns: Creation time of the stream in ns since 1970; 0 if not known.
        has_failed: True once a file could not be written. Its content is then undefined.
    """

    def __init__(
        self,
        place: ArchivePlace,
        stream: str,
        layout: Layout,
        copy: CopyPlan,
        rotation: Rotation,
        compression: str,
        created_ns: int,
    ) -> None:
        self.place = place
        self.layout = layout
        self.title = f"the archive of {stream}"
        self.rotation = rotation
        self.compression = compression
        self.created_ns = created_ns
        self.has_failed = False
        self._copy = copy
        self._stream = stream
        self._names = ArchiveNames(stream)

    def path(self, folder: str, partition: int, start: int, stop: int) -> str:
        """Return the path of a file below the archive."""
        return "/".join(filter(None, (folder, self._names.name(partition, start, stop))))

    def reached(self, partitions: Sequence[int]) -> ReachedOffsets:
        """Return how far the files of partitions go, and the options that they were written with.

        Files that only repeat what others cover are deleted: two runs have written them at the same time.

        Raises:
            UsageError: A file has a name of this archive but is not one of its files, or was written with
                other options.
        """
        found: dict[int, list[FoundFile]] = {number: [] for number in partitions}
        for file in self.place.files():
            if file.partition in found:
                found[file.partition].append(file)
        ends = {number: self._end_of(files) for number, files in found.items() if files}
        records = [notes.record for _, notes, _ in ends.values()]
        for record in records:
            self._copy.check(record, self.title, "choose another folder")
        offsets = {number: offset for number, (offset, _, _) in ends.items()}
        blanks = {number: blank for number, (_, _, blank) in ends.items() if blank is not None}
        created = {number: notes.created_ns for number, (_, notes, _) in ends.items()}
        return ReachedOffsets(offsets, blanks, created, merged_record(records, self.title))

    def _end_of(self, files: list[FoundFile]) -> tuple[int, _FileNotes, FoundFile | None]:
        newest = max(files, key=lambda file: (file.start, file.stop or 0))
        read = {one.path: self._read(one) for one in files if one.stop is None or one is newest}
        ends = [(one, read[one.path].stop if one.stop is None else one.stop) for one in files]
        kept, repeated = resolve(ends)
        for file in repeated:
            log.warning("%s repeats offsets of other files of the archive: deleting it", file.path)
            self.place.remove(file.path)
        notes = read[newest.path]
        is_blank = not notes.rows and newest is kept[-1] and newest.stop is not None
        return dict(ends)[kept[-1]], notes, newest if is_blank else None

    def _read(self, file: FoundFile) -> _FileNotes:
        path = self.place.located(file.path)
        try:
            with self.place.open(file.path) as source:
                found = pq.read_metadata(source)
        except pa.ArrowInvalid as exc:
            raise UsageError(f"{path} must be a Parquet file: {exc}") from exc
        metadata = found.metadata or {}
        if metadata.get(_STREAM) != self._stream.encode() or _STOP not in metadata:
            raise UsageError(f"{path} must be a file of this archive, by its metadata: choose another folder")
        there, ours = (
            schema.field("offset").type for schema in (found.schema.to_arrow_schema(), self._copy.plan.schema)
        )
        if there != ours:
            text = f"{path} must have offsets of type {ours}, as the stream has, got {there}"
            raise UsageError(f"{text}: it is from a server of another kind, choose another folder")
        stop, rows, created_ns = int(metadata[_STOP]), found.num_rows, int(metadata.get(_CREATED, 0))
        if _RECORD not in metadata:
            return _FileNotes(stop, self._copy.unrecorded(), rows, created_ns)
        try:
            return _FileNotes(stop, CopyRecord.load(metadata[_RECORD].decode()), rows, created_ns)
        except ValueError as exc:
            text = f"{path} must have the options of its archive in its metadata"
            raise UsageError(f"{text}: choose another folder; {exc}") from exc

    def metadata(self, partition: int, start: int, stop: int, record: CopyRecord) -> dict[bytes, bytes]:
        """Return the metadata of a file: stream, its time, partition, offsets that it covers, and options."""
        return {
            _RECORD: record.dump().encode(),
            _STREAM: self._stream.encode(),
            _CREATED: b"%d" % self.created_ns,
            _PARTITION: b"%d" % partition,
            _START: b"%d" % start,
            _STOP: b"%d" % stop,
        }


class ArchiveFile:
    """A file being written. It gets its final name only when it is complete, and on a disk when it is synced.

    An interrupt (Ctrl-C) is raised when a call into Arrow returns, although the call has done its work. The
    offsets that the file covers must be known even then. So :meth:`add` records the state after the write
    (``_due``) and the length before it (``_mark``) in advance. If the file has grown beyond ``_mark`` while
    ``rows`` and ``stop`` still differ from ``_due``, the write happened, and :meth:`finish` labels the file
    with ``_due``.

    Attributes:
        rows: Number of rows in the file.
        stop: Offset after the last one that the file covers.
        nbytes: Size in bytes, once the file is complete.
    """

    def __init__(
        self, folder: ArchiveFolder, copied: CopyRows, below: str, partition: int, start: int
    ) -> None:
        self.below: Final = below
        self._folder = folder
        self._record = copied.record
        self._partition = partition
        self._start = self.stop = start
        self._draft = folder.place.draft(partition, start)
        self._began = time.monotonic()
        self.rows = self.nbytes = 0
        self._is_labelled = False
        with self._named():
            self._sink = folder.place.create(self._draft)
            self._writer = pq.ParquetWriter(self._sink, copied.schema, compression=folder.compression)
        # Rows and stop after the write in progress; length of the file before that write.
        self._due = (0, start)
        self._mark = self._sink.tell()

    @property
    def is_full(self) -> bool:
        """True if the file has reached a limit."""
        limits = self._folder.rotation
        is_long = limits.rows is not None and self.rows >= limits.rows
        is_old = limits.seconds is not None and time.monotonic() - self._began >= limits.seconds
        return is_long or is_old or bool(self._sink.tell() >= limits.nbytes)

    def room(self, rows: int) -> int:
        """Return how many of ``rows`` more rows fit into the file."""
        most = self._folder.rotation.rows
        return rows if most is None else min(rows, most - self.rows)

    def add(self, batch: pa.RecordBatch, stop: int) -> None:
        """Write rows as a row group and extend the covered offsets up to, not including, ``stop``.

        Raises:
            OSError: The rows can't be written.
        """
        self._due, self._mark = (self.rows + batch.num_rows, stop), self._sink.tell()
        with self._named():
            self._writer.write_batch(batch)
        # Arrow keeps freed memory for a while: on a busy machine, up to 100 MiB more than the batches take.
        pa.default_memory_pool().release_unused()
        self.rows, self.stop = self._due

    def extend(self, stop: int) -> None:
        """Extend the covered offsets up to, not including, ``stop`` over a gap without rows."""
        self._due = (self.rows, stop)
        self.stop = stop

    def finish(self) -> PurePath:
        """Complete the file and return its path. After an interrupt, it is safe to call this again.

        Raises:
            OSError: The file can't be written.
            ArchiveBusyError: Another run took this one for dead, in an object store.
        """
        with self._named():
            if not self._is_labelled:
                self._label()
            self._writer.close()
            if not self._sink.closed:
                self.nbytes = self._sink.tell()
                self._sink.close()
            path = self._folder.path(self.below, self._partition, self._start, self.stop)
            return self._folder.place.publish(self._draft, path)

    def _label(self) -> None:
        if (self.rows, self.stop) != self._due and self._sink.tell() > self._mark:
            self.rows, self.stop = self._due
        covered = self._folder.metadata(self._partition, self._start, self.stop, self._record)
        self._writer.add_key_value_metadata(covered)
        self._is_labelled = True

    def discard(self) -> None:
        """Close and delete the draft."""
        with contextlib.suppress(OSError, pa.ArrowException):  # closing writes, and the disk may be full
            self._writer.close()
        with contextlib.suppress(OSError):
            self._sink.close()
        self._folder.place.discard(self._draft)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Record failures, and add the file name and the remedy to an OSError: Arrow's errors have neither.

        An interrupt (KeyboardInterrupt, SystemExit) is not a failure: the call into Arrow has done its work.
        """
        try:
            yield
        except Exception as exc:
            self._folder.has_failed = True
            if not isinstance(exc, OSError) or isinstance(exc, LiftEnvelopeError):
                raise
            # Stores have texts and no numbers.
            number = errno.EIO if exc.errno is None else exc.errno
            reason = without_secrets(exc) if exc.errno is None else os.strerror(exc.errno)
            text = f"{reason}; what is complete stays, so run again when it can be written"
            raise OSError(number, text, str(self._draft)) from exc

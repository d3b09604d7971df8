"""Archive a stream in Parquet files. Each file records its offsets, so that later runs can append."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from liftenvelope._checks import as_count, as_seconds, check_calls, require
from liftenvelope._showing import html_table, short
from liftenvelope.bulk._archive.continuing import check_same_stream
from liftenvelope.bulk._archive.files import ArchiveFile, ArchiveFolder, Rotation, check_parquet
from liftenvelope.bulk._archive.layout import Layout, PartitionBy
from liftenvelope.bulk._archive.names import FoundFile
from liftenvelope.bulk._archive.places import find_place
from liftenvelope.bulk._engine.crew import Crew, Piece
from liftenvelope.bulk._engine.plan import OnRetention
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.copying import CopiedRows, CopyRows, check_types, make_copy
from liftenvelope.bulk._reads.payload import OnBad
from liftenvelope.bulk._reads.reading import BATCH_BYTES, BATCH_ROWS
from liftenvelope.bulk._reads.request import PARALLEL
from liftenvelope.bulk._reads.selection import check_range, plan_onward
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.ranges import Gap, OnGap, OnProgress, Progress, Range, Stop
from liftenvelope.bulk.sources import RangedStream, open_stream
from liftenvelope.client.positions import Start
from liftenvelope.errors import UsageError
from liftenvelope.jetstream.subject_filter import parse_subjects
from liftenvelope.payload import PayloadChoice

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.fs as pafs

    from liftenvelope.bulk._engine.plan import BatchPlan
else:
    from liftenvelope.bulk._engine.schema import pa

    pc = require("pyarrow.compute", "bulk")

__all__ = ["Archived", "to_parquet"]

_ROTATE_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Archived:
    """Files and rows that a run added to an archive.

    Attributes:
        files: Files written, in order of completion: a :class:`~pathlib.Path` each, or outside the local file
            system a path of the file system, such as ``bucket/orders/...``.
        rows: Number of rows in these files.
        bytes: Size of these files.
    """

    files: tuple[PurePath, ...]
    rows: int
    bytes: int

    def __repr__(self) -> str:
        return f"Archived(files=({short(self.files)}), rows={self.rows}, bytes={self.bytes})"

    def _repr_html_(self) -> str:
        title = f"{self.rows} rows in {len(self.files)} files, {self.bytes} bytes"
        return html_table(title, ("file",), ((path,) for path in self.files), len(self.files))


def to_parquet(
    source: Source,
    stream: str,
    path: str | os.PathLike[str],
    *,
    filesystem: pafs.FileSystem | None = None,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    payload: PayloadChoice = None,
    on_bad: OnBad = "fail",
    rotate_rows: int | None = None,
    rotate_bytes: int = _ROTATE_BYTES,
    rotate_seconds: float | None = None,
    partition_by: Iterable[PartitionBy] = (),
    compression: str = "zstd",
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    on_retention: OnRetention = "raise",
    on_gap: OnGap | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> Archived:
    """Write a stream into a folder of Parquet files; a later run continues where the files end.

    The folder is on the local file system or on any other that pyarrow knows, such as S3. Each partition has
    its own files, named ``<stream>-<partition>-<first offset>-<offset after the last>.parquet``, so that a
    listing says how far the archive goes; the next run continues there. A file gets its name only when it is
    complete. If the last messages read are not of ``subjects``, a file without rows covers them; the next run
    replaces that file. A run that was killed or could not write repeats at most its last files. A run that
    fails in another way, also by an error of ``on_gap`` or ``progress``, or is interrupted, keeps what it has
    read. Only one run at a time may write the files of a partition: a second one is refused, on one machine
    or on several.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        path: Folder of the local file system; a URL with the scheme ``s3``, ``gs``, ``gcs``, ``abfs``,
            ``abfss``, ``hdfs``, ``viewfs`` or ``file``; or, with ``filesystem``, a path in that. Created if
            missing, but not the bucket.
        filesystem: File system of ``path``. Default: that of the URL, or the local one.
        partitions: As for :func:`read`.
        subjects: As for :func:`read`. All runs of an archive must be given the same.
        start: As for :func:`read`. Applies only to partitions without files.
        stop: As for :func:`read`.
        columns: As for :func:`read`; ``offset`` must be one of them.
        envelope: As for :func:`read`.
        payload: As for :func:`read`. All runs of an archive must be given the same format. Fields keep the
            types of earlier runs, and new ones become columns of the files that follow.
        on_bad: As for :func:`read`. With ``"fail"``, the rows before the bad message are kept. Dead letters
            are stored before the files that pass them; a run that was killed may repeat them.
        rotate_rows: Maximum number of rows in a file; None (default) for no limit. The rows of a message stay
            together.
        rotate_bytes: Size in bytes at which a file is finished. Default 512 MiB; at most 4 GiB outside the
            local file system.
        rotate_seconds: Seconds after its first row at which a file is finished, as soon as more messages
            come; None (default) for no limit.
        partition_by: Folders in Hive's layout, from the outermost to the innermost: ``"dt"`` and ``"hour"``
            by the timestamps of the messages, in UTC, and ``"partition"``. Default: none.
        compression: Codec of pyarrow: ``"zstd"`` (default), ``"snappy"``, ``"gzip"``, ``"lz4"``, ``"none"``.
        batch_rows: Maximum number of rows in a row group.
        batch_bytes: Bytes of messages after which a row group ends.
        on_retention: As for :func:`read`. Applies if retention removed messages since the last run.
        on_gap: As for :func:`read`.
        progress: As for :func:`read`.
        access: As for :func:`read`.

    Returns:
        The files, rows and bytes added.

    Raises:
        UsageError: An argument is invalid, or a file in the folder belongs to another archive, or was
            written with another payload or other subjects.
        ArchiveBusyError: Another run is writing the files of a partition. After a run on another machine was
            killed, an object store is busy for up to 30 s.
        OffsetOutOfRangeError: The stream ends before the archive does, or was created at another time. It is
            continued if its oldest message was restored to its old offset, from the archive or from a backup
            that is some seconds old.
        BadPayloadError: A message is bad, with ``on_bad="fail"``.
        LiftEnvelopeError: As for :func:`read`, while planning and while reading.
        OSError: A file can't be written.

    Example:
        >>> bulk.to_parquet("nats://localhost:4222", "ORDERS", "archive/orders")  # doctest: +SKIP
    """
    _, _, chosen = check_range(partitions, start, stop, None)
    check_calls(on_gap=on_gap, progress=progress)
    place = find_place(path, filesystem, stream)
    rotation = _rotation(rotate_rows, rotate_bytes, rotate_seconds, place.most_bytes)
    layout = Layout(partition_by)
    if not _is_codec(compression):
        raise UsageError(f"compression must be a codec of pyarrow, got {compression!r}")
    wanted = parse_subjects(subjects)
    opened = open_stream(source, stream, access)
    copy = make_copy(
        source,
        opened,
        columns=columns,
        envelope=envelope,
        payload=payload,
        on_bad=on_bad,
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        on_retention=on_retention,
        subjects=wanted,
        access=access,
        needed=("timestamp",) if layout.has_time else (),
    )
    if "offset" not in copy.columns:
        raise UsageError("columns must have 'offset' for an archive")
    layout.check_columns(copy.plan.columns)
    with contextlib.closing(opened):
        created_ns = opened.created()  # before the look at its offsets
        folder = ArchiveFolder(place, stream, layout, copy, rotation, compression, created_ns)
        numbers = opened.partitions() if chosen is None else chosen
        with place.claimed(numbers):
            reached = folder.reached(numbers)
            spans = [
                plan_onward(
                    opened,
                    number,
                    reached.offsets.get(number),
                    start,
                    stop,
                    on_retention,
                    holder="the archive goes",
                    remedy="choose another folder",
                )
                for number in numbers
            ]
            for number, known_ns in reached.created.items():
                until = reached.offsets[number]
                check_same_stream(source, opened, access, number, until, (known_ns, created_ns))
            # The reads refuse any other stream: files of it must not get the creation time of this one.
            spans = [replace(one, created_ns=created_ns) for one in spans if one.start < one.stop]
            opened.filter_by(wanted, whole=on_gap is not None)
            rows = copy.rows(opened, reached.record, lambda: spans)
            if rows.record.payload is not None:
                check_parquet(rows.schema)
            if reached.record is not None:
                check_types(reached.record.fields, rows.record.fields, folder.title)
            blanks = {
                one.partition: blank
                for one in spans
                if (blank := reached.blanks.get(one.partition)) is not None and blank.stop == one.start
            }
            done = _ArchiveRun(opened, folder, copy.plan, rows, spans, blanks, progress, on_gap).run()
            if place.most_bytes is not None and done.files:
                folder.reached(numbers)  # what another run may have written meanwhile
            return done


def _rotation(rows: int | None, nbytes: int, seconds: float | None, most_bytes: int | None) -> Rotation:
    if rows is not None:
        as_count("rotate_rows", rows)
    as_count("rotate_bytes", nbytes, 1, most_bytes)
    if seconds is not None:
        as_seconds("rotate_seconds", seconds)
    return Rotation(rows, nbytes, seconds)


def _is_codec(name: str) -> bool:
    try:
        return name == "none" or bool(pa.Codec.is_available(name))
    except ValueError:
        return False


class _ArchiveRun:
    """One run: appends each batch read to the open file of its partition.

    The files cover all that was read. Where no message was kept, as with ``subjects``, a file without rows, a
    blank, does: otherwise the next run would begin at offsets that retention may have removed by then. The
    first file of the next run covers the offsets of the blank too, and replaces it. A run that is killed
    between the two leaves a blank that only repeats offsets, which the next run deletes.
    """

    def __init__(
        self,
        source: RangedStream,
        folder: ArchiveFolder,
        plan: BatchPlan,
        copied: CopyRows,
        spans: list[Range],
        blanks: dict[int, FoundFile],
        progress: OnProgress | None,
        on_gap: OnGap | None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._plan = plan
        self._copied = copied
        self._spans = spans
        self._progress = progress
        self._on_gap = on_gap
        self._open: dict[int, ArchiveFile] = {}
        # By partition: next offset to read, offset after the last file, and last file if it is a blank.
        self._at = {span.partition: span.start for span in spans}
        self._covered = self._at | {number: blank.start for number, blank in blanks.items()}
        self._blanks = blanks
        self._done: list[PurePath] = []
        self._rows = self._bytes = self._offsets = self._written = 0

    def run(self) -> Archived:
        """Read all ranges. Keep what was read before a failure, unless a file could not be written."""
        try:
            self._read()
            self._cover_all()
            self._finish_all()
        except BaseException:  # also SystemExit, and errors of the caller's progress and on_gap
            if not self._folder.has_failed:
                self._finish_all()
            raise
        finally:
            self._discard_all()
        return Archived(tuple(self._done), self._rows, self._written)

    def _read(self) -> None:
        jobs = [partial(self._source.read, span, self._plan) for span in self._spans]
        crew = Crew(jobs, min(len(jobs), PARALLEL), lambda: None)
        try:
            while (piece := crew.next()) is not None:
                self._take(piece)
        finally:
            crew.stop()

    def _take(self, piece: Piece) -> None:
        number, end = piece.partition, self._at[piece.partition] + piece.offsets
        if self._on_gap is not None:
            for start, stop in piece.gaps:
                self._on_gap(Gap(number, start, stop))
        if piece.batch is not None:
            self._add(number, piece.batch, end)
        elif number in self._open:
            self._open[number].extend(end)
        self._at[number] = end
        self._bytes += piece.nbytes
        self._offsets += piece.offsets
        if self._progress is not None:
            total = sum(span.stop - span.start for span in self._spans)
            self._progress(Progress(self._rows, self._bytes, self._offsets, total))

    def _add(self, partition: int, batch: pa.RecordBatch, end: int) -> None:
        parts = list(self._folder.layout.divide(batch, partition))
        for (below, part), following in zip(parts, [*parts[1:], None], strict=True):
            stop = end if following is None else _first_offset(following[1])
            for copied in self._copied.take(part, stop):
                self._append(partition, below, copied)
                if copied.error is not None:
                    raise copied.error

    def _append(self, partition: int, below: str, copied: CopiedRows) -> None:
        ends = [*map(_first_offset, copied.batches[1:]), copied.stop]
        for rows, stop in zip(copied.batches, ends, strict=False):
            self._put(partition, below, rows, stop)
        # Messages without rows are covered as well: their dead letters are not written again.
        if self._at[partition] < copied.stop:
            self._file(partition, below).extend(copied.stop)
            self._at[partition] = copied.stop

    def _file(self, partition: int, below: str) -> ArchiveFile:
        """Return the open file of a partition, in a folder."""
        file = self._open.get(partition)
        if file is not None and file.below != below:
            self._finish(partition)
            file = None
        if file is None:
            start = self._covered[partition]
            file = self._open[partition] = ArchiveFile(self._folder, self._copied, below, partition, start)
            file.extend(self._at[partition])
        return file

    def _cover_all(self) -> None:
        """Open a blank for each partition whose files end before what was read."""
        for number, end in self._at.items():
            blank = self._blanks.get(number)
            covered = self._covered[number] if blank is None else blank.stop
            if number not in self._open and covered != end:
                self._file(number, self._folder.layout.folder_at(number, time.time_ns()))

    def _put(self, partition: int, below: str, batch: pa.RecordBatch, end: int) -> None:
        self._rows += batch.num_rows
        while batch.num_rows:
            file = self._file(partition, below)
            room = file.room(batch.num_rows)
            if self._copied.is_packed:
                room = _whole_messages(batch, room) or (0 if file.rows else _rows_of_first(batch))
            if room:
                part, batch = batch.slice(0, room), batch.slice(room)
                # This file also covers the gap up to the next row, so that the next file begins with a row.
                file.add(part, _first_offset(batch) if batch.num_rows else end)
                self._at[partition] = file.stop
            if file.is_full or not room:
                self._finish(partition)

    def _finish(self, partition: int) -> None:
        file = self._open[partition]
        path = file.finish()
        self._done.append(path)
        self._written += file.nbytes
        self._covered[partition] = file.stop
        blank = self._blanks.pop(partition, None)
        if blank is not None and self._folder.place.located(blank.path) != path:
            self._folder.place.remove(blank.path)
        del self._open[partition]

    def _finish_all(self) -> None:
        for number in list(self._open):
            self._finish(number)

    def _discard_all(self) -> None:
        """Delete the drafts of files that could not be finished."""
        for file in self._open.values():
            file.discard()
        self._open.clear()


def _first_offset(batch: pa.RecordBatch) -> int:
    offset: int = batch.column("offset")[0].as_py()
    return offset


def _whole_messages(batch: pa.RecordBatch, most: int) -> int:
    """Return the number of rows, at most ``most``, up to the end of a message."""
    if most == batch.num_rows:
        return most
    offsets = batch.column("offset")
    return int(pc.index(offsets, offsets[most]).as_py())


def _rows_of_first(batch: pa.RecordBatch) -> int:
    offsets = batch.column("offset")
    return int(pc.sum(pc.equal(offsets, offsets[0])).as_py())

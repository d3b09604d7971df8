"""A stream in Parquet files that can be added to: each says which offsets it holds."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from liftenvelope._extras import require
from liftenvelope.bulk._crew import Crew, Piece
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.plan import BatchPlan, OnRetention, make_plan
from liftenvelope.bulk.ranges import Gap, Progress, Range, Stop, parse_begin, parse_end
from liftenvelope.bulk.reading import (
    BATCH_BYTES,
    BATCH_ROWS,
    PARALLEL,
    OnGap,
    OnProgress,
    StreamSource,
    check_calls,
    check_range,
    open_stream,
    plan_ranges,
)
from liftenvelope.bulk.schema import EnvelopeMode
from liftenvelope.client.options import check_count
from liftenvelope.client.positions import Start
from liftenvelope.errors import LiftEnvelopeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    from liftenvelope.bulk.schema import pa

    pq = require("pyarrow.parquet", "bulk")

__all__ = ["Archived", "to_parquet"]

_STREAM, _PARTITION, _START, _STOP = (
    f"liftenvelope.{name}".encode() for name in ("stream", "partition", "start", "stop")
)
_PART: Final = ".part"
_ROTATE_BYTES: Final = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run has added to an archive.

    Attributes:
        files: The files that were written, in the order of their completion.
        rows: How many rows they have together.
        bytes: How many bytes they have on disk.
    """

    files: tuple[Path, ...]
    rows: int
    bytes: int


def to_parquet(
    source: Source,
    stream: str,
    path: str | os.PathLike[str],
    *,
    partitions: Iterable[int] | int | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    rotate_rows: int | None = None,
    rotate_bytes: int = _ROTATE_BYTES,
    compression: str = "zstd",
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    on_retention: OnRetention = "raise",
    on_gap: OnGap | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> Archived:
    """Write a stream into a folder of Parquet files; run again, it goes on where they end.

    Each partition has files of its own, named ``<stream>-<partition>-<first offset>.parquet``. Their metadata
    say which offsets they cover (``liftenvelope.start`` and ``.stop``), and so the next run knows where to go
    on. A file appears under its name when it is complete and on the disk: what is there counts, and a
    run that was killed repeats no more than its last files. A run that fails, or is interrupted, keeps what
    it has read.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        path: The folder. It is made if need be.
        partitions: As for :func:`read`.
        start: As for :func:`read`, of partitions that have no file yet.
        stop: As for :func:`read`.
        columns: As for :func:`read`; ``offset`` must be one of them.
        envelope: As for :func:`read`.
        rotate_rows: How many rows a file has at most; None for any number.
        rotate_bytes: A file that has reached that size on disk is ended. Default 512 MiB.
        compression: As pyarrow's: ``"zstd"`` (default), ``"snappy"``, ``"gzip"``, ``"lz4"``, ``"none"``.
        batch_rows: How many rows a row group has at most.
        batch_bytes: After how many bytes of messages a row group ends.
        on_retention: As for :func:`read`: what to do where the archive was not run for too long.
        on_gap: As for :func:`read`.
        progress: As for :func:`read`.
        access: As for :func:`read`.

    Returns:
        What was added.

    Raises:
        UsageError: An argument makes no sense, or a file of the folder is of another archive.
        LiftEnvelopeError: As for :func:`read`, while planning and while reading.
        OSError: A file can't be written.

    Example:
        >>> bulk.to_parquet("nats://localhost:4222", "ORDERS", "archive/orders")  # doctest: +SKIP
    """
    _, _, chosen = check_range(partitions, start, stop, None)
    check_calls(on_gap, progress)
    if rotate_rows is not None:
        check_count("rotate_rows", rotate_rows)
    check_count("rotate_bytes", rotate_bytes)
    if not _is_codec(compression):
        raise UsageError(f"compression={compression!r}: pyarrow has no such codec")
    opened = open_stream(source, stream, access)
    plan = make_plan(columns, envelope, batch_rows, batch_bytes, on_retention, unsigned=opened.unsigned)
    if "offset" not in plan.columns:
        raise UsageError("columns: an archive needs 'offset'")
    folder = _Folder(Path(path), stream, plan, rotate_rows, rotate_bytes, compression)
    with contextlib.closing(opened):
        spans = _spans(opened, folder, chosen, start, stop, on_retention)
        return _Run(opened, folder, spans, progress, on_gap).run()


def _is_codec(name: str) -> bool:
    try:
        return name == "none" or bool(pa.Codec.is_available(name))
    except ValueError:
        return False


def _spans(
    source: StreamSource,
    folder: _Folder,
    partitions: list[int] | None,
    start: Start,
    stop: Stop,
    on_retention: str,
) -> list[Range]:
    end, found = parse_end(stop), list[Range]()
    for number in source.partitions() if partitions is None else partitions:
        reached = folder.reached(number)
        begin = parse_begin(start if reached is None else reached, time.time_ns())
        found += plan_ranges(source, [number], begin, end, on_retention)
    return [span for span in found if span.start < span.stop]


class _Folder:
    """The files of an archive, as they are now."""

    def __init__(
        self,
        path: Path,
        stream: str,
        plan: BatchPlan,
        rotate_rows: int | None,
        rotate_bytes: int,
        compression: str,
    ) -> None:
        self._path = path
        self._stream = stream
        self._prefix = quote(stream, safe="")
        self._name = re.compile(re.escape(self._prefix) + r"-(\d+)-(\d{20})\.parquet")
        self.plan = plan
        self.rotate_rows = rotate_rows
        self.rotate_bytes = rotate_bytes
        self.compression = compression
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as exc:
            raise UsageError(f"path {str(path)!r}: expected a folder") from exc

    def file(self, partition: int, start: int) -> Path:
        """The file that begins at an offset."""
        return self._path / f"{self._prefix}-{partition}-{start:020}.parquet"

    def reached(self, partition: int) -> int | None:
        """The offset that the files of a partition end at; None if there are none.

        Raises:
            UsageError: A file has the name of one of them, and is none.
        """
        ends = [self._end_of(path) for path in self._files(partition)]
        return max(ends, default=None)

    def _files(self, partition: int) -> Iterator[Path]:
        for path in sorted(self._path.iterdir()):
            found = self._name.fullmatch(path.name)
            if found is not None and int(found[1]) == partition:
                yield path

    def _end_of(self, path: Path) -> int:
        try:
            metadata = pq.read_metadata(path).metadata or {}
        except pa.ArrowInvalid as exc:
            raise UsageError(f"{path} is no Parquet file: {exc}") from exc
        if metadata.get(_STREAM) != self._stream.encode() or _STOP not in metadata:
            raise UsageError(f"{path} is not a file of this archive: it does not say what it covers")
        return int(metadata[_STOP])

    def metadata(self, partition: int, start: int, stop: int) -> dict[bytes, bytes]:
        """What a file says of itself."""
        return {
            _STREAM: self._stream.encode(),
            _PARTITION: b"%d" % partition,
            _START: b"%d" % start,
            _STOP: b"%d" % stop,
        }


class _File:
    """A file that is being written."""

    def __init__(self, folder: _Folder, partition: int, start: int) -> None:
        self._folder = folder
        self._partition = partition
        self._start = start
        self._path = folder.file(partition, start)
        self._draft = self._path.with_name(self._path.name + _PART)
        self._sink = pa.OSFile(str(self._draft), "wb")
        self._writer = pq.ParquetWriter(self._sink, folder.plan.schema, compression=folder.compression)
        self.rows = 0

    @property
    def is_full(self) -> bool:
        """Whether no more is to go in."""
        most = self._folder.rotate_rows
        full = most is not None and self.rows >= most
        return full or bool(self._sink.tell() >= self._folder.rotate_bytes)

    def room(self, rows: int) -> int:
        """How many of so many rows go in."""
        most = self._folder.rotate_rows
        return rows if most is None else min(rows, most - self.rows)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows, as a row group."""
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def finish(self, stop: int) -> Path:
        """End the file, which covers the offsets up to one; return its path."""
        self._writer.add_key_value_metadata(self._folder.metadata(self._partition, self._start, stop))
        self._writer.close()
        self._sink.close()
        with self._draft.open("rb+") as file:
            os.fsync(file.fileno())
        self._draft.replace(self._path)
        return self._path

    def discard(self) -> None:
        """Drop the file."""
        with contextlib.suppress(OSError, pa.ArrowException):  # perhaps the disk is full
            self._writer.close()
        self._sink.close()
        self._draft.unlink(missing_ok=True)


class _Run:
    """One run: what is read goes into the file of its partition."""

    def __init__(
        self,
        source: StreamSource,
        folder: _Folder,
        spans: list[Range],
        progress: OnProgress | None,
        on_gap: OnGap | None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._spans = spans
        self._progress = progress
        self._on_gap = on_gap
        self._open: dict[int, _File] = {}
        self._at = {span.partition: span.start for span in spans}
        self._done: list[Path] = []
        self._rows = self._bytes = self._offsets = 0

    def run(self) -> Archived:
        """Read it all. What was read before a failure is kept."""
        jobs = [partial(self._source.read, span, self._folder.plan) for span in self._spans]
        crew = Crew(jobs, min(len(jobs), PARALLEL), lambda: None)
        try:
            while (piece := crew.next()) is not None:
                self._take(piece)
        except (LiftEnvelopeError, KeyboardInterrupt):
            self._finish_all()
            raise
        except BaseException:
            self._discard_all()
            raise
        finally:
            crew.stop()
        self._finish_all()
        return Archived(tuple(self._done), self._rows, sum(path.stat().st_size for path in self._done))

    def _take(self, piece: Piece) -> None:
        number, end = piece.partition, self._at[piece.partition] + piece.offsets
        if self._on_gap is not None:
            for start, stop in piece.gaps:
                self._on_gap(Gap(number, start, stop))
        if piece.batch is not None:
            self._add(number, piece.batch, end)
            self._rows += piece.batch.num_rows
        self._at[number] = end
        self._bytes += piece.nbytes
        self._offsets += piece.offsets
        if self._progress is not None:
            total = sum(span.stop - span.start for span in self._spans)
            self._progress(Progress(self._rows, self._bytes, self._offsets, total))

    def _add(self, partition: int, batch: pa.RecordBatch, end: int) -> None:
        while batch.num_rows:
            file = self._open.get(partition)
            if file is None:
                file = self._open[partition] = _File(self._folder, partition, self._at[partition])
            room = file.room(batch.num_rows)
            file.add(batch.slice(0, room))
            batch = batch.slice(room)
            # What lies between these rows and the next is covered by this file: it goes on with a row.
            self._at[partition] = batch.column("offset")[0].as_py() if batch.num_rows else end
            if file.is_full:
                del self._open[partition]
                self._done.append(file.finish(self._at[partition]))

    def _finish_all(self) -> None:
        while self._open:
            number, file = self._open.popitem()
            self._done.append(file.finish(self._at[number]))

    def _discard_all(self) -> None:
        for file in self._open.values():
            file.discard()
        self._open.clear()

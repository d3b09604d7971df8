"""Files of an archive: existing files, their offsets and locks, and files being written."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from liftenvelope._checks import is_encodable, require
from liftenvelope.bulk._plan import BatchPlan
from liftenvelope.bulk.errors import ArchiveBusyError
from liftenvelope.errors import UsageError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    from liftenvelope.bulk._schema import pa

    pq = require("pyarrow.parquet", "bulk")

__all__ = ["ArchiveFile", "ArchiveFolder", "check_arrow_path"]

_STREAM, _PARTITION, _START, _STOP = (
    f"liftenvelope.{name}".encode() for name in ("stream", "partition", "start", "stop")
)
_PART: Final = ".part"


def check_arrow_path(path: Path) -> None:
    """Check that Arrow can open a file of this name: it takes UTF-8 only.

    Raises:
        UsageError: The path is not UTF-8.
    """
    if not is_encodable(str(path)):
        raise UsageError(f"path must be in UTF-8 for a Parquet file, got {str(path)!r}: use another name")


class ArchiveFolder:
    """Archive files of one stream in a folder. Creates the folder if it does not exist.

    Attributes:
        plan: Columns and schema of the files.
        rotate_rows: Maximum number of rows in a file; None for no limit.
        rotate_bytes: Size in bytes at which a file is finished.
        compression: Codec of pyarrow.
        has_failed: True once a file could not be written. Its content is then undefined.

    Raises:
        UsageError: The path exists and is not a folder, or is not in UTF-8.
        OSError: The folder can't be created.
    """

    def __init__(
        self,
        path: Path,
        stream: str,
        plan: BatchPlan,
        rotate_rows: int | None,
        rotate_bytes: int,
        compression: str,
    ) -> None:
        check_arrow_path(path)
        self._path = path
        self._stream = stream
        self._prefix = quote(stream, safe="")
        self._name = re.compile(re.escape(self._prefix) + rf"-(\d+)-(\d{{20}})\.parquet({re.escape(_PART)})?")
        self.plan = plan
        self.rotate_rows = rotate_rows
        self.rotate_bytes = rotate_bytes
        self.compression = compression
        self.has_failed = False
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as exc:
            raise UsageError(f"path must be a folder, got {str(path)!r}") from exc

    @contextlib.contextmanager
    def claimed(self, partition: int) -> Iterator[None]:
        """Lock the files of a partition against other runs, and delete the drafts that a killed run left.

        Raises:
            ArchiveBusyError: Another run is writing these files.
        """
        path = self._path / f".{self._prefix}-{partition}.lock"
        lock = _locked(path)
        try:
            for draft in self._files(partition, drafts=True):
                draft.unlink()
            yield
        finally:
            path.unlink(missing_ok=True)  # before the lock is released: see _locked
            os.close(lock)

    def file(self, partition: int, start: int) -> Path:
        """Return the path of the file that begins at an offset."""
        return self._path / f"{self._prefix}-{partition}-{start:020}.parquet"

    def reached(self, partition: int) -> int | None:
        """Return the offset after the last one that the files of a partition cover; None without files.

        Raises:
            UsageError: A file has a name of this archive but is not one of its files.
        """
        ends = [self._end_of(path) for path in self._files(partition)]
        return max(ends, default=None)

    def _files(self, partition: int, *, drafts: bool = False) -> Iterator[Path]:
        for path in sorted(self._path.iterdir()):
            found = self._name.fullmatch(path.name)
            if found is not None and int(found[1]) == partition and bool(found[3]) is drafts:
                yield path

    def _end_of(self, path: Path) -> int:
        try:
            found = pq.read_metadata(path)
        except pa.ArrowInvalid as exc:
            raise UsageError(f"{path} must be a Parquet file: {exc}") from exc
        metadata = found.metadata or {}
        if metadata.get(_STREAM) != self._stream.encode() or _STOP not in metadata:
            raise UsageError(f"{path} must be a file of this archive, by its metadata: choose another folder")
        there, ours = (
            schema.field("offset").type for schema in (found.schema.to_arrow_schema(), self.plan.schema)
        )
        if there != ours:
            text = f"{path} must have offsets of type {ours}, as the stream has, got {there}"
            raise UsageError(f"{text}: it is from a server of another kind, choose another folder")
        return int(metadata[_STOP])

    def metadata(self, partition: int, start: int, stop: int) -> dict[bytes, bytes]:
        """Return the metadata of a file: stream, partition, first offset, and the offset after the last."""
        return {
            _STREAM: self._stream.encode(),
            _PARTITION: b"%d" % partition,
            _START: b"%d" % start,
            _STOP: b"%d" % stop,
        }


def _locked(path: Path) -> int:
    """Create a lock file and lock it; return its descriptor.

    The system releases the lock when the process ends, so a killed run never blocks the next one. The owner
    deletes the file before it releases the lock. Another run may have opened the file before that and lock
    the deleted file, while a third run creates and locks a new one. So the path must still name the locked
    file; otherwise the loop starts over. File systems without locks, and Windows, do not lock.

    Raises:
        ArchiveBusyError: Another run holds the lock.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if sys.platform == "win32":
            return lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            text = f"another run writes into {path.parent}: run again when it has ended"
            raise ArchiveBusyError(text) from None
        except OSError:  # a file system without locks
            return lock
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return lock
        os.close(lock)  # the previous run has just ended and deleted the file


class ArchiveFile:
    """A file being written. It gets its final name only when it is complete and synced to disk.

    An interrupt (Ctrl-C) is raised when a call into Arrow returns, although the call has done its work. The
    offsets that the file covers must be known even then. So :meth:`add` records the state after the write
    (``_due``) and the length before it (``_mark``) in advance. If the file has grown beyond ``_mark`` while
    ``rows`` and ``stop`` still differ from ``_due``, the write happened, and :meth:`finish` labels the file
    with ``_due``.

    Attributes:
        rows: Number of rows in the file.
        stop: Offset after the last one that the file covers.
    """

    def __init__(self, folder: ArchiveFolder, partition: int, start: int) -> None:
        self._folder = folder
        self._partition = partition
        self._start = self.stop = start
        self._path = folder.file(partition, start)
        self._draft = self._path.with_name(self._path.name + _PART)
        self.rows = 0
        self._is_labelled = False
        with self._named():
            self._sink = pa.OSFile(str(self._draft), "wb")
            self._writer = pq.ParquetWriter(self._sink, folder.plan.schema, compression=folder.compression)
        # Rows and stop after the write in progress; length of the file before that write.
        self._due = (0, start)
        self._mark = self._sink.tell()

    @property
    def is_full(self) -> bool:
        """True if the file has reached its limit of rows or bytes."""
        most = self._folder.rotate_rows
        full = most is not None and self.rows >= most
        return full or bool(self._sink.tell() >= self._folder.rotate_bytes)

    def room(self, rows: int) -> int:
        """Return how many of ``rows`` more rows fit into the file."""
        most = self._folder.rotate_rows
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

    def finish(self) -> Path:
        """Complete the file and return its path. After an interrupt, it is safe to call this again.

        Raises:
            OSError: The file can't be written.
        """
        with self._named():
            if not self._is_labelled:
                self._label()
            self._writer.close()
            self._sink.close()
            if self._draft.exists():
                _sync(self._draft)
                self._draft.replace(self._path)
            _sync(self._path.parent)
        return self._path

    def _label(self) -> None:
        if (self.rows, self.stop) != self._due and self._sink.tell() > self._mark:
            self.rows, self.stop = self._due
        self._writer.add_key_value_metadata(self._folder.metadata(self._partition, self._start, self.stop))
        self._is_labelled = True

    def discard(self) -> None:
        """Close and delete the draft."""
        with contextlib.suppress(OSError, pa.ArrowException):  # closing writes, and the disk may be full
            self._writer.close()
        with contextlib.suppress(OSError):
            self._sink.close()
        self._draft.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Record failures, and add the file name and the remedy to an OSError: Arrow's errors have neither.

        An interrupt (KeyboardInterrupt, SystemExit) is not a failure: the call into Arrow has done its work.
        """
        try:
            yield
        except Exception as exc:
            self._folder.has_failed = True
            if not isinstance(exc, OSError) or exc.errno is None:
                raise
            text = f"{os.strerror(exc.errno)}; what is complete stays, so run again when it can be written"
            raise OSError(exc.errno, text, str(self._draft)) from exc


def _sync(path: Path) -> None:
    """Sync a file or folder to disk. Windows can't sync folders."""
    if path.is_dir() and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

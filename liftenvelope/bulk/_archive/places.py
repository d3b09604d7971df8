"""Places of archives: a local folder, and a folder of any other file system that pyarrow knows."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Final, Protocol

from liftenvelope._checks import as_local_path, is_encodable, require
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk._archive.claims import Claim, claimed, remove
from liftenvelope.bulk._archive.disk import locked, sync
from liftenvelope.bulk._archive.names import ArchiveNames, FoundFile
from liftenvelope.bulk.errors import ArchiveBusyError
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs
else:
    from liftenvelope.bulk._engine.schema import pa

    pafs = require("pyarrow.fs", "bulk")

__all__ = ["ArchivePlace", "check_arrow_path", "find_place", "is_url"]

#: Schemes of URLs, as pyarrow knows them.
_SCHEMES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
_URL: Final = re.compile(rf"({'|'.join(_SCHEMES)})://")
#: Folder of claims and drafts. Readers of data sets skip names with an underscore at the beginning.
_WORK: Final = "_liftenvelope"
#: Size of a file at which a store may refuse to copy it: S3 copies objects of up to 5 GiB.
_MOST_BYTES: Final = 4 * 1024**3


class ArchivePlace(Protocol):
    """Place of the files of an archive."""

    @property
    def most_bytes(self) -> int | None:
        """Largest size at which a file may be finished; None for any."""

    def claimed(self, partitions: Sequence[int]) -> AbstractContextManager[None]:
        """Keep other runs from writing the files of partitions, and delete the drafts of ended runs."""
        ...

    def files(self) -> list[FoundFile]:
        """Return the files of the stream."""
        ...

    def draft(self, partition: int, start: int) -> PurePath:
        """Return the path of a file being written."""
        ...

    def create(self, draft: PurePath) -> pa.NativeFile:
        """Create a file being written."""
        ...

    def publish(self, draft: PurePath, path: str) -> PurePath:
        """Give a complete file its name, unless it has the name already, and return its path."""
        ...

    def discard(self, draft: PurePath) -> None:
        """Delete a file being written."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file of the archive."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Open a file of the archive for reading."""
        ...

    def located(self, path: str) -> PurePath:
        """Return the whole path of a file of the archive."""
        ...


def check_arrow_path(path: Path) -> None:
    """Check that Arrow can open a file of this name: it takes UTF-8 only.

    Raises:
        UsageError: The path is not UTF-8.
    """
    if not is_encodable(str(path)):
        raise UsageError(f"path must be in UTF-8 for a Parquet file, got {str(path)!r}: use another name")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return True for a URL of a scheme that archives can be in."""
    return _URL.match(os.fspath(path)) is not None


def find_place(path: str | os.PathLike[str], filesystem: pafs.FileSystem | None, stream: str) -> ArchivePlace:
    """Return the place of a stream's archive. Nothing is read or written.

    Args:
        path: Local path; URL; or path in ``filesystem``.
        filesystem: File system of pyarrow; None for that of the URL, or the local one.
        stream: Name of the stream.

    Raises:
        UsageError: The scheme is unknown, the URL is invalid, or the path is not in UTF-8.
        UsageTypeError: ``filesystem`` is not a file system of pyarrow.
    """
    if filesystem is None and is_url(path):
        filesystem, path = _from_url(os.fspath(path))
    if filesystem is None or isinstance(filesystem, pafs.LocalFileSystem):
        local = _local(path)
        return _Local(local, ArchiveNames(stream))
    if not isinstance(filesystem, pafs.FileSystem):
        raise UsageTypeError(f"filesystem must be a pyarrow.fs.FileSystem, got {type(filesystem).__name__}")
    folder = os.fspath(path).strip("/")
    if not folder:
        raise UsageError("path must name a bucket or a folder in the file system, got ''")
    return _Store(filesystem, folder, ArchiveNames(stream))


def _local(path: str | os.PathLike[str]) -> Path:
    try:
        local = as_local_path("path", path)
    except UsageError:
        text = f"path must be a local path, or a str with a URL of {', '.join(_SCHEMES)}"
        raise UsageError(f"{text}, got {without_secrets(os.fspath(path))!r}") from None
    check_arrow_path(local)
    return local


def _from_url(url: str) -> tuple[pafs.FileSystem, str]:
    try:
        return pafs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except (pa.ArrowException, OSError) as exc:
        text = f"path must be a URL that pyarrow can open, got {without_secrets(url)!r}"
        raise UsageError(f"{text}: {without_secrets(exc)}") from None  # the cause has the secrets of the URL


class _Local:
    """A folder of the local file system, created if it is missing."""

    most_bytes: Final = None

    def __init__(self, folder: Path, names: ArchiveNames) -> None:
        self._folder = folder
        self._names = names

    @contextlib.contextmanager
    def claimed(self, partitions: Sequence[int]) -> Iterator[None]:
        """Lock the files of partitions against other runs, and delete the drafts that a killed run left.

        Raises:
            ArchiveBusyError: Another run is writing these files.
            UsageError: The path is not a folder.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as exc:
            raise UsageError(f"path must be a folder, got {str(self._folder)!r}") from exc
        with contextlib.ExitStack() as locks:
            for partition in partitions:
                locks.enter_context(self._locked(partition))
            yield

    @contextlib.contextmanager
    def _locked(self, partition: int) -> Iterator[None]:
        with locked(self._folder / f".{self._names.prefix}-{partition}.lock"):
            for draft in self._folder.iterdir():
                if self._names.is_draft(draft.name, partition):
                    draft.unlink()
            yield

    def files(self) -> list[FoundFile]:
        return list(self._found(self._folder, ""))

    def _found(self, folder: Path, below: str) -> Iterator[FoundFile]:
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                if self._names.is_searched(path.name):
                    yield from self._found(path, f"{below}{path.name}/")
            elif (found := self._names.parse(below + path.name, 0)) is not None:
                # Runs of other partitions go on meanwhile, and delete files without rows.
                with contextlib.suppress(FileNotFoundError):
                    yield replace(found, nbytes=path.stat().st_size)

    def draft(self, partition: int, start: int) -> Path:
        return self._folder / self._names.draft(partition, start)

    def create(self, draft: PurePath) -> pa.NativeFile:
        return pa.OSFile(str(draft), "wb")

    def publish(self, draft: PurePath, path: str) -> Path:
        final, draft = self._folder / path, Path(draft)
        final.parent.mkdir(parents=True, exist_ok=True)
        if draft.exists():
            sync(draft)
            draft.replace(final)
        for folder in final.parents[: path.count("/") + 1]:
            sync(folder)
        return final

    def discard(self, draft: PurePath) -> None:
        Path(draft).unlink(missing_ok=True)

    def remove(self, path: str) -> None:
        (self._folder / path).unlink(missing_ok=True)

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(str(self._folder / path), "rb")

    def located(self, path: str) -> Path:
        return self._folder / path


class _Store:
    """A folder of an object store, or of another file system of pyarrow.

    A draft is an object in the folder of claims, and becomes a file by a copy that the store makes. The file
    could not be written under its name: when pyarrow's stream is deleted after an error, it completes the
    object with whatever was written (measured with pyarrow 26 on S3).
    """

    most_bytes: Final = _MOST_BYTES

    def __init__(self, filesystem: pafs.FileSystem, folder: str, names: ArchiveNames) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._names = names
        self._claim: Claim | None = None

    @contextlib.contextmanager
    def claimed(self, partitions: Sequence[int]) -> Iterator[None]:
        """Hold a claim on the files of partitions: see :mod:`~liftenvelope.bulk._archive.claims`.

        Raises:
            ArchiveBusyError: Another run is writing these files.
        """
        work = f"{self._folder}/{_WORK}"
        self._filesystem.create_dir(work)
        with claimed(self._filesystem, work, self._names.prefix, partitions) as self._claim:
            yield

    @property
    def _held(self) -> Claim:
        assert self._claim is not None, "files are written inside claimed()"
        return self._claim

    def files(self) -> list[FoundFile]:
        selector = pafs.FileSelector(self._folder, recursive=True, allow_not_found=True)
        found = [
            self._names.parse(one.path.removeprefix(f"{self._folder}/"), one.size or 0)
            for one in self._filesystem.get_file_info(selector)
            if one.type is pafs.FileType.File
        ]
        return [one for one in found if one is not None]

    def draft(self, partition: int, start: int) -> PurePosixPath:
        return PurePosixPath(self._held.draft(partition, start))

    def create(self, draft: PurePath) -> pa.NativeFile:
        return self._filesystem.open_output_stream(str(draft))

    def publish(self, draft: PurePath, path: str) -> PurePosixPath:
        final = f"{self._folder}/{path}"
        if self._filesystem.get_file_info(str(draft)).type is pafs.FileType.File:
            self._filesystem.create_dir(final.rpartition("/")[0])
            self._held.check()
            self._filesystem.move(str(draft), final)
        elif self._filesystem.get_file_info(final).type is not pafs.FileType.File:
            text = f"{draft} was deleted before it was complete, by a run that took this one for dead"
            raise ArchiveBusyError(f"{text}: run again")
        return PurePosixPath(final)

    def discard(self, draft: PurePath) -> None:
        with contextlib.suppress(OSError):  # the next run deletes it
            remove(self._filesystem, str(draft))

    def remove(self, path: str) -> None:
        self._held.check()
        remove(self._filesystem, f"{self._folder}/{path}")

    def open(self, path: str) -> pa.NativeFile:
        return self._filesystem.open_input_file(f"{self._folder}/{path}")

    def located(self, path: str) -> PurePosixPath:
        return PurePosixPath(self._folder, path)

"""Names of archive files, and the state of an archive derived from them. No I/O.

A name has the partition and the offsets that the file covers, so a listing of the folder is the manifest of
the archive: there is no other state that a killed run could leave torn, or that two runs could both change.
Within a partition, each file begins where another one ends.

Two runs that wrote at the same time leave files that overlap. :func:`resolve` finds the files to keep: a
chain that covers the same offsets, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from liftenvelope.errors import UsageError

__all__ = ["ArchiveNames", "FoundFile", "resolve"]

#: Folders of a Hive layout, the only ones that are searched.
_FOLDER: Final = re.compile(r"(partition|dt|hour)=[^/]*")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the archive.

    Attributes:
        path: Path below the archive, with slashes.
        partition: Number of the partition.
        start: First offset that the file covers.
        stop: Offset after the last one; None if only the metadata has it, as in files of older versions.
        nbytes: Size in bytes.
    """

    path: str
    partition: int
    start: int
    stop: int | None
    nbytes: int


class ArchiveNames:
    """Names of the files of one stream.

    Args:
        stream: Name of the stream.

    Example:
        >>> names = ArchiveNames("a/b")
        >>> names.name(3, 0, 17)
        'a%2Fb-3-00000000000000000000-00000000000000000017.parquet'
        >>> names.parse("dt=2026-11-25/" + names.name(3, 0, 17), 10).stop
        17
    """

    def __init__(self, stream: str) -> None:
        self.prefix: Final = quote(stream, safe="")
        self._pattern = re.compile(re.escape(self.prefix) + r"-(\d+)-(\d{20})(?:-(\d{20}))?\.parquet")

    def name(self, partition: int, start: int, stop: int) -> str:
        """Return the name of a complete file, without its folder."""
        return f"{self.prefix}-{partition}-{start:020}-{stop:020}.parquet"

    def draft(self, partition: int, start: int) -> str:
        """Return the name of a file being written."""
        return f"{self.prefix}-{partition}-{start:020}.parquet.part"

    def is_draft(self, name: str, partition: int) -> bool:
        """Return True if a name is that of a draft of the partition."""
        found = self._pattern.fullmatch(name.removesuffix(".part"))
        return name.endswith(".part") and found is not None and int(found[1]) == partition

    def parse(self, path: str, nbytes: int) -> FoundFile | None:
        """Return the file of this archive that has a path; None if it is another file."""
        *folders, name = path.split("/")
        found = self._pattern.fullmatch(name)
        if found is None or not all(map(_FOLDER.fullmatch, folders)):
            return None
        stop = None if found[3] is None else int(found[3])
        return FoundFile(path, int(found[1]), int(found[2]), stop, nbytes)

    @staticmethod
    def is_searched(folder: str) -> bool:
        """Return True if a folder of this name may hold files of an archive."""
        return _FOLDER.fullmatch(folder) is not None


def resolve(files: Iterable[tuple[FoundFile, int]]) -> tuple[list[FoundFile], list[FoundFile]]:
    """Return the files that cover each offset once, in order, and those that only repeat offsets of others.

    The result depends on the files alone and not on their order, so that all runs agree on it.

    Args:
        files: Files of one partition, each with the offset after the last one that it covers.

    Raises:
        UsageError: Files overlap in part, so that no choice of them has each offset once.
    """
    kept: list[FoundFile] = []
    repeated: list[FoundFile] = []
    for group in _overlapping(sorted(files, key=lambda one: (one[0].start, one[1], one[0].path))):
        chain = _chain(group)
        kept += chain
        repeated += [file for file, _ in group if file not in chain]
    return kept, repeated


def _overlapping(files: Sequence[tuple[FoundFile, int]]) -> Iterable[list[tuple[FoundFile, int]]]:
    """Yield the files in groups that share no offsets with each other."""
    group: list[tuple[FoundFile, int]] = []
    reach = 0
    for file, stop in files:
        if group and file.start >= reach:
            yield group
            group = []
        group.append((file, stop))
        reach = max(reach, stop) if len(group) > 1 else stop
    if group:
        yield group


def _chain(group: list[tuple[FoundFile, int]]) -> list[FoundFile]:
    """Return files of a group, each beginning where the one before it ends, that cover the whole group."""
    begin, end = group[0][0].start, max(stop for _, stop in group)
    leading: dict[int, list[FoundFile]] = {begin: []}  # the first way found to each offset
    for file, stop in group:
        if file.start in leading and stop not in leading:
            leading[stop] = [*leading[file.start], file]
    if end not in leading:
        names = ", ".join(file.path for file, _ in group[:4])
        text = f"the archive must have each offset once, got files that overlap in part: {names}"
        raise UsageError(f"{text}; move all but one of them away, and run again")
    return leading[end] or [group[0][0]]

"""Claims: leases on the files of an archive in an object store, which has neither locks nor atomic creation.

A run puts an object of its own, its claim, and then lists all claims. The store lists an object as soon as it
is put (S3, GCS, Azure and MinIO do). So of two runs that begin at once, at least one sees the claim of the
other, and withdraws; perhaps both do. This holds although pyarrow can't make a write conditional: it ignores
``If-None-Match``.

The run puts its claim again every few seconds, and the store notes the time of that. A claim is dead when it
was put ``LEASE`` seconds before that of the run that looks at it: both times are from the store, so clocks of
machines do not matter. On the machine of its owner, a claim is also dead when the process is gone. Who finds
a dead claim deletes it with the drafts of its run. A draft becomes a file by a copy, so a run that was only
suspended can't complete a draft any more: the copy fails.

Before each copy, a run checks on a clock that counts suspended time that its claim is still valid. One case
is left: a copy that the store carries out after the claim has expired. Its file overlaps with others, by its
name, and the next listing finds it: see :func:`~liftenvelope.bulk._archive.names.resolve`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope.bulk.errors import ArchiveBusyError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs
else:
    from liftenvelope.bulk._engine.schema import pa

    pafs = require("pyarrow.fs", "bulk")

__all__ = ["LEASE", "Claim", "claimed", "remove"]

#: Seconds after which a claim that was not put again is dead.
LEASE: Final = 30.0
#: Part of the lease after which the claim is put again, and part that must be left for a copy.
_RENEWAL: Final = 0.2
_MARGIN: Final = 0.4
#: Bytes of a claim that are read. Ours have some hundred; a longer object is not a claim.
_MOST_BYTES: Final = 1 << 20
#: Counts time for which the machine is suspended, too.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@contextmanager
def claimed(
    filesystem: pafs.FileSystem, folder: str, prefix: str, partitions: Sequence[int]
) -> Iterator[Claim]:
    """Hold a claim while the block runs.

    Args:
        filesystem: The store.
        folder: Folder of claims and drafts.
        prefix: Beginning of the names of the stream's files.
        partitions: Numbers of the partitions whose files the run writes.

    Raises:
        ArchiveBusyError: Another run has a claim on one of the partitions.
        OSError: The store can't be read or written.
    """
    claim = Claim(filesystem, folder, prefix, partitions)
    claim.put()
    try:
        claim.compare()
        claim.start()
        yield claim
    finally:
        claim.stop()


class Claim:
    """Claim of one run. A thread puts it again and again from :meth:`start` to :meth:`stop`.

    Attributes:
        run: Random id of the run, which its drafts have in their names.
    """

    def __init__(
        self, filesystem: pafs.FileSystem, folder: str, prefix: str, partitions: Sequence[int]
    ) -> None:
        self.run: Final = secrets.token_hex(8)
        self._filesystem = filesystem
        self._folder = folder
        self._prefix = prefix
        self._name = re.compile(re.escape(prefix) + r"\.([0-9a-f]{16})(\.claim|-\d+-\d{20}\.part)")
        self._partitions = frozenset(partitions)
        self._path = f"{folder}/{prefix}.{self.run}.claim"
        self._content = json.dumps({"partitions": sorted(self._partitions), "owner": _own_process()}).encode()
        self._expires = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="archive claim", daemon=True)

    def draft(self, partition: int, start: int) -> str:
        """Return the path of a file being written, which is deleted with the claim."""
        return f"{self._folder}/{self._prefix}.{self.run}-{partition}-{start:020}.part"

    def put(self) -> None:
        """Put the claim, for another ``LEASE`` seconds.

        Raises:
            OSError: The store can't be written.
        """
        sent = time.clock_gettime(_CLOCK)
        with self._filesystem.open_output_stream(self._path) as out:
            out.write(self._content)
        self._expires = sent + LEASE

    def start(self) -> None:
        """Start the thread that keeps the claim valid."""
        self._thread.start()

    def stop(self) -> None:
        """Delete the claim."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(OSError):  # the claim expires by itself
            remove(self._filesystem, self._path)

    def check(self) -> None:
        """Check that the claim is valid for some seconds more, before a copy or a deletion.

        Raises:
            ArchiveBusyError: The claim has expired.
        """
        left = self._expires - time.clock_gettime(_CLOCK)
        if left < LEASE * _MARGIN:
            text = (
                f"the claim on {self._path} has expired: this process was suspended, or the store was out of"
            )
            raise ArchiveBusyError(f"{text} reach; run again, since another run may be writing now")

    def _renew(self) -> None:
        while not self._ending.wait(LEASE * _RENEWAL):
            with suppress(OSError):  # if this lasts, check() finds the claim expired
                if self._filesystem.get_file_info(self._path).type is not pafs.FileType.File:
                    self._expires = 0.0  # another run took this one for dead
                    return
                self.put()

    def compare(self) -> None:
        """Look for the claims of other runs, and delete those of dead runs, with their drafts.

        Raises:
            ArchiveBusyError: Another run has a claim on one of the partitions.
        """
        runs: dict[str, list[pafs.FileInfo]] = {}
        for one in self._filesystem.get_file_info(pafs.FileSelector(self._folder)):
            if (found := self._name.fullmatch(one.base_name)) is not None:
                runs.setdefault(found[1], []).append(one)
        now = _claim_of(runs.pop(self.run, []))
        if now is None:
            text = (
                f"{self._folder} must list an object as soon as it is put, and does not: archives need that"
            )
            raise ArchiveBusyError(text)
        for objects in runs.values():
            claim = _claim_of(objects)
            if claim is None or not self._is_alive(claim, (now.mtime_ns - claim.mtime_ns) / 1e9):
                for one in sorted(objects, key=lambda each: each is claim):  # the claim is the last
                    remove(self._filesystem, one.path)

    def _is_alive(self, claim: pafs.FileInfo, age: float) -> bool:
        """Return False if the run of a claim has ended, and True if it works on other partitions.

        Raises:
            ArchiveBusyError: The run works on the same partitions.
        """
        if age > LEASE:
            return False
        content = _content_of(self._filesystem, claim.path)
        if content is None or _is_gone(content.get("owner")):
            return False
        theirs = content.get("partitions")
        if not isinstance(theirs, list) or any(number in self._partitions for number in theirs):
            where = self._folder.rpartition("/")[0]
            raise ArchiveBusyError(f"another run writes into {where}: run again when it has ended")
        return True


def _claim_of(objects: Sequence[pafs.FileInfo]) -> pafs.FileInfo | None:
    """Return the claim among the objects of one run, the others being its drafts."""
    return next((one for one in objects if one.base_name.endswith(".claim")), None)


def _content_of(filesystem: pafs.FileSystem, path: str) -> Mapping[str, Any] | None:
    """Return what a claim says, nothing if it is not one of ours; None if its run has just deleted it."""
    try:
        with filesystem.open_input_stream(path) as source:
            found = json.loads(source.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        is_deleted = filesystem.get_file_info(path).type is pafs.FileType.NotFound
        return None if is_deleted else {}
    return found if isinstance(found, dict) else {}


def remove(filesystem: pafs.FileSystem, path: str) -> None:
    """Delete a file that may be gone already."""
    try:
        filesystem.delete_file(path)
    except (OSError, pa.ArrowException):
        if filesystem.get_file_info(path).type is not pafs.FileType.NotFound:
            raise


def _own_process() -> list[str]:
    return _process(os.getpid())


def _process(pid: int) -> list[str]:
    """Return what tells a process from all others, on any machine; empty where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
        # After the name of the program, which is in parentheses and may have any characters.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state not in "ZX":  # ended, and not yet waited for
            return [boot, space, str(pid), fields[18]]
    return []


def _is_gone(owner: object) -> bool:
    """Return True if a process ran on this machine, and has ended."""
    ours = _own_process()
    if not isinstance(owner, list) or len(owner) != len(ours) or not ours or owner[:2] != ours[:2]:
        return False
    if not str(owner[2]).isdecimal():
        return False
    pid = int(owner[2])
    found = _process(pid)
    return found != owner if found else not _is_hidden(pid)


def _is_hidden(pid: int) -> bool:
    """Return True for a process of another user, which a /proc mounted with ``hidepid`` does not show."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False

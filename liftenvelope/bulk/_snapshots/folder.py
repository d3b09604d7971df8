"""Folders of backups, in the layout of the ``nats`` command: ``backup.json`` and one file of data.

``backup.json`` is written last. So a folder without it, or with an empty one, is no backup. The data is that
of the server, byte by byte: ``stream.arc.s2`` from nats-server 2.15 on, ``stream.tar.s2`` from older ones.
``backup.json`` has the config and the state of the stream. Ours has the field ``liftenvelope`` as well, with
the size and the digest of the data, which the ``nats`` command passes over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from liftenvelope._checks import as_text, is_encodable
from liftenvelope._showing import html_fields
from liftenvelope.bulk._archive.disk import locked, sync
from liftenvelope.bulk._snapshots.frames import S2Frames
from liftenvelope.bulk.errors import BackupDamagedError
from liftenvelope.errors import ServerProtocolError, UsageError
from liftenvelope.jetstream.api import natural, read_as, read_json

__all__ = [
    "Backup",
    "BackupWriter",
    "FoundBackup",
    "check_description",
    "find_backup",
    "is_backup",
    "written",
]

_META: Final = "backup.json"
_DATA: Final = "stream.arc.s2"
_OLD_DATA: Final = "stream.tar.s2"
_DRAFT: Final = "stream.unfinished"
_LOCK: Final = ".liftenvelope-backup.lock"
_OWN: Final = "liftenvelope"
#: Beginning of the data inside of the compression, since nats-server 2.15. No compression hides it, because
#: none of its bytes repeats an earlier part of the stream.
_MAGIC: Final = b"NATSARC1"
_MAGIC_WITHIN: Final = 64
#: Longest ``backup.json`` to read. The config of a stream is at most a message, of 64 MiB.
_LARGEST_META: Final = 128 * 1024 * 1024
_PIECE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup of a JetStream stream.

    Attributes:
        stream: Name of the stream.
        path: Folder of the backup.
        size: Size of the data in bytes, compressed.
        messages: Number of messages that the stream had when the backup began.
        oldest: Offset of the oldest message then, or of the next one if there was none.
        end: Offset after the newest message then.
        consumers: Number of consumers in the backup.
    """

    stream: str
    path: Path
    size: int
    messages: int
    oldest: int
    end: int
    consumers: int

    def _repr_html_(self) -> str:
        return html_fields(self)


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """A complete backup, as read from its folder.

    Attributes:
        backup: What it holds.
        config: Config of the stream, as the server sent it.
        state: State of the stream, as the server sent it.
        data: File of the data.
        is_tar: True for the format of nats-server before 2.15.
        digest: SHA-256 of the data in hex; empty if another program made the backup.
    """

    backup: Backup
    config: dict[str, Any]
    state: dict[str, Any]
    data: Path
    is_tar: bool
    digest: str = field(repr=False)

    def check(self, progress: Callable[[int], object]) -> None:
        """Read the data, and compare it with its size, its digest and the frames of its compression.

        Args:
            progress: Called after each piece with the number of bytes read so far.

        Raises:
            BackupDamagedError: The data is damaged.
            OSError: The data can't be read.
        """
        frames, digest = S2Frames(), hashlib.sha256()
        try:
            with open(self.data, "rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    frames.feed(piece)
                    progress(frames.size)
            frames.end()
        except ValueError as exc:
            raise BackupDamagedError(f"{self.data} is damaged: {exc}") from exc
        if self.digest and digest.hexdigest() != self.digest:
            text = f"{self.data} must have the SHA-256 {self.digest}, got {digest.hexdigest()}"
            raise BackupDamagedError(f"{text}: it is not the file that was backed up")


def is_backup(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a folder with a complete backup."""
    if isinstance(path, str) and "://" in path:
        return False
    with contextlib.suppress(OSError):
        return (Path(path) / _META).stat().st_size > 0
    return False


def find_backup(folder: Path) -> FoundBackup:
    """Read the description of a backup.

    Raises:
        UsageError: The folder has no complete backup.
        BackupDamagedError: The description is damaged, or the data has another size.
        OSError: A file can't be read.
    """
    if not is_backup(folder):
        raise UsageError(f"folder must have a complete backup, with {_META}, got {str(folder)!r}")
    with open(folder / _META, "rb") as file:
        text = file.read(_LARGEST_META)
    data = _data_of(folder)
    try:
        return read_as(lambda meta: _found(meta, data), read_json(text, _META), _META)
    except ServerProtocolError as exc:
        raise BackupDamagedError(f"{folder / _META} is damaged: {exc}") from exc


def _data_of(folder: Path) -> Path:
    files = [folder / name for name in (_DATA, _OLD_DATA) if (folder / name).exists()]
    if len(files) != 1:
        got = "both" if files else "none"
        raise BackupDamagedError(f"{folder} must have one of {_DATA} and {_OLD_DATA}, got {got}")
    return files[0]


def check_description(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Check that a description can be written to a file, and sent with a mark in its metadata.

    Raises:
        TypeError: The metadata is no object.
        UnicodeEncodeError: A text contains a lone surrogate.
        RecursionError: The description is nested too deeply.
    """
    if not isinstance(config.get("metadata") or {}, dict):
        raise TypeError(f"metadata must be an object, got {config['metadata']!r:.40}")
    json.dumps([config, state], indent=2, ensure_ascii=False).encode()


def _found(meta: dict[str, Any], data: Path) -> FoundBackup:
    config, state = dict(meta["config"]), dict(meta["state"])
    check_description(config, state)
    own, size = dict(meta.get(_OWN) or {}), data.stat().st_size
    end = natural(state["last_seq"])
    backup = Backup(
        stream=as_text("name", config["name"]),
        path=data.parent,
        size=size,
        messages=natural(state["messages"]),
        oldest=min(max(natural(state["first_seq"]) - 1, 0), end),
        end=end,
        consumers=natural(state.get("consumer_count", 0)),
    )
    digest = as_text("sha256", own.get("sha256", ""))
    if (expected := natural(own.get("size", size))) != size:
        raise BackupDamagedError(f"{data} must have {expected:,} bytes, got {size:,}")
    return FoundBackup(backup, config, state, data, data.name == _OLD_DATA, digest)


class BackupWriter:
    """Data of a backup under way. Get one from :func:`written`.

    Attributes:
        folder: Folder of the backup.
        frames: Follows the data that was written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self.frames: Final = S2Frames()
        self._file = open(folder / _DRAFT, "wb", opener=_private)  # noqa: SIM115 - closed by close()
        self._digest = hashlib.sha256()
        self._begin = b""

    def write(self, piece: bytes) -> None:
        """Append a piece of data.

        Raises:
            ServerProtocolError: The data is not a snapshot.
            OSError: The disk is full, or fails.
        """
        try:
            self.frames.feed(piece)
        except ValueError as exc:
            raise ServerProtocolError(f"the server sent what is not a snapshot: {exc}") from exc
        self._begin += piece[: _MAGIC_WITHIN - len(self._begin)]
        self._digest.update(piece)
        self._file.write(piece)

    def finish(self, config: Mapping[str, Any], state: Mapping[str, Any], server: str) -> Backup:
        """Complete the backup, and return it once it is on the disk.

        Raises:
            ServerProtocolError: The data ends within a chunk.
            OSError: The disk is full, or fails.
        """
        try:
            self.frames.end()
        except ValueError as exc:
            raise ServerProtocolError(f"the server did not send the whole snapshot: {exc}") from exc
        self._file.close()
        draft = self.folder / _DRAFT
        sync(draft)
        for name in (_DATA, _OLD_DATA):  # of a run that ended before it wrote its description
            (self.folder / name).unlink(missing_ok=True)
        draft.replace(self.folder / (_DATA if _MAGIC in self._begin else _OLD_DATA))
        own = {
            "size": self.frames.size,
            "sha256": self._digest.hexdigest(),
            "server": server if is_encodable(server) else "",
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._describe({"config": config, "state": state, _OWN: own})
        return find_backup(self.folder).backup

    def close(self) -> None:
        """Close the draft, and delete it. Does nothing to a complete backup."""
        self._file.close()
        (self.folder / _DRAFT).unlink(missing_ok=True)

    def _describe(self, meta: Mapping[str, Any]) -> None:
        draft = self.folder / f"{_META}.unfinished"
        with open(draft, "w", encoding="utf-8", opener=_private) as file:
            json.dump(meta, file, indent=2, ensure_ascii=False)
        sync(draft)
        sync(self.folder)
        draft.replace(self.folder / _META)
        for folder in (self.folder, self.folder.parent):
            sync(folder)


@contextlib.contextmanager
def written(folder: Path) -> Iterator[BackupWriter]:
    """Open a folder for a new backup, and delete what is unfinished in the end. A missing folder is made.

    Raises:
        UsageError: The path is not a folder, or it has a complete backup.
        ArchiveBusyError: Another backup is written into the folder.
        OSError: The folder can't be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as exc:
        raise UsageError(f"folder must be a folder, got {str(folder)!r}") from exc
    with locked(folder / _LOCK):
        if is_backup(folder):
            raise UsageError(f"folder must not have a backup yet, got {str(folder)!r}: name another one")
        writer = BackupWriter(folder)
        try:
            yield writer
        finally:
            writer.close()


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: messages may be secret."""
    return os.open(path, flags, 0o600)

"""Locks and syncs on the local file system."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from liftenvelope.bulk.errors import ArchiveBusyError

if sys.platform != "win32":
    import fcntl

__all__ = ["locked", "sync"]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, which exists only while the lock is held.

    The system releases the lock when the process ends, so a killed run never blocks the next one.

    Raises:
        ArchiveBusyError: Another run holds the lock.
    """
    lock = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is released: see _locked
        os.close(lock)


def _locked(path: Path) -> int:
    """Create a lock file and lock it; return its descriptor.

    The owner deletes the file before it releases the lock. Another run may have opened the file before that
    and lock the deleted file, while a third run creates and locks a new one. So the path must still name the
    locked file; otherwise the loop starts over. File systems without locks, and Windows, do not lock.

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


def sync(path: Path) -> None:
    """Sync a file or folder to disk. Windows can't sync folders."""
    if path.is_dir() and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

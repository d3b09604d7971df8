"""Connections for requests that stay open between the reads of one process."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

__all__ = ["IdleConnections"]


class _Closable(Protocol):
    def close(self) -> None:
        """Close the connection."""
        ...


class IdleConnections:
    """Keeps connections until the next read with the same servers and options takes them.

    A connection that no read takes is closed after some seconds, or ends with the process. Each connection
    has one owner: a read that takes it, or this object. Any thread may call the methods. A forked process
    must not use the object of its parent.

    Args:
        seconds: Seconds after which a connection that no read takes is closed.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        # Address, connection, and the time at which it is to be closed; the earliest first.
        self._kept: list[tuple[str, _Closable, float]] = []
        self._is_watched = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, connection: _Closable, address: str = "") -> None:
        """Keep a connection, which the caller must not use any more.

        Args:
            connection: The connection.
            address: Address to find it by. Default: that of any server.
        """
        with self._lock:
            self._kept.append((address, connection, time.monotonic() + self._seconds))
            if self._is_watched:
                return
            self._is_watched = True
        # One thread for all: the start of a thread takes longer than the request of a short read.
        threading.Thread(target=self._watch, name="liftenvelope-idle", daemon=True).start()

    def take(self, address: str = "") -> _Closable | None:
        """Return the connection to an address that was kept last, which may be dead; None for none."""
        with self._lock:
            for i in reversed(range(len(self._kept))):
                if self._kept[i][0] == address:
                    return self._kept.pop(i)[1]
        return None

    def _watch(self) -> None:
        """Close old connections, until none is left."""
        pause = self._seconds
        while pause:
            time.sleep(pause)
            pause = self._close_old()

    def _close_old(self) -> float:
        """Close old connections; return the seconds until the next one is old, or 0 if none is left."""
        with self._lock:
            now = time.monotonic()
            old = [connection for _, connection, end in self._kept if end <= now]
            self._kept = self._kept[len(old) :]
            self._is_watched = bool(self._kept)
            pause = self._kept[0][2] - now if self._kept else 0.0
        for connection in old:
            with suppress(OSError):  # it is gone anyway, and the thread has others to close
                connection.close()
        return pause

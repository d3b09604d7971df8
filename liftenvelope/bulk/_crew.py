"""Threads that read ranges, and the one that takes their batches: what lies between is bounded."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from liftenvelope.errors import InternalError, LiftEnvelopeError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Crew", "Outlet", "Piece", "Stopped"]

#: How many batches may wait for each thread.
_DEPTH: Final = 2
#: How often a thread that waits for room looks whether it is to stop, in seconds.
_LOOK: Final = 0.5
#: Seconds that a thread may take to end when it is told to.
_JOIN: Final = 10.0


class Stopped(Exception):  # noqa: N818 - not an error: nobody reads any more
    """Ends a thread whose batches nobody wants."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a thread has read.

    Attributes:
        batch: The rows; None where there are only gaps.
        partition: Of which partition.
        nbytes: How many bytes the messages had.
        offsets: How many offsets it covers, gaps among them.
        gaps: Offsets that have no message, each as its first and the one after its last.
    """

    batch: pa.RecordBatch | None
    partition: int
    nbytes: int
    offsets: int
    gaps: Sequence[tuple[int, int]] = ()


Job: TypeAlias = "Callable[[Outlet], None]"


class Outlet:
    """Where one thread puts what it has read."""

    def __init__(self, pieces: queue.Queue[Any], stopping: threading.Event) -> None:
        self._pieces = pieces
        self._stopping = stopping
        #: Ends whatever the thread is waiting for. Called by another thread.
        self.wake: Callable[[], None] = lambda: None

    @property
    def is_stopping(self) -> bool:
        """Whether the thread is to end."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise Stopped if the thread is to end."""
        if self._stopping.is_set():
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Wait, unless the thread is to end."""
        if self._stopping.wait(seconds):
            raise Stopped

    def offer(self, piece: Piece, timeout: float = 0.0) -> bool:
        """Put something, if there is room for it in time; return whether there was."""
        self.check()
        try:
            self._pieces.put(piece, block=timeout > 0, timeout=timeout or None)
        except queue.Full:
            return False
        return True

    def put(self, piece: Piece) -> None:
        """Put something, as soon as there is room."""
        while not self.offer(piece, _LOOK):
            pass


class Crew:
    """Threads that do jobs, and the queue of what they have read.

    Args:
        jobs: What is to be done, in this order.
        parallel: How many threads there are.
        on_end: Called once when all threads have ended.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int, on_end: Callable[[], None]) -> None:
        self._jobs = deque(jobs)
        self._on_end = on_end
        self._running = min(parallel, len(jobs))
        self._pieces: queue.Queue[Any] = queue.Queue(max(1, self._running) * _DEPTH)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._ended = False
        self._outlets = [Outlet(self._pieces, self._stopping) for _ in range(self._running)]
        self._threads = [
            threading.Thread(target=self._work, args=(outlet,), name="liftenvelope-bulk", daemon=True)
            for outlet in self._outlets
        ]
        for thread in self._threads:
            thread.start()

    def next(self, timeout: float | None = None) -> Piece | None:
        """Wait for what comes next; None when all is done.

        Raises:
            LiftEnvelopeError: What went wrong in a thread. The others are stopped.
            queue.Empty: Nothing came in time.
        """
        while self._running:
            found = self._pieces.get(timeout=timeout)
            if isinstance(found, Piece):
                return found
            if found is not None:
                self.stop()
                raise found
            self._running -= 1
        self.stop()
        return None

    def stop(self) -> None:
        """End all threads, and wait for that. Stopping twice is fine."""
        self._stopping.set()
        for outlet in self._outlets:
            outlet.wake()
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._make_room()
        for thread in self._threads:
            # A garbage collection can end up here in any thread.
            if thread is not threading.current_thread():
                thread.join(_JOIN)
        self._on_end()

    def _make_room(self) -> None:
        """Let threads go that wait for room: there is enough for one piece of each."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()

    def _work(self, outlet: Outlet) -> None:
        found: Exception | None = None
        try:
            while self._jobs and not outlet.is_stopping:
                self._jobs.popleft()(outlet)
        except (Stopped, IndexError):
            pass
        except LiftEnvelopeError as exc:
            found = exc
        except Exception as exc:  # noqa: BLE001 - a thread has nobody else to tell
            found = InternalError(f"a bulk read failed: {exc!r}")
            found.__cause__ = exc
        while not self._stopping.is_set():
            try:
                self._pieces.put(found, timeout=_LOOK)
            except queue.Full:
                continue
            return

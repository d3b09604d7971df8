"""Reader threads and the bounded queue between them and the consumer of their batches."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from liftenvelope._deadlines import Deadline
from liftenvelope.errors import InternalError, LiftEnvelopeError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Crew", "Outlet", "Piece", "Stopped"]

#: Batches that may be queued per thread.
_DEPTH: Final = 2
#: Seconds between two checks for a stop while a thread waits for room in the queue.
_LOOK: Final = 0.5
#: Seconds to wait for the stopped threads to end.
_JOIN: Final = 10.0


class Stopped(Exception):  # noqa: N818 - not an error: the consumer has stopped reading
    """Raised in a reader thread to end it after the crew was stopped."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch of rows and gaps that a thread has read from one partition.

    Attributes:
        batch: The rows; None for a piece with gaps only, or with no row whose subject matches.
        partition: Number of the partition.
        nbytes: Size of the messages in bytes.
        offsets: Number of offsets covered, including gaps.
        gaps: Ranges of offsets without messages, each as its first offset and the offset after its last.
    """

    batch: pa.RecordBatch | None
    partition: int
    nbytes: int
    offsets: int
    gaps: Sequence[tuple[int, int]] = ()


ReadJob: TypeAlias = "Callable[[Outlet], None]"


class Outlet:
    """Sending end of the queue for one thread."""

    def __init__(self, pieces: queue.Queue[Any], stopping: threading.Event) -> None:
        self._pieces = pieces
        self._stopping = stopping
        #: Interrupts the current wait of the thread, such as a socket read. Called from another thread.
        self.wake: Callable[[], None] = lambda: None

    @property
    def is_stopping(self) -> bool:
        """True if the thread must end."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise Stopped if the thread must end."""
        if self._stopping.is_set():
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Sleep for some seconds. Raises Stopped if the thread must end."""
        if self._stopping.wait(seconds):
            raise Stopped

    def offer(self, piece: Piece, timeout: float = 0.0) -> bool:
        """Try to queue a piece within ``timeout`` seconds; return True on success.

        Raises:
            Stopped: The thread must end.
        """
        self.check()
        try:
            self._pieces.put(piece, block=timeout > 0, timeout=timeout or None)
        except queue.Full:
            return False
        return True

    def put(self, piece: Piece) -> None:
        """Queue a piece, waiting for room without a time limit.

        Raises:
            Stopped: The thread must end.
        """
        while not self.offer(piece, _LOOK):
            pass


class Crew:
    """Runs jobs in threads and queues the pieces that the threads read.

    Each thread ends by queueing None, or the exception that failed it. A thread counts as running until
    :meth:`next` has taken that item.

    Args:
        jobs: Jobs to run, started in this order.
        parallel: Maximum number of threads.
        on_end: Called once after all threads were stopped.
    """

    def __init__(self, jobs: Sequence[ReadJob], parallel: int, on_end: Callable[[], None]) -> None:
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
        """Wait for the next piece and return it; None when all jobs are done.

        Raises:
            LiftEnvelopeError: A thread failed with this error. The other threads are stopped.
            queue.Empty: No piece came within ``timeout`` seconds.
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
        """Stop all threads and wait for them to end. Idempotent."""
        self._stopping.set()
        for outlet in self._outlets:
            outlet.wake()
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._make_room()
        deadline = Deadline(_JOIN)
        for thread in self._threads:
            # A finalizer can call this from any thread, including one of these.
            if thread is not threading.current_thread():
                thread.join(deadline.left)
        self._on_end()

    def _make_room(self) -> None:
        """Empty the queue to release blocked threads. An empty queue has room for a piece of each thread."""
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
        except Exception as exc:  # noqa: BLE001 - the queue is the only way to report it
            found = InternalError(f"a bulk read failed: {exc!r}")
            found.__cause__ = exc
        while not self._stopping.is_set():
            try:
                self._pieces.put(found, timeout=_LOOK)
            except queue.Full:
                continue
            return

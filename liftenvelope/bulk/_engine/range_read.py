"""Shared part of the reads of one range: the retry loop, the current batch, and the hand-out of batches."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from liftenvelope._backoff import Patience
from liftenvelope._secrets import without_secrets
from liftenvelope.bulk._engine.event_log import log
from liftenvelope.bulk._engine.plan import retention_error
from liftenvelope.bulk.errors import ReadLostError
from liftenvelope.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from liftenvelope.bulk._engine.crew import Outlet, Piece
    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk.access import Access
    from liftenvelope.bulk.ranges import Extent, Range

__all__ = ["GAPS_PAUSE", "UNSURE", "RangeRead"]

#: Seconds between two looks whether retention caused the gaps, if those are only logged. Each look is a
#: request or two, and every batch of a compacted stream has gaps.
GAPS_PAUSE: Final = 1.0
#: Seconds after which a gap is looked at, if its batch lasts longer: retention goes on meanwhile.
UNSURE: Final = 0.2


class RangeSource(Protocol):
    """The stream of a range read."""

    stream: str
    access: Access

    def extent(self, partition: int) -> Extent:
        """Return the current extent of a partition."""
        ...

    def may_have_holes(self) -> bool:
        """Return True if the oldest offset can advance without retention, so that gaps there are normal."""
        ...


class RowReader(Protocol):
    """The parser that collects the rows of the current batch; ``BatchPlan.piece`` takes them."""

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        ...


class RangeRead(ABC):
    """Reads one range, over as many attempts as needed, in a thread of its own.

    Invariant: ``_next`` is the offset after the last message taken, and every attempt starts there. The
    offsets from ``_flushed`` to ``_next`` are in the current batch. The offsets before ``_flushed`` are in
    ``_ready``, or were handed out. So messages are neither lost nor repeated.

    Args:
        source: The stream.
        span: Range to read.
        plan: Columns and limits of the batches.
        outlet: Takes the batches.
        rows: Parser of the messages.
        name: Name of what is read, for error texts.
    """

    #: Errors after which another attempt may succeed.
    _passing: ClassVar[tuple[type[Exception], ...]]

    def __init__(
        self,
        source: RangeSource,
        span: Range,
        plan: BatchPlan,
        outlet: Outlet,
        rows: RowReader,
        name: str,
    ) -> None:
        self._source = source
        self._span = span
        self._plan = plan
        self._outlet = outlet
        self._rows = rows
        self._name = name
        self._next = self._flushed = span.start
        # Pieces to hand out, and gaps in them that have not been checked for retention yet.
        self._ready: deque[Piece] = deque()
        self._gaps: list[tuple[int, int]] = []
        # Gaps of the current batch that begin before _sound_to are no loss. _unsure_from: offset of the read
        # before the first gap after that, and when that gap was passed; -1 and infinite for none.
        self._sound_to, self._unsure_from, self._unsure_since = 0, -1, math.inf
        # When gaps that are only logged are looked at next.
        self._look_at = 0.0
        # When the current batch got its first row.
        self._began = 0.0
        # Whether an attempt has failed.
        self._was_lost = False
        # Creation time of the stream in ns since 1970, as last heard of; 0 for not yet.
        self._created_ns = span.created_ns

    def run(self) -> None:
        """Read the whole range.

        Raises:
            ReadLostError: The connection was lost and not restored within ``reconnect_wait`` seconds, or the
                messages stayed invisible for that long.
            RetentionError: Retention has overtaken the read.
            OffsetOutOfRangeError: The stream is shorter than it was, or was created again.
            LiftEnvelopeError: The server refused a request.
        """
        patience, reached = Patience(self._source.access.reconnect_wait), -1
        while True:
            try:
                self._read()
                if self._gaps:
                    self._check_gaps()
            except ReadLostError:
                self._put_all()
                raise
            except self._passing as exc:
                self._outlet.check()
                now = time.monotonic()
                if self._next > reached:
                    patience.progressed(now)
                    reached = self._next
                if (pause := patience.failed(now)) is None:
                    self._put_all()
                    raise self._lost(exc) from exc
                self._check_failure(exc, now)
                self._was_lost = True
                told = {"read": self._name, "offset": self._next, "error": without_secrets(exc)}
                log.warning("%(read)s: lost at offset %(offset)d, reading on: %(error)s", told, extra=told)
                self._outlet.pause(pause)
            else:
                return

    @abstractmethod
    def _read(self) -> None:
        """Make one attempt: read from the next offset on. Returns when the range is complete."""

    def _check_failure(self, error: Exception, now: float) -> None:  # noqa: B027 - optional
        """Look at the error of a failed attempt. Raises an error if no other attempt may follow."""

    def _lost(self, error: Exception) -> ReadLostError:
        wait = self._source.access.reconnect_wait
        text = f"the read was lost at offset {self._next} and not regained in {wait:g} s"
        return ReadLostError(f"{self._name}: {text}: {error}")

    def _check_same_log(self, end: int, created_ns: int, *, is_restored: bool = False) -> None:
        """Check that the partition has the messages that were read, and still reaches the next offset.

        A partition that lost messages, or a recreated stream, assigns the same offsets to other messages. A
        read without a stop that is still at offset 0 goes on in a recreated stream: it has no row of another.

        Args:
            end: Offset after the newest message of the partition.
            created_ns: Creation time of the stream in ns since 1970; 0 if the server does not report it.
            is_restored: True if the stream has the messages of its predecessor.

        Raises:
            OffsetOutOfRangeError: The stream was created again, or ends before the next offset.
        """
        fault, is_fresh = None, not self._next and self._span.stop < 0
        if end < self._next:
            fault = (
                f"offset {self._next - 1} was there, and the newest is now {end - 1}: messages were lost, or "
                f"the stream was made anew"
            )
        elif not is_fresh and 0 < self._created_ns < created_ns and not is_restored:
            fault = f"the stream was made anew while it was read, before offset {self._next}"
        if fault is not None:
            text = f"{self._name}: {fault}"
            raise OffsetOutOfRangeError(text, self._source.stream, self._span.partition, self._next, end - 1)
        self._created_ns = max(self._created_ns, created_ns)

    # The current batch

    def _time_to_wait(self, longest: float) -> float:
        """Return the seconds to wait for data: until the batch is due, and no longer than ``longest``."""
        seconds = self._plan.batch_seconds
        if seconds is None or not self._rows.rows:
            return longest
        return min(longest, max(0.001, self._began + seconds - time.monotonic()))

    def _flush_if_old(self, *, block: bool) -> None:
        """End the batch and hand it out if it is due."""
        seconds = self._plan.batch_seconds
        if seconds is not None and self._rows.rows and time.monotonic() >= self._began + seconds:
            self._flush()
            self._hand_out(block=block)

    def _flush(self, stop: int = -1) -> None:
        """End the batch. If given, ``stop`` is the end of the range: the offsets up to it become a gap."""
        piece = self._plan.piece(self._rows, self._span.partition, self._flushed, stop)
        if piece is not None:
            self._flushed = self._next = max(self._next, stop)
            self._ready.append(piece)
            self._gaps += piece.gaps

    # Handing out

    def _hand_out(self, *, block: bool) -> None:
        """Hand out ready pieces: all of them if ``block``, otherwise as many as the queue has room for."""
        if self._must_check():
            self._check_gaps()
        while self._ready:
            if block:
                self._outlet.put(self._ready[0])
            elif not self._outlet.offer(self._ready[0]):
                return
            self._ready.popleft()

    def _put_all(self) -> None:
        """Hand out all rows before the read fails, but for those of a batch that can't be checked."""
        with contextlib.suppress(*self._passing):
            self._flush()
        while self._ready:
            self._outlet.put(self._ready[0])
            self._ready.popleft()

    def _passed_gap(self) -> None:
        """Note that a gap was passed, which begins at the offset reached before or later."""
        if self._unsure_from < 0:
            self._unsure_from = self._next
        self._unsure_since = min(self._unsure_since, time.monotonic())

    def _look(self) -> None:
        """Ask for the oldest message soon after a gap, before retention takes messages that the read has got.

        A gap after the oldest message is a hole: its messages were deleted one by one. If any other gap is in
        the batch, the batch ends here, and :meth:`_check_gaps` decides.
        """
        self._unsure_since = math.inf
        if self._source.extent(self._span.partition).oldest <= self._unsure_from:
            self._sound_to, self._unsure_from = self._next, -1
        elif self._plan.on_retention == "raise":
            self._flush()
            self._hand_out(block=False)

    def _must_check(self) -> bool:
        if not self._gaps or self._plan.on_retention == "raise":
            return bool(self._gaps)
        return time.monotonic() >= self._look_at

    def _check_gaps(self) -> None:
        """Raise RetentionError if retention caused a gap and the policy is "raise"; otherwise log the gap."""
        source, partition = self._source, self._span.partition
        oldest = source.extent(partition).oldest
        taken = [(start, min(stop, oldest)) for start, stop in self._gaps if self._sound_to <= start < oldest]
        if taken and not source.may_have_holes():
            if self._plan.on_retention == "raise":
                raise retention_error(source.stream, partition, taken[0][0], oldest)
            count = sum(stop - start for start, stop in taken)
            told = {"read": self._name, "offset": taken[0][0], "count": count, "oldest": oldest}
            text = (
                "%(read)s: retention took %(count)d messages from offset %(offset)d on before they were read"
            )
            log.warning(text, told, extra=told)
        self._gaps.clear()
        if self._flushed == self._next:
            self._unsure_from, self._unsure_since = -1, math.inf
        self._look_at = time.monotonic() + GAPS_PAUSE

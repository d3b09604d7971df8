"""Acks of a batch as columns, without a future or an object per message."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import Any, Final

from liftenvelope._showing import html_outcomes, raise_failures
from liftenvelope.envelope import Ack
from liftenvelope.errors import publish_error
from liftenvelope.types import AckError

__all__ = ["BatchAcks", "BatchSummary"]

_OK: Final = AckError.OK


class BatchSummary:
    """Outcomes of the messages of a batch, by index.

    Attributes:
        offsets: Offset of each stored message, -1 for a failed one (``array('q')``).
        latencies: Seconds from handing the message to the connection until its ack, -1.0 without an ack
            (``array('d')``).
        failures: Error by index, for messages that were not stored or whose outcome is unknown: a
            PublishError, PermissionDeniedError, AckTimeoutError or TransportError.
    """

    def __init__(self, size: int) -> None:
        self.offsets = array("q", [-1]) * size
        self.latencies = array("d", [-1.0]) * size
        self.failures: dict[int, Exception] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def acked(self) -> int:
        """Number of messages that are stored."""
        return len(self) - len(self.failures)

    @property
    def ok(self) -> bool:
        """True if every message is stored."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Raise all failures as one group, if there are any.

        Raises:
            ExceptionGroup: All failures; a note on each contains its index.
        """
        raise_failures(self.failures, len(self))

    def __repr__(self) -> str:
        return f"BatchSummary({self.acked} stored, {len(self.failures)} failed)"

    def _repr_html_(self) -> str:
        return html_outcomes(f"{self.acked} stored, {len(self.failures)} failed", self.failures, {})


class BatchAcks:
    """Awaitable of the summary of a batch's acks. Can be awaited several times.

    Every message ends at its deadline at the latest, so the wait never exceeds the timeout of the last
    message. The summary contains the failures; awaiting raises none of them.

    Args:
        size: Number of messages in the batch.
        subjects: Subjects that the messages are published on.
        which: Index into ``subjects`` for each message. None if all messages have one subject.
        before: Last error of the connection before the first message.
    """

    def __init__(
        self,
        size: int,
        subjects: Sequence[bytes],
        which: Sequence[int] | None,
        before: Exception | None = None,
    ) -> None:
        self.before = before
        self._subjects, self._which = [subject.decode() for subject in subjects], which
        self._summary = BatchSummary(size)
        self._offsets, self._latencies = self._summary.offsets, self._summary.latencies
        self._left = size
        self._sent_at = array("d", [0.0]) * size
        self._done: asyncio.Future[BatchSummary] = asyncio.get_running_loop().create_future()
        if not size:
            self._done.set_result(self._summary)

    @property
    def left(self) -> int:
        """Number of messages without an outcome."""
        return self._left

    def done(self) -> bool:
        """Return True if every message has an outcome."""
        return self._done.done()

    def add_done_callback(self, callback: Callable[[BatchSummary], object]) -> None:
        """Call a function with the summary when every message has an outcome."""
        self._done.add_done_callback(lambda done: done.cancelled() or callback(done.result()))

    def __await__(self) -> Generator[Any, None, BatchSummary]:
        # Shielded: a cancelled waiter must not cancel the summary for the others.
        return asyncio.shield(self._done).__await__()

    def sent(self, start: int, stop: int) -> None:
        """Record the time at which a range of messages is handed to the connection."""
        self._sent_at[start:stop] = array("d", [monotonic()]) * (stop - start)

    def subject(self, index: int) -> str:
        """Return the subject of a message."""
        return self._subjects[0 if self._which is None else self._which[index]]

    def settle(self, index: int, outcome: Ack | Exception) -> None:
        """Record the outcome of one message."""
        # Hot path of acked publishing: keep attribute lookups few.
        if isinstance(outcome, Exception):
            known = index in self._summary.failures
            self._summary.failures[index] = outcome
            if known:  # timed out while nc.publish() waited, and was never sent
                return
        else:
            self._latencies[index] = monotonic() - self._sent_at[index]
            if outcome.error is _OK:
                self._offsets[index] = outcome.offset
            else:
                self._summary.failures[index] = publish_error(outcome)
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(self._summary)

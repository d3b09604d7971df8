"""The acks of a batch, as columns: no future and no object per message."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, Final

from liftenvelope._summaries import raise_failures
from liftenvelope.envelope import Ack
from liftenvelope.errors import publish_error
from liftenvelope.types import AckError

__all__ = ["BatchAcks", "BatchSummary"]

_OK: Final = AckError.OK


class BatchSummary:
    """What became of the messages of a batch, by their index.

    Attributes:
        offsets: The offset of each stored message, -1 for one that failed (``array('q')``).
        latencies: Seconds from the hand-over to the connection to the ack, -1.0 for one that has no ack
            (``array('d')``).
        failures: Index to error, of those that were not stored or whose outcome is unknown: a PublishError,
            AckTimeoutError or TransportError.
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
        """Whether every message is stored."""
        return not self.failures

    def raise_for_failures(self) -> None:
        """Raise what went wrong, if anything did.

        Raises:
            ExceptionGroup: Of all failures; a note on each tells its index.
        """
        raise_failures(self.failures, len(self))

    def __repr__(self) -> str:
        return f"BatchSummary({self.acked} stored, {len(self.failures)} failed)"


class BatchAcks:
    """The summary of a batch's acks, when it is complete: await it, once or several times.

    Every message ends at its deadline at the latest, so the wait is never longer than the timeout of the last
    message. Failures are in the summary; awaiting raises none of them.

    Args:
        size: How many messages the batch has.
        subjects: Subjects that the messages are published on.
        which: Index into ``subjects`` of each message. None if there is one subject for all.
    """

    def __init__(self, size: int, subjects: Sequence[bytes], which: Sequence[int] | None) -> None:
        self._subjects, self._which = subjects, which
        self._summary = BatchSummary(size)
        self._offsets, self._latencies = self._summary.offsets, self._summary.latencies
        self._left = size
        self._sent_at = array("d", [0.0]) * size
        self._done: asyncio.Future[BatchSummary] = asyncio.get_running_loop().create_future()
        if not size:
            self._done.set_result(self._summary)

    @property
    def left(self) -> int:
        """How many messages have no outcome yet."""
        return self._left

    def done(self) -> bool:
        """Whether every message has its outcome."""
        return self._done.done()

    def __await__(self) -> Generator[Any, None, BatchSummary]:
        # Shielded: who gives up waiting does not take the summary from the others.
        return asyncio.shield(self._done).__await__()

    def sent(self, start: int, stop: int) -> None:
        """Note that messages are being handed over now."""
        self._sent_at[start:stop] = array("d", [monotonic()]) * (stop - start)

    def subject(self, index: int) -> str:
        """Return the subject of a message."""
        return self._subjects[0 if self._which is None else self._which[index]].decode()

    def settle(self, index: int, outcome: Ack | Exception) -> None:
        """Take the outcome of one message."""
        # The hot path of acked publishing: nothing is looked up twice.
        if isinstance(outcome, Exception):
            self._summary.failures[index] = outcome
        else:
            self._latencies[index] = monotonic() - self._sent_at[index]
            if outcome.error is _OK:
                self._offsets[index] = outcome.offset
            else:
                self._summary.failures[index] = publish_error(outcome)
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(self._summary)

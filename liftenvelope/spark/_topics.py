"""Writes the rows of a task to several streams, over a connection for each. Imports nothing of Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import LiftEnvelopeError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk.writing import TableWrite

__all__ = ["TopicWrites"]

#: Streams of a task with an open connection. A task that has more closes the one used least recently.
_OPEN: Final = 100
#: Seconds after which an unused connection is closed. An idle connection answers no pings, so a NATS server
#: ends it after some minutes.
_IDLE: Final = 30.0


class TopicWrites:
    """Writes to several streams. Each keeps its connection until :meth:`close`, within limits.

    Args:
        make: Returns a write to a stream, not opened yet.

    Attributes:
        rows: Rows stored in streams that :meth:`finish` has ended.
        bytes: Total size of their values.
        duplicates: Rows that the streams already had.
    """

    def __init__(self, make: Callable[[str], TableWrite]) -> None:
        self._make = make
        # Write and time of last use by stream, the least recently used first. Between two batches all rows
        # are acked.
        self._writes: dict[str, tuple[TableWrite, float]] = {}
        self.rows = self.bytes = self.duplicates = 0

    def add(self, parts: Mapping[str, pa.RecordBatch]) -> None:
        """Publish the rows of each stream, and wait until all are acked, which bounds memory to one batch.

        Args:
            parts: Rows by stream. After an error, rows of streams that come later may not have been sent.

        Raises:
            LiftEnvelopeError: A stream did not store all of its rows, as :func:`liftenvelope.bulk.write`
                reports it. The rows sent to other streams have their acks; the notes of the error name each
                stream that did not store all of them either.
        """
        now = time.monotonic()
        for topic in [topic for topic, (_, used) in self._writes.items() if now - used > _IDLE]:
            self._end(topic)
        # Open writes first: with very many streams, each new one would close one that is needed next.
        for topic in sorted(parts, key=lambda topic: topic not in self._writes):
            with self._failing(topic):
                write = self._open(topic)
                write.add(write.reader(parts[topic]))
        for topic in [topic for topic in parts if topic in self._writes]:
            with self._failing(topic):
                self._writes[topic][0].settle()

    def finish(self) -> None:
        """End all writes."""
        for topic in list(self._writes):
            self._end(topic)

    def close(self) -> None:
        """Close all connections."""
        while self._writes:
            _, (write, _) = self._writes.popitem()
            write.close()

    def _open(self, topic: str) -> TableWrite:
        """Return the write to a stream, which is now the most recently used one."""
        found = self._writes.pop(topic, None)
        if found is None and len(self._writes) >= _OPEN:
            self._end(next(iter(self._writes)))
        write = self._make(topic) if found is None else found[0]
        self._writes[topic] = write, time.monotonic()
        if found is None:
            write.open()
        return write

    def _end(self, topic: str) -> None:
        """Wait for the acks of a stream, and close its connection."""
        with self._failing(topic):
            write, _ = self._writes[topic]
            done = write.finish()
            self.rows += done.acked
            self.bytes += done.bytes
            self.duplicates += done.duplicates
            del self._writes[topic]
            write.close()

    @contextmanager
    def _failing(self, topic: str) -> Iterator[None]:
        """After an error of a stream, wait for the acks of the others, so that their outcome is known."""
        try:
            yield
        except LiftEnvelopeError as exc:
            if (failed := self._writes.pop(topic, None)) is not None:
                failed[0].close()
                for name, (write, _) in self._writes.items():
                    try:
                        write.settle()
                    except LiftEnvelopeError as other:
                        exc.add_note(f"stream {name} failed as well: {other}")
            raise

"""What the sources do, without Spark's classes: they can be tried without a JVM."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

from liftenvelope.spark.broker import Broker, read_span
from liftenvelope.spark.cursors import Cursors
from liftenvelope.spark.offsets import Offsets, Position
from liftenvelope.spark.options import SourceOptions
from liftenvelope.spark.planning import Planner, Span, Trigger, divide, spans_between

__all__ = ["BatchSource", "StreamSource"]


class BatchSource:
    """A batch query: what there is between two places, now.

    Args:
        options: What is read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def spans(self) -> list[Span]:
        """Return what each task reads.

        Raises:
            LiftEnvelopeError: A stream does not exist, or the servers can't be asked.
        """
        with Broker(self._options) as broker:
            extents = broker.extents()
            spans = spans_between(broker.begin(extents), broker.end(extents))
        return divide(spans, self._options.min_partitions, self._options.max_records)

    def read(self, span: Span) -> Iterator[Any]:
        """Read one of them."""
        return read_span(self._options, span)


class StreamSource:
    """A streaming query. One lives as long as the query and answers for offsets; copies of it read.

    Args:
        options: What is read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._broker = Broker(options)
        self._planner = Planner(fail_on_data_loss=options.fail_on_data_loss)
        self._initial: Position | None = None
        self._ends: Offsets | None = None
        self._cursors = Cursors(options)

    def initial(self) -> dict[str, Any]:
        """Return where the query begins.

        Spark asks more than once, and keeps none of the answers: they are the same.
        """
        if self._initial is None:
            begin = self._broker.begin(self._broker.extents())
            self._initial = Position(begin, begin)
        return self._initial.to_json()

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return how far the next batch goes; ``start`` if there is to be none yet.

        Args:
            start: Where the last batch ended.
            limited: Whether the limits of the options hold.

        Raises:
            CheckpointError: The start is none that this source has made.
            DataLossError: Messages that were yet to be read are gone.
        """
        begin = Position.from_json(start)
        # Spark asks for the next batch when the last one is done; of some it never says so.
        self._cursors.show(begin.offsets)
        options, extents = self._options, self._broker.extents()
        self._ends = {part: extent.end for part, extent in extents.items()}
        trigger = Trigger(options.max_offsets, options.min_offsets, options.trigger_delay)
        found = self._planner.next(
            begin,
            extents,
            trigger if limited else Trigger(),
            time.monotonic(),
        )
        while self._planner.losses:
            warnings.warn(f"data loss: {self._planner.losses.pop(0)}", RuntimeWarning, stacklevel=2)
        return found.to_json()

    def newest(self) -> dict[str, Any]:
        """Return how far the query could have gone when it was last asked, for those who watch its lag."""
        ends = self._ends
        if ends is None:
            ends = {part: extent.end for part, extent in self._broker.extents().items()}
        return Position(ends, ends).to_json()

    def stop_here(self) -> None:
        """Have the query go no further than to what is the end now."""
        self._planner.stop_at(self._broker.extents())

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> list[Span]:
        """Return what each task of a batch reads. The end says where the batch begins.

        Raises:
            CheckpointError: The end is none that this source has made.
        """
        if start == end:
            return []
        found = Position.from_json(end)
        return divide(
            spans_between(found.begun, found.offsets), self._options.min_partitions, self._options.max_records
        )

    def done(self, end: dict[str, Any]) -> None:
        """Note that a batch is done.

        Raises:
            OptionError: Cursors are to show that, and the cluster keeps none.
        """
        self._cursors.show(Position.from_json(end).offsets)

    def read(self, span: Span) -> Iterator[Any]:
        """Read one of them."""
        return read_span(self._options, span)

    def close(self) -> None:
        """Close the connections that questions go over."""
        self._broker.close()
        self._cursors.close()

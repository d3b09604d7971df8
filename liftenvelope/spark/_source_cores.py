"""Cores of the Spark sources, without Spark's classes, so that tests need no JVM."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from liftenvelope.bulk.narrowing import Condition, Narrowing, Operator
from liftenvelope.spark._broker import SourceBroker, read_span
from liftenvelope.spark._cursors import QueryCursors
from liftenvelope.spark._offsets import Offsets, Position
from liftenvelope.spark._options import SourceOptions
from liftenvelope.spark._planning import Planner, Span, Trigger, creation_times, divide, spans_between

__all__ = ["BatchSource", "StreamingSource", "pushed_condition"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def pushed_condition(path: tuple[str, ...], operator: Operator, value: Any) -> Condition | None:
    """Return the condition of a filter on a column of a source; None for a filter that is not used.

    Args:
        path: Path of the column.
        operator: Operator of the filter.
        value: Value, or several for "in". A time must have a time zone.
    """
    if len(path) != 1:
        return None
    (name,) = path
    if name == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return name, operator, round((value - _EPOCH) / _MICROSECOND) * 1_000
    return ("timestamp" if name == "timestamp_nanos" else name), operator, value


class BatchSource:
    """Batch query: the messages between two positions, fixed when the query is planned.

    Args:
        options: Options of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Narrowing(subjects=options.subjects)

    def push(self, conditions: Iterable[Condition | None]) -> list[bool]:
        """Narrow the query by conditions that all its rows meet; return for each if Spark must check it too.

        Args:
            conditions: Conditions; None for one that is not understood.
        """
        again: list[bool] = []
        for condition in conditions:
            exact = False
            if condition is not None:
                self._pushed, exact = self._pushed.narrowed(condition)
            again.append(not exact)
        return again

    def spans(self) -> list[Span]:
        """Return the range that each task reads.

        Raises:
            LiftEnvelopeError: A stream does not exist, or the servers can't be reached.
        """
        if self._pushed.is_empty:
            return []
        with SourceBroker(self._options) as broker:
            extents = broker.extents()
            created = creation_times(extents)
            spans = spans_between(broker.begin(extents), broker.end(extents), created)
            spans = [span for span in (broker.narrowed(span, self._pushed) for span in spans) if span]
        return divide(spans, self._options.min_partitions, self._options.max_records)

    def read(self, span: Span) -> Iterator[Any]:
        """Read one of the ranges that :meth:`spans` returned."""
        return read_span(replace(self._options, subjects=self._pushed.subjects), span)


class StreamingSource:
    """Streaming query: one object plans offsets for as long as the query lives, pickled copies read in tasks.

    Args:
        options: Options of the source.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._broker = SourceBroker(options)
        self._planner = Planner(options.subscription.includes, fail_on_data_loss=options.fail_on_data_loss)
        self._initial: Position | None = None
        self._ends: Offsets | None = None
        self._cursors = QueryCursors(options)

    def initial(self) -> dict[str, Any]:
        """Return the position at which the query begins.

        Spark asks more than once and keeps none of the answers, so every call returns the same position.
        """
        if self._initial is None:
            extents = self._broker.extents()
            begin = self._broker.begin(extents)
            self._initial = Position(begin, begin, creation_times(extents))
        return self._initial.to_json()

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is no batch yet.

        Args:
            start: End of the last batch.
            limited: Apply the limits of the options.

        Raises:
            CheckpointError: ``start`` was not written by this source.
            DataLossError: Messages that the query has not read are gone.
        """
        begin = Position.from_json(start)
        # Spark asks for the next batch when the last one is done, but does not report every batch as done.
        self._cursors.show(begin.offsets)
        options = self._options
        extents = self._broker.extents({stream for stream, _ in begin.offsets})
        self._ends = {part: extent.end for part, extent in extents.items()}
        trigger = Trigger(options.max_offsets, options.min_offsets, options.trigger_delay)
        found = self._planner.next(
            begin,
            extents,
            trigger if limited else Trigger(),
            time.monotonic(),
        )
        while self._planner.deleted:
            span = self._planner.deleted.pop(0)
            self._broker.warn_of_deleted(span, span.stop - span.start)
        while self._planner.losses:
            warnings.warn(f"data loss: {self._planner.losses.pop(0)}", RuntimeWarning, stacklevel=2)
        return found.to_json()

    def newest(self) -> dict[str, Any]:
        """Return the ends of the streams when they were last asked for, which shows the lag of the query."""
        ends = self._ends
        if ends is None:  # a restarted query runs its last batch again before it plans one
            ends = {part: extent.end for part, extent in self._broker.extents(lenient=True).items()}
        return Position(ends, ends).to_json()

    def stop_here(self) -> None:
        """End the query at the current ends of the streams."""
        # Spark calls this before it passes the position in the checkpoint. Only that position tells a deleted
        # stream from one that never existed.
        self._planner.stop_at(self._broker.extents(lenient=True))

    def spans(self, start: dict[str, Any], end: dict[str, Any]) -> list[Span]:
        """Return the range that each task of a batch reads; ``end`` carries where the batch begins.

        Raises:
            CheckpointError: ``end`` was not written by this source.
        """
        if start == end:
            return []
        found = Position.from_json(end)
        spans = spans_between(found.begun, found.offsets, found.created)
        return divide(spans, self._options.min_partitions, self._options.max_records)

    def done(self, end: dict[str, Any]) -> None:
        """Set the cursors to the end of a batch that is done.

        Raises:
            OptionError: ``commitCursor`` is set, but the cluster keeps no cursors.
        """
        self._cursors.show(Position.from_json(end).offsets)

    def read(self, span: Span) -> Iterator[Any]:
        """Read one of the ranges that :meth:`spans` returned."""
        return read_span(self._options, span)

    def close(self) -> None:
        """Close the connections to the servers."""
        self._broker.close()
        self._cursors.close()

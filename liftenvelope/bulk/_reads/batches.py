"""Iteration over the batches of a read, with progress and gap callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from liftenvelope.bulk._engine.crew import Crew
from liftenvelope.bulk.ranges import Gap, OnGap, OnProgress, Progress, Range

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk._engine.plan import BatchPlan
    from liftenvelope.bulk.sources import RangedStream
else:
    from liftenvelope.bulk._engine.schema import pa

__all__ = ["BatchDecoder", "Batches", "start_batches", "start_reader"]


class BatchDecoder(Protocol):
    """Turns the batches of a read into others."""

    schema: pa.Schema

    def decode(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the batches that a batch of the read becomes."""
        ...


class Batches:
    """Iterator over the batches of a read. Dropping the iterator ends its threads and connections."""

    def __init__(
        self, crew: Crew, total: int | None, progress: OnProgress | None, gaps: OnGap | None
    ) -> None:
        self._crew = crew
        self._total = total
        self._progress = progress
        self._on_gap = gaps
        self._rows = self._bytes = self._done = 0
        self._failure: Exception | None = None
        self._end = weakref.finalize(self, crew.stop)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except StopIteration:
            self._end()
            raise
        except BaseException as exc:
            self._end()
            self._failure = exc if isinstance(exc, Exception) else None
            raise

    def _next(self) -> pa.RecordBatch:
        while self._end.alive and (piece := self._crew.next()) is not None:
            if self._on_gap is not None:
                for start, stop in piece.gaps:
                    self._on_gap(Gap(piece.partition, start, stop))
            self._done += piece.offsets
            self._bytes += piece.nbytes
            self._rows += piece.batch.num_rows if piece.batch is not None else 0
            if self._progress is not None:
                self._progress(Progress(self._rows, self._bytes, self._done, self._total))
            if piece.batch is not None:
                return piece.batch
        raise StopIteration


class DecodedBatches:
    """Iterator over the decoded batches of a read. Dropping it drops the read."""

    def __init__(self, batches: Iterator[pa.RecordBatch], decoder: BatchDecoder) -> None:
        self._batches = batches
        self._decode = decoder.decode
        self._ready: Iterator[pa.RecordBatch] = iter(())
        self._failure: Exception | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._failure is not None:
            raise self._failure
        try:
            while True:
                for batch in self._ready:
                    return batch
                self._ready = iter(self._decode(next(self._batches)))
        except StopIteration:
            raise
        except Exception as exc:
            self._failure = exc
            raise


def start_batches(
    source: RangedStream,
    spans: Sequence[Range],
    plan: BatchPlan,
    parallel: int,
    total: int | None,
    progress: OnProgress | None,
    on_gap: OnGap | None,
) -> Batches:
    """Start the threads of a read and return its batches.

    Args:
        source: The stream. It is closed when the read completes or the batches are dropped.
        spans: Ranges to read.
        plan: Columns and limits of the batches.
        parallel: Number of reading threads.
        total: Number of offsets in all ranges; None for a read without an end.
        progress: Called after every batch; None for no calls.
        on_gap: Called with every gap; None for no calls.
    """
    jobs = [partial(source.read, span, plan) for span in spans]
    return Batches(Crew(jobs, parallel, source.close), total, progress, on_gap)


def start_reader(
    source: RangedStream,
    spans: Sequence[Range],
    plan: BatchPlan,
    parallel: int,
    total: int | None,
    progress: OnProgress | None,
    on_gap: OnGap | None,
    decoder: BatchDecoder | None = None,
) -> pa.RecordBatchReader:
    """Start a read as :func:`start_batches` does; return it as an Arrow reader, perhaps decoded."""
    # This function exists for its frame. Errors that were handled while the read was planned keep the frames
    # of the callers alive in their tracebacks, and a reference there would keep a dropped reader running.
    batches = start_batches(source, spans, plan, parallel, total, progress, on_gap)
    if decoder is None:
        return pa.RecordBatchReader.from_batches(plan.schema, batches)
    return pa.RecordBatchReader.from_batches(decoder.schema, DecodedBatches(batches, decoder))

"""Streams as Arrow: a range of offsets, how many messages it has, and what comes after it."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from liftenvelope.bulk._crew import Crew, Outlet
from liftenvelope.bulk._jetstream import JetStreamSource
from liftenvelope.bulk._liftbridge import LiftbridgeSource
from liftenvelope.bulk.access import Access, Kind, Source, find_target
from liftenvelope.bulk.plan import BatchPlan, OnRetention, make_plan, retention_error
from liftenvelope.bulk.ranges import (
    Extent,
    Gap,
    Progress,
    Range,
    Stop,
    begin_of,
    parse_begin,
    parse_end,
    split_ranges,
)
from liftenvelope.bulk.schema import EnvelopeMode
from liftenvelope.client.options import check_count
from liftenvelope.client.positions import At, Start, StartAt
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.bulk.schema import pa

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "PARALLEL",
    "OnGap",
    "OnProgress",
    "StreamSource",
    "check_calls",
    "check_range",
    "count",
    "open_stream",
    "plan_ranges",
    "read",
    "tail",
]

OnProgress: TypeAlias = Callable[[Progress], object]
OnGap: TypeAlias = Callable[[Gap], object]

#: How many partitions are read at a time, unless told otherwise.
PARALLEL = 4
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024 * 1024


class StreamSource(Protocol):
    """A stream that can be read in ranges. Its questions may be asked by any thread."""

    stream: str
    unsigned: bool

    def partitions(self) -> list[int]:
        """Numbers of its partitions."""
        ...

    def check_partition(self, partition: int) -> None:
        """Raise NoSuchPartitionError unless it has the partition."""
        ...

    def extent(self, partition: int) -> Extent:
        """Where the messages of a partition are now."""
        ...

    def newest(self, partition: int) -> int:
        """Offset of the newest message, also where it can't be read yet; -1 for none."""
        ...

    def at_time(self, partition: int, time_ns: int, extent: Extent) -> int:
        """Offset of the first message that is not older."""
        ...

    def may_have_holes(self) -> bool:
        """Whether its beginning may be anywhere without retention."""
        ...

    def count(self, span: Range) -> int | None:
        """How many messages a range has; None if that takes reading it."""
        ...

    def read(self, span: Range, plan: BatchPlan, outlet: Outlet) -> None:
        """Read a range, in a thread of its own."""
        ...

    def close(self) -> None:
        """Close what the questions went over."""
        ...


class _Batches:
    """Iterates over the batches of a read. When it is dropped, its threads and connections end."""

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


def read(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    parallel: int | None = None,
    on_retention: OnRetention = "raise",
    on_gap: OnGap | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> pa.RecordBatchReader:
    """Read a range of a stream as Arrow record batches.

    It reads exactly the messages from ``start`` up to, not including, ``stop``, each once, also where
    connections are lost meanwhile: then it goes on at the next offset. It ends at what was the newest message
    when it began, and waits for nothing: :func:`tail` does. Rows come in the order of their offsets within a
    range; the ranges of several threads come in turns.

    Columns: ``key`` (binary, null for none), ``value`` (binary), ``headers`` (map<string, binary>),
    ``offset`` (int64; for JetStream uint64, the sequence less 1), ``timestamp`` (ns, UTC), ``partition``
    (int32), ``subject`` (dictionary of strings). ``envelope="columns"`` adds ``ack_inbox`` (dictionary of
    strings), ``correlation_id`` (string), ``ack_policy`` (int32) and ``expected_offset`` (int64), null where
    a message was in no envelope.

    Drop the reader to end a read early: its threads and connections end then.

    Args:
        source: Where the stream is: ``nats://host:port`` for JetStream; ``liftbridge://host:port``, a bare
            ``host:port`` or a Liftbridge client; or several URLs of one kind, in a list or between commas.
        stream: Name of the stream.
        partitions: Numbers of the partitions, or one number; default: all.
        start: ``"earliest"``, ``"latest"`` (the newest message), an offset, a moment (a
            :class:`~datetime.datetime` or :class:`~liftenvelope.client.positions.Timestamp`), or a timedelta
            back from now.
        stop: The offset after the last that is read, or a moment: messages before it are read. Default: the
            end. An offset or moment beyond the end is the end.
        columns: Names of the columns that are wanted, in their order; default: all. What is not wanted is not
            filled.
        envelope: What becomes of payloads that are Liftbridge envelopes, on JetStream: ``"none"``: they are
            the value. ``"strip"``: they are opened, and key, value and headers are theirs (beside NATS
            headers of other names). ``"columns"``: likewise, and the envelope's other fields get columns.
            A payload that is no sound envelope is left as it is. Liftbridge itself has opened the envelopes.
        batch_rows: How many rows a batch has at most.
        batch_bytes: After how many bytes of messages a batch is full. Some batches for each thread are held.
        parallel: How many threads read, each over its own connection. Ranges are divided where there are
            fewer. Default: one for each partition, up to 4.
        on_retention: What becomes of the read if messages are gone from the beginning of the stream that it
            was yet to read: ``"raise"`` an error, or ``"skip"`` them as any other gap.
        on_gap: Called with each :class:`Gap`: offsets without a message in what is read.
        progress: Called with a :class:`Progress` after every batch.
        access: How to reach the servers, if there is more to it than URLs.

    Raises:
        UsageError: An argument makes no sense; it is named.
        NoSuchStreamError, StreamNotFoundError: There is no such stream; of Liftbridge, of JetStream.
        NoSuchPartitionError: It has no such partition.
        RetentionError: The message at ``start`` is gone. While reading: retention was faster.
        TransportError: No server could be reached.
        CallTimeoutError: None answered in time.

    While reading, these and :class:`ReadLostError`: the connection was lost for too long.

    Example:
        >>> import pyarrow as pa
        >>> from liftenvelope import bulk
        >>> table = bulk.read("nats://localhost:4222", "ORDERS").read_all()  # doctest: +SKIP
    """
    begin, end, parts = check_range(partitions, start, stop, parallel)
    check_calls(on_gap, progress)
    target = find_target(source, access)
    unsigned = target.kind is Kind.NATS
    plan = make_plan(columns, envelope, batch_rows, batch_bytes, on_retention, unsigned=unsigned)
    opened = open_stream(source, stream, access)
    try:
        spans = plan_ranges(opened, parts, begin, end, on_retention)
        total = sum(span.stop - span.start for span in spans)
        spans = split_ranges([span for span in spans if span.start < span.stop], parallel or 1)
        threads = parallel or min(len(spans), PARALLEL)
        return _reader(opened, spans, plan, threads, total, progress, on_gap)
    except BaseException:
        opened.close()
        raise


def tail(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    start: Start = "new",
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    batch_seconds: float = 1.0,
    on_retention: OnRetention = "raise",
    on_gap: OnGap | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> pa.RecordBatchReader:
    """Follow a stream: read on without an end, in batches by rows, bytes or time.

    Each partition has a thread of its own. The arguments, columns and errors are those of :func:`read`, but:

    Args:
        source: See there.
        stream: See there.
        partitions: See there.
        start: See there; also ``"new"``, the default: after what is the newest message now.
        columns: See there.
        envelope: See there.
        batch_rows: See there.
        batch_bytes: See there.
        batch_seconds: A batch that is not full is handed out when its first message came so long ago.
        on_retention: See there.
        on_gap: See there.
        progress: See there; its ``total`` is None.
        access: See there.

    Raises:
        LiftEnvelopeError: See there.

    Example:
        >>> for batch in bulk.tail("nats://localhost:4222", "ORDERS"):  # doctest: +SKIP
        ...     print(batch.num_rows)
    """
    begin, _, parts = check_range(partitions, start, None, None)
    check_calls(on_gap, progress)
    target = find_target(source, access)
    unsigned = target.kind is Kind.NATS
    plan = make_plan(
        columns,
        envelope,
        batch_rows,
        batch_bytes,
        on_retention,
        unsigned=unsigned,
        batch_seconds=batch_seconds,
    )
    opened = open_stream(source, stream, access)
    try:
        ranges = plan_ranges(opened, parts, begin, None, on_retention, may_be_ahead=True)
        spans = [Range(span.partition, span.start, -1) for span in ranges]
        return _reader(opened, spans, plan, len(spans), None, progress, on_gap)
    except BaseException:
        opened.close()
        raise


def count(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    access: Access | None = None,
) -> int:
    """Return how many messages a range of a stream has, gaps left out.

    JetStream is asked. A Liftbridge range is read, since its servers don't tell.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        partitions: As for :func:`read`.
        start: As for :func:`read`; what retention has removed does not count.
        stop: As for :func:`read`.
        access: As for :func:`read`.

    Raises:
        LiftEnvelopeError: As for :func:`read`, but for RetentionError.

    Example:
        >>> bulk.count("nats://localhost:4222", "ORDERS", start=1000)  # doctest: +SKIP
        234567
    """
    begin, end, parts = check_range(partitions, start, stop, None)
    opened = open_stream(source, stream, access)
    with contextlib.closing(opened):
        spans = plan_ranges(opened, parts, begin, end, "skip")
        spans = [span for span in spans if span.start < span.stop]
        known = [opened.count(span) for span in spans]
        if all(number is not None for number in known):
            return sum(number or 0 for number in known)
        plan = make_plan(["offset"], "none", 2**20, 2**28, "skip", unsigned=opened.unsigned)
        rows = _batches(opened, spans, plan, min(len(spans), PARALLEL), None, None, None)
        return sum(batch.num_rows for batch in rows)


def open_stream(source: Source, stream: str, access: Access | None) -> StreamSource:
    """Return a stream that can be read. Nothing is sent before it is asked something.

    Raises:
        UsageError: The source or the name makes no sense.
    """
    target = find_target(source, access)
    if target.kind is Kind.NATS:
        return JetStreamSource(target, stream)
    return LiftbridgeSource(target, stream)


def plan_ranges(
    source: StreamSource,
    partitions: Sequence[int] | None,
    begin: StartAt,
    end: StartAt | None,
    on_retention: str,
    *,
    may_be_ahead: bool = False,
) -> list[Range]:
    """Return the offsets of each partition that places stand for, now.

    Args:
        source: The stream.
        partitions: Numbers of partitions, None for all.
        begin: Where to begin.
        end: Where to end, None for the end.
        on_retention: What to do where the message at an offset is gone.
        may_be_ahead: Whether to begin at an offset that there is not yet.

    Raises:
        RetentionError: The message at the offset is gone.
    """
    if partitions is None:
        partitions = source.partitions()
    spans: list[Range] = []
    for number in partitions:
        source.check_partition(number)
        extent = source.extent(number)
        first = _place(source, number, begin, extent)
        if begin.at is At.OFFSET and first < extent.oldest:
            if on_retention == "raise" and not source.may_have_holes():
                raise retention_error(source.stream, number, first, extent.oldest)
            first = extent.oldest if on_retention == "skip" else first
        last = extent.end if end is None else min(_place(source, number, end, extent), extent.end)
        if not may_be_ahead:
            first = min(first, last)
        spans.append(Range(number, first, last))
    return spans


def _place(source: StreamSource, partition: int, place: StartAt, extent: Extent) -> int:
    found: int | None = None
    if place.at is At.TIME and extent.oldest < extent.end:
        found = max(source.at_time(partition, place.number, extent), extent.oldest)
    return begin_of(place, extent, found)


def _batches(
    source: StreamSource,
    spans: Sequence[Range],
    plan: BatchPlan,
    parallel: int,
    total: int | None,
    progress: OnProgress | None,
    on_gap: OnGap | None,
) -> _Batches:
    jobs = [partial(source.read, span, plan) for span in spans]
    return _Batches(Crew(jobs, parallel, source.close), total, progress, on_gap)


def _reader(
    source: StreamSource,
    spans: Sequence[Range],
    plan: BatchPlan,
    parallel: int,
    total: int | None,
    progress: OnProgress | None,
    on_gap: OnGap | None,
) -> pa.RecordBatchReader:
    """Start to read."""
    # In a frame of its own: those of the callers live on in the tracebacks of errors that were handled while
    # the read was planned, and would keep a reader that nobody wants from ending.
    batches = _batches(source, spans, plan, parallel, total, progress, on_gap)
    return pa.RecordBatchReader.from_batches(plan.schema, batches)


def check_range(
    partitions: Iterable[int] | int | None, start: Start, stop: Stop, parallel: int | None
) -> tuple[StartAt, StartAt | None, list[int] | None]:
    """Return where to begin and to end, and the numbers of partitions, None for all.

    Raises:
        UsageError: One makes no sense, or they contradict each other.
    """
    if parallel is not None:
        check_count("parallel", parallel)
    begin, end = parse_begin(start, time.time_ns()), parse_end(stop)
    if begin.at is At.OFFSET and end is not None and end.at is At.OFFSET and end.number < begin.number:
        raise UsageError(f"stop={stop!r}: expected {begin.number} or more, where it starts")
    return begin, end, _numbers(partitions)


def _numbers(partitions: Iterable[int] | int | None) -> list[int] | None:
    if partitions is None:
        return None
    if not isinstance(partitions, int | Iterable):
        raise UsageTypeError(f"partitions must be numbers, not {partitions!r}")
    found = [partitions] if isinstance(partitions, int) else list(partitions)
    for number in found:
        if isinstance(number, bool) or not isinstance(number, int):
            raise UsageTypeError(f"partitions must be numbers, not {number!r}")
        if number < 0:
            raise UsageError(f"partitions: {number} is negative")
    if not found:
        raise UsageError("partitions: expected at least one")
    return list(dict.fromkeys(found))


def check_calls(on_gap: object, progress: object) -> None:
    """Raise UsageTypeError for what can't be called."""
    for name, value in (("on_gap", on_gap), ("progress", progress)):
        if value is not None and not callable(value):
            raise UsageTypeError(f"{name} must be a function or None, not {value!r}")

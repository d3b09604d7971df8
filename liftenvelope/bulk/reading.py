"""Streams as Arrow: a range of offsets, how many messages it has, and what comes after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from liftenvelope.bulk.access import Access, Kind, Source, find_target
from liftenvelope.bulk.batches import OnGap, OnProgress, check_calls, start_batches, start_reader
from liftenvelope.bulk.plan import OnRetention, make_plan
from liftenvelope.bulk.ranges import Range, Stop, split_ranges
from liftenvelope.bulk.schema import EnvelopeMode
from liftenvelope.bulk.selection import Via, check_range, plan_ranges
from liftenvelope.bulk.sources import open_stream
from liftenvelope.client.positions import Start
from liftenvelope.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "PARALLEL", "count", "read", "tail"]

#: How many partitions are read at a time, unless told otherwise.
PARALLEL = 4
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024 * 1024


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
    via: Via = "auto",
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
        via: For JetStream: ``"consumer"``, or ``"direct"``: by requests that any server which keeps the
            stream answers (ADR-31, ``allow_direct``, server 2.11), without a consumer. ``"auto"`` (default):
            direct for work-queue streams that allow it, since they take no second consumer.
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
    if via not in get_args(Via):
        raise UsageError(f"via={via!r}: expected one of {', '.join(get_args(Via))}")
    if via != "auto" and not unsigned:
        raise UsageError(f"via={via!r}: it is for JetStream")
    plan = make_plan(columns, envelope, batch_rows, batch_bytes, on_retention, unsigned=unsigned)
    opened = open_stream(source, stream, access)
    try:
        spans = plan_ranges(opened, parts, begin, end, on_retention, via=via)
        total = sum(span.stop - span.start for span in spans)
        spans = split_ranges([span for span in spans if span.start < span.stop], parallel or 1)
        threads = parallel or min(len(spans), PARALLEL)
        return start_reader(opened, spans, plan, threads, total, progress, on_gap)
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
        ranges = plan_ranges(opened, parts, begin, None, on_retention, may_be_ahead=True, via="consumer")
        spans = [Range(span.partition, span.start, -1) for span in ranges]
        return start_reader(opened, spans, plan, len(spans), None, progress, on_gap)
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
        rows = start_batches(opened, spans, plan, min(len(spans), PARALLEL), None, None, None)
        return sum(batch.num_rows for batch in rows)

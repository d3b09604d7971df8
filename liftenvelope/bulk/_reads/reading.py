"""Read, count and follow the messages of a stream as Arrow batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from liftenvelope._checks import check_calls
from liftenvelope.bulk._engine.plan import OnRetention, make_plan
from liftenvelope.bulk._engine.schema import EnvelopeMode
from liftenvelope.bulk._reads.batches import start_batches, start_reader
from liftenvelope.bulk._reads.payload import OnBad
from liftenvelope.bulk._reads.payload_plan import passed_rows, plan_payload
from liftenvelope.bulk._reads.request import PARALLEL, read_request
from liftenvelope.bulk._reads.selection import Via
from liftenvelope.bulk.access import Access, Source
from liftenvelope.bulk.observing import observed
from liftenvelope.bulk.ranges import OnGap, OnProgress, Stop
from liftenvelope.client.positions import Start
from liftenvelope.payload import PayloadChoice

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "count", "read", "tail"]

#: Default limits of a batch: rows, and bytes of messages.
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024 * 1024


@observed
def read(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    payload: PayloadChoice = None,
    on_bad: OnBad = "fail",
    start_row: int = 0,
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

    The read returns each message from ``start`` up to, but not including, ``stop`` exactly once. After a lost
    connection, it continues at the next offset. The read ends at the message that was the newest when it
    began, and does not wait for more; use :func:`tail` for that. Within a range, rows come in offset order;
    batches of ranges that several threads read are interleaved.

    Columns: ``key`` (binary, null for none), ``value`` (binary), ``headers`` (map<string, binary>),
    ``offset`` (int64; for JetStream uint64, the sequence less 1), ``timestamp`` (ns, UTC), ``partition``
    (int32), ``subject`` (dictionary of strings). ``envelope="columns"`` adds ``ack_inbox`` (dictionary of
    strings), ``correlation_id`` (string), ``ack_policy`` (int32) and ``expected_offset`` (int64), which are
    null for messages without an envelope.

    Drop the reader to end a read early; that ends its threads and connections.

    Args:
        source: Servers of the stream: ``nats://host:port`` for JetStream; ``liftbridge://host:port``, a bare
            ``host:port`` or a Liftbridge client; or several URLs of one kind, as a list or separated by
            commas, of which each may have its own login.
        stream: Name of the stream.
        partitions: Numbers of the partitions, or one number. Default: all.
        subjects: Subject of the messages to return, or several; ``*`` stands for one token, ``>`` at the
            end for one or more. Default: all. The server filters if that is faster, and the reader
            otherwise; see docs/bulk-filters.md.
        start: ``"earliest"``, ``"latest"`` (the newest message), an offset, a moment (a
            :class:`~datetime.datetime` or :class:`~liftenvelope.client.positions.Timestamp`), or a timedelta
            back from now. A negative offset, such as -5, counts from the end of each partition.
        stop: Offset after the last one to read, or a moment: the read ends before the first message that is
            not older. Default: the end. A stop beyond the end counts as the end.
        columns: Names of the columns to return, in this order. Default: all. Other columns cost nothing.
        envelope: Handling of JetStream payloads that are Liftbridge envelopes. ``"none"``: return the
            envelope as the value. ``"strip"``: return the key, value and headers of the envelope, plus NATS
            headers with other names. ``"columns"``: like ``"strip"``, plus columns for the other fields.
            A payload that is not a valid envelope is returned unchanged. Liftbridge servers unwrap envelopes
            themselves.
        payload: Format of the values, which replaces the column ``value`` by typed columns: ``"json"``,
            ``"msgpack"``, ``"arrow"``, or a format of :mod:`liftenvelope.payload` with options. Default:
            none. See docs/payloads.md.
        on_bad: Policy for messages that do not fit the payload: ``"fail"`` (default) with
            :class:`~liftenvelope.payload.BadPayloadError` after the rows before them; ``"column"`` for
            columns ``bad_reason`` and ``bad_value``; or write them to the stream of a :class:`DeadLetter`.
        start_row: First row to return of the message at the offset ``start`` of one partition, to resume
            inside it. For payloads of many rows, such as ``"arrow"``.
        batch_rows: Maximum number of rows in a batch.
        batch_bytes: Bytes of messages at which a batch is full. Subjects that are read count too. Each thread
            holds a few batches in memory.
        parallel: Number of threads that read, each over its own connection. If there are fewer ranges than
            threads, ranges are split. Default: one thread per partition, up to 4.
        via: For JetStream. ``"consumer"``: read through a consumer. ``"direct"``: read without a consumer, by
            requests that any server with a copy of the stream answers (ADR-31, ``allow_direct``, server
            2.11). ``"auto"`` (default): direct for work-queue streams that allow it, since these accept no
            second consumer.
        on_retention: Policy if unread messages are gone from the beginning of the stream: ``"raise"`` an
            error, or ``"skip"`` the messages like any other gap.
        on_gap: Called with a :class:`Gap` for each run of offsets in the range without messages. Messages
            that ``subjects`` leaves out are no gap; to tell them apart, the reader filters.
        progress: Called with a :class:`Progress` after every batch.
        access: Connection options beyond the URLs.

    Raises:
        UsageError: An argument is invalid; the message names it.
        NoSuchStreamError, StreamNotFoundError: Liftbridge, or JetStream, has no such stream.
        NoSuchPartitionError: The stream has no such partition.
        RetentionError: The message at ``start`` is gone; or, while reading, retention overtook the read.
        TransportError: No server could be reached.
        CallTimeoutError: No server answered in time.

    While reading, the reader raises these errors, :class:`ReadLostError` if the connection is lost for too
    long, and :class:`~liftenvelope.payload.BadPayloadError`.

    Example:
        >>> import pyarrow as pa
        >>> from liftenvelope import bulk
        >>> table = bulk.read("nats://localhost:4222", "ORDERS").read_all()  # doctest: +SKIP
    """
    request = read_request(
        source,
        stream,
        partitions=partitions,
        subjects=subjects,
        start=start,
        stop=stop,
        parallel=parallel,
        via=via,
        on_retention=on_retention,
        access=access,
    )
    check_calls(on_gap=on_gap, progress=progress)
    typed = plan_payload(payload, on_bad, columns, envelope, request.source, stream, access)
    passed = passed_rows(request, start_row, packed=typed is not None and typed.packed)
    plan = make_plan(
        columns if typed is None else typed.reading,
        envelope,
        batch_rows,
        batch_bytes,
        on_retention,
        unsigned=request.is_jetstream,
        subjects=request.subjects,
    )
    opened = request.open()
    try:
        spans = request.ranges(opened)
        opened.filter_by(request.subjects, whole=on_gap is not None)
        decoder = None if typed is None else typed.decoder(opened, spans, plan, passed=passed)
        return request.start_reader(opened, spans, plan, progress, on_gap, decoder)
    except BaseException:
        opened.close()
        raise


def tail(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "new",
    columns: Iterable[str] | None = None,
    envelope: EnvelopeMode = "none",
    payload: PayloadChoice = None,
    on_bad: OnBad = "fail",
    start_row: int = 0,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    batch_seconds: float = 1.0,
    on_retention: OnRetention = "raise",
    on_gap: OnGap | None = None,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> pa.RecordBatchReader:
    """Follow a stream without an end, in batches limited by rows, bytes or time.

    Each partition has its own thread. Columns and errors are those of :func:`read`.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        partitions: As for :func:`read`.
        subjects: As for :func:`read`.
        start: As for :func:`read`; or ``"new"`` (default): after the message that is the newest now.
        columns: As for :func:`read`.
        envelope: As for :func:`read`.
        payload: As for :func:`read`. To infer a schema takes a message at or after ``start``.
        on_bad: As for :func:`read`.
        start_row: As for :func:`read`.
        batch_rows: As for :func:`read`.
        batch_bytes: As for :func:`read`.
        batch_seconds: Seconds after its first message at which a batch is handed out even if not full.
        on_retention: As for :func:`read`.
        on_gap: As for :func:`read`.
        progress: As for :func:`read`; its ``total`` is None.
        access: As for :func:`read`.

    Raises:
        LiftEnvelopeError: As for :func:`read`.

    Example:
        >>> for batch in bulk.tail("nats://localhost:4222", "ORDERS"):  # doctest: +SKIP
        ...     print(batch.num_rows)
    """
    request = read_request(
        source,
        stream,
        partitions=partitions,
        subjects=subjects,
        start=start,
        on_retention=on_retention,
        access=access,
    )
    check_calls(on_gap=on_gap, progress=progress)
    typed = plan_payload(payload, on_bad, columns, envelope, request.source, stream, access)
    passed = passed_rows(request, start_row, packed=typed is not None and typed.packed)
    plan = make_plan(
        columns if typed is None else typed.reading,
        envelope,
        batch_rows,
        batch_bytes,
        on_retention,
        unsigned=request.is_jetstream,
        batch_seconds=batch_seconds,
        subjects=request.subjects,
    )
    opened = request.open()
    try:
        ranges = request.ranges(opened, is_tail=True)
        opened.filter_by(request.subjects, whole=on_gap is not None)
        decoder = None if typed is None else typed.decoder(opened, ranges, plan, is_tail=True, passed=passed)
        spans = [replace(span, stop=-1) for span in ranges]
        return start_reader(opened, spans, plan, len(spans), None, progress, on_gap, decoder)
    except BaseException:
        opened.close()
        raise


def count(
    source: Source,
    stream: str,
    *,
    partitions: Iterable[int] | int | None = None,
    subjects: Iterable[str] | str | None = None,
    start: Start = "earliest",
    stop: Stop = None,
    access: Access | None = None,
) -> int:
    """Return the number of messages in a range of a stream, without gaps.

    JetStream servers report the count, except for streams that are read directly (see ``via`` of
    :func:`read`). Liftbridge servers do not. A range without a reported count is read to count its messages.

    Args:
        source: As for :func:`read`.
        stream: Name of the stream.
        partitions: As for :func:`read`.
        subjects: As for :func:`read`.
        start: As for :func:`read`. Messages that retention has removed are not counted.
        stop: As for :func:`read`.
        access: As for :func:`read`.

    Raises:
        LiftEnvelopeError: As for :func:`read`, except RetentionError.

    Example:
        >>> bulk.count("nats://localhost:4222", "ORDERS", start=1000)  # doctest: +SKIP
        234567
    """
    request = read_request(
        source,
        stream,
        partitions=partitions,
        subjects=subjects,
        start=start,
        stop=stop,
        on_retention="skip",
        access=access,
    )
    wanted, opened = request.subjects, request.open()
    with contextlib.closing(opened):
        spans = [span for span in request.ranges(opened) if span.start < span.stop]
        is_open = stop is None or stop == "latest"  # what comes until the server counts may count as well
        known = [opened.count(replace(span, stop=-1) if is_open else span, wanted) for span in spans]
        if all(number is not None for number in known):
            return sum(number or 0 for number in known)
        plan = make_plan(["offset"], "none", 2**20, 2**28, "skip", unsigned=opened.unsigned, subjects=wanted)
        rows = start_batches(opened, spans, plan, min(len(spans), PARALLEL), None, None, None)
        return sum(batch.num_rows for batch in rows)

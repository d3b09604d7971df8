"""Publish the rows of a table to a stream and wait for acks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import as_choice, as_count, as_full_text, check_calls
from liftenvelope.bulk._jetstream.source import JetStreamSource
from liftenvelope.bulk._outgoing import Written, batches_of, open_rows, published
from liftenvelope.bulk._writes.jetstream import MODES, JetStreamWrite, WriteMode
from liftenvelope.bulk._writes.liftbridge import LiftbridgeWrite
from liftenvelope.bulk._writes.payload import PACK_BYTES, PACK_ROWS, PackLimits, open_encoded
from liftenvelope.bulk._writes.placing import Placing, byte_column
from liftenvelope.bulk.access import Access, ServerKind, Source, Target, find_target
from liftenvelope.bulk.errors import WriteFailedError
from liftenvelope.bulk.observing import observed, observed_rows
from liftenvelope.bulk.ranges import OnProgress, Progress
from liftenvelope.client.binding import options_of
from liftenvelope.client.blocking import BlockingClient, connect_blocking
from liftenvelope.errors import LiftEnvelopeError, UsageError
from liftenvelope.jetstream.publish_frames import header_block
from liftenvelope.payload import PayloadChoice, as_payload
from liftenvelope.types import AckPolicy

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.partition import PartitionChoice, Partitioner

__all__ = ["LiftbridgeWrite", "Placing", "TableWrite", "byte_column", "open_client", "write"]

#: Rows to prepare for Liftbridge at a time.
_PORTION = 8192
#: Largest message of NATS servers and of the gateway by default. Liftbridge does not tell its own limit.
_USUAL_LIMIT = 1 << 20


@observed
def write(
    source: Source,
    stream: str,
    data: Any,
    *,
    subject: str | None = None,
    envelope: bool = False,
    payload: PayloadChoice = None,
    pack_rows: int = PACK_ROWS,
    pack_bytes: int = PACK_BYTES,
    message_id: str | None = None,
    mode: WriteMode = "auto",
    partition: int | None = None,
    partitioner: str | PartitionChoice | Partitioner = "key",
    ack_policy: AckPolicy | int = AckPolicy.LEADER,
    max_in_flight: int = 4_000,
    progress: OnProgress | None = None,
    access: Access | None = None,
) -> Written:
    """Publish every row of a table, in order, and wait for all acks.

    Columns: ``value`` (binary or string; required), ``key``, ``headers`` (a map), ``subject`` (for JetStream)
    and ``partition`` (for Liftbridge). The columns that servers fill (``offset``, ``timestamp`` and those of
    the envelope) are ignored, so a table from :func:`read` can be written again.

    Args:
        source: As for :func:`read`.
        stream: Name of an existing stream.
        data: An Arrow table, record batch or reader, or any object that exports an Arrow stream: a pandas or
            polars DataFrame, a DuckDB result.
        subject: For JetStream: subject of all rows; overrides the column ``subject``.
        envelope: For JetStream: True to wrap each row, with its key and headers, in a Liftbridge envelope.
        payload: Format of the values: ``"json"``, ``"msgpack"``, ``"arrow"``, or a format of
            :mod:`liftenvelope.payload` with options. All columns that a stream does not have are encoded into
            the column ``value``. Default: none, ``data`` has the column ``value``. See docs/payloads.md.
        pack_rows: With ``"arrow"``: most rows of a message. Default 10,000.
        pack_bytes: With ``"arrow"``: largest message in bytes. JetStream reports the limit of the server,
            and a message that would be longer is divided. Default 1,000,000.
        message_id: For JetStream: prefix of the message ids ``<message_id>-0``, ``-1`` and so on, with which
            the stream stores each row once within its ``duplicate_window``. With message ids, the write
            reconnects after a lost connection and resends rows without an ack, which may be stored behind
            later rows with ``"pipelined"``. Without message ids, a connection that is lost while rows lack
            their ack ends the write, since their outcome is unknown. (Fast ingest continues in both cases.)
        mode: For JetStream. ``"pipelined"``: publish rows one by one, each with an ack. ``"atomic"``: publish
            batches of 1,000 rows (ADR-50, ``allow_atomic``, server 2.12); the server stores all rows of a
            batch or none. ``"fast"``: publish by fast ingest (ADR-50, ``allow_batched``, server 2.14), with
            one ack for some hundred rows and no report of duplicates. ``"auto"`` (default): fast if the
            stream allows it, the rows have no message ids, and there are at least 1,000 rows; otherwise
            pipelined.
        partition: For Liftbridge: partition of all rows whose column ``partition`` is null or absent.
        partitioner: For Liftbridge: chooses the partition of the remaining rows: ``"key"`` (default),
            ``"round_robin"``, a function ``(key, value, partitions) -> partition`` or a
            :class:`~liftenvelope.partition.Partitioner`.
        ack_policy: For Liftbridge: LEADER (default) or ALL.
        max_in_flight: Maximum number of rows in flight, that is, sent without an ack yet. Default 4,000.
        progress: Called with a :class:`Progress` from time to time. ``done`` and ``rows`` count the rows
            taken from ``data`` so far; ``total`` is None.
        access: As for :func:`read`.

    Returns:
        Number, size and offsets of the rows stored; with ``"arrow"``, of the messages.

    Raises:
        UsageError: An argument or a row is invalid; no row is stored.
        NoSuchStreamError, StreamNotFoundError: There is no such stream.
        PermissionDeniedError: The server does not let this client write to the stream; no row is stored.
        NoSuchPartitionError: A row names a partition that does not exist; nothing was sent.
        TransportError: No server could be reached; nothing was sent.
        WriteFailedError: Some rows are not stored, or their outcome is unknown. Once rows were sent, this
            error replaces the others, and the other error is its ``__cause__``. It also replaces a
            LiftEnvelopeError of ``data``, such as a reader from :func:`read`, or of ``progress``. Their other
            exceptions pass unchanged, and earlier rows may be stored.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"subject": ["orders.new"], "value": [b"order 1"]})
        >>> bulk.write("nats://localhost:4222", "ORDERS", table)  # doctest: +SKIP
        Written(acked=1, bytes=7, duplicates=0, offsets={0: (0, 0)})
    """
    check_calls(progress=progress)
    job = TableWrite(
        source,
        stream,
        subject=subject,
        envelope=envelope,
        payload=payload,
        pack_rows=pack_rows,
        pack_bytes=pack_bytes,
        message_id=message_id,
        mode=mode,
        partition=partition,
        partitioner=partitioner,
        ack_policy=ack_policy,
        max_in_flight=max_in_flight,
        access=access,
    )
    reader = job.reader(data)
    with contextlib.closing(job):
        job.open()
        job.add(reader, progress)
        return job.finish()


class TableWrite:
    """A write to one stream whose rows come in any number of tables.

    Arguments and errors are those of :func:`write`; the constructor only checks them. After an error, only
    :meth:`close` may be called.
    """

    def __init__(
        self,
        source: Source,
        stream: str,
        *,
        subject: str | None = None,
        envelope: bool = False,
        payload: PayloadChoice = None,
        pack_rows: int = PACK_ROWS,
        pack_bytes: int = PACK_BYTES,
        message_id: str | None = None,
        mode: WriteMode = "auto",
        partition: int | None = None,
        partitioner: str | PartitionChoice | Partitioner = "key",
        ack_policy: AckPolicy | int = AckPolicy.LEADER,
        max_in_flight: int = 4_000,
        access: Access | None = None,
    ) -> None:
        target = find_target(source, access)
        as_count("max_in_flight", max_in_flight)
        _check_options(target.kind, subject, envelope, message_id, partition)
        _check_mode(target.kind, mode)
        self._payload = as_payload(payload)
        self._limits = PackLimits(pack_rows, pack_bytes)
        self._job: _JetStreamTables | _LiftbridgeTables
        if target.kind is ServerKind.NATS:
            job = JetStreamWrite(
                JetStreamSource(target, stream),
                subject=subject,
                envelope=envelope,
                message_id=message_id,
                max_in_flight=max_in_flight,
                mode=mode,
            )
            self._job = _JetStreamTables(job, self._limits)
            return
        owner = options_of(source) if isinstance(source, BlockingClient) else None
        self._job = _LiftbridgeTables(
            LiftbridgeWrite(
                target,
                stream,
                partition=partition,
                partitioner=partitioner,
                ack_policy=ack_policy,
                max_in_flight=max_in_flight,
                ack_wait=target.access.timeout if owner is None else owner.ack_wait,
            )
        )

    def reader(self, data: Any) -> pa.RecordBatchReader:
        """Return the rows of a table, checked, for :meth:`add`."""
        return open_rows(data) if self._payload is None else open_encoded(data, self._payload, self._limits)

    def open(self) -> None:
        """Connect, and check that the stream exists."""
        self._job.open()

    def add(self, reader: pa.RecordBatchReader, progress: OnProgress | None = None) -> None:
        """Publish rows. On return, at most ``max_in_flight`` rows lack their ack."""
        try:
            self._job.add(reader, progress)
        except WriteFailedError:
            raise
        except LiftEnvelopeError as exc:
            self._job.job.stop(exc)

    def settle(self) -> None:
        """Wait for the acks of all rows added. More rows can follow."""
        self._job.job.settle()

    def finish(self) -> Written:
        """Wait for all acks and return the outcome."""
        return self._job.job.finish()

    def close(self) -> None:
        """Close the connection."""
        self._job.job.close()


class _JetStreamTables:
    """Adds tables to a write to JetStream."""

    def __init__(self, job: JetStreamWrite, limits: PackLimits) -> None:
        self.job = job
        self._limits = limits
        self._size = 0

    def open(self) -> None:
        self.job.open()
        self._limits.server_bytes = self.job.most_bytes

    def add(self, reader: pa.RecordBatchReader, progress: OnProgress | None) -> None:
        for portion in self.job.portions(observed_rows(published(reader), lambda: self.job.max_payload)):
            self.job.add(portion)
            self._size += portion.size
            if progress is not None:
                progress(Progress(portion.stop, self._size, portion.stop, None))


class _LiftbridgeTables:
    """Adds tables to a write to Liftbridge."""

    def __init__(self, job: LiftbridgeWrite) -> None:
        self.job = job

    def open(self) -> None:
        self.job.open()

    def add(self, reader: pa.RecordBatchReader, progress: OnProgress | None) -> None:
        for batch in observed_rows(batches_of(reader, _PORTION), lambda: _USUAL_LIMIT):
            self.job.add(batch)
            if progress is not None:
                progress(Progress(self.job.rows, self.job.nbytes, self.job.rows, None))


def _check_options(
    kind: ServerKind, subject: str | None, envelope: bool, message_id: str | None, partition: int | None
) -> None:
    if kind is ServerKind.NATS and partition is not None:
        raise UsageError(f"partition must be None for JetStream, got {partition!r}: use subject instead")
    given = {"subject": subject, "envelope": envelope or None, "message_id": message_id}
    for name, value in given.items():
        if kind is ServerKind.LIFTBRIDGE and value is not None:
            raise UsageError(f"{name} must not be given for Liftbridge, got {value!r}: it is for JetStream")
    if message_id is not None:
        header_block([("Nats-Msg-Id", as_full_text("message_id", message_id))])


def _check_mode(kind: ServerKind, mode: str) -> None:
    as_choice("mode", mode, MODES)
    if kind is ServerKind.LIFTBRIDGE and mode != "auto":
        raise UsageError(f"mode must be 'auto' for Liftbridge, got {mode!r}: it is for JetStream")


def open_client(target: Target) -> BlockingClient:
    """Return a client of a Liftbridge cluster. The caller must close it.

    Raises:
        TransportError: No broker could be reached.
    """
    access = target.access
    return connect_blocking(
        [str(address) for address in target.addresses],
        tls=access.context if target.secure else None,
        timeout=access.timeout,
        ack_wait=access.timeout,
        connect_timeout=access.connect_timeout,
        resubscribe_wait=access.reconnect_wait,
        address_map=access.address_map,
        tls_server_name=access.tls_server_name if target.secure else None,
        max_message_bytes=access.max_message_bytes,
        max_request_bytes=access.max_request_bytes,
        max_header_bytes=access.max_header_bytes,
        max_brokers=access.max_brokers,
        max_partitions=access.max_partitions,
        prefetch_bytes=access.prefetch_bytes,
    )

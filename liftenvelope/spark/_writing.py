"""Writes the rows of a sink's task to streams and waits for the acks. Imports nothing of Spark."""

from __future__ import annotations

import contextlib
import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope import bulk
from liftenvelope._checks import require
from liftenvelope.bulk.access import find_target
from liftenvelope.bulk.observing import observed_call
from liftenvelope.bulk.writing import TableWrite, open_client
from liftenvelope.errors import UsageError
from liftenvelope.spark._once import OnceWriter
from liftenvelope.spark._options import SinkOptions
from liftenvelope.spark._schema import PASSED_OVER
from liftenvelope.spark._topics import TopicWrites
from liftenvelope.types import AckPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = ["TaskWritten", "id_prefix", "write_task"]

_WRITTEN: Final = {
    "liftbridge": ("key", "value", "headers", "partition"),
    "jetstream": ("key", "value", "headers", "subject"),
}
#: Columns that a sink knows. With a payload, all others are encoded.
_KNOWN: Final = PASSED_OVER | {"topic", "msgId", *(name for names in _WRITTEN.values() for name in names)}
_HEADERS: Final = pa.map_(pa.string(), pa.binary())
_HEADER_LIST: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_NO_ROWS: Final = pa.table({name: pa.array([], pa.string()) for name in ("value", "subject")})
#: Rows to compare with those stored, and to store, at a time.
_ONCE_ROWS: Final = 16_384
#: Header by which JetStream recognizes a duplicate.
_MESSAGE_ID: Final = "Nats-Msg-Id"


@dataclass(frozen=True, slots=True)
class TaskWritten:
    """Result of a task.

    Attributes:
        rows: Rows stored.
        bytes: Total size of their values.
        duplicates: Rows that an earlier attempt had stored.
    """

    rows: int = 0
    bytes: int = 0
    duplicates: int = 0

    @property
    def acked(self) -> int:
        """Rows stored."""
        return self.rows

    def __add__(self, other: TaskWritten) -> TaskWritten:
        return TaskWritten(
            self.rows + other.rows, self.bytes + other.bytes, self.duplicates + other.duplicates
        )


def write_task(
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    message_id: str | None,
    *,
    is_first: bool = False,
) -> TaskWritten:
    """Publish every row of a task and wait for all acks.

    Args:
        options: Options of the sink.
        batches: Rows as Spark passes them.
        message_id: Identity of the task, ``query:batch:partition``, to store each row once; None for
            at-least-once. Rows with a column ``msgId`` keep the ids of that column in JetStream.
        is_first: Whether to check the stream also if there are no rows: a DataFrame without rows must not
            hide a wrong name or an unreachable server. Each write has a first task, and the others need not
            connect. The driver does not check, since it may have no way to the servers.

    Raises:
        UsageError: A row can't be published.
        BatchChangedError: The rows differ from those of an earlier run of the batch.
        WriteFailedError: Some rows were not stored, or their outcome is unknown.
        LiftEnvelopeError: The stream does not exist, or no server could be reached.
    """
    rest = _with_valid_ids(batches)
    first = next(rest, None)
    if first is None:
        if is_first and options.topic is not None:
            _check_stream(options, options.topic)
        return TaskWritten()
    whole = _chain(first, rest)
    return observed_call("write", options.topic or "", lambda: _write_all(options, whole, message_id))


def _check_stream(options: SinkOptions, topic: str) -> None:
    """Write no rows, which fails as a write of some rows would fail.

    Raises:
        LiftEnvelopeError: The stream does not exist, or no server could be reached.
    """
    bulk.write(options.connection.servers, topic, _NO_ROWS, access=options.connection.open())


def _write_all(options: SinkOptions, whole: Iterator[pa.RecordBatch], message_id: str | None) -> TaskWritten:
    if options.topic is not None:
        return _write(options, options.topic, whole, message_id)
    head = next(whole)
    given = _write_options(options, "msgId" in head.schema.names, None)
    servers = options.connection.servers
    with contextlib.closing(TopicWrites(lambda topic: TableWrite(servers, topic, **given))) as writes:
        for batch in _chain(head, whole):
            writes.add({topic: _prepared(part, options) for topic, part in _by_topic(batch)})
        writes.finish()
    return TaskWritten(writes.rows, writes.bytes, writes.duplicates)


def _with_valid_ids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check that each row has a ``msgId``, if there is such a column.

    JetStream ignores an empty id, so it would store the row once per attempt.
    """
    done = 0
    for batch in batches:
        if "msgId" in batch.schema.names:
            missing = pc.fill_null(pc.equal(batch.column("msgId"), ""), True).index(True).as_py()
            if missing >= 0:
                text = f"row {done + missing} of the task has no msgId"
                raise UsageError(f"{text}; set one in every row, or drop the column")
        yield batch
        done += batch.num_rows


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic")
    if topics.null_count:
        raise UsageError("a row has no topic; set one in every row, or give the option topic")
    encoded = topics.dictionary_encode()
    # The sort is stable, so the rows of a topic stay in order.
    rows, start = batch.take(pc.array_sort_indices(encoded.indices)), 0
    counts = dict(
        zip(*(part.to_pylist() for part in pc.value_counts(encoded.indices).flatten()), strict=True)
    )
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        yield topic, rows.slice(start, counts[number])
        start += counts[number]


def _write(
    options: SinkOptions, topic: str, batches: Iterator[pa.RecordBatch], message_id: str | None
) -> TaskWritten:
    if message_id is not None and options.connection.format == "liftbridge":
        return _write_once(options, topic, batches, message_id)
    head = next(batches)
    first = _prepared(head, options)
    rest = (_prepared(batch, options) for batch in batches)
    done = bulk.write(
        options.connection.servers,
        topic,
        pa.RecordBatchReader.from_batches(first.schema, _chain(first, rest)),
        **_write_options(options, "msgId" in head.schema.names, message_id),
    )
    return TaskWritten(done.acked, done.bytes, done.duplicates)


def _write_options(options: SinkOptions, has_ids: bool, message_id: str | None) -> dict[str, Any]:
    """Return the options of a bulk write. ``has_ids`` says that the rows have ids of their own."""
    special: dict[str, Any]
    if options.connection.format == "jetstream":
        special = {"subject": options.subject, "envelope": options.envelope}
        identity = None if message_id is None else id_prefix(message_id)
        # With message_id, bulk.write would replace the ids of the rows by ids that depend on their order.
        # Mode "pipelined", because fast ingest does not report duplicates.
        special |= {"mode": "pipelined"} if has_ids else {"message_id": identity}
    else:
        policy = AckPolicy.ALL if options.ack_all else AckPolicy.LEADER
        special = {"partitioner": options.partitioner, "ack_policy": policy}
    return {
        "max_in_flight": options.max_in_flight,
        "access": options.connection.open(),
        "payload": options.payload,
        **options.packing,
        **special,
    }


def id_prefix(task: str) -> str:
    """Return the prefix of the message ids of a task, 16 characters: ids have 24 at most, to row 9,999,999.

    JetStream stores, replicates and looks up each id, so a digest costs less than the identity with its UUID.
    It keeps ids for the duplicate window of the stream, 2 minutes by default. Among n tasks in that time, two
    share a digest of 96 bits with a probability of n² / 2^97: for a million tasks, below 10^-17.
    """
    return urlsafe_b64encode(hashlib.blake2b(task.encode(), digest_size=12).digest()).decode()


def _write_once(options: SinkOptions, topic: str, batches: Iterator[pa.RecordBatch], key: str) -> TaskWritten:
    target = find_target(options.connection.servers, options.connection.open())
    given: dict[str, Any] = {"partitioner": options.partitioner, "max_in_flight": options.max_in_flight}
    with (
        open_client(target) as client,
        contextlib.closing(OnceWriter(client, target, topic, key, **given)) as writer,
    ):
        for batch in _ordered(batches):
            prepared = _prepared(batch, options)
            for start in range(0, prepared.num_rows, _ONCE_ROWS):
                writer.add(prepared.slice(start, _ONCE_ROWS))
        writer.finish()
    return TaskWritten(writer.rows, writer.bytes, writer.duplicates)


def _ordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows in an order that repeats: sorted by ``msgId``, if they have one."""
    first = next(batches)
    if "msgId" not in first.schema.names:
        return _chain(first, batches)
    table = pa.Table.from_batches(list(_chain(first, batches))).sort_by("msgId")
    ids = table["msgId"]
    same = pc.indices_nonzero(pc.equal(ids[1:], ids[:-1]))
    if len(same):
        raise UsageError(f"msgId must be unique in a task, got {ids[same[0].as_py()].as_py()!r} twice")
    return iter(table.drop_columns(["msgId"]).to_batches())


def _prepared(batch: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    """Select and convert the columns that bulk writes take."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    wanted = {name: columns[name] for name in _WRITTEN[options.connection.format] if name in columns}
    if options.payload is not None:
        wanted |= {name: array for name, array in columns.items() if name not in _KNOWN}
    if options.subject is not None:
        wanted.pop("subject", None)
    if not options.headers:
        wanted.pop("headers", None)
    if "headers" in wanted:
        wanted["headers"] = _as_map(wanted["headers"])
    if "msgId" in columns:
        wanted["headers"] = _with_ids(wanted.get("headers"), columns["msgId"])
    return pa.RecordBatch.from_arrays(list(wanted.values()), list(wanted))


def _as_map(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        return column
    column = column.cast(_HEADER_LIST)
    names, values = column.values.flatten()
    if names.null_count:
        raise UsageError("a row has a header without a name; set 'key' in every element of 'headers'")
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    entries = pa.StructArray.from_arrays([names, values], fields=fields)
    buffers = column.buffers()[:2]
    return pa.Array.from_buffers(
        _HEADERS, len(column), buffers, column.null_count, column.offset, children=[entries]
    )


def _with_ids(headers: pa.Array | None, ids: pa.Array) -> pa.Array:
    rows = [None] * len(ids) if headers is None else headers.to_pylist()
    made = [
        [*(item for item in row or () if item[0] != _MESSAGE_ID), (_MESSAGE_ID, identity)]
        for row, identity in zip(rows, ids.to_pylist(), strict=True)
    ]
    return pa.array([[(name, _bytes(value)) for name, value in row] for row in made], _HEADERS)


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""

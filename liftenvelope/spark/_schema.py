"""Columns of Spark rows: those of Spark's Kafka source, plus those that only NATS streams have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope.errors import UsageError
from liftenvelope.spark._payload import payload_fields, quoted
from liftenvelope.spark._words import nearest
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from liftenvelope.bulk import OnBad
    from liftenvelope.payload import PayloadFormat
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "RowOptions",
    "bulk_columns",
    "check_packed",
    "check_sink",
    "header_lists",
    "spark_batches",
    "spark_ddl",
    "spark_schema",
]

#: Most rows and bytes of an Arrow batch for Spark; a single larger row makes a batch of its own.
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024

#: Kafka's code for "log append time", because the servers stamp messages when they store them.
_LOG_APPEND_TIME: Final = 1

_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_COLUMNS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("key", pa.binary(), "BINARY"),
    ("value", pa.binary(), "BINARY"),
    ("topic", pa.string(), "STRING"),
    ("partition", pa.int32(), "INT"),
    ("offset", pa.int64(), "BIGINT"),
    ("timestamp", pa.timestamp("us", "UTC"), "TIMESTAMP"),
    ("timestampType", pa.int32(), "INT"),
    ("subject", pa.string(), "STRING"),
    ("timestamp_nanos", pa.int64(), "BIGINT"),
)
_HEADER_COLUMN: Final = ("headers", _HEADERS, "ARRAY<STRUCT<key: STRING, value: BINARY>>")
_ENVELOPE: Final[tuple[tuple[str, Any, str], ...]] = (
    ("ack_inbox", pa.string(), "STRING"),
    ("correlation_id", pa.string(), "STRING"),
    ("ack_policy", pa.int32(), "INT"),
    ("expected_offset", pa.int64(), "BIGINT"),
)
#: Names of columns in bulk reads, where they differ; None for columns that bulk reads do not have.
_FROM: Final = {"topic": None, "timestampType": None, "timestamp_nanos": "timestamp", "partition": None}

_VIEWS: Final = (pa.string_view(), pa.binary_view())
_TEXT: Final = ("binary", "string")
#: Column types that a sink accepts, as Spark's simple type names.
_SINK: Final[dict[str, tuple[str, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>", "map<string,binary>", "map<string,string>"),
    "topic": ("string",),
}
_ID: Final = {"msgId": ("string",)}
_SINK_OF: Final = {
    "liftbridge": {**_SINK, "partition": ("int",)},
    "jetstream": {**_SINK, "subject": ("string",), **_ID},
}
#: Source columns that a sink ignores, so that rows that were read can be written back.
PASSED_OVER: Final = frozenset(
    {"offset", "timestamp", "timestampType", "timestamp_nanos", *(name for name, _, _ in _ENVELOPE)}
)
#: Columns of the other format's sink, ignored for the same reason.
_OF_OTHERS: Final = {"liftbridge": frozenset({"subject"}), "jetstream": frozenset({"partition"})}


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options that the columns of a source depend on.

    Attributes:
        headers: Include a column with the headers.
        envelope: ``"none"``, ``"strip"`` or ``"columns"``: see :func:`liftenvelope.bulk.read`.
        payload: Format of the values; None for values as they are.
        on_bad: Policy for messages that do not fit the payload.
    """

    headers: bool = False
    envelope: str = "none"
    payload: PayloadFormat | None = None
    on_bad: OnBad = "fail"

    def columns(self) -> list[tuple[str, Any, str]]:
        """Return names, types, and types in DDL.

        Raises:
            OptionError: Spark can't have the columns of the payload.
        """
        extra = _ENVELOPE if self.envelope == "columns" else ()
        found = [*_COLUMNS, *((_HEADER_COLUMN,) if self.headers else ()), *extra]
        if self.payload is None:
            return found
        own = [column for column in found if column[0] != "value"]
        # A payload must not have "headers" either: the name stands for those of the messages.
        typed = payload_fields(self.payload, self.on_bad, ["headers", *(name for name, _, _ in own)])
        return [*own, *((field.name, field.type, ddl) for field, ddl in typed)]


def spark_schema(options: RowOptions) -> pa.Schema:
    """Return the schema of the batches that a source gives to Spark."""
    return pa.schema([(name, kind) for name, kind, _ in options.columns()])


def spark_ddl(options: RowOptions) -> str:
    """Return the schema of :func:`spark_schema` as Spark DDL."""
    return ", ".join(f"{quoted(name)} {ddl}" for name, _, ddl in options.columns())


def bulk_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of the bulk read that supplies ``schema``."""
    found = [_FROM.get(name, name) for name in schema.names]
    return list(dict.fromkeys(name for name in found if name is not None))


def spark_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, stream: str, partition: int
) -> Iterator[pa.RecordBatch]:
    """Convert batches of a bulk read to batches for Spark, bounded in rows and bytes.

    Args:
        batches: Batches of one partition.
        schema: Schema to produce: a :func:`spark_schema`.
        stream: Name of the stream.
        partition: Number of the partition.
    """
    constants = _Constants({"topic": stream, "partition": partition, "timestampType": _LOG_APPEND_TIME})
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            part = batch.slice(start, BATCH_ROWS)
            arrays = [
                constants.column(field, part.num_rows) if field.name in constants else _array(field, part)
                for field in schema
            ]
            yield from _bounded(pa.RecordBatch.from_arrays(arrays, schema=schema))


class _Constants:
    """Columns with one value in all rows, cached at the length of the longest batch so far."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._columns: dict[str, pa.Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def column(self, field: pa.Field, rows: int) -> pa.Array:
        column = self._columns.get(field.name)
        if column is None or len(column) < rows:
            column = self._columns[field.name] = pa.repeat(
                pa.scalar(self._values[field.name], field.type), rows
            )
        return column.slice(0, rows)


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch until each part is at most ``BATCH_BYTES`` or has one row."""
    if batch.num_rows == 1 or batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))


def _array(field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
    name = field.name
    column = batch.column(_FROM.get(name) or name)
    if name in ("timestamp_nanos", "offset"):
        return column.view(pa.int64())  # no server counts beyond 2**63 - 1
    if name == "timestamp":
        return _micros(column)
    if name == "headers":
        return header_lists(column)
    if column.type == field.type:
        return column
    try:
        if pa.types.is_dictionary(column.type):
            values = column.dictionary
            if values.type in _VIEWS:  # Arrow can take no rows of views
                values = values.cast(field.type)
            column = values.take(
                column.indices
            )  # before the cast: of the values that no row has, any may fail
        return pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
    except pa.ArrowInvalid as exc:
        text = f"payload: field {name!r} must fit type {field.type} of Spark: {exc}"
        raise UsageError(f"{text}; leave it out of the schema") from exc


def _micros(column: pa.Array) -> pa.Array:
    """Round timestamps down to Spark's microseconds, also before 1970."""
    earliest = pc.min(column.view(pa.int64())).as_py()
    if earliest is not None and earliest < 0:
        column = pc.floor_temporal(column, unit="microsecond")
    # The cast truncates towards 1970, and takes a twentieth of the time of floor_temporal.
    return column.cast(pa.timestamp("us", "UTC"), safe=False)


def header_lists(column: pa.MapArray) -> pa.ListArray:
    """Return a map column as a list of entries, as Spark's Kafka source has it.

    Only names and values of other types than string and binary are copied.
    """
    kinds = list(_HEADERS.value_type)
    columns = [part.cast(kind.type) for part, kind in zip((column.keys, column.items), kinds, strict=True)]
    entries = pa.StructArray.from_arrays(columns, fields=kinds)
    return pa.Array.from_buffers(
        _HEADERS, len(column), column.buffers()[:2], column.null_count, column.offset, children=[entries]
    )


def check_sink(
    format_: str,
    columns: Iterable[tuple[str, str]],
    *,
    topic: str | None,
    subject: str | None = None,
    once: bool = False,
    encodes: bool = False,
    envelope: bool = False,
) -> None:
    """Check the columns of rows to write.

    Args:
        format_: ``"liftbridge"`` or ``"jetstream"``.
        columns: Column names and Spark's simple names of their types.
        topic: Name of the stream; None to take it from the column ``topic``.
        subject: For JetStream: subject of all rows; None to take it from the column ``subject``.
        once: Each row is stored once. Liftbridge accepts the column ``msgId`` only then.
        encodes: Columns that a sink does not know are encoded into the value.
        envelope: Rows are put into envelopes, in which no server sees the ids of ``msgId``.

    Raises:
        OptionError: A column is missing, unknown, or of a type that a sink does not accept.
    """
    known = {**_SINK_OF[format_], **(_ID if once else {})}
    found = dict(columns)
    typed: list[str] = []
    for name, kind in found.items():
        if name in PASSED_OVER or name in _OF_OTHERS[format_]:
            continue
        if name == "msgId" and name not in known:
            raise OptionError(
                "column 'msgId' needs deliveryGuarantee='effectively-once' in Liftbridge; drop the column"
            )
        if name == "msgId" and envelope:
            raise OptionError("column 'msgId': no server sees it in an envelope; leave out envelope=true")
        if encodes and name not in known:
            typed.append(name)
            continue
        if name not in known:
            raise OptionError(f"column {name!r} is unknown: {nearest(name, known)}")
        if kind not in known[name]:
            raise OptionError(f"column {name!r} must be {' or '.join(known[name])}, got {kind}")
    if encodes and ("value" in found or not typed):
        got = "'value', which payload fills" if "value" in found else "no column of the payload"
        raise OptionError(f"the rows must have columns for the payload, got {got}")
    if not encodes and "value" not in found:
        raise OptionError(f"the rows must have a column 'value', got {', '.join(found) or 'no columns'}")
    if topic is None and "topic" not in found:
        raise OptionError("the stream is not named: give the option topic, or a column 'topic'")
    if format_ == "jetstream" and subject is None and "subject" not in found:
        raise OptionError("the subject is not named: give the option subject, or a column 'subject'")


def check_packed(format_: str, names: Collection[str], *, subject: str | None, headers: bool) -> None:
    """Check the columns of rows of which a message carries many: it has no place for a key of each.

    Args:
        format_: ``"liftbridge"`` or ``"jetstream"``.
        names: Names of the columns.
        subject: As for :func:`check_sink`.
        headers: The sink writes the column ``headers``.

    Raises:
        OptionError: A column sets a field of the message.
    """
    wanted = set(_SINK_OF[format_]) - {"topic", "value"}
    if subject is not None:
        wanted.discard("subject")
    if not headers:
        wanted.discard("headers")
    for name in sorted(wanted.intersection(names)):
        text = f"column {name!r} must not be given with this payload, whose messages have many rows each"
        hint = "give the option subject instead" if name == "subject" else "drop it"
        raise OptionError(f"{text}; {hint}")

"""The columns of Spark rows: those of Spark's Kafka source, and what streams of NATS have beyond them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._extras import require
from liftenvelope.spark.errors import OptionError
from liftenvelope.spark.words import nearest

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = [
    "BATCH_BYTES",
    "BATCH_ROWS",
    "bulk_columns",
    "check_sink",
    "header_lists",
    "spark_batches",
    "spark_ddl",
    "spark_schema",
]

#: So much an Arrow batch for Spark holds at most, but for a single row that is larger.
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024

#: Log append time, in Kafka's words: servers stamp what they store.
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
#: What bulk reads call it, where that is another name.
_FROM: Final = {"topic": None, "timestampType": None, "timestamp_nanos": "timestamp", "partition": None}

_TEXT: Final = ("binary", "string")
#: What a sink takes of each column, as Spark's simple names of types have it.
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
#: Columns of a source that a sink passes over, so that rows that were read can be written.
PASSED_OVER: Final = frozenset(
    {"offset", "timestamp", "timestampType", "timestamp_nanos", *(name for name, _, _ in _ENVELOPE)}
)
#: Those of the other format's sink.
_OF_OTHERS: Final = {"liftbridge": frozenset({"subject"}), "jetstream": frozenset({"partition"})}


def _columns(*, headers: bool, envelope: str) -> list[tuple[str, Any, str]]:
    extra = _ENVELOPE if envelope == "columns" else ()
    return [*_COLUMNS, *((_HEADER_COLUMN,) if headers else ()), *extra]


def spark_schema(*, headers: bool = False, envelope: str = "none") -> pa.Schema:
    """Return the schema of the batches that a source hands to Spark."""
    return pa.schema([(name, kind) for name, kind, _ in _columns(headers=headers, envelope=envelope)])


def spark_ddl(*, headers: bool = False, envelope: str = "none") -> str:
    """Return the same as Spark's own text of a schema."""
    return ", ".join(f"`{name}` {ddl}" for name, _, ddl in _columns(headers=headers, envelope=envelope))


def bulk_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a bulk read that these are made of."""
    found = [_FROM.get(name, name) for name in schema.names]
    return list(dict.fromkeys(name for name in found if name is not None))


def spark_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, stream: str, partition: int
) -> Iterator[pa.RecordBatch]:
    """Make batches of a bulk read into such as Spark takes, bounded in rows and bytes.

    Args:
        batches: What was read, of one partition.
        schema: What is wanted: a :func:`spark_schema`.
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
    """Columns that have the same in every row: made once, as long as the longest batch so far."""

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
    """The batch in parts that are small enough, or have a single row."""
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
        return column.view(pa.int64())  # servers count no further than that has room for
    if name == "timestamp":
        return _micros(column)
    if name == "headers":
        return header_lists(column)
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode().cast(field.type)
    return column if column.type == field.type else column.cast(field.type)


def _micros(column: pa.Array) -> pa.Array:
    """Spark has microseconds: those that have begun, before 1970 as well."""
    earliest = pc.min(column.view(pa.int64())).as_py()
    if earliest is not None and earliest < 0:
        column = pc.floor_temporal(column, unit="microsecond")
    # A cast cuts off towards 1970, in a twentieth of the time.
    return column.cast(pa.timestamp("us", "UTC"), safe=False)


def header_lists(column: pa.MapArray) -> pa.ListArray:
    """A map as a list of its entries: the same buffers, seen as Kafka's source has them."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], fields=list(_HEADERS.value_type))
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
) -> None:
    """Check the columns of what is to be written.

    Args:
        format_: ``"liftbridge"`` or ``"jetstream"``.
        columns: Names, and Spark's simple names of their types.
        topic: The stream, unless a column says it.
        subject: For JetStream: the subject of all rows, unless a column says it.
        once: Whether rows are stored once; in Liftbridge they may have ids only then.

    Raises:
        OptionError: A column is missing, unknown, or of a type that can't be written.
    """
    known = {**_SINK_OF[format_], **(_ID if once else {})}
    found = dict(columns)
    for name, kind in found.items():
        if name in PASSED_OVER or name in _OF_OTHERS[format_]:
            continue
        if name == "msgId" and name not in known:
            raise OptionError(
                "column 'msgId': into Liftbridge it is for deliveryGuarantee='effectively-once'"
            )
        if name not in known:
            raise OptionError(f"column {name!r} can't be written: {nearest(name, known)}")
        if kind not in known[name]:
            raise OptionError(f"column {name!r} is of {kind}: expected {' or '.join(known[name])}")
    if "value" not in found:
        raise OptionError(f"there is no column 'value', but {', '.join(found) or 'none'}")
    if topic is None and "topic" not in found:
        raise OptionError("nothing says where rows go: expected the option topic, or a column 'topic'")
    if format_ == "jetstream" and subject is None and "subject" not in found:
        raise OptionError("nothing says on which subject: expected the option subject, or a column 'subject'")

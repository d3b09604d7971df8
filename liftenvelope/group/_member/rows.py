"""Converts messages of groups to Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope._native import frames
from liftenvelope.envelope import Message as LiftbridgeMessage
from liftenvelope.group._member.pieces import Part
from liftenvelope.group._sources import SourceMessage, content_of
from liftenvelope.jetstream import Message as JetStreamMessage
from liftenvelope.jetstream.message import Block, stored_times

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "arrow")

__all__ = ["SCHEMA", "rows_of"]

#: Columns of a batch. A value is null if the topic's source does not have it: only Liftbridge has keys, and a
#: custom source fills only the first four columns.
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("ns", "UTC")),
        pa.field("subject", pa.string()),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
_TYPES: Final = tuple(SCHEMA.types)
_MAPS: Final = SCHEMA.field("headers").type
#: Rows of a kept column, of which a batch has a part. To make one takes a tenth of the time of 500 rows.
_KEPT_ROWS: Final = 4_096
#: Kept columns of a repeated value, and their longest value.
_KEPT_COLUMNS: Final = 64
_LONGEST_KEPT: Final = 128


def rows_of(parts: Sequence[Part[Any]]) -> pa.RecordBatch:
    """Return a batch with one row for each message and the columns of :data:`SCHEMA`.

    A header with several values, as JetStream's messages can have, becomes several entries.

    Args:
        parts: Messages as :meth:`HandOut.peek` returns them; at least one.

    Raises:
        UsageError: The values are larger than a column can be, or a message does not come from a consumer.
    """
    counts = [len(offsets) // 8 for _, offsets, _ in parts]
    items = parts[0][2] if len(parts) == 1 else [one for _, _, part in parts for one in part]
    # All messages of a partition come from one source, and have one class.
    are_blocks = all(isinstance(part[0], frames.MessageBlock) for _, _, part in parts)
    topics = [buffer.key[0] for buffer, _, _ in parts]
    partitions = [buffer.key[1] for buffer, _, _ in parts]
    columns = [
        _repeated(topics, counts),
        _repeated(partitions, counts),
        pa.py_buffer(parts[0][1] if len(parts) == 1 else b"".join(offsets for _, offsets, _ in parts)),
        *(_block_columns(items, sum(counts)) if are_blocks else _columns(_messages(items))),
    ]
    arrays = [
        column if isinstance(column, pa.Array) else _filled(column, kind, sum(counts))
        for kind, column in zip(_TYPES, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _filled(column: Any, kind: pa.DataType, n: int) -> pa.Array:
    """Return an array of values, or of a buffer of fixed-size values."""
    if isinstance(column, pa.Buffer):
        return pa.Array.from_buffers(kind, n, [None, column])
    return pa.array(column, kind)


def _repeated(values: Sequence[str | int], counts: Sequence[int]) -> pa.Array:
    """Return a column of texts or 32-bit numbers that repeats each value the given number of times."""
    value, times = values[0], counts[0]
    if len(values) > 1:  # a call of pyarrow for each of many small parts would cost more than the list
        repeated = [value for value, times in zip(values, counts, strict=True) for _ in range(times)]
        return pa.array(repeated, _kind_of(value))
    if times <= _KEPT_ROWS and (isinstance(value, int) or len(value) <= _LONGEST_KEPT):
        return _kept(value).slice(0, times)
    return pa.repeat(pa.scalar(value, _kind_of(value)), times)


def _kind_of(value: str | int) -> pa.DataType:
    return pa.string() if isinstance(value, str) else pa.int32()


@lru_cache(maxsize=_KEPT_COLUMNS)
def _kept(value: str | int) -> pa.Array:
    return pa.repeat(pa.scalar(value, _kind_of(value)), _KEPT_ROWS)


@cache
def _kept_maps() -> pa.Array:
    return pa.array([[]] * _KEPT_ROWS, _MAPS)


def _block_columns(blocks: list[Block], n: int) -> list[Any]:
    """Return values, keys, times, subjects and headers of messages, without objects for most."""
    ends, values, subject = frames.joined(blocks)
    return [
        pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(values)]),
        pa.nulls(n, pa.binary()),
        pa.py_buffer(stored_times(blocks)),
        _subjects(blocks, n) if subject is None else _repeated([subject], [n]),
        _header_maps(blocks, n),
    ]


def _subjects(blocks: list[Block], n: int) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), n, [None, *map(pa.py_buffer, frames.subjects(blocks))])


def _messages(items: list[Any]) -> list[Any]:
    """Return messages, with those of blocks in place of the blocks."""
    lists = (one.messages() if isinstance(one, frames.MessageBlock) else [one] for one in items)
    return [message for messages in lists for message in messages]


def _header_maps(blocks: list[Block], n: int) -> pa.Array:
    """Return the column of headers: from a list, it would take ten times as long as all other columns."""
    ends, name_ends, names, value_ends, values = frames.header_columns(blocks, _entries)
    count = len(name_ends) // 4 - 1
    if count == 0 and n <= _KEPT_ROWS:
        return _kept_maps().slice(0, n)
    buffers = map(pa.py_buffer, (name_ends, names, value_ends, values))
    columns = [
        pa.Array.from_buffers(kind, count, [None, next(buffers), next(buffers)])
        for kind in (pa.string(), pa.binary())
    ]
    entries = pa.StructArray.from_arrays(columns, fields=[_MAPS.key_field, _MAPS.item_field])
    return pa.Array.from_buffers(_MAPS, n, [None, pa.py_buffer(ends)], children=[entries])


def _columns(messages: Sequence[JetStreamMessage | SourceMessage]) -> list[Any]:
    """Return values, keys, times, subjects and headers of messages of any sources."""
    contents = [content_of(one) for one in messages]
    return [[data for data, _ in contents], *zip(*(_details(one) for _, one in contents), strict=True)]


def _entries(message: JetStreamMessage) -> list[tuple[str, bytes]]:
    """Return the headers by name, each name at its first place, in one pass: a block may have many names."""
    values: dict[str, list[bytes]] = {}
    for name, value in message.headers.pairs:
        values.setdefault(name, []).append(value.encode())
    return [(name, value) for name, several in values.items() for value in several]


def _details(message: Any) -> tuple[bytes | None, int | None, str | None, list[tuple[str, bytes]] | None]:
    """Return key, time in ns, subject and headers of a message, each None if its source has none."""
    if isinstance(message, JetStreamMessage):
        return None, message.metadata.timestamp_ns, message.subject, _entries(message)
    if isinstance(message, LiftbridgeMessage):
        return message.key or None, message.timestamp_ns, message.subject, list(message.headers.items())
    return None, None, None, None

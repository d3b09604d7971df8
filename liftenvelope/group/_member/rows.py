"""Converts messages of groups to Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
        _repeated(list(zip(topics, counts, strict=True)), pa.string()),
        _repeated(list(zip(partitions, counts, strict=True)), pa.int32()),
        pa.py_buffer(parts[0][1] if len(parts) == 1 else b"".join(offsets for _, offsets, _ in parts)),
        *(_block_columns(items, sum(counts)) if are_blocks else _columns(_messages(items))),
    ]
    arrays = [
        column if isinstance(column, pa.Array) else _filled(column, field.type, sum(counts))
        for field, column in zip(SCHEMA, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _filled(column: Any, kind: pa.DataType, n: int) -> pa.Array:
    """Return an array of values, or of a buffer of fixed-size values."""
    if isinstance(column, pa.Buffer):
        return pa.Array.from_buffers(kind, n, [None, column])
    return pa.array(column, kind)


def _repeated(values: list[tuple[str | int, int]], kind: pa.DataType) -> pa.Array:
    """Return a column that repeats each value the given number of times."""
    if len(values) == 1:
        [(value, times)] = values
        return pa.repeat(pa.scalar(value, kind), times)
    # A call of pyarrow for each of many small parts would cost more than the list.
    return pa.array([value for value, times in values for _ in range(times)], kind)


def _block_columns(blocks: list[Block], n: int) -> list[Any]:
    """Return values, keys, times, subjects and headers of messages, without objects for most."""
    ends, values, subject = frames.joined(blocks)
    return [
        pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), pa.py_buffer(values)]),
        pa.nulls(n, pa.binary()),
        pa.py_buffer(stored_times(blocks)),
        _subjects(blocks, n) if subject is None else _repeated([(subject, n)], pa.string()),
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
    kind = SCHEMA.field("headers").type
    ends, name_ends, names, value_ends, values = map(pa.py_buffer, frames.header_columns(blocks, _entries))
    count = name_ends.size // 4 - 1
    columns = [
        pa.Array.from_buffers(pa.string(), count, [None, name_ends, names]),
        pa.Array.from_buffers(pa.binary(), count, [None, value_ends, values]),
    ]
    entries = pa.StructArray.from_arrays(columns, fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, n, [None, ends], children=[entries])


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

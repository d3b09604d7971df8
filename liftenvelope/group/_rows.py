"""Converts messages of groups to Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import require
from liftenvelope.envelope import Message as LiftbridgeMessage
from liftenvelope.group._reader import GroupMessage
from liftenvelope.jetstream import Message as JetStreamMessage

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "arrow")

__all__ = ["SCHEMA", "message_rows"]

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


def message_rows(messages: Sequence[GroupMessage]) -> pa.RecordBatch:
    """Return a batch with one row for each message and the columns of :data:`SCHEMA`.

    A header with several values, as JetStream's messages can have, becomes several entries.

    Example:
        >>> message_rows([GroupMessage("orders", 0, 7, b"tea", None, 1)]).to_pylist()[0]["value"]
        b'tea'
    """
    details = [_details(message.message) for message in messages]
    columns: dict[str, list[Any]] = {
        "topic": [message.topic for message in messages],
        "partition": [message.partition for message in messages],
        "offset": [message.offset for message in messages],
        "value": [message.data for message in messages],
        "key": [one[0] for one in details],
        "timestamp": [one[1] for one in details],
        "subject": [one[2] for one in details],
        "headers": [one[3] for one in details],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _details(message: Any) -> tuple[bytes | None, int | None, str | None, list[tuple[str, bytes]] | None]:
    """Return key, time in ns, subject and headers of a message, each None if its source has none."""
    if isinstance(message, JetStreamMessage):
        headers = message.headers
        entries = [(name, value.encode()) for name in headers for value in headers.get_all(name)]
        return None, message.metadata.timestamp_ns, message.subject, entries
    if isinstance(message, LiftbridgeMessage):
        return message.key or None, message.timestamp_ns, message.subject, list(message.headers.items())
    return None, None, None, None

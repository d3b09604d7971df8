"""Batches of envelopes in plain Python: the reference that ``src/_fastbatch.pyx`` must agree with.

Input columns are in :mod:`liftenvelope._native.columns`. Output is the buffers of Arrow arrays
(https://arrow.apache.org/docs/format/Columnar.html) or NATS PUB commands. This module does not use pyarrow:
the buffers are plain bytes. :mod:`liftenvelope._native.requests` encodes rows as gRPC requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from liftenvelope._native.columns import Column, HeaderColumn
from liftenvelope._native.env import new_message, unmarshal_ack, unmarshal_message
from liftenvelope._native.payloads import read_message
from liftenvelope._native.requests import Requests
from liftenvelope._wire import MAX_ENVELOPE
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError, UsageError
from liftenvelope.types import as_request_policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Fields of a message that MessageColumns makes columns of.
ENVELOPE_FIELDS = ("key", "value", "headers", "ack_inbox", "correlation_id", "ack_policy", "expected_offset")
#: Rows, nulls, validity bitmap (None: no nulls), offsets, data.
TextBuffers: TypeAlias = "tuple[int, int, bytes | None, bytes, bytes]"


def encode_row(
    i: int, value: bytes, fields: Sequence[Any], ack_policy: int, expected_offset: int, crc: bool
) -> bytes:
    """Encode the envelope of one row; errors name the row.

    Used by both twins: the Cython twin only detects that a row is invalid, and calls this for the error.

    Args:
        i: Index of the row.
        value: Value of the row.
        fields: Key, headers (:data:`columns.Headers`), ack inbox and correlation id of the row: bytes, or
            None for none.
        ack_policy: See new_message().
        expected_offset: See new_message().
        crc: See new_message().
    """
    key, headers, ack_inbox, correlation_id = fields
    try:
        if headers and None in headers:
            raise UsageError(f"row {i}: a header name must not be null")
        return new_message(
            value,
            key=key,
            headers={name.decode(): content or b"" for name, content in (headers or {}).items()},
            ack_inbox=(ack_inbox or b"").decode(),
            correlation_id=(correlation_id or b"").decode(),
            ack_policy=ack_policy,
            expected_offset=expected_offset,
            crc=crc,
        )
    except UnicodeDecodeError:
        raise UsageError(f"row {i}: strings must be valid UTF-8") from None
    except EnvelopeTooLargeError as exc:
        raise EnvelopeTooLargeError(f"row {i}: {exc}") from None


class Envelopes:
    """A batch to encode: checked and measured on construction, written in spans of rows."""

    def __init__(
        self,
        values: Column,
        keys: Column | None,
        headers: HeaderColumn | None,
        ack_inboxes: Column | None,
        correlation_ids: Column | None,
        ack_policy: int,
        expected_offset: int | Buffer,
        crc: bool,
    ) -> None:
        as_request_policy("ack_policy", ack_policy)
        self.length = values.length
        optional = {
            "keys": keys,
            "ack_inboxes": ack_inboxes,
            "correlation_ids": correlation_ids,
            "headers": headers,
        }
        for name, column in optional.items():
            if column is not None and column.length != self.length:
                raise UsageError(f"{name} has {column.length} rows, values {self.length}")
        offsets = self._expected(expected_offset)
        columns = (keys, headers, ack_inboxes, correlation_ids)
        self._rows: list[bytes | None] = []
        for i, value in enumerate(values.rows):
            fields: list[Any] = [None if column is None else column.rows[i] for column in columns]
            envelope = None if value is None else encode_row(i, value, fields, ack_policy, offsets[i], crc)
            self._rows.append(envelope)

    def _expected(self, expected_offset: int | Buffer) -> Sequence[int]:
        if isinstance(expected_offset, int):
            return [expected_offset] * self.length
        raw = bytes(expected_offset)
        if len(raw) < self.length * 8:
            raise UsageError(f"expected_offsets must have {self.length} rows")
        return struct.unpack_from(f"={self.length}q", raw)

    def _span(self, start: int, stop: int) -> list[bytes | None]:
        if not 0 <= start <= stop <= self.length:
            raise UsageError(f"rows {start} to {stop} are not a span of {self.length} rows")
        return self._rows[start:stop]

    def oversize(self, limit: int) -> tuple[int, int] | None:
        """Return (row, bytes) of the first envelope larger than the limit, None if there is none."""
        sizes = ((i, len(row)) for i, row in enumerate(self._rows) if row is not None and len(row) > limit)
        return next(sizes, None)

    def first_null(self) -> int | None:
        """Return the first row without a value, None if every row has one."""
        return next((i for i, row in enumerate(self._rows) if row is None), None)

    def reach(self, start: int, limit: int) -> tuple[int, int]:
        """Return (stop, bytes) of the longest span from ``start`` whose envelopes fit in ``limit`` bytes."""
        self._span(start, start)  # checks it
        total = 0
        for i in range(start, self.length):
            size = len(self._rows[i] or b"")
            if size > limit - total:
                return i, total
            total += size
        return self.length, total

    def size_of(self, start: int, stop: int) -> int:
        """Return the size of all envelopes of a span, in bytes."""
        return sum(len(row or b"") for row in self._span(start, stop))

    def write(self, start: int, stop: int, offsets: Buffer, data: Buffer, validity: Buffer) -> int:
        """Write a span into the three buffers of an Arrow binary array; return the number of null rows."""
        rows = self._span(start, stop)
        if (room := self.size_of(start, stop)) > MAX_ENVELOPE:
            raise UsageError(f"an Arrow binary array holds at most {MAX_ENVELOPE} bytes, not {room}")
        _, nulls, bits, ends, content = text_buffers(rows, "i")
        targets = [memoryview(target).cast("B") for target in (offsets, data, validity)]
        parts = [ends, content, bits or b"\xff" * ((len(rows) + 7) >> 3)]
        if any(len(target) < len(part) for target, part in zip(targets, parts, strict=True)):
            raise UsageError("the buffers are too small for the span")
        for target, part in zip(targets, parts, strict=True):
            target[: len(part)] = part
        return nulls

    def frames(self, start: int, stop: int, subjects: list[bytes], which: Buffer | None) -> bytes:
        """Return a span as NATS PUB commands.

        ``which`` holds the index of each row's subject as 32-bit integers; None sends all rows to the first
        subject. A null row has an empty payload.
        """
        rows = self._span(start, stop)
        chosen = self._chosen(which)
        out = bytearray()
        for i, row in enumerate(rows, start):
            if not 0 <= chosen[i] < len(subjects):
                raise UsageError(f"row {i}: subject {chosen[i]} of {len(subjects)}")
            out += b"PUB %s %d\r\n%s\r\n" % (subjects[chosen[i]], len(row or b""), row or b"")
        return bytes(out)

    def _chosen(self, which: Buffer | None) -> Sequence[int]:
        if which is None:
            return [0] * self.length
        raw = bytes(which)
        if len(raw) < self.length * 4:
            raise UsageError(f"which must have {self.length} rows")
        return struct.unpack_from(f"={self.length}i", raw)


def _bitmap(valid: Sequence[bool]) -> bytes:
    bits = bytearray((len(valid) + 7) >> 3)
    for i, is_valid in enumerate(valid):
        bits[i >> 3] |= is_valid << (i & 7)
    return bytes(bits)


def text_buffers(rows: Sequence[bytes | None], code: str) -> TextBuffers:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row or b""))
    nulls, data = sum(row is None for row in rows), b"".join(row or b"" for row in rows)
    return len(rows), nulls, validity_bits(rows), struct.pack(f"={len(ends)}{code}", *ends), data


def _numbers(rows: Sequence[Any], name: str, code: str) -> bytes:
    return struct.pack(
        f"={len(rows)}{code}", *(0 if row is None else int(getattr(row, name)) for row in rows)
    )


def _header_buffers(rows: Sequence[Mapping[str, bytes]]) -> dict[str, Any]:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row))
    return {
        "header_offsets": struct.pack(f"={len(ends)}i", *ends),
        "header_names": text_buffers([name.encode() for row in rows for name in row], "i"),
        "header_values": text_buffers([value for row in rows for value in row.values()], "i"),
    }


def validity_bits(rows: Sequence[Any]) -> bytes | None:
    valid = [row is not None for row in rows]
    return None if all(valid) else _bitmap(valid)


def _decoded(rows: Column, reader: Callable[[bytes], Any], bad: list[int]) -> list[Any]:
    """Decode each row, null and invalid ones to None; add the indexes of invalid rows to ``bad``."""
    values: list[Any] = []
    for i, row in enumerate(rows.rows):
        try:
            values.append(None if row is None else reader(row))
        except EnvelopeError:
            bad.append(i)
            values.append(None)
    return values


def _view_buffers(rows: Sequence[bytes | None]) -> TextBuffers:
    """Return (rows, nulls, validity, views, data) of an Arrow array of binary views.

    The extension's views point into the rows that were decoded. These point into a copy of the values.
    """
    views, data = bytearray(), bytearray()
    for row in (row or b"" for row in rows):
        views += struct.pack("=i", len(row))
        views += row.ljust(12, b"\0") if len(row) <= 12 else row[:4] + struct.pack("=ii", 0, len(data))
        data += row
    return len(rows), sum(row is None for row in rows), validity_bits(rows), bytes(views), bytes(data)


class MessageColumns:
    """Message envelopes decoded into columns.

    Args:
        rows: The envelopes.
        large: Whether offsets have 64 bits.
        raw: Whether an invalid row is its own value.
        allocate: Memory for the extension.
        views: Whether the values are binary views.
        fields: Columns to make. Rows are checked whole all the same.
    """

    def __init__(
        self,
        rows: Column,
        large: bool,
        raw: bool,
        allocate: Callable[[int], Any],  # noqa: ARG002 - memory for the extension
        views: bool = False,
        fields: tuple[str, ...] = ENVELOPE_FIELDS,
    ) -> None:
        self.bad: list[int] = []
        self._views = views
        self._fields = fields
        self._messages = _decoded(rows, unmarshal_message, self.bad)
        self._code = "q" if large else "i"
        self._values = [None if message is None else message.value for message in self._messages]
        if raw:
            for i in self.bad:
                self._values[i] = rows.rows[i]

    def _texts(self, name: str) -> TextBuffers:
        fields = [None if message is None else getattr(message, name) for message in self._messages]
        encoded = [field.encode() if isinstance(field, str) else field for field in fields]
        return text_buffers([field or None for field in encoded], self._code)

    def columns(self) -> dict[str, Any]:
        """Return buffers by field name: (rows, nulls, validity, offsets, data) for texts, data for numbers.

        The key "validity" holds the validity bitmap of the rows, None if all rows are valid.
        """
        values = _view_buffers(self._values) if self._views else text_buffers(self._values, self._code)
        made = {
            "key": self._texts("key"),
            "value": values,
            "ack_inbox": self._texts("ack_inbox"),
            "correlation_id": self._texts("correlation_id"),
            "ack_policy": _numbers(self._messages, "ack_policy", "i"),
            "expected_offset": _numbers(self._messages, "offset", "q"),
        }
        found = {name: column for name, column in made.items() if name in self._fields}
        if "headers" in self._fields:
            found |= _header_buffers([{} if one is None else one.headers for one in self._messages])
        return {**found, "validity": validity_bits(self._messages)}


class AckColumns:
    """Ack envelopes decoded into columns."""

    def __init__(self, rows: Column, large: bool, allocate: Callable[[int], Any]) -> None:  # noqa: ARG002
        self.bad: list[int] = []
        self._acks = _decoded(rows, unmarshal_ack, self.bad)
        self._code = "q" if large else "i"

    def _texts(self, name: str, *, empty_is_null: bool = False) -> TextBuffers:
        fields = [None if ack is None else getattr(ack, name).encode() for ack in self._acks]
        return text_buffers([field or None for field in fields] if empty_is_null else fields, self._code)

    def columns(self) -> dict[str, Any]:
        """Return buffers by field name: (rows, nulls, validity, offsets, data) for texts, data for numbers.

        The key "validity" holds the validity bitmap of the rows, None if all rows are valid.
        """
        return {
            "stream": self._texts("stream"),
            "partition_subject": self._texts("partition_subject"),
            "msg_subject": self._texts("msg_subject"),
            "ack_inbox": self._texts("ack_inbox", empty_is_null=True),
            "correlation_id": self._texts("correlation_id", empty_is_null=True),
            "offset": _numbers(self._acks, "offset", "q"),
            "ack_policy": _numbers(self._acks, "ack_policy", "i"),
            "reception_timestamp": _numbers(self._acks, "reception_timestamp_ns", "q"),
            "commit_timestamp": _numbers(self._acks, "commit_timestamp_ns", "q"),
            "ack_error": _numbers(self._acks, "error", "i"),
            "validity": validity_bits(self._acks),
        }


def _sound(row: bytes) -> Any:
    try:
        return read_message(row, 0, strip_headers=True)
    except EnvelopeError:
        return None


class StoredColumns:
    """Messages without envelopes, as servers send them to subscribers, decoded into columns."""

    def __init__(self, rows: Column, allocate: Callable[[int], Any]) -> None:  # noqa: ARG002
        if rows.nbytes > MAX_ENVELOPE:
            raise EnvelopeTooLargeError("the messages have more than 2 GiB together: decode fewer at a time")
        #: Index of the first row that is not a valid message; -1 if all are valid.
        self.bad = -1
        self._messages: list[Any] = []
        for i, row in enumerate(rows.rows):
            message = None if row is None else _sound(row)
            if message is None:
                self.bad = i
                break
            self._messages.append(message)

    def columns(self) -> dict[str, Any]:
        """Return the columns like :meth:`MessageColumns.columns`; no row of any column is null."""
        texts = ("stream", "subject", "reply_subject", "correlation_id")
        return {
            "offset": _numbers(self._messages, "offset", "q"),
            "timestamp": _numbers(self._messages, "timestamp_ns", "q"),
            "partition": _numbers(self._messages, "partition", "i"),
            "key": text_buffers([message.key for message in self._messages], "i"),
            "value": text_buffers([message.value for message in self._messages], "i"),
            **{
                name: text_buffers([getattr(message, name).encode() for message in self._messages], "i")
                for name in texts
            },
            "validity": None,
            **_header_buffers([message.headers for message in self._messages]),
        }


__all__ = [
    "AckColumns",
    "Column",
    "Envelopes",
    "HeaderColumn",
    "MessageColumns",
    "Requests",
    "StoredColumns",
]

"""Batches of envelopes in plain Python: the reference that ``src/_fastbatch.pyx`` must agree with.

Columns come in as Python sequences or as the buffers of Arrow arrays, and go out as the buffers of Arrow
arrays (https://arrow.apache.org/docs/format/Columnar.html) or as NATS PUB commands. No pyarrow here: the
buffers are plain bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from liftenvelope._checks import as_bytes, as_text, storable_headers
from liftenvelope._envelope_py import new_message, unmarshal_ack, unmarshal_message
from liftenvelope.errors import EnvelopeError, EnvelopeTooLargeError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Rows, nulls, validity bitmap (None: no nulls), offsets, data.
TextBuffers: TypeAlias = "tuple[int, int, bytes | None, bytes, bytes]"


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")


def _bits(validity: Buffer | None, first: int, length: int) -> list[bool]:
    if validity is None:
        return [True] * length
    raw = bytes(validity)
    _require(not length or len(raw) > (first + length - 1) >> 3, "its validity bitmap is too short")
    return [bool(raw[i >> 3] >> (i & 7) & 1) for i in range(first, first + length)]


def _ends(offsets: Buffer | None, first: int, length: int, code: str) -> tuple[int, ...]:
    raw, width = bytes(offsets or b""), struct.calcsize(code)
    _require(len(raw) >= (first + length + 1) * width, "its offsets are too short")
    return struct.unpack_from(f"<{length + 1}{code}", raw, first * width)


class Column:
    """Rows of bytes, each perhaps null."""

    def __init__(self, rows: list[bytes | None]) -> None:
        self.rows = rows
        self.length = len(rows)
        self.nbytes = sum(len(row) for row in rows if row is not None)

    @staticmethod
    def same(item: bytes, length: int) -> Column:
        """The same bytes for every row."""
        return Column([item] * length)

    @staticmethod
    def of_sequence(rows: Iterable[Any], name: str, text: bool) -> Column:
        """Python objects: bytes-like ones, or str where the column is of text; None is null."""

        def converted(index: int, item: Any) -> bytes | None:
            if item is None:
                return None
            return as_text(f"{name}[{index}]", item).encode() if text else as_bytes(f"{name}[{index}]", item)

        return Column([converted(index, item) for index, item in enumerate(rows)])

    @staticmethod
    def of_binary(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        data: Buffer | None,
        large: bool,
    ) -> Column:
        """An Arrow (Large)Binary or (Large)String array: its length, offset and buffers."""
        if length == 0:
            return Column([])
        valid, raw = _bits(validity, first, length), bytes(data or b"")
        ends = _ends(offsets, first, length, "q" if large else "i")
        rows: list[bytes | None] = []
        for i in range(length):
            sound = not valid[i] or 0 <= ends[i] <= ends[i + 1] <= len(raw)
            _require(sound, "its offsets point outside of its data")
            rows.append(raw[ends[i] : ends[i + 1]] if valid[i] else None)
        return Column(rows)

    @staticmethod
    def of_views(
        length: int, first: int, validity: Buffer | None, views: Buffer | None, data: Sequence[Buffer]
    ) -> Column:
        """An Arrow BinaryView or StringView array: its length, offset and buffers."""
        if length == 0:
            return Column([])
        raw, buffers, valid = (
            bytes(views or b""),
            [bytes(buffer) for buffer in data],
            _bits(validity, first, length),
        )
        _require(len(raw) >= (first + length) * 16, "its views are too short")
        return Column(
            [_viewed(raw, first + i, buffers) if is_valid else None for i, is_valid in enumerate(valid)]
        )

    def first_null(self) -> int | None:
        """The first null row; None where no row is."""
        return next((i for i, row in enumerate(self.rows) if row is None), None)

    def row(self, i: int) -> bytes | None:
        """The bytes of one row, None for null."""
        return self.rows[i]


def _viewed(views: bytes, i: int, buffers: list[bytes]) -> bytes:
    size, _, buffer, offset = struct.unpack_from("<4i", views, i * 16)
    if 0 <= size <= 12:
        return views[i * 16 + 4 : i * 16 + 4 + size]
    sound = size >= 0 and 0 <= buffer < len(buffers) and 0 <= offset <= len(buffers[buffer]) - size
    _require(sound, "its views point outside of its data")
    return buffers[buffer][offset : offset + size]


class HeaderColumn:
    """The headers of each row."""

    def __init__(self, rows: list[list[tuple[bytes | None, bytes]]]) -> None:
        self.rows = rows
        self.length = len(rows)

    @staticmethod
    def of_sequence(rows: Iterable[Mapping[str, Any] | None]) -> HeaderColumn:
        """Mappings of str to bytes-like; None is none."""
        checked = (storable_headers(headers) for headers in rows)
        return HeaderColumn([[(name.encode(), value) for name, value in row.items()] for row in checked])

    @staticmethod
    def of_map(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        names: Column,
        values: Column,
    ) -> HeaderColumn:
        """An Arrow map array: its length, offset, buffers, and its children as columns."""
        if length == 0:
            return HeaderColumn([])
        valid, ends = _bits(validity, first, length), _ends(offsets, first, length, "i")
        rows: list[list[tuple[bytes | None, bytes]]] = []
        for i in range(length):
            sound = 0 <= ends[i] <= ends[i + 1] <= names.length
            _require(sound, "its offsets point outside of its entries")
            empty = ends[i] == ends[i + 1]
            _require(valid[i] or empty, "a null map has entries, which liftenvelope does not read")
            rows.append([(names.rows[j], values.rows[j] or b"") for j in range(ends[i], ends[i + 1])])
        return HeaderColumn(rows)


class Envelopes:
    """A batch that is to be encoded: checked and measured when it is made, written in spans."""

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
        self._rows: list[bytes | None] = []
        for i, value in enumerate(values.rows):
            row = (
                None
                if value is None
                else self._encode(
                    i, value, keys, headers, ack_inboxes, correlation_ids, ack_policy, offsets[i], crc
                )
            )
            self._rows.append(row)

    def _expected(self, expected_offset: int | Buffer) -> Sequence[int]:
        if isinstance(expected_offset, int):
            return [expected_offset] * self.length
        raw = bytes(expected_offset)
        if len(raw) < self.length * 8:
            raise UsageError(f"expected_offsets must have {self.length} rows")
        return struct.unpack_from(f"<{self.length}q", raw)

    @staticmethod
    def _encode(
        i: int,
        value: bytes,
        keys: Column | None,
        headers: HeaderColumn | None,
        ack_inboxes: Column | None,
        correlation_ids: Column | None,
        ack_policy: int,
        expected_offset: int,
        crc: bool,
    ) -> bytes:
        try:
            return new_message(
                value,
                key=keys.rows[i] if keys else None,
                headers=_header_dict(headers.rows[i]) if headers else None,
                ack_inbox=((ack_inboxes.rows[i] if ack_inboxes else None) or b"").decode(),
                correlation_id=((correlation_ids.rows[i] if correlation_ids else None) or b"").decode(),
                ack_policy=ack_policy,
                expected_offset=expected_offset,
                crc=crc,
            )
        except UnicodeDecodeError:
            raise UsageError(f"row {i}: a string is not valid UTF-8") from None
        except EnvelopeTooLargeError as exc:
            raise EnvelopeTooLargeError(f"row {i}: {exc}") from None

    def oversize(self, limit: int) -> tuple[int, int] | None:
        """(row, bytes) of the first envelope that is larger than the limit; None where none is."""
        sizes = ((i, len(row)) for i, row in enumerate(self._rows) if row is not None and len(row) > limit)
        return next(sizes, None)

    def first_null(self) -> int | None:
        """The first row without a value; None where every row has one."""
        return next((i for i, row in enumerate(self._rows) if row is None), None)

    def reach(self, start: int, limit: int) -> tuple[int, int]:
        """(stop, bytes) of the longest span from start whose envelopes have at most limit bytes together."""
        total = 0
        for i in range(start, self.length):
            size = len(self._rows[i] or b"")
            if size > limit - total:
                return i, total
            total += size
        return self.length, total

    def write(self, start: int, stop: int, offsets: Buffer, data: Buffer, validity: Buffer) -> int:
        """Write a span as the three buffers of an Arrow binary array; returns how many rows are null."""
        rows = self._rows[start:stop]
        _, nulls, bits, ends, content = _text_buffers(rows, "i")
        _fill(offsets, ends)
        _fill(data, content)
        _fill(validity, bits or _bitmap([True] * len(rows)))
        return nulls

    def frames(self, start: int, stop: int, subjects: Sequence[bytes], which: Buffer | None) -> bytes:
        """A span as NATS PUB commands: ``which`` holds the index of each row's subject as 32-bit integers,
        None where all rows go to the first.
        """
        chosen = None if which is None else struct.unpack_from(f"<{self.length}i", bytes(which))
        out = bytearray()
        for i in range(start, stop):
            subject, row = subjects[chosen[i] if chosen else 0], self._rows[i] or b""
            out += b"PUB %s %d\r\n%s\r\n" % (subject, len(row), row)
        return bytes(out)


def _header_dict(entries: list[tuple[bytes | None, bytes]]) -> dict[str, bytes]:
    if any(name is None for name, _ in entries):
        raise UsageError("a header name is null")
    return {(name or b"").decode(): value for name, value in entries}


def _fill(target: Buffer, content: bytes) -> None:
    view = memoryview(target).cast("B")
    if len(view) < len(content):
        raise UsageError("the buffers are too small for the span")
    view[: len(content)] = content


def _bitmap(valid: Sequence[bool]) -> bytes:
    bits = bytearray((len(valid) + 7) >> 3)
    for i, is_valid in enumerate(valid):
        bits[i >> 3] |= is_valid << (i & 7)
    return bytes(bits)


def _text_buffers(rows: Sequence[bytes | None], code: str) -> TextBuffers:
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row or b""))
    nulls = sum(row is None for row in rows)
    validity = _bitmap([row is not None for row in rows]) if nulls else None
    return (
        len(rows),
        nulls,
        validity,
        struct.pack(f"<{len(ends)}{code}", *ends),
        b"".join(row or b"" for row in rows),
    )


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def _decoded(rows: Column, reader: Callable[[bytes], Any], bad: list[int]) -> list[Any]:
    """A message or ack for each sound row, None for the others, whose indexes are added to bad."""
    values: list[Any] = []
    for i, row in enumerate(rows.rows):
        try:
            values.append(None if row is None else reader(row))
        except EnvelopeError:
            bad.append(i)
            values.append(None)
    return values


class MessageColumns:
    """Message envelopes decoded into columns."""

    def __init__(self, rows: Column, large: bool, raw: bool, _allocate: Callable[[int], Any]) -> None:
        self.bad: list[int] = []
        self._messages = _decoded(rows, unmarshal_message, self.bad)
        self._code = "q" if large else "i"
        self._values = [message and message.value for message in self._messages]
        if raw:
            for i in self.bad:
                self._values[i] = rows.rows[i]

    def _texts(self, name: str) -> TextBuffers:
        fields = [getattr(message, name) if message else None for message in self._messages]
        encoded = [field.encode() if isinstance(field, str) else field for field in fields]
        return _text_buffers([field or None for field in encoded], self._code)

    def _ints(self, name: str) -> bytes:
        return _numbers(int(getattr(message, name)) if message else 0 for message in self._messages)

    def columns(self) -> dict[str, Any]:
        """Field name to (rows, nulls, validity, offsets, data) of texts, to data of numbers."""
        headers = [message.headers if message else {} for message in self._messages]
        ends = [0]
        for row in headers:
            ends.append(ends[-1] + len(row))
        return {
            "key": self._texts("key"),
            "value": _text_buffers(self._values, self._code),
            "ack_inbox": self._texts("ack_inbox"),
            "correlation_id": self._texts("correlation_id"),
            "ack_policy": self._ints("ack_policy"),
            "expected_offset": self._ints("offset"),
            "header_offsets": struct.pack(f"<{len(ends)}i", *ends),
            "header_names": _text_buffers([name.encode() for row in headers for name in row], "i"),
            "header_values": _text_buffers([value for row in headers for value in row.values()], "i"),
            "validity": _bitmap([message is not None for message in self._messages]),
        }


class AckColumns:
    """Ack envelopes decoded into columns."""

    def __init__(self, rows: Column, large: bool, _allocate: Callable[[int], Any]) -> None:
        self.bad: list[int] = []
        self._acks = _decoded(rows, unmarshal_ack, self.bad)
        self._code = "q" if large else "i"

    def _texts(self, name: str, *, empty_is_null: bool = False) -> TextBuffers:
        fields = [getattr(ack, name).encode() if ack else None for ack in self._acks]
        return _text_buffers([field or None for field in fields] if empty_is_null else fields, self._code)

    def _ints(self, name: str) -> bytes:
        return _numbers(int(getattr(ack, name)) if ack else 0 for ack in self._acks)

    def columns(self) -> dict[str, Any]:
        """Field name to (rows, nulls, validity, offsets, data) of texts, to data of numbers."""
        return {
            "stream": self._texts("stream"),
            "partition_subject": self._texts("partition_subject"),
            "msg_subject": self._texts("msg_subject"),
            "ack_inbox": self._texts("ack_inbox", empty_is_null=True),
            "correlation_id": self._texts("correlation_id", empty_is_null=True),
            "offset": self._ints("offset"),
            "ack_policy": self._ints("ack_policy"),
            "reception_timestamp": self._ints("reception_timestamp_ns"),
            "commit_timestamp": self._ints("commit_timestamp_ns"),
            "ack_error": self._ints("error"),
            "validity": _bitmap([ack is not None for ack in self._acks]),
        }


__all__ = ["AckColumns", "Column", "Envelopes", "HeaderColumn", "MessageColumns"]

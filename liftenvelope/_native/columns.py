"""Arrow columns to encode, in plain Python: the reference for the columns of ``src/_fastbatch.pyx``.

A column is a Python sequence or the buffers of an Arrow array
(https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from liftenvelope._checks import as_bytes, as_text, storable_headers
from liftenvelope.errors import EnvelopeError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Column", "HeaderColumn", "Headers", "row_headers"]

#: Header names to values of one row. A null name is an error when the row is encoded; a null value is empty.
Headers: TypeAlias = "Mapping[bytes | None, bytes | None]"


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise UsageError(f"the Arrow array is broken: {what}; its validate(full=True) says more")


def _bits(validity: Buffer | None, first: int, length: int) -> list[bool]:
    if validity is None:
        return [True] * length
    raw = bytes(validity)
    _require(first <= len(raw) * 8 - length, "its validity bitmap is too short")
    return [bool(raw[i >> 3] >> (i & 7) & 1) for i in range(first, first + length)]


def _ends(offsets: Buffer | None, first: int, length: int, code: str) -> tuple[int, ...]:
    raw, width = bytes(offsets or b""), struct.calcsize(code)
    _require(first < len(raw) // width - length, "its offsets are too short")
    return struct.unpack_from(f"={length + 1}{code}", raw, first * width)


def _ascending(ends: Sequence[int], size: int) -> bool:
    return ends[0] >= 0 and ends[-1] <= size and all(begin <= end for begin, end in pairwise(ends))


class Column:
    """Column of nullable byte strings."""

    def __init__(self, rows: Sequence[bytes | None] = ()) -> None:
        self.rows = rows
        self.length = len(rows)
        #: Upper bound of the total size of the rows, in bytes: the data of null rows may count.
        self.nbytes = sum(len(row) for row in rows if row is not None)

    @staticmethod
    def same(item: bytes, length: int) -> Column:
        """Return a column with the same bytes in every row."""
        return Column([item] * length)

    @staticmethod
    def of_sequence(rows: Iterable[Any], name: str, text: bool) -> Column:
        """Return a column of Python objects: bytes-like ones, or str in a text column; None is null."""

        def converted(index: int, item: Any) -> bytes | None:
            if item is None:
                return None
            return as_text(f"{name}[{index}]", item).encode() if text else as_bytes(f"{name}[{index}]", item)

        return Column([converted(index, item) for index, item in enumerate(tuple(rows))])

    @staticmethod
    def of_binary(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        data: Buffer | None,
        large: bool,
    ) -> Column:
        """Return a column of an Arrow (Large)Binary or (Large)String array: length, offset and buffers."""
        if length == 0:
            return Column()
        ends = _ends(offsets, first, length, "q" if large else "i")
        valid, raw = _bits(validity, first, length), bytes(data or b"")
        _require(_ascending(ends, len(raw)), "its offsets point outside of its data")
        return Column([raw[ends[i] : ends[i + 1]] if valid[i] else None for i in range(length)])

    @staticmethod
    def of_views(
        length: int, first: int, validity: Buffer | None, views: Buffer | None, data: Sequence[Buffer]
    ) -> Column:
        """Return a column of an Arrow BinaryView or StringView array: length, offset and buffers."""
        if length == 0:
            return Column()
        raw, buffers = bytes(views or b""), [bytes(buffer) for buffer in data]
        _require(first <= len(raw) // 16 - length, "its views are too short")
        valid = _bits(validity, first, length)
        return Column(
            [_viewed(raw, first + i, buffers) if is_valid else None for i, is_valid in enumerate(valid)]
        )

    def row(self, i: int) -> bytes | None:
        """Return the bytes of one row, None for null."""
        return self.rows[i]


def _viewed(views: bytes, i: int, buffers: list[bytes]) -> bytes:
    header: tuple[int, ...] = struct.unpack_from("=4i", views, i * 16)
    size, _, buffer, offset = header
    if 0 <= size <= 12:
        return views[i * 16 + 4 : i * 16 + 4 + size]
    sound = size >= 0 and 0 <= buffer < len(buffers) and 0 <= offset <= len(buffers[buffer]) - size
    _require(sound, "its views point outside of its data")
    return buffers[buffer][offset : offset + size]


def row_headers(i: int, headers: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Check the headers of one row; errors name the row. Used by both twins."""
    try:
        return storable_headers(headers)
    except (UsageError, EnvelopeError) as exc:
        raise type(exc)(f"row {i}: {exc.args[0]}") from None


class HeaderColumn:
    """Column of headers. If a name repeats in a row, the last value counts, at the position of the first."""

    def __init__(self, rows: Sequence[Headers]) -> None:
        self.rows = rows
        self.length = len(rows)

    @staticmethod
    def of_sequence(rows: Iterable[Mapping[str, Any] | None]) -> HeaderColumn:
        """Return a column of mappings of str to bytes-like; None means no headers."""
        checked = [row_headers(i, headers) for i, headers in enumerate(rows)]
        return HeaderColumn([{name.encode(): value for name, value in row.items()} for row in checked])

    @staticmethod
    def of_map(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        names: Column,
        values: Column,
    ) -> HeaderColumn:
        """Return a column of an Arrow map array: its length, offset, buffers, and its children as columns."""
        if length == 0:
            return HeaderColumn(())
        ends, valid = _ends(offsets, first, length, "i"), _bits(validity, first, length)
        sound = values.length == names.length and _ascending(ends, names.length)
        _require(sound, "its offsets point outside of its entries")
        runs = [range(ends[i], ends[i + 1]) if valid[i] else range(0) for i in range(length)]
        return HeaderColumn([{names.rows[j]: values.rows[j] for j in run} for run in runs])

"""Arrow arrays and iterables of rows as columns of the batch codec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from liftenvelope._checks import as_int64, require
from liftenvelope._native import batch
from liftenvelope.errors import UsageError, UsageTypeError

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = require("pyarrow", "arrow")

__all__ = ["LARGE", "MAX_CHUNK", "SMALL", "VIEWS", "column_of", "header_column_of", "offsets_of", "whole"]

MAX_CHUNK = 2**31 - 1
LARGE = (pa.large_binary(), pa.large_string())
SMALL = (pa.binary(), pa.string())
VIEWS = (pa.binary_view(), pa.string_view())


def column_of(rows: Any, name: str, *, text: bool = False) -> batch.Column:
    """Convert rows in any accepted form to a column of the batch codec."""
    if isinstance(rows, pa.ChunkedArray):
        rows = whole(rows)
    if isinstance(rows, pa.Array):
        return _arrow_column(rows, name)
    return batch.Column.of_sequence(_iterable(rows, name), name, text)


def _iterable(rows: Any, name: str) -> Iterable[Any]:
    single = isinstance(rows, str | bytes | bytearray | memoryview | Mapping)
    if single or not isinstance(rows, Iterable):
        kind = type(rows).__name__
        raise UsageTypeError(f"{name} must be an Arrow array or an iterable of rows, got {kind}")
    return rows


def whole(chunks: pa.ChunkedArray) -> pa.Array:
    """Return chunks as one array, with 64-bit offsets if they are large."""
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    _checked(chunks)
    if chunks.type in SMALL and chunks.nbytes > MAX_CHUNK:
        chunks = chunks.cast(pa.large_binary())
    return chunks.combine_chunks()


def _checked(rows: Any, *, full: bool = False) -> Any:
    """Validate an array before passing it to Arrow's own functions, which trust their input; return it."""
    try:
        rows.validate(full=full)
    except pa.ArrowInvalid as exc:
        raise UsageError(f"the Arrow array is broken: {exc}") from exc
    return rows


def _arrow_column(rows: pa.Array, name: str) -> batch.Column:
    if isinstance(rows, pa.DictionaryArray):
        rows = _checked(rows, full=True).dictionary_decode()
    if pa.types.is_fixed_size_binary(rows.type):
        rows = _checked(rows).cast(pa.large_binary())
    kind, buffers = rows.type, rows.buffers()
    if pa.types.is_null(kind):
        return batch.Column.of_sequence([None] * len(rows), name, False)
    if kind in SMALL or kind in LARGE:
        validity, offsets, data = buffers
        return batch.Column.of_binary(len(rows), rows.offset, validity, offsets, data, kind in LARGE)
    if kind in VIEWS:
        return batch.Column.of_views(len(rows), rows.offset, buffers[0], buffers[1], buffers[2:])
    raise UsageTypeError(f"{name} must be an Arrow array of binary or string, got {kind}")


def header_column_of(rows: Any) -> batch.HeaderColumn:
    """Convert rows of headers in any accepted form to a column of the batch codec."""
    if isinstance(rows, pa.ChunkedArray):
        rows = whole(rows)
    if not isinstance(rows, pa.Array):
        return batch.HeaderColumn.of_sequence(_iterable(rows, "headers"))
    if pa.types.is_null(rows.type):
        return batch.HeaderColumn.of_sequence([None] * len(rows))
    if not pa.types.is_map(rows.type):
        raise UsageTypeError(f"headers must be an Arrow array of map<string, binary>, got {rows.type}")
    names, values = _arrow_column(rows.keys, "header names"), _arrow_column(rows.items, "header values")
    validity, offsets = rows.buffers()[:2]
    return batch.HeaderColumn.of_map(len(rows), rows.offset, validity, offsets, names, values)


def offsets_of(expected: Any, rows: int) -> int | memoryview:
    """Return a single integer, or the buffer of one integer per row."""
    if not isinstance(expected, pa.Array | pa.ChunkedArray | Iterable):
        return as_int64("expected_offsets", expected)
    array = whole(expected) if isinstance(expected, pa.ChunkedArray) else expected
    if not isinstance(array, pa.Array):
        numbers = [_expected_offset(i, number) for i, number in enumerate(array)]
        array = pa.array(numbers, pa.int64())
    if not pa.types.is_integer(array.type) and not pa.types.is_null(array.type):
        raise UsageTypeError(f"expected_offsets must be integers, got {array.type}")
    if len(array) != rows:
        raise UsageError(f"expected_offsets must have as many rows as values, {rows}, got {len(array)}")
    try:
        array = _checked(array).cast(pa.int64()).fill_null(-1)
    except pa.ArrowInvalid as exc:
        raise UsageError(f"expected_offsets must fit in 64 bits: {exc}") from exc
    return memoryview(array.buffers()[1] or b"").cast("B")[array.offset * 8 :]


def _expected_offset(row: int, number: Any) -> int:
    return -1 if number is None else as_int64(f"expected_offsets[{row}]", number)

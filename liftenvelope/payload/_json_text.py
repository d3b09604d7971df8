"""JSON objects from columns, by Arrow's string kernels where a type allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from liftenvelope.errors import UsageError
from liftenvelope.payload._formats import PayloadEncoder
from liftenvelope.payload._rows import as_types
from liftenvelope.payload._types import is_text
from liftenvelope.payload.json_values import json_values, time_texts

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    import pyarrow.compute as pc

    from liftenvelope.payload._formats import pa

__all__ = ["JsonEncoder"]

#: Characters that JSON escapes other than by a backslash in front.
_CONTROL: Final = "[\\x00-\\x1f]"
#: First second of the year 1, and the one after the year 9999: the times that JSON has, in ISO 8601.
_FIRST, _END = -62_135_596_800, 253_402_300_800
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class JsonEncoder(PayloadEncoder):
    """Encodes rows as JSON objects. A null is written as ``null``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows; see :meth:`PayloadEncoder.encode`."""
        if not rows.num_columns:
            raise UsageError("data must have a column for the payload, got none")
        columns = as_types(rows, self._schema).columns
        members = [
            _member(field.name, columns[index], first=not index) for index, field in enumerate(self._schema)
        ]
        return _concat(*members, "}").cast(pa.binary())


def _member(name: str, column: pa.Array, *, first: bool) -> pa.Array:
    _check_times(name, column)
    opening = ("{" if first else ",") + json.dumps(name, ensure_ascii=False) + ":"
    return _concat(opening, pc.fill_null(_texts(name, column), "null"))


def _concat(*parts: pa.Array | str) -> pa.Array:
    large = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in (*parts, "")]
    return pc.binary_join_element_wise(*large)


def _texts(name: str, column: pa.Array) -> pa.Array:
    """Return the values of a column as large strings of JSON."""
    kind, large = column.type, pa.large_string()
    if is_text(kind):
        return _quoted(column.cast(large))
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_float64(kind):
        if not pc.all(pc.is_finite(column)).as_py() and column.null_count < len(column):
            raise UsageError(f"data: column {name!r} must have finite numbers for JSON, got NaN or infinity")
        return column.cast(large)
    if pa.types.is_nested(kind):
        return pa.array(_nested(name, column), large)
    return column.cast(large)


def _quoted(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        items = [None if text is None else json.dumps(text, ensure_ascii=False) for text in texts.to_pylist()]
        return pa.array(items, pa.large_string())
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return _concat('"', escaped, '"')


def _check_times(name: str, column: pa.Array) -> None:
    """Raise UsageError for a time that Arrow has no text for, also inside lists and structs."""
    kind = column.type
    if pa.types.is_struct(kind):
        for child in column.flatten():
            _check_times(name, child)
    elif pa.types.is_nested(kind):
        _check_times(name, column.flatten())
    elif pa.types.is_timestamp(kind):
        factor = _PER_SECOND[kind.unit]
        for value in pc.min_max(column.cast(pa.int64())).as_py().values():
            if value is not None and not _FIRST * factor <= value < _END * factor:
                text = f"data: column {name!r} must have times of the years 1 to 9999 for JSON"
                raise UsageError(f"{text}, got {value} {kind.unit} since 1970: write null, or another format")


def _times(column: pa.Array) -> pa.Array:
    return _concat('"', time_texts(column), '"' if column.type.tz is None else 'Z"')


def _nested(name: str, column: pa.Array) -> Iterator[str | None]:
    try:
        values = json_values(column)
    except ValueError as exc:
        raise UsageError(f"data: column {name!r} must have values that JSON can carry: {exc}") from exc
    for value in values:
        try:
            text = json.dumps(
                value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_leaf
            )
        except ValueError as exc:
            raise UsageError(f"data: column {name!r} must have values that JSON can carry: {exc}") from exc
        yield None if value is None else text


def _leaf(value: Decimal) -> str:
    """Return a decimal inside a list or struct as text."""
    return str(value)

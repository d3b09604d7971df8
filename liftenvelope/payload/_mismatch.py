"""Find the field of a JSON object that does not fit its type."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["mismatch"]


def mismatch(row: Mapping[str, Any], schema: pa.Schema) -> str | None:
    """Return the reason why pyarrow's reader refuses an object; None if it may take it.

    The reader has the last word: it parses timestamps and decimals, and refuses fields that stand twice.
    """
    faults = (_fault(field.name, row.get(field.name), field.type) for field in schema)
    return next((fault for fault in faults if fault is not None), None)


def _fault(path: str, value: Any, kind: pa.DataType) -> str | None:
    faults: Iterable[str | None] = ()
    if pa.types.is_struct(kind) and isinstance(value, dict):
        faults = (_fault(f"{path}.{field.name}", value.get(field.name), field.type) for field in kind)
    elif _is_list(kind) and isinstance(value, list):
        faults = (_fault(f"{path}[{index}]", item, kind.value_type) for index, item in enumerate(value))
    elif value is not None and not _fits(value, kind):
        return f"field {path!r} must be {kind}, got {reprlib.repr(value)}"
    return next((fault for fault in faults if fault is not None), None)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, dict | list) or pa.types.is_nested(kind):
        return False
    if isinstance(value, bool) or pa.types.is_boolean(kind):
        return isinstance(value, bool) and bool(pa.types.is_boolean(kind))
    if isinstance(value, str):
        return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    if pa.types.is_integer(kind):
        signed = bool(pa.types.is_signed_integer(kind))
        least = -(2 ** (kind.bit_width - 1)) if signed else 0
        return isinstance(value, int) and least <= value < 2 ** (kind.bit_width - signed)
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))

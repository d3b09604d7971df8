"""Decimals that pyarrow's JSON reader must not see.

The reader moves a decimal to the scale of its field with a power of ten from a table of 39, and does not
check the index (pyarrow 26: ``1e-99`` reads past the table, ``1e-999999999`` ends the process). So messages
with such a decimal are found first. A regular expression over all values finds the few that may have one,
and only these are parsed here.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    import pyarrow.compute as pc

    from liftenvelope.payload._formats import pa

__all__ = ["DecimalGuard"]

#: Most digits that the reader can move a decimal by.
_MOST_MOVED: Final = 38
#: A decimal has 39 places or more only with 23 in its digits, or with 17 in its exponent. The third part is
#: the escape of a character that a decimal may have: a decimal may be a string as well.
_SUSPECT: Final = r"\.[0-9]{23}|[0-9.][eE]-0*(1[7-9]|[2-9][0-9]|[1-9][0-9]{2})|\\u00(2[bBdDeE]|3[0-9]|[46]5)"
_NUMBER: Final = re.compile(r"[-+]?[0-9]*(?:\.([0-9]*))?(?:[eE]([-+]?)0*([0-9]*))?")
#: Digits of an exponent that are converted. Python refuses to convert more than 4,300.
_LONGEST: Final = 20


class DecimalGuard:
    """Finds messages with a decimal that has far more places than its field.

    Args:
        schema: Fields of the messages.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = [field for field in schema if _has_decimal(field.type)]

    def faults(self, values: pa.Array) -> dict[int, str]:
        """Return the faults of such messages, by index. No message is looked at without a decimal field."""
        if not self._fields:
            return {}
        suspects = pc.indices_nonzero(pc.match_substring_regex(values, _SUSPECT)).to_pylist()
        found = {index: self._fault(values[index].as_py()) for index in suspects}
        return {index: fault for index, fault in found.items() if fault is not None}

    def _fault(self, value: bytes) -> str | None:
        try:
            row = json.loads(value, parse_float=str, parse_int=str, parse_constant=str)
        except ValueError:  # no JSON, which pyarrow's reader never sees
            return None
        except RecursionError:
            return "an object that is nested too deeply to check its decimals"
        if not isinstance(row, dict):
            return None
        faults = (_fault(field.name, row.get(field.name), field.type) for field in self._fields)
        return next((fault for fault in faults if fault is not None), None)


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_decimal(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_decimal(kind.value_type)
    return bool(pa.types.is_decimal(kind))


def _fault(path: str, value: Any, kind: pa.DataType) -> str | None:
    faults: Iterable[str | None] = ()
    if pa.types.is_struct(kind) and isinstance(value, dict):
        faults = (_fault(f"{path}.{field.name}", value.get(field.name), field.type) for field in kind)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = value if isinstance(value, list) else ()
        faults = (_fault(f"{path}[{index}]", item, kind.value_type) for index, item in enumerate(items))
    elif pa.types.is_decimal(kind) and isinstance(value, str) and _places(value) - kind.scale > _MOST_MOVED:
        return f"field {path!r} must be {kind}, got {reprlib.repr(value)}"
    return next((fault for fault in faults if fault is not None), None)


def _places(text: str) -> int:
    """Return the number of decimal places of a number; 0 for another text."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return 0
    fraction, sign, exponent = (found[group] or "" for group in (1, 2, 3))
    return len(fraction) - int(sign + (exponent[:_LONGEST] or "0"))

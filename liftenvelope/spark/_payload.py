"""Options ``payload`` and ``onBad``, and the typed columns of a source as Spark has them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from liftenvelope._checks import require
from liftenvelope.bulk import DeadLetter
from liftenvelope.errors import UsageError
from liftenvelope.payload import PayloadFormat, as_payload, described_text
from liftenvelope.payload.row_decoder import added_columns
from liftenvelope.spark._words import Words
from liftenvelope.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from liftenvelope.bulk import OnBad
else:
    pa = require("pyarrow", "spark")

__all__ = ["bad_option", "payload_fields", "payload_option", "quoted"]

#: Most digits of Spark's decimals.
_DIGITS: Final = 38
_PLAIN: Final = (
    (pa.types.is_boolean, pa.bool_(), "BOOLEAN"),
    (pa.types.is_int8, pa.int8(), "TINYINT"),
    (pa.types.is_int16, pa.int16(), "SMALLINT"),
    (pa.types.is_uint8, pa.int16(), "SMALLINT"),
    (pa.types.is_int32, pa.int32(), "INT"),
    (pa.types.is_uint16, pa.int32(), "INT"),
    (pa.types.is_int64, pa.int64(), "BIGINT"),
    (pa.types.is_uint32, pa.int64(), "BIGINT"),
    (pa.types.is_uint64, pa.decimal128(20, 0), "DECIMAL(20,0)"),
    (pa.types.is_float16, pa.float32(), "FLOAT"),
    (pa.types.is_float32, pa.float32(), "FLOAT"),
    (pa.types.is_float64, pa.float64(), "DOUBLE"),
    (pa.types.is_string, pa.string(), "STRING"),
    (pa.types.is_large_string, pa.string(), "STRING"),
    (pa.types.is_string_view, pa.string(), "STRING"),
    (pa.types.is_binary, pa.binary(), "BINARY"),
    (pa.types.is_large_binary, pa.binary(), "BINARY"),
    (pa.types.is_binary_view, pa.binary(), "BINARY"),
    (pa.types.is_fixed_size_binary, pa.binary(), "BINARY"),
    (pa.types.is_date, pa.date32(), "DATE"),
)


def payload_option(words: Words) -> PayloadFormat | None:
    """Return the format of the option ``payload``; None for values as they are.

    Raises:
        OptionError: There is no such format.
    """
    text = words.text("payload")
    try:
        found = None if text is None else as_payload(described_text(text))
    except UsageError as exc:
        raise OptionError(f"option payload: {exc}") from exc
    return found


def bad_option(words: Words) -> OnBad:
    """Return the value for ``on_bad=`` of the option ``onBad``.

    Raises:
        OptionError: The option is malformed.
    """
    text = words.text("onBad") or "fail"
    if text != "fail" and words.text("payload") is None:
        raise OptionError(f"onBad={text!r:.100} needs payload; leave it out")
    if text in ("fail", "column"):
        return "fail" if text == "fail" else "column"
    try:
        given: Any = json.loads(text)
        return DeadLetter(**given)
    except (ValueError, TypeError, RecursionError) as exc:
        expected = '"fail", "column", or {"stream": "BAD", "subject": "bad"}'
        raise OptionError(f"onBad must be {expected}, got {text!r:.100}: {exc}") from exc


def payload_fields(kind: PayloadFormat, on_bad: OnBad, others: Iterable[str]) -> list[tuple[pa.Field, str]]:
    """Return the columns that a payload gives to Spark, each with its type in Spark's DDL.

    Args:
        kind: Format of the payload.
        on_bad: Policy for bad messages.
        others: Columns of the source.

    Raises:
        OptionError: The format would infer its schema; Spark has no such type; or a name stands twice.
    """
    if kind.sample_rows:
        example = f'{{"format": "{kind.name}", "schema": {{"id": "int64"}}}}'
        raise OptionError(f"payload must have a schema in Spark, as in {example}, got {kind.name!r}")
    added = added_columns(packed=kind.packed, keeps_bad=on_bad == "column")
    fields = [*added, *kind.decoder().schema]
    taken = {name.lower() for name in others}
    for field in fields:
        if field.name.lower() in taken:
            text = f"payload: field {field.name!r} must not have the name of another column"
            raise OptionError(f'{text}: give the payload a "prefix"')
        taken.add(field.name.lower())
    found = [(field.name, *_in_spark(field.name, field.type)) for field in fields]
    return [(pa.field(name, target), ddl) for name, target, ddl in found]


def _in_spark(name: str, kind: Any) -> tuple[Any, str]:
    """Return the Arrow type in which Spark takes a column, and its type in DDL.

    Raises:
        OptionError: Spark has no such type.
    """
    for is_kind, target, ddl in _PLAIN:
        if is_kind(kind):
            return target, ddl
    if pa.types.is_timestamp(kind):
        zone, ddl = (None, "TIMESTAMP_NTZ") if kind.tz is None else ("UTC", "TIMESTAMP")
        return pa.timestamp("us", zone), ddl
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _DIGITS:
        return pa.decimal128(kind.precision, kind.scale), f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_dictionary(kind):
        return _in_spark(name, kind.value_type)
    return _nested(name, kind)


def _nested(name: str, kind: Any) -> tuple[Any, str]:
    if pa.types.is_map(kind):
        (key, key_ddl), (item, item_ddl) = (_in_spark(name, one) for one in (kind.key_type, kind.item_type))
        return pa.map_(key, item), f"MAP<{key_ddl}, {item_ddl}>"
    if pa.types.is_struct(kind):
        found = [(one.name, *_in_spark(f"{name}.{one.name}", one.type)) for one in kind]
        inner = ", ".join(f"{quoted(one)}: {ddl}" for one, _, ddl in found)
        return pa.struct([(one, target) for one, target, _ in found]), f"STRUCT<{inner}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        target, ddl = _in_spark(name, kind.value_type)
        return pa.list_(pa.field("element", target)), f"ARRAY<{ddl}>"
    raise OptionError(f"payload: field {name!r} must have a type that Spark has, got {kind}: leave it out")


def quoted(name: str) -> str:
    """Return a name in the backticks of Spark's DDL."""
    return f"`{name.replace('`', '``')}`"

"""Many JSON objects in one call of pyarrow's reader, with each row bound to its message.

The reader parses a sequence of objects, separated by any whitespace or none. A message with two objects, or
half of one, would shift all rows after it. So a marker stands between two messages: an object whose only
name is a secret of this process. A block counts as parsed only if its rows alternate: a row without the
marker, a row with it, and so on to a row without it. No message can contain the secret, so the markers are
the ones written here, in this order, and the text before, between and after them was exactly one row each.

The values are copied once, when they are joined: of a second copy, the system takes most of the time, to
clear the memory.

The fate of a message depends on that message alone: a block that fails is split until the messages that fail
alone are found.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from liftenvelope.payload._formats import BadValue
from liftenvelope.payload._json_decimals import DecimalGuard
from liftenvelope.payload._mismatch import mismatch
from liftenvelope.payload._rows import as_types, bisected, empty_batch, in_one, infinities, joined, with_nulls

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj
else:
    import pyarrow.compute as pc
    import pyarrow.json as pj

    from liftenvelope.payload._formats import pa

__all__ = ["BlockParser", "object_of"]

#: Bytes to parse in one call: the reader counts in 32 bits.
_BLOCK_BYTES: Final = 32 * 1024 * 1024
#: A block that fails is split by this number, until it has few rows, which are searched one by one.
_PARTS: Final = 8
_SEARCH_ROWS: Final = 128
_SPACE: Final = b" \t\r\n"
#: Beginnings of the numbers that only pyarrow's reader knows.
_CONSTANTS: Final = ("NaN", "Inf")
_NOT_JSON: Final = "no JSON object"
_INFINITE: Final = "a number is too large for a double"
#: Parsed in place of a value that the reader must not see: a row of nulls.
_EMPTY: Final = b"{}"


class _ConstantError(Exception):
    """A number that JSON does not have."""


def _refused(text: str) -> NoReturn:
    raise _ConstantError(text)


def object_of(value: bytes) -> dict[str, Any] | None:
    """Return a JSON object; None if a value is something else.

    An object that Python cannot hold, such as one nested too deeply, is returned as an empty one.
    """
    if value.lstrip(_SPACE)[:1] != b"{":
        return None
    try:
        found: dict[str, Any] = json.loads(value.decode(), parse_constant=_refused)
    except (json.JSONDecodeError, UnicodeDecodeError, _ConstantError):
        return None
    except (RecursionError, ValueError):  # ValueError: more digits than Python converts
        return {}
    return found


class BlockParser:
    """Parses JSON objects into the columns of a schema, and ignores all other fields."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        readable = pa.schema([field.with_type(_read_type(field.type)) for field in schema])
        self._has_large_lists = readable != schema
        self._decimals = DecimalGuard(schema)
        secret = secrets.token_hex(12)  # the reader takes a byte of it as long as one of a message
        self._separator = b'\n{"%s":1}\n' % secret.encode()
        self._options = pj.ParseOptions(
            explicit_schema=readable.append(pa.field(secret, pa.int8())),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )

    def parse(self, values: pa.Array) -> tuple[pa.RecordBatch, Sequence[BadValue]]:
        """Return one row per value, with nulls for a bad value, and the bad values."""
        values = values.cast(pa.binary())
        refused = self._decimals.faults(values)
        if refused:
            kept = pa.array([index not in refused for index in range(len(values))], pa.bool_())
            values = pc.if_else(kept, values, _EMPTY)
        rows, size = len(values), values.nbytes
        step = rows if size <= _BLOCK_BYTES else max(1, rows * _BLOCK_BYTES // size)
        batch, bad = self._parse_parts(values, step)
        refusals = [BadValue(index, reason) for index, reason in refused.items()]
        return batch, sorted([*bad, *refusals], key=lambda value: value.index)

    def _parse_parts(self, values: pa.Array, step: int) -> tuple[pa.RecordBatch, Sequence[BadValue]]:
        batches: list[pa.RecordBatch] = []
        bad: list[BadValue] = []
        for start in range(0, len(values), max(step, 1)):
            batch, found = self._parse_block(values.slice(start, step))
            batches.append(batch)
            bad += [BadValue(start + value.index, value.reason) for value in found]
        return joined(batches or [empty_batch(self._schema)], self._schema), bad

    def _parse_block(self, values: pa.Array) -> tuple[pa.RecordBatch, Sequence[BadValue]]:
        text = self._plain_text(values)
        found = "" if text is None else self._read(text, len(values))
        if not isinstance(found, str):
            return found, ()
        if len(values) > _SEARCH_ROWS:
            return self._parse_parts(values, max(_SEARCH_ROWS, len(values) // _PARTS))
        return self._search(values.to_pylist())

    def _search(self, items: list[bytes]) -> tuple[pa.RecordBatch, Sequence[BadValue]]:
        """Find the bad values of a block, and parse the others."""
        fates: list[int | str] = [self._fault(item) for item in items]
        likely = [index for index, fault in enumerate(fates) if not fault]
        stripped = pa.array([items[index].lstrip(_SPACE) for index in likely], pa.binary())
        batch, found = bisected(stripped, self._try, self._schema)
        for index, fate in zip(likely, found, strict=True):
            fates[index] = fate
        bad = [BadValue(index, fate) for index, fate in enumerate(fates) if isinstance(fate, str)]
        return with_nulls(batch, [None if isinstance(fate, str) else fate for fate in fates]), bad

    def _fault(self, item: bytes) -> str:
        found = object_of(item)
        return _NOT_JSON if found is None else mismatch(found, self._schema) or ""

    def _plain_text(self, values: pa.Array) -> pa.Buffer | None:
        """Return a block as text if pyarrow's reader and ours agree on each value, so that it may be tried.

        The reader does not check UTF-8, and takes ``NaN`` and ``Infinity`` for numbers.
        """
        if not pc.all(pc.starts_with(values, "{")).as_py():
            return None
        try:
            text = in_one(values.cast(pa.string()))
        except pa.ArrowInvalid:
            return None
        # One search in the whole text for each: RE2 skips to a letter that all matches begin with.
        if any(pc.match_substring_regex(text, name)[0].as_py() for name in _CONSTANTS):
            return None
        return self._joined(values)

    def _try(self, values: pa.Array) -> pa.RecordBatch | str:
        return self._read(self._joined(values), len(values))

    def _joined(self, values: pa.Array) -> pa.Buffer:
        """Return values as one, with markers between them."""
        lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        _, ends, data = pc.binary_join(lists, self._separator).buffers()
        return data.slice(0, memoryview(ends).cast("i")[1])

    def _read(self, text: pa.Buffer, rows: int) -> pa.RecordBatch | str:
        """Return one row per value, or a fault if any value is bad. Each value must begin with a brace.

        The brace matters: pyarrow 26 crashes if the first row of a block is ``null``.
        """
        options = pj.ReadOptions(use_threads=False, block_size=text.size + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), read_options=options, parse_options=self._options)
        except pa.ArrowInvalid as exc:
            return str(exc).removeprefix("JSON parse error: ").removesuffix(" in row 0")
        found = _between_markers(table.combine_chunks().to_batches()[0], rows)
        if found is None:
            return _NOT_JSON
        # The reader takes an integer of 309 digits or more for infinity.
        if any(map(infinities, found.columns)):
            return _INFINITE
        return as_types(found, self._schema) if self._has_large_lists else found


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without large lists, which pyarrow's reader does not have."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_read_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_type(field.type)) for field in kind])
    return kind


def _between_markers(batch: pa.RecordBatch, rows: int) -> pa.RecordBatch | None:
    """Return the rows without the markers; None unless there is one marker between any two."""
    if batch.num_rows != 2 * rows - 1:
        return None
    marked = batch.column(batch.num_columns - 1).is_valid()
    alternating = pa.py_buffer(b"\xaa" * (rows // 4 + 1))  # false, true, from the lowest bit on
    if not marked.equals(pa.Array.from_buffers(pa.bool_(), 2 * rows - 1, [None, alternating])):
        return None
    return batch.filter(pc.invert(marked)).select(range(batch.num_columns - 1))

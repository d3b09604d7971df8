"""msgpack payloads: one map per message."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from liftenvelope._checks import as_count, require
from liftenvelope.errors import UsageError
from liftenvelope.payload._formats import Decoded, InferredFormat, PayloadDecoder, PayloadEncoder
from liftenvelope.payload._inference import infer_schema
from liftenvelope.payload._objects import Fault, columns_of
from liftenvelope.payload._rows import as_types
from liftenvelope.payload._types import OBJECT_TYPES, as_schema, plain_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    from liftenvelope.payload._formats import pa

    pc = require("pyarrow.compute", "payload")

__all__ = ["Msgpack"]

#: Type of the extension for timestamps, -1.
_TIMESTAMP: Final = b"\xff"
#: Beginnings of timestamps of 4, 8 and 12 bytes. The general forms of extensions, with a size, count as well.
_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\x04\xff", b"\x08\xff", b"\x0c\xff")
#: Errors of msgpack for a value that it cannot unpack.
_MALFORMED: Final = (ValueError, OverflowError, OSError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Msgpack(InferredFormat):
    """msgpack maps, one per message. Needs the package ``msgpack``.

    A missing field and nil are null. A value that does not fit its type makes the message bad. Nothing is
    cast, except integers to floats that hold them exactly.

    Attributes:
        schema: Fields and their types: bool, integers, float64, string, binary, timestamp[us] with a
            zone, and lists and structs of them. Default: inferred from the first messages of the range.
        sample: Number of first messages from which the schema is inferred. Default 1,000.
        max_items: Most items of an array or map anywhere in a message. A message with more is bad. Default
            100,000.
        prefix: Text in front of the names of the columns.

    Raises:
        UsageError: An option is invalid.
        MissingExtraError: The package ``msgpack`` is not installed.
    """

    _: KW_ONLY
    max_items: int = 100_000

    name: ClassVar[str] = "msgpack"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("msgpack", "payload")
        as_count("max_items", self.max_items)
        if self.schema is not None:
            as_schema("schema", self.schema, OBJECT_TYPES)

    def decoder(
        self, sample: pa.Array | None = None, *, columns: Collection[str] | None = None
    ) -> PayloadDecoder:
        """Return a decoder; see :meth:`PayloadFormat.decoder`."""
        return MsgpackDecoder(self, self.fields(sample), columns)

    def _inferred(self, sample: pa.Array) -> pa.Schema:
        return infer_schema([row for row in _rows(sample, self.max_items) if not isinstance(row, Fault)])

    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder; see :meth:`PayloadFormat.encoder`."""
        return MsgpackEncoder(as_schema("data", plain_schema(self.stripped(schema)), OBJECT_TYPES))


def _rows(values: pa.Array, max_items: int) -> list[dict[Any, Any] | Fault]:
    msgpack: Any = require("msgpack", "payload")
    unpack: Callable[..., Any] = msgpack.unpackb
    found = values.to_pylist()
    # A size that an array claims is allocated at once, but a value can't claim more items than it has bytes.
    if (pc.max(pc.binary_length(values)).as_py() or 0) > max_items:
        return [_unpacked(unpack, value, max_items) for value in found]
    try:
        rows = list(map(unpack, found))
    except _MALFORMED:
        return [_unpacked(unpack, value, max_items) for value in found]
    # The regular expression takes a quarter of the time of match_substring.
    for index in pc.indices_nonzero(pc.match_substring_regex(values, _TIMESTAMP)).to_pylist():
        rows[index] = _unpacked(unpack, found[index], max_items)
    return rows if set(map(type, rows)) <= {dict} else list(map(_as_map, rows))


def _unpacked(unpack: Callable[..., Any], value: bytes, max_items: int) -> dict[Any, Any] | Fault:
    try:
        return _as_map(_carefully_unpacked(unpack, value, max_items))
    except _MALFORMED as exc:
        return Fault(f"no msgpack map: {str(exc) or type(exc).__name__}")


def _as_map(found: Any) -> dict[Any, Any] | Fault:
    return found if isinstance(found, (dict, Fault)) else Fault(f"no msgpack map: {type(found).__name__}")


def _carefully_unpacked(unpack: Callable[..., Any], value: bytes, max_items: int) -> Any:
    # The hook takes three times as long as all the rest, and each argument a tenth of it.
    hook = _dated if any(value.find(mark) >= 0 for mark in _TIMESTAMPS) else None
    # timestamp=3, datetimes, would drop nanoseconds in silence.
    return unpack(value, timestamp=0, max_array_len=max_items, max_map_len=max_items, object_hook=hook)


def _dated(row: dict[Any, Any]) -> dict[Any, Any]:
    """Replace timestamps in a map, and in lists in it, by datetimes, which have microseconds.

    Raises:
        ValueError: A timestamp has nanoseconds, or no datetime can hold it.
    """
    for name, value in row.items():
        if isinstance(value, list):
            row[name] = [_date(item) for item in value]
        elif hasattr(value, "to_datetime"):
            row[name] = _date(value)
    return row


def _date(value: Any) -> Any:
    if isinstance(value, list):
        return [_date(item) for item in value]
    if not hasattr(value, "to_datetime"):
        return value
    if value.nanoseconds % 1_000:
        raise ValueError("a timestamp with nanoseconds")
    return value.to_datetime()


class MsgpackDecoder(PayloadDecoder):
    """Decodes msgpack maps of one schema."""

    def __init__(self, kind: Msgpack, fields: pa.Schema, columns: Collection[str] | None) -> None:
        self.schema = kind.prefixed(fields, columns)
        names = set(self.schema.names)
        self._fields = pa.schema([f for f in fields if kind.prefix + f.name in names])
        self._max_items = kind.max_items

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values; see :meth:`PayloadDecoder.decode`."""
        batch, bad = columns_of(values, partial(_rows, max_items=self._max_items), self._fields)
        return Decoded([pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)], bad)


class MsgpackEncoder(PayloadEncoder):
    """Encodes rows as msgpack maps."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows; see :meth:`PayloadEncoder.encode`."""
        msgpack: Any = require("msgpack", "payload")
        packer = msgpack.Packer(datetime=True)
        named = as_types(rows, self._schema)
        try:
            return pa.array([packer.pack(row) for row in named.to_pylist()], pa.binary())
        except (ValueError, OverflowError, TypeError) as exc:
            raise UsageError(f"data must have values that msgpack can carry: {exc}") from exc

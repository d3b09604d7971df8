"""JSON payloads: one object per message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from liftenvelope._checks import as_choice
from liftenvelope.errors import UsageError
from liftenvelope.payload._formats import (
    EXTRA,
    BadValue,
    Decoded,
    InferredFormat,
    PayloadDecoder,
    PayloadEncoder,
)
from liftenvelope.payload._inference import infer_schema
from liftenvelope.payload._json_blocks import BlockParser, object_of
from liftenvelope.payload._json_text import JsonEncoder
from liftenvelope.payload._rows import with_nulls
from liftenvelope.payload._types import JSON_TYPES, as_schema, plain_schema

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["Json"]


@dataclass(frozen=True)
class Json(InferredFormat):
    """JSON objects, one per message, by pyarrow's JSON reader.

    A missing field and ``null`` are null. A value that does not fit its type makes the message bad. Nothing
    is cast, except that numbers of a ``float64`` field are rounded to the nearest double.

    Attributes:
        schema: Fields and their types: bool, integers, float64, string, timestamp, decimal128, and lists and
            structs of them. Default: inferred from the first messages of the range.
        sample: Number of first messages from which the schema is inferred. Default 1,000.
        unknown: Fields that the schema does not have: ``"drop"`` (default), or ``"keep"`` them in the column
            ``extra``, as a JSON object. A message is bad if they can't be kept: a name that stands twice, a
            number of more than 4,300 digits, too many levels.
        prefix: Text in front of the names of the columns.

    Raises:
        UsageError: An option is invalid.

    Example:
        >>> import pyarrow as pa
        >>> from liftenvelope.payload import Json
        >>> decoder = Json(pa.schema({"price": pa.float64()})).decoder()
        >>> decoder.decode(pa.array([b'{"price": 1.5}', b"oops"])).bad
        (BadValue(index=1, reason='no JSON object'),)
    """

    _: KW_ONLY
    unknown: Literal["drop", "keep"] = "drop"

    name: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        super().__post_init__()
        as_choice("unknown", self.unknown, ("drop", "keep"))
        if self.schema is not None:
            as_schema("schema", self.schema, JSON_TYPES)

    def decoder(
        self, sample: pa.Array | None = None, *, columns: Collection[str] | None = None
    ) -> PayloadDecoder:
        """Return a decoder; see :meth:`PayloadFormat.decoder`."""
        return JsonDecoder(self, self.fields(sample), columns)

    def _inferred(self, sample: pa.Array) -> pa.Schema:
        found = infer_schema([row for row in map(object_of, sample.to_pylist()) if row is not None])
        # A writer must not end a read by a field with the name of the column of unknown fields.
        return pa.schema([field for field in found if self.unknown == "drop" or field.name != EXTRA])

    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder; see :meth:`PayloadFormat.encoder`."""
        fields = plain_schema(self.stripped(schema))
        return JsonEncoder(as_schema("data", fields, JSON_TYPES))


class JsonDecoder(PayloadDecoder):
    """Decodes JSON objects of one schema."""

    def __init__(self, kind: Json, fields: pa.Schema, columns: Collection[str] | None) -> None:
        self.schema = kind.prefixed(fields, columns)
        names = set(self.schema.names)
        chosen = [field for field in fields if kind.prefix + field.name in names]
        self._parser = BlockParser(pa.schema(chosen))
        self._known = frozenset(fields.names)
        self._extra = kind.unknown == "keep" and (columns is None or kind.prefix + EXTRA in columns)
        if self._extra:
            if EXTRA in fields.names:
                raise UsageError(
                    f"schema must not have a field {EXTRA!r} with unknown='keep': it is the column"
                )
            self.schema = self.schema.append(pa.field(kind.prefix + EXTRA, pa.string()))

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values; see :meth:`PayloadDecoder.decode`."""
        batch, bad = self._parser.parse(values)
        arrays = list(batch.columns)
        if self._extra:
            faults = {value.index: value.reason for value in bad}
            texts = [self._others(index, item, faults) for index, item in enumerate(values.to_pylist())]
            if len(faults) > len(bad):
                bad = [BadValue(index, faults[index]) for index in sorted(faults)]
                batch = with_nulls(batch, [None if i in faults else i for i in range(len(texts))])
            arrays = [*batch.columns, pa.array(texts, pa.string())]
        return Decoded([pa.RecordBatch.from_arrays(arrays, schema=self.schema)], tuple(bad))

    def _others(self, index: int, value: bytes, faults: dict[int, str]) -> str | None:
        """Return the other fields of a message as JSON; None for none, or for a message with a fault."""
        if index in faults:
            return None
        try:
            found = json.loads(value, object_pairs_hook=_once)
            others = {name: item for name, item in found.items() if name not in self._known}
            return json.dumps(others, ensure_ascii=False, separators=(",", ":")) if others else None
        except RecursionError:
            # By loads or dumps. The number of levels that each can take differs with the version of Python.
            fault = "too many levels"
        except ValueError as exc:
            fault = str(exc)
        faults[index] = f"fields that the schema does not have can't be kept: {fault}"
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{next(name for name, count in counts.items() if count > 1)!r} stands twice")
    return found

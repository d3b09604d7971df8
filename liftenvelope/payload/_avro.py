"""Avro payloads: one record per message, alone or in single-object encoding."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from liftenvelope._checks import as_local_path, require
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload._avro_defaults import with_values
from liftenvelope.payload._avro_resolution import read_as
from liftenvelope.payload._avro_types import arrow_schema, check_bounded, understood
from liftenvelope.payload._formats import Decoded, PayloadDecoder, PayloadEncoder, PayloadFormat
from liftenvelope.payload._objects import Fault, columns_of
from liftenvelope.payload._rows import cast_column, python_rows
from liftenvelope.payload._types import check_names

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["Avro"]

#: A schema as Python objects, its JSON, or the path of a file with JSON.
AvroSchema: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"

#: First bytes of single-object encoding, before the fingerprint of the schema.
_MARK: Final = b"\xc3\x01"
_HEAD: Final = 10


@dataclass(frozen=True)
class Avro(PayloadFormat):
    """Avro records, one per message. Needs the package ``fastavro``.

    Attributes:
        schema: Schema of the records: Python objects, a text of JSON, or a path of a file with JSON.
        registry: Schemas of writers, for messages in single-object encoding, whose fingerprint names one of
            them. The records are resolved to ``schema`` by Avro's rules: additional fields are dropped, and
            missing ones get their default. Default: None, messages are records without a head, of ``schema``.
        prefix: Text in front of the names of the columns.

    Raises:
        UsageError: The schema is not valid, contains itself, or has a type without an Arrow type or a default
            that does not fit its type.
        MissingExtraError: The package ``fastavro`` is not installed.
    """

    schema: AvroSchema
    _: KW_ONLY
    registry: Collection[AvroSchema] | None = None

    name: ClassVar[str] = "avro"

    def __post_init__(self) -> None:
        super().__post_init__()
        arrow_schema(_parsed(self.schema))
        with_values(_parsed(self.schema))
        for schema in (self.schema, *(self.registry or ())):
            check_bounded(_parsed(schema))

    @property
    def identity(self) -> Mapping[str, str]:
        """Format, prefix, and the full name of the record."""
        return {**super().identity, "record": str(_parsed(self.schema).get("name", ""))}

    def decoder(
        self,
        sample: pa.Array | None = None,  # noqa: ARG002 - the schema is known
        *,
        columns: Collection[str] | None = None,
    ) -> PayloadDecoder:
        """Return a decoder; see :meth:`PayloadFormat.decoder`."""
        return AvroDecoder(self, _parsed(self.schema), columns)

    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder; see :meth:`PayloadFormat.encoder`."""
        fields, own = self.stripped(schema), _parsed(self.schema)
        expected = arrow_schema(own)
        check_names("data", fields)
        known = set(expected.names)
        for field in fields:
            if field.name not in known:
                raise UsageError(f"data must have columns of the schema, got {field.name!r}")
        return AvroEncoder(own, expected, fields, has_head=self.registry is not None)


def _parsed(schema: AvroSchema) -> Any:
    fastavro: Any = require("fastavro", "payload")
    found = understood(_loaded(schema))
    try:
        return fastavro.parse_schema(found)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, TypeError) as exc:
        raise UsageError(f"schema must be an Avro schema: {exc}") from exc


def _loaded(schema: AvroSchema) -> Any:
    if isinstance(schema, Mapping):
        return schema
    if not isinstance(schema, str | os.PathLike):
        raise UsageTypeError(f"schema must be a mapping, JSON or a path, got {type(schema).__name__}")
    is_text = isinstance(schema, str) and schema.lstrip().startswith("{")
    try:
        return json.loads(str(schema) if is_text else _file(schema))
    except ValueError as exc:
        raise UsageError(f"schema must be JSON: {exc}") from exc
    except OSError as exc:
        raise UsageError(f"schema must be a file that can be read, got {os.fspath(schema)!r}: {exc}") from exc


def _file(path: str | os.PathLike[str]) -> str:
    return Path(as_local_path("schema", path)).read_text()


def _fingerprint(schema: Any) -> bytes:
    """Return the fingerprint of single-object encoding, little-endian."""
    fastavro: Any = require("fastavro", "payload")
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


class AvroDecoder(PayloadDecoder):
    """Decodes Avro records into the columns of one schema."""

    def __init__(self, kind: Avro, reader: Any, columns: Collection[str] | None) -> None:
        fields = arrow_schema(reader)
        self.schema = kind.prefixed(fields, columns)
        names = set(self.schema.names)
        chosen = [field.with_nullable(True) for field in fields if kind.prefix + field.name in names]
        self._fields = pa.schema(chosen)
        self._reader = with_values(reader)
        self._writers: dict[bytes, Any] | None = None
        if kind.registry is not None:
            schemas = [reader, *(_parsed(schema) for schema in kind.registry)]
            self._writers = {_fingerprint(one): _parsed(read_as(one, reader)) for one in schemas}
        fastavro: Any = require("fastavro", "payload")
        self._read: Any = fastavro.schemaless_reader
        self._errors = (fastavro.read.SchemaResolutionError, EOFError, IndexError, ValueError, OverflowError)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values; see :meth:`PayloadDecoder.decode`."""
        batch, bad = columns_of(values, self._records, self._fields)
        return Decoded([pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)], bad)

    def _records(self, values: pa.Array) -> list[dict[str, Any] | Fault]:
        return [self._record(value) for value in values.to_pylist()]

    def _record(self, value: bytes) -> dict[str, Any] | Fault:
        file = io.BytesIO(value)
        writer, reader = self._reader, None
        if self._writers is not None:
            head = file.read(_HEAD)
            if not head.startswith(_MARK) or head[2:] not in self._writers:
                return Fault(f"no record of a schema of the registry: it begins with {head.hex()}")
            writer, reader = self._writers[head[2:]], self._reader
        try:
            found: dict[str, Any] = self._read(file, writer, reader)
        except self._errors as exc:
            return Fault(f"no record of the schema: {str(exc) or type(exc).__name__}")
        if file.tell() != len(value):
            return Fault(f"no record of the schema: {len(value) - file.tell()} bytes are left")
        return found


class AvroEncoder(PayloadEncoder):
    """Encodes rows as Avro records."""

    def __init__(self, schema: Any, expected: pa.Schema, fields: pa.Schema, *, has_head: bool) -> None:
        self._schema = with_values(schema)
        types = dict(zip(expected.names, expected.types, strict=True))
        self._fields = [(name, types[name]) for name in fields.names]
        self._head = _MARK + _fingerprint(schema) if has_head else b""

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows; see :meth:`PayloadEncoder.encode`."""
        fastavro: Any = require("fastavro", "payload")
        columns = [
            cast_column(name, column, kind)
            for (name, kind), column in zip(self._fields, rows.columns, strict=True)
        ]
        found = []
        table = pa.RecordBatch.from_arrays(columns, names=[name for name, _ in self._fields])
        for row in python_rows(table):
            file = io.BytesIO()
            file.write(self._head)
            try:
                fastavro.schemaless_writer(file, self._schema, row, strict=False)
            except (ValueError, TypeError, OverflowError, KeyError, AttributeError) as exc:
                raise UsageError(f"data must have values of the schema: {exc}") from exc
            found.append(file.getvalue())
        return pa.array(found, pa.binary())

"""Protobuf payloads: one message of a given type per message."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from liftenvelope._checks import as_local_path, require
from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload._formats import BadValue, Decoded, PayloadDecoder, PayloadEncoder, PayloadFormat
from liftenvelope.payload._rows import cast_column, python_rows
from liftenvelope.payload._types import check_names

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["Protobuf"]

#: A generated class, or a file with a descriptor set and the full name of a message in it.
ProtobufMessage: TypeAlias = "type[Any] | tuple[str | os.PathLike[str], str]"

#: Arrow types by the number of a field's C++ type in descriptor.h.
_KINDS: Final = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.uint32(),
    4: pa.uint64(),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    8: pa.int32(),  # an enum, as its number: senders may have numbers without a name here
    9: pa.string(),
}
_MESSAGE: Final = 10
_BYTES: Final = 12
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_NANOS: Final = 1_000_000_000
#: Gets the value of a field of a message; None if it is not set.
_Getter: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Protobuf(PayloadFormat):
    """Protobuf messages of one type. Needs the package ``protobuf``.

    A field with presence (a message, ``optional``, a member of a ``oneof``) is null if it is not set; other
    fields have their default. Enums are numbers. A ``google.protobuf.Timestamp`` is a timestamp in ns.
    Fields that the type does not have are dropped. Bytes that are no message of the type are bad, but most
    types accept messages of others: protobuf does not tell them apart.

    Attributes:
        message: Generated message class; or the path of a file with a descriptor set, as ``protoc
            --include_imports --descriptor_set_out`` writes it, and the full name of a message in it.
        prefix: Text in front of the names of the columns.

    Raises:
        UsageError: The file has no such message, or the type contains itself.
        MissingExtraError: The package ``protobuf`` is not installed.
    """

    message: ProtobufMessage
    _: KW_ONLY

    name: ClassVar[str] = "protobuf"

    def __post_init__(self) -> None:
        super().__post_init__()
        _fields_of(_class_of(self.message).DESCRIPTOR, ())

    @property
    def identity(self) -> Mapping[str, str]:
        """Format, prefix, and the full name of the message."""
        return {**super().identity, "message": str(_class_of(self.message).DESCRIPTOR.full_name)}

    def decoder(
        self,
        sample: pa.Array | None = None,  # noqa: ARG002 - the schema is known
        *,
        columns: Collection[str] | None = None,
    ) -> PayloadDecoder:
        """Return a decoder; see :meth:`PayloadFormat.decoder`."""
        return ProtobufDecoder(self, _class_of(self.message), columns)

    def encoder(self, schema: pa.Schema) -> PayloadEncoder:
        """Return an encoder; see :meth:`PayloadFormat.encoder`."""
        fields, kind = self.stripped(schema), _class_of(self.message)
        check_names("data", fields)
        for name in fields.names:
            if name not in kind.DESCRIPTOR.fields_by_name:
                raise UsageError(f"data must have columns of {kind.DESCRIPTOR.full_name}, got {name!r}")
        return ProtobufEncoder(kind, fields)


def _class_of(message: ProtobufMessage) -> Any:
    require("google.protobuf", "payload")
    if isinstance(message, tuple) and len(message) == 2:
        return _loaded(*message)
    if not hasattr(message, "DESCRIPTOR") or not hasattr(message, "FromString"):
        raise UsageTypeError(f"message must be a generated class or (file, name), got {message!r}")
    return message


def _loaded(path: str | os.PathLike[str], name: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        data = Path(as_local_path("message", path)).read_bytes()
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (OSError, message.DecodeError, TypeError, KeyError) as exc:
        raise UsageError(
            f"message must be a descriptor set with all imports and the name of a message in it, got "
            f"{os.fspath(path)!r} and {name!r}: {exc}"
        ) from exc


def _fields_of(descriptor: Any, outer: tuple[str, ...]) -> list[pa.Field]:
    if descriptor.full_name in outer:
        raise UsageError(f"message must not contain itself, got {descriptor.full_name}")
    inner = (*outer, descriptor.full_name)
    return [pa.field(field.name, _type_of(field, inner)) for field in descriptor.fields]


def _type_of(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single_type(key, outer), _single_type(value, outer))
    kind = _single_type(field, outer)
    return pa.list_(kind) if _is_repeated(field) else kind


def _single_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == _MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("ns", "UTC")
        return pa.struct(_fields_of(field.message_type, outer))
    return pa.binary() if field.type == _BYTES else _KINDS[field.cpp_type]


def _is_repeated(field: Any) -> bool:
    # Before protobuf 6 there is no is_repeated, and label is deprecated since.
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    return field.cpp_type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _getter(field: Any) -> _Getter:
    """Return a function that gets the value of a field from a message, as Arrow takes it."""
    name, convert = field.name, _converter(field)
    if _is_map(field):
        item = _converter(field.message_type.fields_by_name["value"])
        return lambda message: [(key, item(value)) for key, value in getattr(message, name).items()]
    if _is_repeated(field):
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: Any) -> _Getter:
    if field.cpp_type != _MESSAGE:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda value: value.seconds * _NANOS + value.nanos
    getters = [(inner.name, _getter(inner)) for inner in field.message_type.fields]
    return lambda value: {name: get(value) for name, get in getters}


class ProtobufDecoder(PayloadDecoder):
    """Decodes protobuf messages of one type."""

    def __init__(self, kind: Protobuf, message: Any, columns: Collection[str] | None) -> None:
        from google.protobuf.message import DecodeError

        descriptor = message.DESCRIPTOR
        self.schema = kind.prefixed(pa.schema(_fields_of(descriptor, ())), columns)
        names = set(self.schema.names)
        chosen = [field for field in descriptor.fields if kind.prefix + field.name in names]
        self._parse: Callable[[bytes], Any] = message.FromString
        self._getters = [_getter(field) for field in chosen]
        self._error = DecodeError
        self._name = descriptor.full_name

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values; see :meth:`PayloadDecoder.decode`."""
        messages: list[Any] = []
        bad: dict[int, str] = {}
        for index, value in enumerate(values.to_pylist()):
            try:
                messages.append(self._parse(value))
            except self._error as exc:
                bad[index] = f"no {self._name}: {exc}"
                messages.append(None)
        arrays = [
            self._column([None if message is None else get(message) for message in messages], kind, bad)
            for get, kind in zip(self._getters, self.schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if bad and arrays:
            order = [None if index in bad else index for index in range(len(messages))]
            batch = batch.take(pa.array(order, pa.int64()))
        return Decoded([batch], tuple(BadValue(index, bad[index]) for index in sorted(bad)))

    def _column(self, values: list[Any], kind: pa.DataType, bad: dict[int, str]) -> pa.Array:
        """Return a column. Only timestamps out of range, and text that is no UTF-8 in proto2, do not fit."""
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, ValueError):
            return pa.concat_arrays(list(self._singles(values, kind, bad)))

    def _singles(self, values: list[Any], kind: pa.DataType, bad: dict[int, str]) -> Iterator[pa.Array]:
        for index, value in enumerate(values):
            try:
                yield pa.array([value], kind)
            except (pa.ArrowException, OverflowError, ValueError) as exc:
                bad.setdefault(index, f"no {self._name}: {exc}")
                yield pa.nulls(1, kind)


class ProtobufEncoder(PayloadEncoder):
    """Encodes rows as protobuf messages. A null is a field that is not set."""

    def __init__(self, message: Any, fields: pa.Schema) -> None:
        self._message = message
        self._fields = fields
        self._has_choices = _has_choices(message.DESCRIPTOR)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Encode rows; see :meth:`PayloadEncoder.encode`."""
        from google.protobuf.message import EncodeError

        descriptors = [self._message.DESCRIPTOR.fields_by_name[name] for name in self._fields.names]
        columns = [_encodable(*pair) for pair in zip(rows.columns, descriptors, strict=True)]
        table = pa.RecordBatch.from_arrays(columns, names=self._fields.names)
        times = [field.name for field in descriptors if _is_time(field)]
        found = []
        for row in python_rows(table):
            try:
                given = {name: value for name, value in row.items() if value is not None}
                if self._has_choices:
                    _check_oneofs(self._message.DESCRIPTOR, given)
                for name in times:
                    if name in given:
                        seconds, nanos = divmod(given[name], _NANOS)
                        given[name] = {"seconds": seconds, "nanos": nanos}
                found.append(self._message(**given).SerializeToString())
            except (ValueError, TypeError, OverflowError, EncodeError) as exc:
                raise UsageError(f"data must have values of the message: {exc}") from exc
        return pa.array(found, pa.binary())


def _is_time(field: Any) -> bool:
    return (
        field.cpp_type == _MESSAGE and field.message_type.full_name == _TIMESTAMP and not _is_repeated(field)
    )


def _has_times(field: Any) -> bool:
    """Return True if a field is a timestamp, or has one inside."""
    if field.cpp_type != _MESSAGE:
        return False
    return field.message_type.full_name == _TIMESTAMP or any(map(_has_times, field.message_type.fields))


def _has_choices(descriptor: Any) -> bool:
    """Return True if a message, or one inside, has a oneof with several members."""
    inner = (field.message_type for field in descriptor.fields if field.cpp_type == _MESSAGE)
    return any(len(oneof.fields) > 1 for oneof in descriptor.oneofs) or any(map(_has_choices, inner))


def _check_oneofs(descriptor: Any, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a row has two members of a oneof: the message would keep the last one alone."""
    for oneof in descriptor.oneofs:
        names = [field.name for field in oneof.fields if given.get(field.name) is not None]
        if len(names) > 1:
            raise ValueError(f"one field of {oneof.name!r} alone may be set, got {' and '.join(names)}")
    for field in descriptor.fields:
        if field.cpp_type == _MESSAGE and (value := given.get(field.name)):
            for inner, item in _messages_in(field, value):
                _check_oneofs(inner, item)


def _messages_in(field: Any, value: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the messages of a field, each with its descriptor. Timestamps are numbers here."""
    inner, items = field.message_type, value if _is_repeated(field) else (value,)
    if _is_map(field):
        inner, items = inner.fields_by_name["value"].message_type, value.values()
    return ((inner, item) for item in items if inner is not None and isinstance(item, dict))


def _encodable(column: pa.Array, field: Any) -> pa.Array:
    """Return a column in the type of its field, with timestamps as nanoseconds.

    Raises:
        UsageError: A value does not fit, or a timestamp is inside a list, a map or a struct.
    """
    if _has_times(field) and not _is_time(field):
        raise UsageError(f"data: field {field.name!r} must not have timestamps inside lists or structs")
    found = cast_column(field.name, column, _type_of(field, ()))
    return found.cast(pa.int64()) if _is_time(field) else found

"""Protobuf payloads: presence, nested messages, descriptor sets, hostile bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import Protobuf

_F = descriptor_pb2.FieldDescriptorProto
_MOST = 2**63 - 1


def descriptor_set() -> bytes:
    """Return a descriptor set with the message ``shop.Order``, as protoc writes it."""
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    line = file.message_type.add(name="Line")
    line.field.add(name="item", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    line.field.add(name="count", number=2, type=_F.TYPE_UINT32, label=_F.LABEL_OPTIONAL)
    file.enum_type.add(name="Kind").value.add(name="NONE", number=0)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL)
    one, many = _F.LABEL_OPTIONAL, _F.LABEL_REPEATED
    fields: list[tuple[str, Any, Any, str]] = [
        ("id", _F.TYPE_INT64, one, ""),
        ("price", _F.TYPE_DOUBLE, one, ""),
        ("raw", _F.TYPE_BYTES, one, ""),
        ("kind", _F.TYPE_ENUM, one, ".shop.Kind"),
        ("lines", _F.TYPE_MESSAGE, many, ".shop.Line"),
        ("first", _F.TYPE_MESSAGE, one, ".shop.Line"),
        ("numbers", _F.TYPE_SINT32, many, ""),
        ("sizes", _F.TYPE_MESSAGE, many, ".shop.Order.SizesEntry"),
        ("at", _F.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
        ("note", _F.TYPE_STRING, one, ""),
    ]
    for number, (name, kind, label, type_name) in enumerate(fields, 1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    order.oneof_decl.add(name="_note")
    order.field[-1].proto3_optional = True
    order.field[-1].oneof_index = 0
    return found.SerializeToString()


LINE = pa.struct({"item": pa.string(), "count": pa.uint32()})
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "price": pa.float64(),
        "raw": pa.binary(),
        "kind": pa.int32(),
        "lines": pa.list_(LINE),
        "first": LINE,
        "numbers": pa.list_(pa.int32()),
        "sizes": pa.map_(pa.string(), pa.int32()),
        "at": pa.timestamp("ns", "UTC"),
        "note": pa.string(),
    }
)


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Protobuf:
    path: Path = tmp_path_factory.mktemp("proto") / "shop.binpb"
    path.write_bytes(descriptor_set())
    return Protobuf((path, "shop.Order"))


_LINES = st.fixed_dictionaries(
    {"item": st.text("ab\N{SNOWMAN}", max_size=3), "count": st.integers(0, 2**32 - 1)}
)
_ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), _MOST),
        "price": st.floats(allow_nan=False),
        "raw": st.binary(max_size=4),
        "kind": st.integers(0, 9),
        "lines": st.lists(_LINES, max_size=2),
        "first": st.none() | _LINES,
        "numbers": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "sizes": st.dictionaries(st.text("ab", max_size=2), st.integers(-5, 5), max_size=1).map(
            lambda found: list(found.items())
        ),
        "at": st.none() | st.integers(-(2**62), 2**62),
        "note": st.none() | st.text("xy", max_size=2),
    }
)


@given(st.lists(_ROWS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_rows_are_equal_after_a_round_trip(orders: Protobuf, rows: list[Any]) -> None:
    times = pa.array([row.pop("at") for row in rows], pa.timestamp("ns", "UTC"))
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).set_column(8, "at", times)
    values = orders.encoder(SCHEMA).encode(batch)
    found = orders.decoder().decode(pa.concat_arrays([values, pa.array([b"\xff"])]))
    assert [(value.index, value.reason[:13]) for value in found.bad] == [(len(rows), "no shop.Order")]
    assert found.batches[0].schema == SCHEMA
    assert found.batches[0].slice(0, len(rows)).equals(batch)


def test_field_with_presence_is_null_and_others_have_their_default(orders: Protobuf) -> None:
    (row,) = orders.decoder().decode(pa.array([b""])).batches[0].to_pylist()
    assert row == {
        "id": 0,
        "price": 0.0,
        "raw": b"",
        "kind": 0,
        "lines": [],
        "first": None,
        "numbers": [],
        "sizes": [],
        "at": None,
        "note": None,
    }


def test_timestamp_beyond_nanoseconds_is_bad(orders: Protobuf) -> None:
    far = timestamp_pb2.Timestamp(seconds=2**40).SerializeToString()
    found = orders.decoder().decode(pa.array([b"\x08\x05", b"\x4a" + bytes([len(far)]) + far]))
    assert [value.index for value in found.bad] == [1]
    assert found.batches[0]["id"].to_pylist() == [5, None]


@given(st.lists(st.binary(max_size=20), max_size=10))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_row_or_a_reason(orders: Protobuf, values: list[bytes]) -> None:
    found = orders.decoder().decode(pa.array(values, pa.binary()))
    assert found.batches[0].num_rows == len(values)
    found.batches[0].validate(full=True)


def test_generated_class_is_accepted_and_columns_are_chosen() -> None:
    kind = Protobuf(timestamp_pb2.Timestamp, prefix="t_")
    value = timestamp_pb2.Timestamp(seconds=5, nanos=7).SerializeToString()
    found = kind.decoder(columns=["t_nanos"]).decode(pa.array([value]))
    assert found.batches[0].to_pylist() == [{"t_nanos": 7}]


def test_field_inside_a_struct_may_be_called_timestamp() -> None:
    """Only fields of the type Timestamp are refused there."""
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="log", syntax="proto3")
    file.message_type.add(name="Line").field.add(name="timestamp", number=1, type=_F.TYPE_INT64, label=1)
    file.message_type.add(name="Log").field.add(
        name="lines", number=1, type=_F.TYPE_MESSAGE, label=_F.LABEL_REPEATED, type_name=".log.Line"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = Protobuf(message_factory.GetMessageClass(pool.FindMessageTypeByName("log.Log")))
    batch = pa.record_batch({"lines": [[{"timestamp": 5}]]})
    values = kind.encoder(batch.schema).encode(batch)
    assert kind.decoder().decode(values).batches[0].to_pylist() == batch.to_pylist()


def test_rows_that_do_not_fit_the_message_are_not_encoded(orders: Protobuf) -> None:
    for rows, fault in (
        (pa.record_batch({"nothing": [1]}), "columns of shop.Order, got 'nothing'"),
        (pa.record_batch({"kind": [2**31]}), "column 'kind' must fit type int32 of the schema"),
        (pa.record_batch([pa.array([1])] * 2, ["id", "id"]), "each field once, got 'id' twice"),
        (
            pa.record_batch({"first": [{"item": "x", "size": 1}]}),
            "column 'first' .*, got 'size': leave it out",
        ),
        (
            pa.record_batch({"sizes": pa.array([[("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int32()))}),
            "column 'sizes' .*each key once",
        ),
        (pa.record_batch({"numbers": [[1, None]]}), "values of the message"),
    ):
        with pytest.raises(UsageError, match=fault):
            orders.encoder(rows.schema).encode(rows)


CHOICE = {"post": pa.int32(), "mail": pa.int32()}
CHOICES = pa.schema({**CHOICE, "others": pa.list_(pa.struct(CHOICE))})


def choices(*, required: bool) -> Any:
    """Return a class with a oneof of two fields, and a message in a list that has one too."""
    file = descriptor_pb2.FileDescriptorProto(name="choice.proto", package="shop", syntax="proto2")
    inner, outer = (file.message_type.add(name=name) for name in ("Inner", "Choice"))
    for message in (inner, outer):
        message.oneof_decl.add(name="way")
        for number, field in enumerate(("post", "mail"), 1):
            message.field.add(
                name=field, number=number, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL, oneof_index=0
            )
    label = _F.LABEL_REQUIRED if required else _F.LABEL_REPEATED
    outer.field.add(name="others", number=3, type=_F.TYPE_MESSAGE, label=label, type_name=".shop.Inner")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Choice"))


@pytest.mark.parametrize(
    "row", [{"post": 1, "mail": 2}, {"others": [{"post": 1, "mail": None}, {"post": 1, "mail": 2}]}]
)
def test_row_with_two_members_of_a_oneof_is_not_encoded(row: dict[str, Any]) -> None:
    kind = Protobuf(choices(required=False))
    rows = pa.RecordBatch.from_pylist([row], CHOICES)
    with pytest.raises(UsageError, match="one field of 'way' alone may be set, got post and mail"):
        kind.encoder(rows.schema).encode(rows)


def test_members_of_a_oneof_are_equal_after_a_round_trip() -> None:
    kind = Protobuf(choices(required=False))
    given = [{"post": 1, "mail": None, "others": [{"post": None, "mail": 0}]}]
    rows = pa.RecordBatch.from_pylist(given, CHOICES)
    assert kind.decoder().decode(kind.encoder(rows.schema).encode(rows)).batches[0].to_pylist() == given


def test_row_without_a_required_field_is_not_encoded() -> None:
    rows = pa.record_batch({"post": [1]})
    with pytest.raises(UsageError, match=r"values of the message: .*required fields: others"):
        Protobuf(choices(required=True)).encoder(rows.schema).encode(rows)


def test_message_that_does_not_suit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.binpb"
    path.write_bytes(descriptor_set())
    with pytest.raises(UsageError, match=r"message must not contain itself, got google\.protobuf\.Struct"):
        Protobuf(struct_pb2.Struct)
    for wrong in ((path, "shop.Nothing"), (tmp_path / "none", "shop.Order"), (Path(__file__), "shop.Order")):
        with pytest.raises(UsageError, match="message must be a descriptor set"):
            Protobuf(wrong)
    with pytest.raises(UsageTypeError, match="message must be a generated class"):
        Protobuf("shop.Order")  # type: ignore[arg-type]

"""Avro payloads: schemas, resolution by a registry, hostile records."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.payload import Avro
from liftenvelope.payload._avro_resolution import read_as


def record(*fields: tuple[str, Any], name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t, **more} for n, t in fields]}


ORDER = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": "string"}),
    ("sizes", {"type": "map", "values": "int"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["TEA", "MILK"]}),
    ("place", ["null", record(("x", "double"), ("y", "float"), name="Place")]),
    ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
    ("ok", "boolean"),
)
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "tags": pa.list_(pa.string()),
        "sizes": pa.map_(pa.string(), pa.int32()),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(9, 2),
        "kind": pa.string(),
        "place": pa.struct({"x": pa.float64(), "y": pa.float32()}),
        "hash": pa.binary(2),
        "ok": pa.bool_(),
    }
)

_ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "tags": st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=3),
        "sizes": st.dictionaries(st.text("abc", max_size=3), st.integers(-5, 5), max_size=2).map(
            lambda found: list(found.items())
        ),
        "at": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
            lambda found: found.replace(tzinfo=datetime.UTC)
        ),
        "day": st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
        "price": st.integers(-999_999, 999_999).map(lambda cents: Decimal(cents).scaleb(-2)),
        "kind": st.sampled_from(["TEA", "MILK"]),
        "place": st.none()
        | st.fixed_dictionaries({"x": st.floats(allow_nan=False), "y": st.floats(width=32, allow_nan=False)}),
        "hash": st.binary(min_size=2, max_size=2),
        "ok": st.booleans(),
    }
)


@given(st.lists(_ROWS, min_size=1, max_size=5), st.booleans(), st.binary(max_size=12))
@settings(max_examples=60, deadline=None)
def test_rows_are_equal_after_a_round_trip(rows: list[Any], has_head: bool, garbage: bytes) -> None:
    kind = Avro(ORDER, registry=[] if has_head else None)
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    values = kind.encoder(SCHEMA).encode(batch)
    found = kind.decoder().decode(pa.concat_arrays([pa.array([garbage]), values]))
    assert [value.index for value in found.bad] == [0]
    assert found.batches[0].slice(1).equals(batch)
    assert found.batches[0].schema == SCHEMA


def test_schema_is_python_objects_or_json_or_a_file(tmp_path: Path) -> None:
    text = json.dumps(ORDER)
    path = tmp_path / "order.avsc"
    path.write_text(text)
    for schema in (ORDER, text, path, str(path)):
        assert Avro(schema).decoder().schema == SCHEMA


def test_registry_resolves_records_of_older_and_newer_writers() -> None:
    old = record(("id", "int"))
    new = record(("id", "long"), ("name", "string"), ("more", "double"))
    reader = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": "-"}],
    }
    stranger = record(("id", "long"), name="Stranger")
    kind = Avro(reader, registry=[old, new])
    values = []
    for schema, row in ((old, {"id": 1}), (new, {"id": 2, "name": "x", "more": 0.5}), (stranger, {"id": 3})):
        rows = pa.RecordBatch.from_pylist([row])
        values.append(Avro(schema, registry=[]).encoder(rows.schema).encode(rows)[0].as_py())
    found = kind.decoder().decode(pa.array([*values, values[0][:9]]))
    assert found.batches[0].to_pylist()[:2] == [{"id": 1, "name": "-"}, {"id": 2, "name": "x"}]
    assert [(value.index, value.reason[:38]) for value in found.bad] == [
        (2, "no record of a schema of the registry:"),
        (3, "no record of a schema of the registry:"),
    ]


TIME = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
ID = {"type": "fixed", "name": "Id", "size": 2}


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        (ID, "\u0001\u00ff", b"\x01\xff"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        ("double", 1, 1.0),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\u0001", Decimal("0.1")),
        ({"type": "int", "logicalType": "date"}, 3, datetime.date(1970, 1, 4)),
        ({"type": "long", "logicalType": "timestamp-micros"}, 5, TIME.replace(1970, 1, 1, 0, microsecond=5)),
        ({"type": "array", "items": ID}, ["\u0001\u00ff"], [b"\x01\xff"]),
        ({"type": "map", "values": "bytes"}, {"k": "\u00ff"}, [("k", b"\xff")]),
        (record(("x", "bytes"), ("y", "int"), name="In", default="\u00fe"), {"y": 1}, {"x": b"\xfe", "y": 1}),
    ],
    ids=str,
)
def test_field_that_a_record_lacks_gets_its_default(kind: Any, given: Any, value: Any) -> None:
    reader = record(("id", "long"))
    reader["fields"].append({"name": "more", "type": kind, "default": given})
    if isinstance(kind, dict) and kind["type"] == "record":
        del kind["fields"][1]["default"]
    old = record(("id", "long"))
    rows = pa.RecordBatch.from_pylist([{"id": 1}])
    avro = Avro(reader, registry=[old])
    written = [
        Avro(old, registry=[]).encoder(rows.schema).encode(rows)[0],
        avro.encoder(rows.schema).encode(rows)[0],
    ]
    found = avro.decoder().decode(pa.array([one.as_py() for one in written]))
    assert found.batches[0].to_pylist() == [{"id": 1, "more": value}] * 2
    assert not found.bad


def test_default_that_does_not_fit_its_type_is_refused() -> None:
    with pytest.raises(UsageError, match="schema must have defaults of the types of their fields"):
        Avro(record(("id", ID), default="abc"))


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
PAID = {"type": "fixed", "name": "Paid", "size": 2}


@pytest.mark.parametrize(
    ("writer", "reader", "written", "read"),
    [
        ("long", MICROS, 5, TIME.replace(1970, 1, 1, 0, microsecond=5)),
        ("int", MICROS, 5, TIME.replace(1970, 1, 1, 0, microsecond=5)),
        (["null", "long"], ["null", MICROS], 0, TIME.replace(1970, 1, 1, 0)),
        (MICROS, "long", TIME.replace(1970, 1, 1, 0, microsecond=5), 5),
        (MICROS, "double", TIME.replace(1970, 1, 1, 0, microsecond=5), 5.0),
        ({**MICROS, "logicalType": "timestamp-millis"}, MICROS, TIME, TIME),
        ({"type": "int", "logicalType": "date"}, "int", datetime.date(1970, 1, 4), 3),
        (
            {"type": "int", "logicalType": "date"},
            MICROS,
            datetime.date(1970, 1, 1),
            TIME.replace(1970, 1, 1, 0),
        ),
        (MICROS, {**MICROS, "logicalType": "time-micros"}, TIME.replace(1970, 1, 1, 0), datetime.time()),
        (MICROS, {**MICROS, "logicalType": "local-timestamp-millis"}, TIME, TIME.replace(tzinfo=None)),
        (
            {"type": "int", "logicalType": "time-millis"},
            {**MICROS, "logicalType": "time-micros"},
            datetime.time(1, 2),
            datetime.time(1, 2),
        ),
        ("bytes", PRICE, b"\x0f", Decimal("1.5")),
        ("string", PRICE, "\x0f", Decimal("1.5")),
        (PRICE, "bytes", Decimal("1.5"), b"\x0f"),
        (PRICE, {**PRICE, "precision": 8, "scale": 3}, Decimal("1.5"), Decimal("1.500")),
        (PAID, {**PAID, "logicalType": "decimal", "precision": 4, "scale": 1}, b"\0\x0f", Decimal("1.5")),
        (
            {"type": "array", "items": record(("at", "long"), name="Seen")},
            {"type": "array", "items": record(("since", MICROS), name="Seen", aliases=["at"])},
            [{"at": 0}],
            [{"since": TIME.replace(1970, 1, 1, 0)}],
        ),
    ],
)
def test_logical_types_of_the_reader_count(writer: Any, reader: Any, written: Any, read: Any) -> None:
    """Avro resolves the base types: a writer may add a logical type, or drop it."""
    rows = pa.RecordBatch.from_pylist([{"a": written}])
    kind = Avro(record(("a", reader)), registry=[record(("a", writer))])
    values = Avro(record(("a", writer)), registry=[]).encoder(rows.schema).encode(rows)
    found = kind.decoder().decode(values)
    assert (found.batches[0].to_pylist(), found.bad) == ([{"a": read}], ())


def test_logical_type_of_a_type_that_the_reader_names_twice_counts() -> None:
    """Of the merged schema alone: fastavro before 1.13.1 can't read with a schema that names a type there."""
    pair = {"type": "record", "name": "Pair", "fields": [{"name": "at", "type": MICROS}]}
    reader = record(("added", ["null", pair]), ("b", "Pair"))
    writer = record(("b", record(("at", "long"), name="Pair")))
    merged = read_as(fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    [field] = merged["fields"][0]["type"]["fields"]
    assert (field["name"], field["type"]) == ("at", MICROS)


def test_decimal_that_needs_more_places_than_the_schema_has_is_bad() -> None:
    writer = record(("a", {**PRICE, "scale": 3}))
    rows = pa.RecordBatch.from_pylist([{"a": Decimal("1.523")}, {"a": Decimal("1.500")}])
    values = Avro(writer, registry=[]).encoder(rows.schema).encode(rows)
    found = Avro(record(("a", PRICE)), registry=[writer]).decoder().decode(values)
    assert found.batches[0].to_pylist() == [{"a": None}, {"a": Decimal("1.5")}]
    assert [value.index for value in found.bad] == [0]


def test_timestamp_is_rounded_down_to_the_unit_of_the_schema() -> None:
    writer = record(("a", MICROS))
    rows = pa.RecordBatch.from_pylist([{"a": TIME.replace(microsecond=1_999)}])
    values = Avro(writer, registry=[]).encoder(rows.schema).encode(rows)
    reader = record(("a", {**MICROS, "logicalType": "timestamp-millis"}))
    found = Avro(reader, registry=[writer]).decoder().decode(values)
    assert (found.batches[0].to_pylist(), found.bad) == ([{"a": TIME.replace(microsecond=1_000)}], ())


def pair(at: Any, name: str = "Pair", **more: Any) -> dict[str, Any]:
    return {**record(("at", at), name=name), **more}


EPOCH = TIME.replace(1970, 1, 1, 0)
COINS = {**PAID, "name": "Coins", "aliases": ["Paid"], "logicalType": "decimal", "precision": 4, "scale": 1}


@pytest.mark.parametrize(
    ("first", "later", "reader", "written", "read"),
    [
        (pair("long"), "Pair", pair(MICROS), {"at": 0}, {"at": EPOCH}),
        (pair(MICROS), "Pair", pair("long"), {"at": EPOCH}, {"at": 0}),
        (
            pair("long"),
            ["null", "Pair"],
            ["null", pair(MICROS, "Two", aliases=["Pair"])],
            {"at": 0},
            {"at": EPOCH},
        ),
        (PAID, "Paid", COINS, b"\0\x0f", Decimal("1.5")),
        (COINS, "Coins", {**PAID, "aliases": ["Coins"]}, Decimal("1.5"), b"\0\x0f"),
        (
            pair(PAID),
            {"type": "array", "items": "Paid"},
            {"type": "array", "items": COINS},
            [b"\0\x0f"],
            [Decimal("1.5")],
        ),
    ],
)
def test_logical_type_counts_if_the_field_that_defines_the_type_was_dropped(
    first: Any, later: Any, reader: Any, written: Any, read: Any
) -> None:
    writer = record(("old", ["null", first]), ("b", later))
    rows = pa.RecordBatch.from_pylist([{"b": written}])
    rows = rows.append_column("old", pa.nulls(1)).select(["old", "b"])
    values = Avro(writer, registry=[]).encoder(rows.schema).encode(rows)
    found = Avro(record(("b", reader)), registry=[writer]).decoder().decode(values)
    assert (found.batches[0].to_pylist(), found.bad) == ([{"b": read}], ())


def test_named_type_is_read_as_the_type_that_it_matches() -> None:
    """A union of the writer may have records that the reader's type does not match."""
    writer = record(("a", [pair("long", "One"), pair("long", "Two")]), ("b", "Two"))
    reader = record(("a", pair("long", "One")), ("b", pair(MICROS, "Two")))
    found = read_as(fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    one, two = found["fields"][0]["type"]
    assert (one["fields"][0]["type"], two["fields"][0]["type"]["logicalType"]) == ("long", "timestamp-micros")


def test_schemas_that_contain_themselves_are_resolved() -> None:
    node = record(("at", "long"), ("next", ["null", "Node"]), name="Node")
    reader = record(("at", MICROS), ("next", ["null", "Node"]), name="Node")
    found = read_as(fastavro.parse_schema(node), fastavro.parse_schema(reader))
    assert found["fields"] == reader["fields"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x02\x00\x00\x00",
        b"\xff" * 12,
        b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"abc",
        b"\x02\x01abc",
        b"\x02\x02\xff",
        b"\x02\x02a" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x02",
    ],
)
def test_hostile_record_is_bad(value: bytes) -> None:
    schema = record(("a", "long"), ("s", "string"), ("l", {"type": "array", "items": "long"}))
    found = Avro(schema).decoder().decode(pa.array([b"\x02\x02a\x00", value]))
    assert found.batches[0].to_pylist()[0] == {"a": 1, "s": "a", "l": []}
    assert [bad.index for bad in found.bad] == [1]


class TestSchemas:
    @pytest.mark.parametrize("items", ["null", record(name="Empty"), record(("n", "null"), name="N")])
    def test_items_without_bytes_are_refused(self, items: Any) -> None:
        """Ten bytes could claim 2**60 of them."""
        schema = record(("l", {"type": "array", "items": items}))
        with pytest.raises(UsageError, match="items of an array must take at least one byte"):
            Avro(schema)
        with pytest.raises(UsageError, match="items of an array must take at least one byte"):
            Avro(record(("a", "long")), registry=[schema])

    @pytest.mark.parametrize(
        ("schema", "fault"),
        [
            ("string", "schema must be a file that can be read"),
            ('{"type": "string"}', "schema must be an Avro record"),
            ('{"type": "rec', "schema must be JSON"),
            (record(("a", "nothing")), "schema must be an Avro schema"),
            (record(("a", ["null", "Order"])), "schema must not contain itself, got 'Order'"),
            (record(("a", ["long", "string"])), "a union must be of null and one type, got 2 types"),
            ("s3://bucket/schema", "schema must be a path of the local file system"),
        ],
    )
    def test_schema_that_does_not_suit_is_refused(self, schema: Any, fault: str) -> None:
        with pytest.raises(UsageError, match=fault):
            Avro(schema)

    @pytest.mark.parametrize(
        ("annotated", "base", "value"),
        [
            ({"type": "string", "logicalType": "uuid"}, pa.string(), "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
            ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64(), 2**60),
            ({"type": "int", "logicalType": "timestamp-micros"}, pa.int32(), 5),
            ({"type": "int", "logicalType": ["date"]}, pa.int32(), 5),
            ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, pa.binary(), b"\x05"),
            ({"type": "bytes", "logicalType": "decimal"}, pa.binary(), b"\x05"),
            (
                {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3},
                pa.binary(1),
                b"\x05",
            ),
            ({"type": "array", "items": "long", "logicalType": "set"}, pa.list_(pa.int64()), [5]),
            (["null", {"type": "string", "logicalType": "uuid"}], pa.string(), "not a UUID"),
        ],
    )
    def test_unknown_and_invalid_logical_types_are_read_as_their_base(
        self, annotated: Any, base: pa.DataType, value: Any
    ) -> None:
        """The specification of Avro: they must, and should, be ignored."""
        kind = Avro(record(("a", annotated)))
        rows = pa.record_batch({"a": pa.array([value], base)})
        found = kind.decoder().decode(kind.encoder(rows.schema).encode(rows))
        assert (found.batches, found.bad) == ([rows], ())

    @pytest.mark.parametrize(("name", "unit"), [("millis", "ms"), ("micros", "us")])
    def test_local_timestamps_have_no_zone(self, name: str, unit: str) -> None:
        kind = Avro(record(("a", {"type": "long", "logicalType": f"local-timestamp-{name}"})))
        column = pa.array([datetime.datetime(2026, 3, 29, 2, 30)], pa.timestamp(unit))
        rows = pa.record_batch({"a": column})
        found = kind.decoder().decode(kind.encoder(rows.schema).encode(rows))
        assert (found.batches, found.bad) == ([rows], ())

    def test_deep_schema_is_refused(self) -> None:
        kind: Any = "long"
        for _ in range(40):
            kind = {"type": "array", "items": kind}
        with pytest.raises(UsageError, match="at most 32 levels"):
            Avro(record(("a", kind)))

    def test_other_value_is_refused(self) -> None:
        with pytest.raises(UsageTypeError, match="schema must be a mapping, JSON or a path, got int"):
            Avro(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "column", "fault"),
    [
        ("float", pa.array([1e39]), "column 'a' must fit type float of the schema, got a larger number"),
        (
            {"type": "array", "items": "float"},
            pa.array([[1.0], [1e39]]),
            "must fit type list<item: float> of the schema, got a larger number",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([2**62], pa.timestamp("us")),
            "column 'a' must have values that Python has: .*out of range",
        ),
        (
            {"type": "array", "items": record(("x", "long"), name="Inner")},
            pa.array([[{"x": 1, "y": 2}]]),
            "column 'a' must have the fields of the schema, got 'y': leave it out",
        ),
        (
            {"type": "map", "values": "long"},
            pa.array([[("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int64())),
            "column 'a' .*each key once",
        ),
    ],
)
def test_value_that_would_change_is_not_encoded(kind: Any, column: pa.Array, fault: str) -> None:
    rows = pa.record_batch({"a": column})
    with pytest.raises(UsageError, match=fault):
        Avro(record(("a", kind))).encoder(rows.schema).encode(rows)


@pytest.mark.parametrize("is_category", [False, True])
def test_infinity_stays_infinity(is_category: bool) -> None:
    column = pa.array([float("inf"), 1.5])
    rows = pa.record_batch({"a": column.dictionary_encode() if is_category else column})
    kind = Avro(record(("a", "float")))
    found = kind.decoder().decode(kind.encoder(rows.schema).encode(rows)).batches[0]
    assert found["a"].to_pylist() == [float("inf"), 1.5]


def test_decimals_have_up_to_76_digits() -> None:
    def kind(precision: int) -> Avro:
        return Avro(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": precision})))

    rows = pa.record_batch({"a": pa.array([Decimal("9" * 76), None], pa.decimal256(76))})
    many = Avro(record(("a", ["null", {"type": "bytes", "logicalType": "decimal", "precision": 76}])))
    found = many.decoder().decode(many.encoder(rows.schema).encode(rows))
    assert (found.batches, found.bad) == ([rows], ())
    assert kind(38).decoder().schema.field("a").type == pa.decimal128(38)
    with pytest.raises(UsageError, match="precision of a decimal must be at most 76, got 77"):
        kind(77)


def test_rows_that_do_not_fit_the_schema_are_not_encoded() -> None:
    kind = Avro(record(("a", "int"), ("s", "string")))
    for rows, fault in (
        (pa.record_batch({"b": [1]}), "columns of the schema, got 'b'"),
        (pa.record_batch({"a": [2**31], "s": ["x"]}), "column 'a' must fit type int32 of the schema"),
        (pa.record_batch([pa.array([1])] * 2, ["a", "a"]), "each field once, got 'a' twice"),
        (pa.record_batch({"a": [1]}), "values of the schema"),
        (pa.record_batch({"a": pa.array([None], pa.int32()), "s": ["x"]}), "values of the schema"),
    ):
        with pytest.raises(UsageError, match=fault):
            kind.encoder(rows.schema).encode(rows)

"""msgpack payloads: exact types, limits, round trips."""

from __future__ import annotations

import datetime
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings

from liftenvelope.errors import UsageError
from liftenvelope.payload import Msgpack
from liftenvelope.payload._objects import _BLOCK
from tests.unit.payload.rows import batches, object_types

SCHEMA = pa.schema({"a": pa.int32(), "f": pa.float64(), "s": pa.string(), "b": pa.binary()})


def decoded(kind: Msgpack, *values: bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    found = kind.decoder().decode(pa.array(values, pa.binary()))
    return found.batches[0].to_pylist(), {value.index: value.reason for value in found.bad}


@given(batches(object_types))
@settings(max_examples=30, deadline=None)
def test_rows_are_equal_after_a_round_trip(rows: pa.RecordBatch) -> None:
    values = Msgpack().encoder(rows.schema).encode(rows)
    found = Msgpack(rows.schema).decoder().decode(values)
    assert not found.bad
    assert found.batches[0].equals(rows)


def test_value_of_another_type_is_bad_and_never_cast() -> None:
    good = {"a": 1, "f": 2**53, "s": "x", "b": b"y", "other": [1]}
    misfits: list[dict[str, Any]] = [
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": 2**31},
        {"f": 2**53 + 1},
        {"f": True},
        {"s": b"x"},
        {"b": "y"},
        {"s": ["x"]},
    ]
    values = [msgpack.packb(row) for row in (good, *misfits, {})]
    rows, bad = decoded(Msgpack(SCHEMA), *values)
    assert rows[0] == {"a": 1, "f": 2.0**53, "s": "x", "b": b"y"}
    assert rows[-1] == dict.fromkeys(SCHEMA.names)
    assert list(bad) == list(range(1, len(misfits) + 1))
    for index, row in enumerate(misfits, 1):
        (name,) = row
        assert bad[index].startswith(f"field {name!r} must be ")
        assert rows[index] == dict.fromkeys(SCHEMA.names)


def test_garbage_is_bad_and_the_rest_is_exact() -> None:
    garbage = [b"", b"\xc1", b"\x81", b"\x01", msgpack.packb([1]), msgpack.packb({"a": 1}) + b"\x00"]
    garbage += [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x10\x00\x00", b"\x81\xa1s\xa1\xff"]
    good = msgpack.packb({"a": 7})
    values = [item for value in garbage for item in (good, value)]
    rows, bad = decoded(Msgpack(SCHEMA), *values)
    assert list(bad) == list(range(1, len(values), 2))
    assert all(reason.startswith("no msgpack map: ") for reason in bad.values())
    assert [row["a"] for row in rows[::2]] == [7] * len(garbage)


def test_bad_values_of_later_blocks_keep_their_index() -> None:
    count, garbage = 2 * _BLOCK + 5, {0, _BLOCK - 1, _BLOCK, 2 * _BLOCK + 4}
    values = [b"\xc1" if index in garbage else msgpack.packb({"a": index}) for index in range(count)]
    rows, bad = decoded(Msgpack(SCHEMA), *values)
    assert list(bad) == sorted(garbage)
    assert [row["a"] for row in rows] == [None if index in garbage else index for index in range(count)]


def test_items_of_a_message_are_limited() -> None:
    kind = Msgpack(pa.schema({"l": pa.list_(pa.int64())}), max_items=3)
    rows, bad = decoded(kind, msgpack.packb({"l": [1, 2, 3]}), msgpack.packb({"l": [1, 2, 3, 4]}))
    assert (rows[0], list(bad)) == ({"l": [1, 2, 3]}, [1])
    with pytest.raises(UsageError, match="max_items must be at least 1"):
        Msgpack(max_items=0)


def test_timestamp_with_nanoseconds_is_bad() -> None:
    kind = Msgpack(pa.schema({"t": pa.timestamp("us", "UTC")}))
    times = [msgpack.Timestamp(5, 1_000), msgpack.Timestamp(5, 1), msgpack.Timestamp(2**60, 0)]
    rows, bad = decoded(kind, *(msgpack.packb({"t": time}) for time in times))
    assert rows[0]["t"] == datetime.datetime(1970, 1, 1, 0, 0, 5, 1, tzinfo=datetime.UTC)
    assert list(bad) == [1, 2]


def test_schema_is_inferred_from_the_sample() -> None:
    sample = pa.array(
        [msgpack.packb({"a": 1, "b": b"x"}), b"\xc1", msgpack.packb({"l": [1.5]}), msgpack.packb({1: "x"})]
    )
    assert Msgpack().decoder(sample).schema == pa.schema(
        {"a": pa.int64(), "b": pa.binary(), "l": pa.list_(pa.float64())}
    )
    with pytest.raises(UsageError, match="schema must be given"):
        Msgpack().decoder()


def test_columns_are_chosen_with_their_prefix() -> None:
    decoder = Msgpack(SCHEMA, prefix="p_").decoder(columns=["p_s"])
    value = msgpack.packb({"a": "no number", "s": "x"})
    assert decoder.decode(pa.array([value])).batches[0].to_pylist() == [{"p_s": "x"}]


def test_views_and_dictionaries_are_encoded() -> None:
    rows = pa.record_batch(
        {
            "v": pa.array(["x", None], pa.string_view()),
            "b": pa.array([b"x", None], pa.binary_view()),
            "d": pa.array(["y", None]).dictionary_encode(),
        }
    )
    values = Msgpack().encoder(rows.schema).encode(rows)
    assert list(map(msgpack.unpackb, values.to_pylist())) == rows.to_pylist()


def test_type_that_msgpack_does_not_have_is_refused() -> None:
    for kind in (pa.timestamp("ns", "UTC"), pa.timestamp("us"), pa.decimal128(5), pa.float32()):
        with pytest.raises(UsageError, match="types that msgpack carries"):
            Msgpack(pa.schema({"a": kind}))

"""Trace context in columns: as in the headers of single messages, for any rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftenvelope.otel._propagation import added
from liftenvelope.otel._rows import header_rows, with_fields

FIELDS = {"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "user=7"}
MAP = pa.map_(pa.string(), pa.binary())
NAMES = st.sampled_from(["traceparent", "TraceParent", "tracestate", "baggage", "Baggage", "other"])
ROWS = st.lists(st.none() | st.dictionaries(NAMES, st.binary(max_size=3), max_size=4), min_size=1, max_size=9)
FIELD_SETS = st.sets(st.sampled_from(list(FIELDS))).map(lambda names: {name: FIELDS[name] for name in names})


def batch_of(rows: list[dict[str, bytes] | None], kind: pa.DataType = MAP) -> pa.RecordBatch:
    headers = pa.array([None if row is None else list(row.items()) for row in rows], kind)
    return pa.RecordBatch.from_arrays([pa.array([b"x"] * len(rows)), headers], ["value", "headers"])


def headers_of(batch: pa.RecordBatch) -> list[dict[str, bytes]]:
    return [dict(row or ()) for row in batch.column("headers").to_pylist()]


@given(rows=ROWS, fields=FIELD_SETS, start=st.integers(0, 3), stop=st.integers(1, 9))
def test_rows_get_the_headers_that_single_messages_get(
    rows: list[dict[str, bytes] | None], fields: dict[str, str], start: int, stop: int
) -> None:
    batch = batch_of(rows).slice(start, stop)
    found = with_fields(batch, fields, 1 << 20)
    found.validate(full=True)
    encoded = {name: value.encode() for name, value in fields.items()}
    assert headers_of(found) == [dict(added(row, encoded) or {}) for row in rows[start : start + stop]]
    assert found.column("value").equals(batch.column("value"))


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary()), pa.null()]
)
def test_other_types_of_headers(kind: pa.DataType) -> None:
    rows: list[dict[str, bytes] | None] = [None, None] if pa.types.is_null(kind) else [{"a": b"b"}, None]
    found = headers_of(with_fields(batch_of(rows, kind), FIELDS, 1 << 20))
    assert [set(FIELDS) <= set(row) for row in found] == [True, True]


def test_rows_without_a_column_of_headers_get_one() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"])], ["value"])
    found = with_fields(batch, FIELDS, 1 << 20)
    assert found.schema.names == ["value", "headers"]
    assert headers_of(found) == [{name: value.encode() for name, value in FIELDS.items()}] * 2
    assert with_fields(batch, {}, 1 << 20) is batch


def test_rows_that_would_be_too_large_stay_as_they_are() -> None:
    sizes = [10, 8_000, 10, 10]
    values = pa.array([b"v" * size for size in sizes])
    headers = pa.array([[], [], [("a", b"h" * 8_000)], None], MAP)
    keys = pa.array([None, None, None, b"k" * 8_000])
    batch = pa.RecordBatch.from_arrays([values, headers, keys], ["value", "headers", "key"])
    assert ["traceparent" in row for row in headers_of(with_fields(batch, FIELDS, 8_192))] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "column",
    [pa.array([7]), pa.array([["a"]]), pa.array([[(b"\xff", b"x")]], pa.map_(pa.binary(), pa.binary()))],
)
def test_headers_that_cannot_be_published_are_left_to_the_write(column: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), column], ["value", "headers"])
    assert with_fields(batch, FIELDS, 1 << 20) is batch
    if not pa.types.is_map(column.type):
        assert list(header_rows(batch, 5)) == []


def test_value_that_cannot_be_published_is_left_to_the_write() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([[1]])], ["value"])
    assert with_fields(batch, FIELDS, 1 << 20) is batch

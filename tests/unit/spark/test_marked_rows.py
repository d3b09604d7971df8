"""Rows are numbered by partition, and each gets its mark as a header."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest

from liftenvelope.errors import UsageError, UsageTypeError
from liftenvelope.spark._marked_rows import NumberedRows, marked
from liftenvelope.spark._row_places import ROW_HEADER, RowMark, row_marks

KIND = pa.map_(pa.string(), pa.binary())


def partitions(*numbers: int) -> pa.Int32Array:
    return pa.array(numbers, pa.int32())


class TestNumbers:
    def test_rows_of_each_partition_count_on_over_batches(self) -> None:
        given: dict[int, int] = {}
        batch = pa.record_batch({"value": ["a", "bc", "d"], "key": ["k", None, "l"]})
        first = NumberedRows(batch, partitions(1, 0, 1), given)
        assert {number: (one.first, one.places) for number, one in first.portions.items()} == {
            1: (0, [0, 2]),
            0: (0, [1]),
        }
        assert first.bytes == 4
        assert given == {0: 1, 1: 2}
        second = NumberedRows(batch, partitions(1, 1, 0), given)
        assert (second.portions[1].first, second.portions[0].first) == (2, 1)
        assert second.find(1, 3) == (1, crc32(b"bc"))
        assert second.find(0, 1) == (2, crc32(b"d", crc32(b"l")))

    def test_published_columns_alone_are_kept(self) -> None:
        batch = pa.record_batch({"value": ["a"], "offset": [7], "partition": pa.array([None], pa.int64())})
        rows = NumberedRows(batch, partitions(3), {})
        assert rows.batch.to_pylist() == [{"value": "a", "partition": 3}]

    def test_rows_that_cannot_be_published(self) -> None:
        with pytest.raises(UsageError, match="row 1 of a batch must have a value, got null"):
            NumberedRows(pa.record_batch({"value": ["a", None]}), partitions(0, 0), {})
        with pytest.raises(UsageTypeError, match="column 'key' must be of binary or string, got int64"):
            NumberedRows(pa.record_batch({"value": ["a"], "key": [1]}), partitions(0), {})


def test_marks_can_be_parsed() -> None:
    found = [RowMark.parse(mark.decode()) for mark in row_marks(("q:é", 3, 1), [0, -1], [7, 2**32 - 1])]
    assert found == [RowMark("q:é", 3, 1, 0, 7), RowMark("q:é", 3, 1, -1, 2**32 - 1)]


class TestMarked:
    def test_rows_without_headers(self) -> None:
        found = marked(pa.record_batch({"value": ["a", "b"]}), [b"0", b"1"])
        found.validate(full=True)
        assert found["headers"].to_pylist() == [[(ROW_HEADER, b"0")], [(ROW_HEADER, b"1")]]

    @pytest.mark.parametrize("kind", [KIND, pa.map_(pa.string(), pa.string())])
    def test_other_headers_stay_in_order_and_older_marks_go(self, kind: pa.DataType) -> None:
        rows: list[Any] = [[("B", "1"), (ROW_HEADER, "old"), ("A", None)], None, [], [("C", "2")]]
        batch = pa.record_batch({"headers": pa.array([[("X", "0")], *rows], kind), "value": list("01234")})
        found = marked(batch.slice(1), [b"m0", b"m1", b"m2", b"m3"])
        found.validate(full=True)
        assert found.schema.names == ["headers", "value"]
        assert found["headers"].to_pylist() == [
            [("B", b"1"), ("A", None), (ROW_HEADER, b"m0")],
            [(ROW_HEADER, b"m1")],
            [(ROW_HEADER, b"m2")],
            [("C", b"2"), (ROW_HEADER, b"m3")],
        ]

"""Parquet files of one read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftenvelope.bulk.files import open_parquet, save_parquet
from liftenvelope.errors import UsageError

SCHEMA = pa.schema({"number": pa.int64()})


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(count))}, schema=SCHEMA)


def reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)


def test_two_reads_into_one_file_leave_the_rows_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def with_another_read_in_between() -> Iterator[pa.RecordBatch]:
        yield rows(100_000)
        assert save_parquet(reader(iter([rows(50)])), path) == 50
        assert pq.read_table(path).num_rows == 50
        yield rows(7)

    assert save_parquet(reader(with_another_read_in_between()), path) == 100_007
    assert pq.read_table(path).num_rows == 100_007
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "a.parquet.part"
    other.write_text("of someone else")
    save_parquet(reader(iter([rows(1)])), tmp_path / "a.parquet")
    assert other.read_text() == "of someone else"


def test_failed_read_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    save_parquet(reader(iter([rows(5)])), path)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        save_parquet(reader(failing()), path)
    assert pq.read_table(path).num_rows == 5
    assert list(tmp_path.iterdir()) == [path]


def test_reader_of_a_file_holds_few_row_groups_at_a_time(tmp_path: Path) -> None:
    path, group = tmp_path / "a.parquet", 1_000_000
    table = pa.table({"value": [os.urandom(1_000) for _ in range(20 * group // 1_000)]})
    pq.write_table(table, path, row_group_size=group // 1_000, compression="none")
    expected, most, found = table.nbytes, 0, 0
    del table
    before = pa.total_allocated_bytes()
    for batch in open_parquet(path):
        found += batch.nbytes
        most = max(most, pa.total_allocated_bytes() - before)
    assert found == pytest.approx(expected, rel=0.01)
    assert most < 6 * group


def test_type_that_parquet_lacks_is_refused_by_its_column(tmp_path: Path) -> None:
    batch = pa.record_batch({"run": pa.RunEndEncodedArray.from_arrays([1], ["a"])})
    rest = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    with pytest.raises(UsageError, match=r"types that Parquet has, got run_end_encoded.* for column 'run'"):
        save_parquet(rest, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())

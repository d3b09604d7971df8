"""Record batches that are written: checked before Arrow's casts read their buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from liftenvelope.bulk._outgoing import batches_of, open_rows, published
from liftenvelope.errors import UsageError, UsageTypeError
from tests.unit.broken_arrow import with_more_rows


@pytest.mark.parametrize("names", [("value", "value"), ("value", "key", "key")])
def test_column_that_stands_twice_is_refused(names: tuple[str, ...]) -> None:
    table = pa.Table.from_arrays([pa.array([b"x"])] * len(names), names)
    with pytest.raises(UsageError, match=f"data must have each column once, got '{names[-1]}' twice"):
        open_rows(table)


def test_column_without_a_table_is_refused() -> None:
    with pytest.raises(UsageTypeError, match="data must export a table as Arrow, got ChunkedArray: "):
        open_rows(pa.chunked_array([[b"x"]]))


@pytest.mark.parametrize("batches", [published, lambda reader: batches_of(reader, 100)])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"abc"] * 1234),
        pa.array([b"abc"] * 1234, pa.binary(3)),
        pa.array([b"abc"] * 1234).dictionary_encode(),
    ],
)
def test_broken_batch_is_refused(
    batches: Callable[[Any], Iterator[pa.RecordBatch]], values: pa.Array
) -> None:
    broken = with_more_rows(pa.record_batch([values], ["value"]))
    reader = open_rows(pa.RecordBatchReader.from_batches(broken.schema, [broken]))
    with pytest.raises(UsageError, match="data: a record batch is broken: "):
        list(batches(reader))

"""Rows of a batch by partition of the stream, and the column of headers with their marks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from liftenvelope._checks import require
from liftenvelope.bulk.writing import byte_column
from liftenvelope.errors import UsageError
from liftenvelope.spark._row_places import ROW_HEADER
from liftenvelope.spark._schema import header_lists

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = require("pyarrow", "spark")
    pc = require("pyarrow.compute", "spark")

__all__ = ["NumberedRows", "PartitionRows", "marked"]

_PUBLISHED = ("value", "key", "headers")


@dataclass(slots=True)
class PartitionRows:
    """Rows of a batch for one partition of the stream. Their numbers are consecutive.

    Attributes:
        first: Number of the first row.
        places: Position of each row in the batch.
        checksums: Checksum of each row.
    """

    first: int
    places: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)


class NumberedRows:
    """Rows of a batch, numbered by partition.

    Args:
        batch: Rows with the columns of :func:`liftenvelope.bulk.write`.
        partitions: Partition of each row.
        given: Number of the next row of each partition; counts on. Default of a partition: 0.

    Attributes:
        batch: The columns to publish.
        portions: The rows of each partition.
        bytes: Total size of the values.

    Raises:
        UsageError: A value is null.
        UsageTypeError: A column has the wrong type.
    """

    def __init__(self, batch: pa.RecordBatch, partitions: pa.Int32Array, given: dict[int, int]) -> None:
        columns = {name: batch.column(name) for name in _PUBLISHED if name in batch.schema.names}
        self.batch = pa.RecordBatch.from_pydict({**columns, "partition": partitions})
        self.portions: dict[int, PartitionRows] = {}
        values, keys = _bytes(batch, "value"), _bytes(batch, "key")
        if None in values:
            raise UsageError(f"data: row {values.index(None)} of a batch must have a value, got null")
        self.bytes = 0
        for i, partition in enumerate(partitions.to_pylist()):
            row = given.get(partition, 0)
            given[partition] = row + 1
            portion = self.portions.get(partition)
            if portion is None:
                portion = self.portions[partition] = PartitionRows(row)
            value = values[i] or b""
            self.bytes += len(value)
            portion.places.append(i)
            portion.checksums.append(crc32(value, crc32(keys[i] or b"")))

    def find(self, partition: int, row: int) -> tuple[int, int]:
        """Return the position of a row in the batch, and its checksum."""
        portion = self.portions[partition]
        return portion.places[row - portion.first], portion.checksums[row - portion.first]


def _bytes(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    column = byte_column(batch, name)
    if column is None:
        return [None] * batch.num_rows
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def marked(batch: pa.RecordBatch, marks: Sequence[bytes]) -> pa.RecordBatch:
    """Return rows with one more header each, the mark, instead of an older mark.

    Args:
        batch: Rows, possibly with a map column ``headers``.
        marks: Mark of each row.
    """
    names = pa.repeat(pa.scalar(ROW_HEADER), len(marks))
    texts = pa.array(marks, pa.binary())
    if "headers" not in batch.schema.names:
        ends = pa.array(range(len(marks) + 1), pa.int32())
        return batch.append_column("headers", pa.MapArray.from_arrays(ends, names, texts))
    rows, old_names, old_texts = _entries(batch.column("headers"))
    rows = pa.concat_arrays([rows, pa.array(range(len(marks)), pa.int64())])
    # A stable sort: the mark of a row comes after its other headers, and so says where the row ends.
    order = pc.array_sort_indices(rows)
    last = pc.indices_nonzero(pc.greater_equal(order, len(old_names)))
    headers = pa.MapArray.from_arrays(
        pa.concat_arrays([pa.array([0], pa.int32()), pc.add(last, 1).cast(pa.int32())]),
        pa.concat_arrays([old_names, names]).take(order),
        pa.concat_arrays([old_texts, texts]).take(order),
    )
    return batch.set_column(batch.schema.get_field_index("headers"), "headers", headers)


def _entries(column: pa.MapArray) -> tuple[pa.Int64Array, pa.StringArray, pa.BinaryArray]:
    """Return row, name and value of each header that is not a mark."""
    lists = header_lists(column)
    rows = pc.list_parent_indices(lists)
    names, texts = lists.flatten().flatten()
    kept = pc.not_equal(names, ROW_HEADER)
    return rows.filter(kept), names.filter(kept), texts.filter(kept)

"""Record batches in parts: join them, put nulls between their rows, and find the values that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
else:
    from liftenvelope.payload._formats import pa

__all__ = ["bisected", "empty_batch", "joined", "with_nulls"]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all batches in one."""
    if len(batches) == 1:
        return batches[0]
    found = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return found[0] if found else empty_batch(schema)


def with_nulls(batch: pa.RecordBatch, order: Sequence[int | None]) -> pa.RecordBatch:
    """Return a batch whose row *i* is row ``order[i]``; None for a row of nulls."""
    return batch.take(pa.array(order, pa.int32())) if batch.num_columns else batch


def bisected(
    values: pa.Array, attempt: Callable[[pa.Array], pa.RecordBatch | str], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[int | str]]:
    """Try values together, and split those that fail until each is alone.

    Args:
        values: The values.
        attempt: Returns one row per value, or the reason why it cannot.
        schema: Columns of the rows.

    Returns:
        The rows of the good values, and for each value the number of its row, or its fault.
    """
    parts: list[pa.RecordBatch] = [empty_batch(schema)]
    fates: list[int | str] = []
    rows = 0
    spans = [(0, len(values))] if len(values) else []
    while spans:
        start, stop = spans.pop()
        found = attempt(values.slice(start, stop - start))
        if not isinstance(found, str):
            parts.append(found)
            fates.extend(range(rows, rows + stop - start))
            rows += stop - start
        elif stop - start == 1:
            fates.append(found)
        else:
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
    return joined(parts, schema), fates

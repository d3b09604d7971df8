"""Rows of Parquet files in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["rows_of_groups"]


def rows_of_groups(
    file: pq.ParquetFile, batch_rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, and hold one row group of it at a time.

    Args:
        file: The file.
        batch_rows: Maximum number of rows in a batch.
        columns: Names of the columns; None (default) for all.

    ``iter_batches`` of the whole file fetches all of its row groups ahead, and keeps them to its end: 300 MiB
    of values took 400 MiB of memory. Without its reading ahead, an object store gets a request per column.
    """
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=columns)

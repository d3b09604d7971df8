"""A peer of our sources that reads no server: it repeats one batch with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.spark.streams import rows
from liftenvelope.spark._schema import BATCH_ROWS, RowOptions, header_lists, spark_ddl, spark_schema


def _batch(stream: str, size: int, headers: int) -> pa.RecordBatch:
    """A batch as a source has it for :func:`rows`."""
    made = rows(BATCH_ROWS, size, headers).combine_chunks()
    numbers = pa.array(range(BATCH_ROWS), pa.int64())
    columns: dict[str, Any] = {
        "key": pa.nulls(BATCH_ROWS, pa.binary()),
        "value": made["value"].chunk(0),
        "topic": pa.repeat(stream, BATCH_ROWS),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS),
        "offset": numbers,
        "timestamp": numbers.cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(1, pa.int32()), BATCH_ROWS),
        "subject": pa.repeat(stream, BATCH_ROWS),
        "timestamp_nanos": numbers,
    }
    if headers:
        columns["headers"] = header_lists(made["headers"].chunk(0))
    schema = spark_schema(RowOptions(headers=headers > 0))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        count, tasks = int(self._options["count"]), int(self._options["tasks"])
        return [InputPartition(count // tasks) for _ in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        batch = _batch(options["stream"], int(options["size"]), int(options["headers"]))
        for start in range(0, partition.value, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, partition.value - start))


class ReadyMade(DataSource):
    """Rows of a stream's columns, made once per task."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> str:
        return spark_ddl(RowOptions(headers=int(self.options["headers"]) > 0))

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options)

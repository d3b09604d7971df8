"""Streams of real servers for tests in Spark, and queries over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from liftenvelope import bulk

T = TypeVar("T")


class Stream:
    """A stream of one kind of server."""

    def __init__(self, format_: str, servers: str, name: str, partitions: int = 1) -> None:
        self.format, self.servers, self.name, self.partitions = format_, servers, name, partitions
        self.written = 0

    def write(self, count: int) -> None:
        rows = range(self.written, self.written + count)
        columns: dict[str, Any] = {"value": [b"%d" % i for i in rows]}
        if self.format == "jetstream":
            bulk.write(self.servers, self.name, pa.table(columns), subject=f"{self.name}.x")
        else:
            columns["partition"] = pa.array([i % self.partitions for i in rows], pa.int32())
            columns["key"] = [b"k%d" % i for i in rows]
            bulk.write(self.servers, self.name, pa.table(columns))
        self.written += count

    def read(self, spark: SparkSession, **options: object) -> DataFrame:
        given = {"servers": self.servers, "subscribe": self.name, **options}
        return spark.read.format(self.format).options(**given).load()

    def follow(self, spark: SparkSession, **options: object) -> DataFrame:
        given = {"servers": self.servers, "subscribe": self.name, **options}
        return spark.readStream.format(self.format).options(**given).load()

    def sink(self) -> dict[str, str]:
        """Options to write to it with."""
        subject = {"subject": f"{self.name}.x"} if self.format == "jetstream" else {}
        return {"servers": self.servers, "topic": self.name, **subject}

    def run(self, frame: DataFrame, checkpoint: Path, **options: object) -> None:
        """Write to it what a streaming DataFrame has now."""
        writer = frame.writeStream.format(self.format).options(**options)
        finish(writer.option("checkpointLocation", str(checkpoint)))

    @property
    def numbers(self) -> list[int]:
        """Rows that were written."""
        return list(range(self.written))


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def patiently(work: Callable[[], T]) -> T:
    """Do what starts a query, again where Spark was too slow: its workers have ten seconds to start."""
    for _ in range(5):
        try:
            return work()
        except StreamingQueryException as exc:
            if "Python worker failed to connect back" not in str(exc):
                raise
    return work()


def finish(writer: Any) -> None:
    """Run a streaming query to the end of what there is."""
    patiently(lambda: _finish(writer))


def _finish(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()


class Query:
    """A streaming query into Parquet files, run to the end of what there is, as often as one likes."""

    def __init__(self, frame: DataFrame, folder: Path) -> None:
        self._frame = frame
        self.folder = folder
        self.checkpoint = folder / "checkpoint"

    def run(self) -> None:
        writer = self._frame.writeStream.format("parquet").option("path", str(self.folder / "rows"))
        finish(writer.option("checkpointLocation", str(self.checkpoint)))

    def numbers(self, spark: SparkSession) -> list[int]:
        return numbers(spark.read.parquet(str(self.folder / "rows")))

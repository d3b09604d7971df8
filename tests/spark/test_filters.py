"""Filters of queries, in Spark, on real servers: the same rows as without push-down, and fewer read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name

from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream
from tests.spark.streams import Stream, finish

pytestmark = pytest.mark.timeout(900)
COUNT = 20


@pytest.fixture
def filled(nats: NatsServer, name: str) -> Stream:
    """A JetStream stream with 20 messages on ``<name>.<a or b>.<0 to 4>``."""
    make_stream(nats.url, name)
    subjects = [f"{name}.{'ab'[at % 2]}.{at % 5}" for at in range(COUNT)]
    table = pa.table({"value": [b"%d" % at for at in range(COUNT)], "subject": subjects})
    bulk.write(nats.url, name, table)
    return Stream("jetstream", nats.url, name)


def found(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def expected(*, kind: str = "ab", digits: range = range(5), offsets: range = range(COUNT)) -> list[int]:
    return [at for at in offsets if "ab"[at % 2] in kind and at % 5 in digits]


def test_subjects_filter_batches_and_streams(spark: SparkSession, filled: Stream, tmp_path: Path) -> None:
    wanted = f"{filled.name}.a.*, {filled.name}.b.3"
    numbers = sorted({*expected(kind="a"), *expected(kind="b", digits=range(3, 4))})
    assert found(filled.read(spark, filterSubjects=wanted)) == numbers
    frame = filled.follow(spark, filterSubjects=wanted, startingOffsets="earliest")
    rows = str(tmp_path / "rows")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    finish(writer.option("path", rows))
    assert found(spark.read.parquet(rows)) == numbers


def test_pushed_filters_return_the_same_rows_and_read_fewer(spark: SparkSession, filled: Stream) -> None:
    """With a task for each offset, the number of tasks is the number of offsets that are read."""
    name = filled.name
    later = "2200-01-01 00:00:00"
    cases: list[tuple[Any, list[int], int]] = [
        (F.col("offset") >= 15, expected(offsets=range(15, COUNT)), 5),
        ((F.col("offset") > 5) & (F.col("offset") < 9), [6, 7, 8], 3),
        (F.col("offset").isin(3, 9), [3, 9], 7),
        (F.col("partition") > 0, [], 0),
        (F.col("timestamp") > F.lit(later).cast("timestamp"), [], 0),
        (F.col("timestamp") < F.lit(later).cast("timestamp"), expected(), COUNT),
        (F.col("subject") == f"{name}.a.2", expected(kind="a", digits=range(2, 3)), COUNT),
        (F.col("subject").isin(f"{name}.a.2", "x"), expected(kind="a", digits=range(2, 3)), COUNT),
        (F.col("subject").startswith(f"{name}.b."), expected(kind="b"), COUNT),
        (F.col("subject").startswith(f"{name}.b"), expected(kind="b"), COUNT),
        (
            (F.col("offset") < 4) | (F.col("subject") == f"{name}.a.2"),
            [0, 1, 2, 3, 12],
            COUNT,
        ),
        (~(F.col("offset") < 15), expected(offsets=range(15, COUNT)), 5),
        ((F.col("offset") < 10) & (F.col("offset") % 7 == 0), [0, 7], 10),
        ((F.col("subject") == "a") & (F.col("subject") == "b"), [], 0),
    ]
    for condition, numbers, read in cases:
        rows = filled.read(spark, maxRecordsPerPartition=1, pushFilters=True).where(condition)
        assert found(rows) == numbers, condition
        # Spark may see by itself that nothing can match, and then asks for no partition.
        assert rows.rdd.getNumPartitions() in ({read} if read else {0, 1}), condition


def test_pushed_filters_meet_the_filter_of_the_source(spark: SparkSession, filled: Stream) -> None:
    frame = filled.read(spark, filterSubjects=f"{filled.name}.a.>", pushFilters=True)
    assert found(frame.where(F.col("subject").endswith(".2"))) == expected(kind="a", digits=range(2, 3))
    assert found(frame.where(F.col("subject") == f"{filled.name}.b.1")) == []
    assert found(frame.where(F.col("subject").startswith(f"{filled.name}."))) == expected(kind="a")


def test_filters_of_one_query_do_not_narrow_another_of_the_same_frame(
    spark: SparkSession, filled: Stream
) -> None:
    """Spark keeps one plan for a frame, so a plan that a filter narrows would serve queries without it."""
    frame = filled.read(spark)
    first, last = frame.where("offset < 3"), frame.where("offset >= 17")
    assert found(first) == [0, 1, 2]
    assert found(frame) == expected()
    assert found(first.union(last)) == [0, 1, 2, 17, 18, 19]


def test_exact_filters_are_not_checked_again(spark: SparkSession, filled: Stream) -> None:
    rows = filled.read(spark, pushFilters=True).where(
        (F.col("offset") >= 15) & F.col("subject").startswith(f"{filled.name}.a.")
    )
    jvm: Any = rows
    plan = jvm._jdf.queryExecution().executedPlan().toString()
    assert "StartsWith" not in plan.partition("Filter")[2].splitlines()[0]
    assert found(rows) == expected(kind="a", offsets=range(15, COUNT))


def test_liftbridge_partitions_and_offsets_are_pushed(
    spark: SparkSession, liftbridge_server: LiftbridgeCluster, name: str
) -> None:
    liftbridge_server.create_stream(name, partitions=3)
    stream = Stream("liftbridge", liftbridge_server.addresses[0], name, 3)
    stream.write(30)
    rows = stream.read(spark, maxRecordsPerPartition=1, pushFilters=True).where(
        "partition >= 1 AND offset < 2"
    )
    assert found(rows) == [1, 2, 4, 5]
    assert rows.rdd.getNumPartitions() == 4

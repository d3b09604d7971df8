"""Rows that streaming queries store once, in Spark, on real servers: tasks are killed, batches run again."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from liftenvelope import bulk
from liftenvelope.testing import GatewayCluster, LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream
from tests.spark.killing import Killing
from tests.spark.streams import Stream

pytestmark = pytest.mark.timeout(900)

PARTITIONS = 3
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
ONCE = {"deliveryGuarantee": "effectively-once"}


@pytest.fixture
def source(nats: NatsServer, name: str) -> Stream:
    make_stream(nats.url, f"{name}-in")
    return Stream("jetstream", nats.url, f"{name}-in")


@pytest.fixture(params=["jetstream", "liftbridge", "gateway"])
def target(request: pytest.FixtureRequest, name: str) -> Stream:
    """A stream that can store rows once; of Liftbridge, one that checks expected offsets."""
    if request.param == "jetstream":
        server: NatsServer = request.getfixturevalue("nats")
        make_stream(server.url, name)
        return Stream("jetstream", server.url, name)
    cluster: LiftbridgeCluster | GatewayCluster = request.getfixturevalue(f"{request.param}_server")
    cluster.create_stream(name, partitions=PARTITIONS, optimistic_concurrency=True)
    return Stream("liftbridge", cluster.addresses[0], name, partitions=PARTITIONS)


def owned(source: DataFrame, target: Stream) -> DataFrame:
    """Rows for the sink; all of a partition of Liftbridge in one task."""
    if target.format == "jetstream":
        return source.select("value")
    partition = f"cast(offset % {PARTITIONS} as int) as partition"
    numbered = source.selectExpr("value", partition, "cast(offset as string) as msgId")
    return numbered.repartition(PARTITIONS, "partition")


def check(target: Stream, count: int) -> None:
    """Every number is there, once."""
    found = bulk.read(target.servers, target.name, columns=["value"]).read_all()["value"].to_pylist()
    assert Counter(map(int, found)) == dict.fromkeys(range(count), 1)


def uncommit(checkpoint: Path) -> None:
    """As if Spark had died between the write and its commit."""
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


def test_a_batch_that_is_run_again(
    spark: SparkSession, source: Stream, target: Stream, tmp_path: Path
) -> None:
    source.write(300)
    frame = owned(source.follow(spark, startingOffsets="earliest", minPartitions=3), target)
    options = {**target.sink(), **ONCE}
    for _ in range(2):
        target.run(frame, tmp_path, **options)
        uncommit(tmp_path)
    target.run(frame, tmp_path, **options)
    source.write(50)
    target.run(frame, tmp_path, **options)
    check(target, 350)


def test_tasks_that_are_killed_before_spark_hears_of_their_rows(
    spark: SparkSession, source: Stream, target: Stream, tmp_path: Path
) -> None:
    spark.dataSource.register(Killing)
    source.write(200)
    frame = owned(source.follow(spark, startingOffsets="earliest", minPartitions=3), target)
    marks = tmp_path / "marks"
    marks.mkdir()
    sink = Stream("killing", target.servers, target.name)
    options = {**target.sink(), **ONCE, "of": target.format, "marks": str(marks)}
    sink.run(frame, tmp_path / "checkpoint", **options)
    assert list(marks.iterdir())
    check(target, 200)


def test_tasks_that_share_partitions(
    spark: SparkSession, source: Stream, target: Stream, tmp_path: Path
) -> None:
    """Every task writes to every partition: slower, and right."""
    source.write(120)
    frame = source.follow(spark, startingOffsets="earliest", minPartitions=4).selectExpr(
        "value", "value as key"
    )
    for _ in range(2):
        target.run(
            frame.drop("key") if target.format == "jetstream" else frame, tmp_path, **target.sink(), **ONCE
        )
        uncommit(tmp_path)
    check(target, 120)


def test_a_task_that_is_killed_while_it_writes(
    spark: SparkSession, liftbridge_server: LiftbridgeCluster, source: Stream, name: str, tmp_path: Path
) -> None:
    """Its second attempt goes on after the rows of the first."""
    liftbridge_server.create_stream(name, optimistic_concurrency=True)
    target = Stream("liftbridge", liftbridge_server.addresses[0], name)
    source.write(6_000)
    servers, marker = target.servers, tmp_path / "stored"

    def killed_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(batches):
            yield batch
            # What Spark buffers on its way to the sink is two batches.
            if i == 4 and not marker.exists():
                limit = time.monotonic() + 120
                while not (stored := bulk.count(servers, name)) and time.monotonic() < limit:
                    time.sleep(0.05)
                marker.write_text(str(stored))
                os.kill(os.getpid(), signal.SIGKILL)

    # Less than 64 KiB would not leave Spark's buffers.
    large = "cast(repeat('k', 1000) as binary) as key"
    frame = source.follow(spark, startingOffsets="earliest").selectExpr("value", large)
    options = {**target.sink(), **ONCE, "maxInFlight": 100}
    before = spark.conf.get(BATCH)
    spark.conf.set(BATCH, "500")
    try:
        target.run(
            frame.mapInArrow(killed_once, "value binary, key binary"), tmp_path / "checkpoint", **options
        )
    finally:
        spark.conf.set(BATCH, before)
    assert int(marker.read_text()) > 0
    check(target, 6_000)


def test_a_stream_that_does_not_check_offsets(
    spark: SparkSession, liftbridge_server: LiftbridgeCluster, source: Stream, name: str, tmp_path: Path
) -> None:
    liftbridge_server.create_stream(name)
    source.write(5)
    target = Stream("liftbridge", liftbridge_server.addresses[0], name)
    frame = source.follow(spark, startingOffsets="earliest").select("value")
    with pytest.raises(PySparkException, match="was created with optimistic_concurrency=True"):
        target.run(frame, tmp_path, **target.sink(), **ONCE)

"""Spark's sources, beside bulk.read in plain Python, sources of tuples, and Spark's source of Kafka."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest

from benchmarks.report import Bound, Report
from benchmarks.rounds import Comparison, Peer
from benchmarks.spark.kafka import Kafka
from benchmarks.spark.ready_sources import ReadyMade
from benchmarks.spark.streams import TASKS, drain, load, rows, timed
from benchmarks.spark.tuple_sources import GrpcTuples, NatsTuples
from liftenvelope import bulk
from liftenvelope.spark._schema import RowOptions, bulk_columns, spark_schema
from liftenvelope.testing import LiftbridgeCluster, NatsServer

_TABLE = 600_000
_CORES = (
    "Two tasks, Spark's own threads and the server share the cores that a plain read has with the server."
)
_HEADERS = (
    "Spark's part alone, in the row beside ready-made batches, takes more processor time than a plain read. "
    "The conversion of a batch in the tasks takes 25 ns per row."
)
_READY = "batches ready made, no server: so much is Spark's own"


def make_stream(url: str, **config: Any) -> str:
    """A stream on the subject of the same name."""
    name = f"bench-{uuid4().hex[:8]}"

    async def make() -> None:
        async with await nats.connect(url) as nc:
            await nc.jetstream().add_stream(name=name, subjects=[name], **config)

    asyncio.run(make())
    return name


def drop_stream(url: str, name: str) -> None:
    async def drop() -> None:
        async with await nats.connect(url) as nc:
            await nc.jetstream().delete_stream(name)

    asyncio.run(drop())


def _fill(url: str, stream: str, count: int, headers: int = 0) -> None:
    """Write so many rows of 100 B, in tables that fit into memory."""
    for start in range(0, count, _TABLE):
        bulk.write(url, stream, rows(min(_TABLE, count - start), 100, headers), subject=stream)


def _plain_read(where: str, stream: str, count: int, headers: bool) -> None:
    columns = bulk_columns(spark_schema(RowOptions(headers=headers)))
    assert sum(batch.num_rows for batch in bulk.read(where, stream, columns=columns)) == count


@pytest.mark.parametrize("headers", [0, 2])
def test_jetstream(compare: Comparison, spark: Any, jetstream: NatsServer, headers: int) -> None:
    count, some, url = compare.amount(600_000, 500), compare.amount(60_000, 500), jetstream.url
    stream = make_stream(url, storage="memory")
    _fill(url, stream, count, headers)
    spark.dataSource.register(NatsTuples)
    spark.dataSource.register(ReadyMade)
    ours = load(
        spark, "jetstream", servers=url, subscribe=stream, minPartitions=TASKS, includeHeaders=headers > 0
    )
    tuples = load(spark, NatsTuples.name(), servers=url, stream=stream, count=some, tasks=TASKS)
    made = {"stream": stream, "count": count, "tasks": TASKS, "size": 100, "headers": headers}
    ready = load(spark, ReadyMade.name(), **made)
    assert ready.schema == ours.schema
    assert (ours.count(), tuples.count(), ready.count()) == (count, some, count)
    limit = _HEADERS if headers else _CORES
    peers = [
        Peer("bulk.read", timed(lambda: _plain_read(url, stream, count, headers > 0), count), 0.8, limit),
        Peer(_READY, timed(lambda: drain(ready), count)),
        Peer("the same with tuples, nats-py", timed(lambda: drain(tuples), some), 5),
    ]
    compare(
        f"source, JetStream, 100 B, {headers or 'no'} headers",
        timed(lambda: drain(ours), count),
        *peers[: 2 if headers else 3],
        rate=True,
        rounds=9,
    )
    drop_stream(url, stream)


def test_long_jetstream(compare: Comparison, spark: Any, jetstream: NatsServer) -> None:
    """Planning and starting tasks take a small share of the time."""
    count, url = compare.amount(3_000_000, 500), jetstream.url
    stream = make_stream(url, storage="memory")
    _fill(url, stream, count)
    ours = load(spark, "jetstream", servers=url, subscribe=stream, minPartitions=TASKS)
    assert ours.count() == count
    compare(
        f"source, JetStream, 100 B, no headers, {count:,} rows",
        timed(lambda: drain(ours), count),
        Peer("bulk.read", timed(lambda: _plain_read(url, stream, count, False), count), 0.8, _CORES),
        rate=True,
        rounds=9,
    )
    drop_stream(url, stream)


def test_liftbridge(compare: Comparison, spark: Any, liftbridge: LiftbridgeCluster) -> None:
    count, some = compare.amount(200_000, 500), compare.amount(40_000, 500)
    stream, address = f"bench-{uuid4().hex[:8]}", liftbridge.addresses[0]
    liftbridge.create_stream(stream)
    bulk.write(address, stream, rows(count, 100), partition=0)
    spark.dataSource.register(GrpcTuples)
    ours = load(spark, "liftbridge", servers=address, subscribe=stream, minPartitions=TASKS)
    tuples = load(spark, GrpcTuples.name(), servers=address, stream=stream, count=some, tasks=TASKS)
    assert (ours.count(), tuples.count()) == (count, some)
    compare(
        "source, Liftbridge, 100 B",
        timed(lambda: drain(ours), count),
        Peer("bulk.read", timed(lambda: _plain_read(address, stream, count, False), count), 0.8, _CORES),
        Peer("the same with tuples, grpcio", timed(lambda: drain(tuples), some), 5),
        rate=True,
        rounds=9,
    )
    liftbridge.delete_stream(stream)


def test_beside_kafka(
    compare: Comparison, spark: Any, jetstream: NatsServer, liftbridge: LiftbridgeCluster, kafka: Kafka
) -> None:
    count, url = compare.amount(500_000, 500), jetstream.url
    stream = make_stream(url)  # in a file, as Kafka's
    bulk.write(url, stream, rows(count, 100), subject=stream)
    ours = load(spark, "jetstream", servers=url, subscribe=stream, minPartitions=TASKS)
    at = {"kafka.bootstrap.servers": kafka.address}
    made = spark.range(0, count, 1, TASKS).selectExpr("cast(repeat('x', 100) as binary) as value")
    made.write.format("kafka").options(**at, topic=stream).save()
    theirs = load(spark, "kafka", **at, subscribe=stream, minPartitions=TASKS)
    assert (ours.count(), theirs.count()) == (count, count)
    compare(
        "source, JetStream, 100 B",
        timed(lambda: drain(ours), count),
        Peer("Spark's Kafka connector", timed(lambda: drain(theirs), count), 1),
        rate=True,
        rounds=9,
    )
    drop_stream(url, stream)


def test_large_rows(quick: bool, report: Report, spark: Any, jetstream: NatsServer) -> None:
    count, size, url = 4 if quick else 2_000, 1024 * 1024, jetstream.url
    stream = make_stream(url)
    for _ in range(0, count, 4):
        bulk.write(url, stream, rows(4, size), subject=stream)
    frame = load(spark, "jetstream", servers=url, subscribe=stream, minPartitions=TASKS)
    process = spark.sparkContext._gateway.proc.pid
    _forget_peaks(process)
    drain(frame)
    peak = max(_peaks(process), default=0) / 2**20
    assert peak > 0
    if not quick:
        report.bounds.append(
            Bound("source, JetStream, 2,000 rows of 1 MiB: most memory of a worker", peak, 400, "MiB")
        )
    drop_stream(url, stream)


def _workers(process: int) -> list[Path]:
    """The Python processes below a JVM. Some end while one looks."""
    found, waiting = [], [process]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, children.read_text().split()):
                    waiting.append(child)
                    if "python" in os.readlink(f"/proc/{child}/exe"):
                        found.append(Path(f"/proc/{child}"))
    return found


def _forget_peaks(process: int) -> None:
    for worker in _workers(process):
        with suppress(FileNotFoundError, ProcessLookupError):
            (worker / "clear_refs").write_text("5")  # resets VmHWM


def _peaks(process: int) -> list[int]:
    """The most memory that each has had since, in bytes."""
    found = []
    for worker in _workers(process):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = (worker / "status").read_text().splitlines()
            found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found

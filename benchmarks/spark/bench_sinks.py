"""Spark's sinks, every row acked, beside as many processes outside Spark that publish."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.rounds import Comparison, Peer, Round
from benchmarks.spark.bench_sources import make_stream
from benchmarks.spark.publishers import WINDOW, publish
from benchmarks.spark.streams import TASKS, timed
from liftenvelope.testing import LiftbridgeCluster, NatsServer

SIZE = 100


def _outside(kind: str, where: str, stream: str, count: int) -> Round:
    return lambda: publish(kind, where, stream, count, SIZE, TASKS) / count


def _save(spark: Any, format_: str, count: int, **options: object) -> Round:
    frame = spark.range(0, count, 1, TASKS).selectExpr(f"repeat('x', {SIZE}) as value")
    given = {"maxInFlight": WINDOW, **options}
    return timed(lambda: frame.write.format(format_).options(**given).mode("append").save(), count)


@pytest.fixture
def stream(liftbridge: LiftbridgeCluster) -> Iterator[str]:
    name = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(name)
    yield name
    liftbridge.delete_stream(name)


def test_liftbridge(compare: Comparison, spark: Any, liftbridge: LiftbridgeCluster, stream: str) -> None:
    count, address = compare.amount(100_000, 500), liftbridge.addresses[0]
    compare(
        f"sink, Liftbridge, {SIZE} B, acked, {TASKS} tasks",
        _save(spark, "liftbridge", count, servers=address, topic=stream),
        Peer(f"publish_many, {TASKS} processes", _outside("publish_many", address, stream, count), 0.8),
        Peer(
            f"publish_batch, {TASKS} processes",
            _outside("publish_batch", liftbridge.nats_url, stream, count),
            0.8,
        ),
        rate=True,
        rounds=5,
    )


def test_jetstream(compare: Comparison, spark: Any, jetstream: NatsServer) -> None:
    count, url = compare.amount(200_000, 500), jetstream.url
    name = make_stream(url, storage="memory")
    compare(
        f"sink, JetStream, {SIZE} B, acked, {TASKS} tasks",
        _save(spark, "jetstream", count, servers=url, topic=name, subject=name),
        Peer(f"bulk.write, {TASKS} processes", _outside("bulk.write", url, name, count), 0.8),
        rate=True,
        rounds=5,
    )

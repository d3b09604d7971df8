"""Spark's sinks, every row acked, beside as many processes outside Spark that publish.

And the sinks that store each row once, or write to several streams, beside themselves without that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.rounds import Comparison, Peer, Round
from benchmarks.spark.bench_sources import drop_stream, make_stream
from benchmarks.spark.publishers import WINDOW, publish
from benchmarks.spark.streams import TASKS, batches, timed
from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeCluster, NatsServer

SIZE = 100
TOPICS = 10
#: One of its headers says which row it is: of what is stored once in JetStream, and in Liftbridge.
ONCE = {"jetstream": "Nats-Msg-Id", "liftbridge": "liftenvelope-row"}
NAMES = {"jetstream": "JetStream", "liftbridge": "Liftbridge"}
_TOPICS = "Each task opens ten connections, and each stream stores rows in smaller groups."
_MESSAGE_IDS = "Each message has a header with its id, which the server reads, keeps and looks up."
_OFFSETS = (
    "The server: the header of its row raises Liftbridge's processor time of a message to 1.25 times, a"
    " stream that checks offsets and takes messages one by one also to 1.25 times, both together to 1.4"
    " times (20 µs instead of 14 µs; 10,000 rows of one task, without Spark). The client needs 7 µs more."
)


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


@pytest.mark.parametrize("format_", ["liftbridge", "jetstream"])
def test_topics(compare: Comparison, spark: Any, request: pytest.FixtureRequest, format_: str) -> None:
    count = compare.amount(100_000, 500)
    where, streams = _streams(request, format_)
    names = ", ".join(f"'{name}'" for name in streams)
    numbered = spark.range(0, count, 1, TASKS).selectExpr(
        f"repeat('x', {SIZE}) as value",
        f"element_at(array({names}), cast(id % {TOPICS} + 1 as int)) as topic",
    )
    several = numbered.selectExpr("value", "topic", "topic as subject")
    single = numbered.selectExpr("value", f"'{streams[0]}' as topic", f"'{streams[0]}' as subject")

    def save(frame: Any) -> Round:
        given = {"servers": where, "maxInFlight": WINDOW}
        return timed(lambda: frame.write.format(format_).options(**given).mode("append").save(), count)

    save(several)()
    assert [bulk.count(where, name) for name in streams] == [count // TOPICS] * TOPICS
    compare(
        f"sink, {NAMES[format_]}, {SIZE} B, acked, {TASKS} tasks, a column of {TOPICS} topics",
        save(several),
        Peer("a column of one topic", save(single), 0.8, _TOPICS),
        rate=True,
        rounds=5,
    )


def _streams(request: pytest.FixtureRequest, format_: str) -> tuple[str, list[str]]:
    """Return the address of the servers, and the names of new streams there."""
    if format_ == "jetstream":
        server: NatsServer = request.getfixturevalue("jetstream")
        return server.url, [make_stream(server.url, storage="memory") for _ in range(TOPICS)]
    cluster: LiftbridgeCluster = request.getfixturevalue("liftbridge")
    names = [f"bench-{uuid4().hex[:8]}" for _ in range(TOPICS)]
    for name in names:
        cluster.create_stream(name)
    return cluster.addresses[0], names


def _follow(
    spark: Any, format_: str, rows: int, count: int, folder: Path, where: str, stream: str, how: str
) -> Round:
    """Micro-batches, the rows of each partition of the stream from one task."""
    made = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=TASKS).load()
    # Of that source a task has the numbers that leave the same remainder.
    special = (
        f"'{stream}' as subject" if format_ == "jetstream" else f"cast(value % {TASKS} as int) as partition"
    )
    frame = made.selectExpr(f"repeat('x', {SIZE}) as value", special)
    options = {"servers": where, "topic": stream, "maxInFlight": WINDOW, "deliveryGuarantee": how}

    def writer() -> Any:
        to = frame.writeStream.format(format_).options(**options)
        return to.option("checkpointLocation", str(folder / uuid4().hex))

    return batches(writer, count, rows)


def _check_once(format_: str, where: str, stream: str) -> None:
    """The newest messages say which rows they are."""
    found = bulk.read(where, stream, start="latest", columns=["headers"]).read_all().to_pylist()
    assert found
    assert all(ONCE[format_] in dict(row["headers"]) for row in found)


def test_liftbridge_once(
    compare: Comparison, spark: Any, liftbridge: LiftbridgeCluster, tmp_path: Path
) -> None:
    rows, count, address = compare.amount(20_000, 100), compare.amount(5, 1), liftbridge.addresses[0]
    checked, unchecked = (f"bench-{uuid4().hex[:8]}" for _ in range(2))
    liftbridge.create_stream(checked, partitions=TASKS, optimistic_concurrency=True)
    liftbridge.create_stream(unchecked, partitions=TASKS)
    given = (spark, "liftbridge", rows, count, tmp_path, address)
    compare(
        f"sink, Liftbridge, {SIZE} B, effectively once, {TASKS} tasks, micro-batches of {rows:,}",
        _follow(*given, checked, "effectively-once"),
        Peer("at least once", _follow(*given, unchecked, "at-least-once"), 0.85, _OFFSETS),
        rate=True,
        rounds=5,
    )
    _check_once("liftbridge", address, checked)
    for name in (checked, unchecked):
        liftbridge.delete_stream(name)


def test_jetstream_once(compare: Comparison, spark: Any, jetstream: NatsServer, tmp_path: Path) -> None:
    rows, count, url = compare.amount(50_000, 100), compare.amount(5, 1), jetstream.url
    once, often = (make_stream(url, storage="memory", max_msgs=1_000_000) for _ in range(2))
    given = (spark, "jetstream", rows, count, tmp_path, url)
    compare(
        f"sink, JetStream, {SIZE} B, effectively once, {TASKS} tasks, micro-batches of {rows:,}",
        _follow(*given, once, "effectively-once"),
        Peer("at least once", _follow(*given, often, "at-least-once"), 0.9, _MESSAGE_IDS),
        rate=True,
        rounds=5,
    )
    _check_once("jetstream", url, once)
    for name in (once, often):
        drop_stream(url, name)

"""``python -m benchmarks.spark.picture``: examples/spark_pipeline.py, run for a minute and drawn.

A publisher sends envelopes over plain NATS at a steady rate, with a burst in the middle; the query counts
them as they come. The picture, docs/spark-pipeline.png, shows rows per second and how far the query is
behind. It needs matplotlib beside the extra spark.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import nats

from liftenvelope.nats import AckInbox, EnvelopePublisher
from liftenvelope.testing import GatewayCluster, run_gateway

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "spark-pipeline.png"
#: How long and how many messages per second.
PHASES = ((20.0, 2_000), (10.0, 10_000), (30.0, 2_000))
TICK = 0.1
TRIGGER = "1 second"
PATIENCE = 600.0


@dataclass(frozen=True)
class Batch:
    """A micro-batch: when it began and ended, in seconds since 1970, and how many rows it had."""

    began: float
    ended: float
    rows: int


@dataclass(frozen=True)
class Stored:
    """Total number of acked messages at a time, in seconds since 1970."""

    at: float
    count: int


def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("spark_pipeline", ROOT / "examples" / "spark_pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def publish(gateway: GatewayCluster, found: list[Stored], phases: Sequence[tuple[float, int]]) -> None:
    """Publish as the phases say, and note what was acked when."""
    async with await nats.connect(gateway.nats_url) as nc, AckInbox(nc) as inbox:
        publisher = EnvelopePublisher(nc, "readings", inbox=inbox, partitions=2)
        count, due = 0, time.time()
        for seconds, rate in phases:
            for _ in range(round(seconds / TICK)):
                numbers = range(count, count + round(rate * TICK))
                keys = [b"sensor-%d" % (number % 5) for number in numbers]
                acks = await publisher.publish_batch([b"%d" % (number % 30) for number in numbers], keys=keys)
                assert acks is not None
                await acks
                count += len(numbers)
                found.append(Stored(time.time(), count))
                due += TICK
                await asyncio.sleep(max(0.0, due - time.time()))


def run(phases: Sequence[tuple[float, int]]) -> tuple[list[Stored], list[Batch]]:
    """Run the pipeline; return what was stored and what was read, over time."""
    program = example()
    stored: list[Stored] = []
    with run_gateway() as gateway, tempfile.TemporaryDirectory() as folder:
        gateway.create_stream("readings", partitions=2)
        gateway.create_stream("means")
        spark = program.start_spark()
        query = start(program, spark, gateway.addresses[0], folder)
        try:
            await_rows(gateway, query)
            publishing = threading.Thread(target=asyncio.run, args=(publish(gateway, stored, phases),))
            publishing.start()
            publishing.join()
            query.processAllAvailable()
            progress = [json.loads(one.json) for one in query.recentProgress]
        finally:
            query.stop()
            spark.stop()
    batches = [as_batch(one) for one in progress if one["numInputRows"]]
    return stored, [batch for batch in batches if batch.ended > stored[0].at]


def start(program: Any, spark: Any, servers: str, folder: str) -> Any:
    """The query: means of each minute into Parquet files and out to a stream again."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    rows = spark.readStream.format("liftbridge").options(servers=servers, startingOffsets="earliest")

    def keep(frame: Any, _: int) -> None:
        frame.persist()
        frame.write.mode("append").parquet(f"{folder}/means")
        texts = frame.selectExpr("key", "to_json(struct(n, mean)) as value")
        texts.write.format("liftbridge").option("servers", servers).mode("append").save("means")
        frame.unpersist()

    writer = (
        program.means_by_minute(rows.load("readings")).writeStream.outputMode("update").foreachBatch(keep)
    )
    return writer.trigger(processingTime=TRIGGER).option("checkpointLocation", f"{folder}/checkpoint").start()


def await_rows(gateway: GatewayCluster, query: Any) -> None:
    """Have the query do its first batches, which load what all the others need."""
    asyncio.run(publish(gateway, [], ((1.0, 100),)))
    limit = time.monotonic() + PATIENCE
    while not any(one.numInputRows for one in query.recentProgress):
        assert query.exception() is None, query.exception()
        assert time.monotonic() < limit, "the query has read nothing"
        time.sleep(0.1)


def as_batch(progress: dict[str, Any]) -> Batch:
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    took = progress["durationMs"]["triggerExecution"] / 1_000
    return Batch(began, began + took, progress["numInputRows"])


def lags(stored: Sequence[Stored], batches: Sequence[Batch]) -> list[tuple[float, int]]:
    """Return the lag in messages at each ack and at each end of a batch."""
    times, ends = [one.at for one in stored], [batch.ended for batch in batches]
    # What the first batches had is of before.
    read = [0]
    for batch in batches:
        read.append(read[-1] + batch.rows)
    before = max(0, read[-1] - stored[-1].count)
    found = []
    for at in sorted([*times, *ends]):
        there = bisect_right(times, at)
        done = read[bisect_right(ends, at)]
        found.append((at, max(0, before + (stored[there - 1].count if there else 0) - done)))
    return found


def rates(stored: Sequence[Stored], seconds: float = 1.0) -> list[tuple[float, float]]:
    """Messages per second, of each second."""
    found, last = [], Stored(stored[0].at - TICK, 0)
    for one in stored:
        if one.at - last.at >= seconds:
            found.append((one.at, (one.count - last.count) / (one.at - last.at)))
            last = one
    return found


def draw(stored: Sequence[Stored], batches: Sequence[Batch], path: Path) -> None:
    """Draw both over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    zero = stored[0].at
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), layout="constrained")
    published = rates(stored)
    above.plot(
        [at - zero for at, _ in published], [rate for _, rate in published], label="published and acked"
    )
    ends = [zero, *(batch.ended for batch in batches)]
    done = [batch.rows / (end - last) for batch, (last, end) in zip(batches, pairwise(ends), strict=True)]
    above.stairs(
        done, [end - zero for end in ends], label="in micro-batches that are done", color="tab:orange"
    )
    above.set_ylabel("throughput (rows/s)")
    above.legend(loc="upper right")
    behind = lags(stored, batches)
    times, rows = [at - zero for at, _ in behind], [rows for _, rows in behind]
    below.step(times, rows, where="post", color="tab:red", linewidth=1)
    below.set_ylabel("lag (rows stored, not yet done)")
    below.set_xlabel("time since the first message (s)")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle(f"NATS envelopes → gateway → Spark → Parquet and gateway, a trigger each {TRIGGER}")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes (%(default)s)")
    given = parser.parse_args()
    stored, batches = run(PHASES)
    draw(stored, batches, given.out)
    took = sorted(batch.ended - batch.began for batch in batches)
    print(f"{stored[-1].count:,} messages in {len(batches)} micro-batches, p50 {took[len(took) // 2]:.2f} s")


if __name__ == "__main__":
    main()

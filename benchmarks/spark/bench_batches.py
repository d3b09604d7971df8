"""What a micro-batch of a streaming query takes, beside one of Spark's own rate source; both into nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import monotonic, sleep
from typing import Any

from benchmarks.rounds import Comparison, Peer, Round
from benchmarks.spark.bench_sources import make_stream
from benchmarks.spark.streams import rows
from liftenvelope import bulk
from liftenvelope.testing import NatsServer

ROWS = 10
#: Batches that don't count: the first ones load what the others have.
WARM = 3
PATIENCE = 120.0


def _batches(frame: Callable[[], Any], count: int) -> Round:
    """The median of so many micro-batches, in seconds."""

    def run() -> float:
        query = frame().writeStream.format("noop").start()
        limit = monotonic() + PATIENCE
        try:
            while len(found := _taken(query)) < WARM + count:
                assert monotonic() < limit, "the batches did not come"
                assert query.exception() is None, query.exception()
                sleep(0.05)
        finally:
            query.stop()
        return median(found[WARM:]) / 1_000

    return run


def _taken(query: Any) -> list[int]:
    """What the batches that had rows took, in ms."""
    found = [json.loads(progress.json) for progress in query.recentProgress]
    return [one["durationMs"]["triggerExecution"] for one in found if one["numInputRows"]]


def test_micro_batch(compare: Comparison, spark: Any, jetstream: NatsServer) -> None:
    count = compare.amount(30, 2)
    url, most = jetstream.url, (WARM + count + 1) * ROWS
    stream = make_stream(url, storage="memory")
    bulk.write(url, stream, rows(most, 100), subject=stream)
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS}
    ours = spark.readStream.format("jetstream").options(servers=url, subscribe=stream, **given)
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    compare(
        f"micro-batch of {ROWS} rows, JetStream, p50: at most twice the other's time",
        _batches(ours.load, count),
        Peer("rate-micro-batch, p50", _batches(rate.load, count), 0.5),
        rounds=5,
    )

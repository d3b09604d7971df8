"""Time of a micro-batch of a streaming query, beside one of Spark's own rate source, both without a sink."""

from __future__ import annotations

from typing import Any

from benchmarks.rounds import Comparison, Peer
from benchmarks.spark.bench_sources import make_stream
from benchmarks.spark.streams import WARM, batches, rows
from liftenvelope import bulk
from liftenvelope.testing import NatsServer

ROWS = 10


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
        batches(lambda: ours.load().writeStream.format("noop"), count),
        Peer("rate-micro-batch, p50", batches(lambda: rate.load().writeStream.format("noop"), count), 0.5),
        rounds=5,
    )

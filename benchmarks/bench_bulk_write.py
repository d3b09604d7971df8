"""Bulk writes on real servers, beside nats.go and go-liftbridge."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pytest

from benchmarks.bulk_streams import make_stream, rows
from benchmarks.go_peers import GoPeers
from benchmarks.report import Report
from benchmarks.rounds import Comparison, Peer, Round
from liftenvelope.bulk.writing import write
from liftenvelope.testing import LiftbridgeCluster, NatsServer

#: Rows without their ack, of every writer.
WINDOW = 4_000


def _write_bulk(url: str, stream: str, table: pa.Table, **options: Any) -> Round:
    def run() -> float:
        count: int = table.num_rows
        began = perf_counter()
        assert write(url, stream, table, max_in_flight=WINDOW, **options).acked == count
        return (perf_counter() - began) / count

    return run


@pytest.mark.parametrize(("mode", "target"), [("pipelined", 1), ("fast", 2), ("atomic", None)])
def test_write_jetstream(
    compare: Comparison, jetstream: NatsServer, go: GoPeers, report: Report, mode: str, target: float | None
) -> None:
    count, url = compare.amount(100_000, 500), jetstream.url
    stream, by_go = (make_stream(url, allow_atomic=True, allow_batched=True) for _ in range(2))

    def run_go() -> float:
        flags = {"url": url, "subject": by_go, "n": count, "size": 100, "window": WINDOW}
        found = go.run("jetpublish", **flags)
        report.versions["nats.go"] = found["client"]
        assert found["acked"] == count
        return float(found["seconds"]) / count

    how = {"fast": "by fast ingest", "atomic": "in atomic batches of 1,000"}.get(
        mode, f"{WINDOW:,} in flight"
    )
    limit = "the server: its processor time for each message is many times the writer's"
    compare(
        f"bulk.write, JetStream, 100 B, {how}",
        _write_bulk(url, stream, rows(count, 100), subject=stream, mode=mode),
        Peer("nats.go PublishAsync", run_go, target, limit),
        rate=True,
        rounds=5,
    )


#: What keeps a write to Liftbridge from being any faster.
_BY_LIFTBRIDGE: Final = (
    "The servers are the limit: Liftbridge and its NATS server take some 17 us of processor time for a "
    "message, whoever publishes it, and the writer less than 2; the Go client takes 11."
)


def test_write_liftbridge(
    compare: Comparison, liftbridge: LiftbridgeCluster, go: GoPeers, report: Report
) -> None:
    count, address = compare.amount(50_000, 500), liftbridge.addresses[0]
    stream = f"bench-{uuid4().hex[:8]}"
    liftbridge.create_stream(stream)

    def by_go() -> float:
        found = go.run("publish", addr=address, stream=stream, n=count, window=WINDOW, size=256)
        assert (found["acked"], found["lost"], found["errors"]) == (count, 0, 0)
        report.versions["go-liftbridge"] = found["client"]
        return 1.0 / float(found["acked_per_s"])

    compare(
        f"bulk.write, Liftbridge, 256 B, {WINDOW:,} in flight",
        _write_bulk(address, stream, rows(count, 256), partition=0),
        Peer("go-liftbridge PublishAsync", by_go, 1.5, _BY_LIFTBRIDGE),
        rate=True,
        rounds=5,
    )
    liftbridge.delete_stream(stream)

"""The blocks of the pages on Spark run one after the other, on real servers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from liftenvelope import bulk
from liftenvelope.testing import LiftbridgeCluster, NatsServer
from tests.integration.bulk_streams import make_stream
from tests.integration.project.test_examples import ROOT, blocks
from tests.spark.streams import patiently

pytestmark = pytest.mark.timeout(900)


def run(text: str, name: str, names: dict[str, Any]) -> None:
    """Run a block; of a query that it starts, all that there is now."""
    before = names.get("query")
    exec(compile(text, name, "exec"), names)
    query = names.get("query")
    if query is not None and query is not before:
        query.processAllAvailable()


def test_every_block(
    spark: SparkSession, nats: NatsServer, liftbridge_server: LiftbridgeCluster, tmp_path: Path
) -> None:
    address = liftbridge_server.addresses[0]
    liftbridge_server.create_stream("orders", partitions=2)
    liftbridge_server.create_stream("counts", partitions=4, optimistic_concurrency=True)
    for name, subject in (("EVENTS", "events.new"), ("RESULTS", "results.new")):
        make_stream(nats.url, name)
        if name == "EVENTS":
            rows = pa.table({"value": [b"%d" % i for i in range(20)]})
            bulk.write(nats.url, name, rows, subject=f"{name}.{subject}")
    bulk.write(address, "orders", pa.table({"value": [b"tea"] * 3, "key": [b"k"] * 3}))
    real = {
        "broker-1:9292,broker-2:9292": address,
        "nats://localhost:4222": nats.url,
        "localhost:9292": address,
        "/data/checkpoints": str(tmp_path),
        "results.new": "RESULTS.new",
    }
    names: dict[str, Any] = {}
    found = [block for block in blocks(ROOT / "docs" / "spark.md") if block.info == "python spark"]
    for block in found:
        text = block.text
        for written, meant in real.items():
            text = text.replace(written, meant)
        patiently(partial(run, text, f"{block.page}:{block.line}", names))
    assert len(found) >= 5
    assert bulk.count(address, "orders") == 6
    assert bulk.count(nats.url, "RESULTS") == 20
    written = bulk.read(address, "counts", columns=["value"]).read_all()["value"].to_pylist()
    assert sorted(map(int, written)) == list(range(20))
    assert {names[one].isStreaming for one in ("opened", "same", "sql")} == {True}


def test_table_of_the_page_on_tables(spark: SparkSession, nats: NatsServer, tmp_path: Path) -> None:
    make_stream(nats.url, "ORDERS")
    orders = pa.table({"id": range(30), "item": ["tea"] * 30})
    bulk.write(nats.url, "ORDERS", orders, subject="ORDERS.new", payload="json")
    (block,) = [one for one in blocks(ROOT / "docs" / "spark-tables.md") if one.info == "python spark"]
    text = block.text.replace("nats://localhost:4222", nats.url).replace("/data/", f"{tmp_path}/")
    patiently(partial(run, text, f"{block.page}:{block.line}", {}))
    stored = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
    assert sorted(stored["id"].to_pylist()) == list(range(30))

"""foreachBatch into Delta and Iceberg tables, as examples/spark_tables.py does it: each row once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from liftenvelope import bulk
from liftenvelope.testing import NatsServer
from tests.integration.bulk_streams import jetstream, make_stream
from tests.spark.examples import run_program
from tests.spark.streams import finish
from tests.spark.table_program import TABLE, catalog_in, interrupted, names, write_into

pytestmark = pytest.mark.timeout(900)

ROWS = 1_000
#: Rows of a batch in the session of the tests.
BATCH = 200


def publish_orders(url: str, stream: str, start: int, count: int) -> None:
    numbers = range(start, start + count)
    rows = pa.table({"id": numbers, "item": ["tea"] * count})
    bulk.write(url, stream, rows, subject=f"{stream}.new", payload="json")


def rows_of(make: str, folder: Path) -> list[tuple[int, int]]:
    """Return offset and id of all rows of a table, sorted."""
    if make == "delta":
        table = DeltaTable(folder / "delta").to_pyarrow_table()
    else:
        table = catalog_in(folder).load_table(TABLE).scan().to_arrow()
    return sorted(zip(table["offset"].to_pylist(), table["id"].to_pylist(), strict=True))


def pairs(count: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(count)]


class Tables:
    """Queries of one stream into one table."""

    def __init__(self, spark: SparkSession, url: str, stream: str, make: str, folder: Path) -> None:
        self._frame = (
            spark.readStream.format("jetstream")
            .options(servers=url, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH))
            .options(payload=names()["SHAPE"])
            .load(stream)
            .select("offset", "timestamp", "id", "item")
        )
        self.write, self.folder = write_into(make, folder), folder
        self.batches: list[int] = []

    def run(self, write: Callable[[Any, int], None], checkpoint: str = "checkpoint") -> None:
        def recorded(frame: Any, batch: int) -> None:
            self.batches.append(batch)
            write(frame, batch)

        writer = self._frame.writeStream.foreachBatch(recorded)
        finish(writer.option("checkpointLocation", str(self.folder / checkpoint)))


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def tables(spark: SparkSession, nats: NatsServer, name: str, make: str, tmp_path: Path) -> Tables:
    make_stream(nats.url, name)
    publish_orders(nats.url, name, 0, ROWS)
    return Tables(spark, nats.url, name, make, tmp_path)


class TroubleError(Exception):
    """What a test interrupts a batch with."""


def trouble() -> None:
    raise TroubleError


@pytest.mark.parametrize("moment", ["0 after", "2 before", "2 after"])
def test_batch_that_failed_is_in_the_table_once(
    tables: Tables, make: str, moment: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="TroubleError"):
        tables.run(interrupted(tables.write, moment, trouble))
    tables.run(tables.write)
    failed = int(moment[0])
    assert tables.batches == [*range(failed + 1), *range(failed, 5)]
    assert rows_of(make, tmp_path) == pairs(ROWS)


def test_query_with_another_checkpoint_is_another_query(tables: Tables, make: str, tmp_path: Path) -> None:
    for checkpoint in ("one", "two"):
        tables.run(tables.write, checkpoint)
    assert rows_of(make, tmp_path) == sorted(pairs(ROWS) * 2)
    ids = {json.loads((tmp_path / at / "metadata").read_text())["id"] for at in ("one", "two")}
    if make == "delta":
        table = DeltaTable(tmp_path / "delta")
        assert {one: table.transaction_version(one) for one in ids} == dict.fromkeys(ids, 4)
    else:
        found = catalog_in(tmp_path).load_table(TABLE).properties
        assert {one: found[f"spark.batch.{one}"] for one in ids} == dict.fromkeys(ids, "4")


def test_killed_query_leaves_each_row_once(make: str, tmp_path: Path) -> None:
    with jetstream() as server:
        make_stream(server.url, "ORDERS")
        publish_orders(server.url, "ORDERS", 0, 5_000)
        for moment in ("0 after", "2 before", "2 after", "never"):
            work = ("-m", "tests.spark.table_program", make, server.url, str(tmp_path), moment)
            expected = 0 if moment == "never" else -signal.SIGKILL
            status, output = run_program(*work, folder=tmp_path)
            assert status == expected, output
    assert rows_of(make, tmp_path) == pairs(5_000)
